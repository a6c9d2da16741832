#include "base/random.h"

#include <unistd.h>

#include "base/box_muller.h"
#include "base/check.h"

namespace coxswain {
namespace {

class SystemRandom : public RandomSource {
 public:
  uint64_t Next() override {
    uint64_t bits = 0;
    COXSWAIN_CHECK(getentropy(&bits, sizeof(bits)) == 0);
    return bits;
  }
};

}  // namespace

RandomSource* RandomSource::System() {
  static SystemRandom* const source = new SystemRandom;
  return source;
}

uint64_t StableHash(absl::string_view text) {
  uint64_t hash = 0xcbf29ce484222325ull;
  for (const char c : text) {
    hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3ull;
  }
  return Mix64(hash);
}

double CounterRandom::Normal(uint64_t index) const {
  return BoxMuller(Uniform(2 * index), Uniform(2 * index + 1));
}

}  // namespace coxswain
