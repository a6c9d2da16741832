#include "client/reduce/step_digest.h"

#include <cmath>
#include <cstring>

#include "base/random.h"

namespace coxswain {
namespace {

uint64_t Bits(double value) {
  // There are many that are not a number, and nobody promises which.
  if (std::isnan(value)) return 1;
  uint64_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}

uint64_t Combine(uint64_t hash, uint64_t bits) {
  return Mix64(hash ^ Mix64(bits));
}

}  // namespace

uint64_t HashLayout(const std::vector<Bucket>& buckets) {
  uint64_t hash = buckets.size();
  for (const Bucket& bucket : buckets) {
    hash = Combine(hash, static_cast<uint64_t>(bucket.data.dtype));
    hash = Combine(hash, bucket.gradients.size());
    for (const GradientSlot& slot : bucket.gradients) {
      hash = Combine(hash, static_cast<uint64_t>(slot.parameter));
      hash = Combine(hash, static_cast<uint64_t>(slot.offset));
      hash = Combine(hash, static_cast<uint64_t>(slot.count));
    }
  }
  return hash;
}

void StepDigest::Mix(uint64_t bits) { value_ = Combine(value_, bits); }

void StepDigest::Add(const StepReport& report, int64_t collectives,
                     bool same_averages) {
  Mix(static_cast<uint64_t>(report.step));
  Mix(report.empty ? 1 : 0);
  for (const BucketTiming& bucket : report.buckets) {
    Mix(static_cast<uint64_t>(bucket.gradient_bytes));
  }
  Mix(static_cast<uint64_t>(collectives));
  if (!same_averages) return;
  Mix(Bits(report.gradient_norm));
  Mix(static_cast<uint64_t>(report.non_finite));
}

}  // namespace coxswain
