#include "schedule/memory/zero_limits.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace coxswain::memory {
namespace {

std::string SizeText(int64_t bytes) {
  if (bytes < 10 << 10) return absl::StrCat(bytes, " bytes");
  double size = static_cast<double>(bytes) / 1024;
  for (const char* unit : {"KiB", "MiB", "GiB"}) {
    if (size < 1024) return absl::StrFormat("%.1f %s", size, unit);
    size /= 1024;
  }
  return absl::StrFormat("%.1f TiB", size);
}

}  // namespace

absl::Status CheckZeroStage(int zero) {
  if (zero >= 0 && zero <= 2) return absl::OkStatus();
  if (zero == 3) {
    return absl::UnimplementedError(
        "zero=3 would divide the parameters, too, and there is no such stage "
        "here: parameters stay whole on each rank. zero=2 divides gradients "
        "and the optimizer's state, and offload keeps that state in the host's "
        "memory; what does not fit so, pp and tp divide");
  }
  return absl::InvalidArgumentError(
      absl::StrCat("zero is 0, 1 (each rank keeps a slice of the optimizer's "
                   "state) or 2 (and of the gradients), got ",
                   zero));
}

absl::Status RefuseZeroOfWindow(const WindowGradients& gradients,
                                const std::string& force) {
  const int64_t whole = gradients.bytes;
  const int64_t buckets = std::min(whole, kBucketsInFlight * gradients.bucket);
  const int64_t sharers = gradients.sharers;
  std::string slice = "a slice";
  std::string sent = absl::StrCat("nearly ", SizeText(whole));
  if (sharers > 0) {
    const int64_t own = (whole + sharers - 1) / sharers;
    slice = absl::StrCat("a slice of ", SizeText(own));
    sent = SizeText(whole - own);
  }
  const int again = gradients.micro_batches - 1;
  return absl::InvalidArgumentError(absl::StrCat(
      "zero=2 with a pipeline: a window's gradients are summed up whole on "
      "each rank until its last backward passes. ",
      gradients.rank, " holds ", SizeText(whole),
      " of them with zero=1; with zero=2 it holds as much until then, and ",
      slice, " and up to ", SizeText(buckets),
      " of buckets beside, and less only in the optimizer's step. To exchange "
      "each of ",
      gradients.micro_batches,
      " micro-batches in place of their sum would "
      "send ",
      again, " x ", sent,
      " more a step. Set zero=1, which keeps as much of the optimizer's state; "
      "or ",
      force, ", which runs zero=2 with the same numbers"));
}

}  // namespace coxswain::memory
