// The short run of the fuzzers: every target over its corpus, and over a fixed
// number of damaged copies of it. docs/fuzzing.md has the long run.
//
// COXSWAIN_FUZZ_SEED repeats a run; what was being run when the process died is
// in the file that the test names.

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <iostream>
#include <ostream>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/logging.h"
#include "base/unique_fd.h"
#include "gtest/gtest.h"
#include "tests/fuzz/corpus.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/fuzz/mutator.h"

namespace coxswain {

void PrintTo(const FuzzTarget& target, std::ostream* out) {
  *out << target.name;
}

namespace {

constexpr uint64_t kSeed = 20261123;

uint64_t Seed() {
  const char* const text = std::getenv("COXSWAIN_FUZZ_SEED");
  uint64_t seed = kSeed;
  if (text != nullptr) COXSWAIN_CHECK(absl::SimpleAtoi(text, &seed));
  return seed;
}

std::string OutputFolder() {
  for (const char* name : {"TEST_UNDECLARED_OUTPUTS_DIR", "TEST_TMPDIR"}) {
    const char* const folder = std::getenv(name);
    if (folder != nullptr) return folder;
  }
  return ".";
}

// A file with the input that is being run: still there when that ends the
// process, however it does.
class LastInput {
 public:
  explicit LastInput(const std::string& target)
      : path_(absl::StrCat(OutputFolder(), "/", target, ".last")),
        fd_(open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644)) {
    COXSWAIN_CHECK(ftruncate(fd_.get(), kCapacity) == 0);
    memory_ = static_cast<char*>(mmap(
        nullptr, kCapacity, PROT_READ | PROT_WRITE, MAP_SHARED, fd_.get(), 0));
    COXSWAIN_CHECK(memory_ != MAP_FAILED);
  }
  ~LastInput() {
    munmap(memory_, kCapacity);
    unlink(path_.c_str());
  }

  const std::string& path() const { return path_; }
  // Four bytes of length, then the input.
  void Note(const std::string& input) {
    const auto size = static_cast<uint32_t>(input.size());
    if (sizeof(size) + input.size() > kCapacity) return;
    std::memcpy(memory_, &size, sizeof(size));
    std::memcpy(memory_ + sizeof(size), input.data(), input.size());
  }

 private:
  static constexpr size_t kCapacity = 1 << 20;
  const std::string path_;
  const UniqueFd fd_;
  char* memory_ = nullptr;
};

class FuzzTest : public testing::TestWithParam<FuzzTarget> {
 protected:
  static void SetUpTestSuite() { SetLogLevel("off"); }
};

TEST_P(FuzzTest, TakesItsCorpusAndWhatIsLikeIt) {
  const FuzzTarget& target = GetParam();
  const std::vector<FuzzSeed> seeds = ReadCorpus(target.name);
  ASSERT_FALSE(seeds.empty()) << "no tests/fuzz/corpus/" << target.name;
  LastInput last(target.name);
  std::cout << target.name << ": " << seeds.size() << " files, "
            << target.mutations << " mutations, COXSWAIN_FUZZ_SEED=" << Seed()
            << ", input in " << last.path() << std::endl;
  std::vector<std::string> corpus;
  for (const FuzzSeed& seed : seeds) {
    last.Note(seed.bytes);
    target.run(seed.bytes);
    corpus.push_back(seed.bytes);
  }
  target.run("");
  Mutator mutator(corpus, Seed());
  for (int i = 0; i < target.mutations; ++i) {
    const std::string input = mutator.Next();
    last.Note(input);
    target.run(input);
  }
}

INSTANTIATE_TEST_SUITE_P(All, FuzzTest, testing::ValuesIn(FuzzTargets()),
                         [](const auto& tested) {
                           return std::string(tested.param.name);
                         });

}  // namespace
}  // namespace coxswain
