#include "tests/fuzz/fuzz_target.h"
#include "tests/fuzz/services.h"

namespace coxswain {

const std::vector<FuzzTarget>& FuzzTargets() {
  static const auto* const targets = new std::vector<FuzzTarget>{
      {"services", FuzzServices, 150},
      {"streams", FuzzStreams, 150},
  };
  return *targets;
}

}  // namespace coxswain
