#ifndef COXSWAIN_TESTS_FUZZ_CORPUS_H_
#define COXSWAIN_TESTS_FUZZ_CORPUS_H_

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace coxswain {

// One input that a target begins with, or that broke it once.
struct FuzzSeed {
  std::string file;
  std::string bytes;
};

// Returns the files in tests/fuzz/corpus/<target>, sorted by name; none if
// there is no such folder.
std::vector<FuzzSeed> ReadCorpus(absl::string_view target);

}  // namespace coxswain

#endif  // COXSWAIN_TESTS_FUZZ_CORPUS_H_
