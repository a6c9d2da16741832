#ifndef COXSWAIN_TESTS_FUZZ_MUTATOR_H_
#define COXSWAIN_TESTS_FUZZ_MUTATOR_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/random.h"

namespace coxswain {

// Damages inputs at random, without a look at what the code does with them: for
// the short run of fuzz_test. libFuzzer, which looks, has its own.
//
// The n-th mutation of a corpus is a pure function of the seed. Not
// thread-safe.
class Mutator {
 public:
  static constexpr size_t kMaxBytes = 4096;

  Mutator(std::vector<std::string> corpus, uint64_t seed);

  std::string Next();

 private:
  uint64_t Draw() { return random_.Bits(drawn_++); }
  size_t Below(size_t count) { return count == 0 ? 0 : Draw() % count; }
  const std::string& Pick() { return corpus_[Below(corpus_.size())]; }
  void Change(std::string* bytes);
  void Overwrite(std::string* bytes);
  void OverwriteNumber(std::string* bytes);
  void Insert(std::string* bytes);
  void Erase(std::string* bytes);
  void Repeat(std::string* bytes);
  void Splice(std::string* bytes);

  const std::vector<std::string> corpus_;  // not empty
  const CounterRandom random_;
  uint64_t drawn_ = 0;
};

}  // namespace coxswain

#endif  // COXSWAIN_TESTS_FUZZ_MUTATOR_H_
