#ifndef COXSWAIN_TESTS_PROPERTY_STEP_ORACLE_H_
#define COXSWAIN_TESTS_PROPERTY_STEP_ORACLE_H_

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "tests/property/case.h"
#include "tests/property/expectation.h"
#include "tests/property/record.h"

namespace coxswain::property {

bool Same(const Elements& a, const Elements& b);
// Returns "WHAT is {1}, not {2}".
std::string Differ(absl::string_view what, const Elements& is,
                   const Elements& ought);

// The oracle of one step of a run.
class StepOracle {
 public:
  // `apart`: parameters differ between ranks. `earlier`: see Expectation.
  StepOracle(const Case& one, std::vector<const RankStep*> ranks, bool apart,
             std::vector<double> earlier)
      : case_(one),
        ranks_(std::move(ranks)),
        apart_(apart),
        expectation_(ranks_, std::move(earlier)) {}

  // Returns "" or the first finding; see Verdict.
  std::string Check(const StepCase& step) const;
  const Expectation& expectation() const { return expectation_; }

 private:
  const RankStep& first() const { return *ranks_[0]; }
  std::string On(size_t rank, size_t parameter) const;
  // Returns whether it is known that no rank has used it.
  bool Untouched(size_t parameter) const;

  std::string Layout() const;
  std::string Bookkeeping() const;
  std::string Gradients() const;
  std::string Gradient(size_t rank, size_t slot) const;
  std::string Average(size_t rank, size_t slot) const;
  std::string Moved(size_t rank, size_t slot) const;
  std::string Nearness() const;
  std::string Nearness(size_t slot) const;
  std::string Statistics() const;
  std::string State(bool applied) const;
  std::string SamePartsOf(const HookState& alone) const;
  std::string Conservation(const StepCase& step) const;
  std::string Buffers() const;

  const Case& case_;
  const std::vector<const RankStep*> ranks_;
  const bool apart_;
  const Expectation expectation_;
};

}  // namespace coxswain::property

#endif  // COXSWAIN_TESTS_PROPERTY_STEP_ORACLE_H_
