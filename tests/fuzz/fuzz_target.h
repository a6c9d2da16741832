#ifndef COXSWAIN_TESTS_FUZZ_FUZZ_TARGET_H_
#define COXSWAIN_TESTS_FUZZ_FUZZ_TARGET_H_

#include <vector>

#include "absl/strings/string_view.h"

namespace coxswain {

// One decoder, or one component behind its service, that is given bytes from an
// untrusted source. `run` ends the process where the code under test breaks a
// promise: a crash, a sanitizer's report, or a COXSWAIN_CHECK of the target
// itself (what was read is written and read again to the same, and the like).
// An error of the code under test is a valid answer.
//
// Pure: the same bytes do the same, and nothing is left behind.
struct FuzzTarget {
  const char* name;  // of its corpus, tests/fuzz/corpus/<name>
  void (*run)(absl::string_view input);
  // Mutated inputs of one run of fuzz_test. A count, so that the run is the
  // same on every machine.
  int mutations;
};

// Returns all of them.
const std::vector<FuzzTarget>& FuzzTargets();

}  // namespace coxswain

#endif  // COXSWAIN_TESTS_FUZZ_FUZZ_TARGET_H_
