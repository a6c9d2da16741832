#ifndef COXSWAIN_TESTS_PROPERTY_EXPECTATION_H_
#define COXSWAIN_TESTS_PROPERTY_EXPECTATION_H_

#include <cstddef>
#include <string>
#include <vector>

#include "tests/conformance/hook_world.h"
#include "tests/property/meaning.h"
#include "tests/property/record.h"

namespace coxswain::property {

// One step of all ranks, and what its averages have to be.
class Expectation {
 public:
  // One RankStep per rank, which outlive it. `earlier`: by parameter of the
  // case, the largest Scale of earlier steps, since an error that is small by
  // cancellation has the roundings of what was cancelled.
  Expectation(std::vector<const RankStep*> ranks, std::vector<double> earlier);

  const Meaning& meaning() const { return meaning_; }
  // Returns whether the hook averages plainly in this step, with known
  // roundings.
  bool exact() const { return exact_; }

  // Returns what the hooks average, by rank and the reducer's parameter
  // numbers: the gradients, weighted where ranks have weights.
  const std::vector<Gradients>& given() const { return given_; }
  // Returns what `rank` has to hold when the hook is done.
  const Gradients& averages(size_t rank) const;
  // Returns what the ranks bring, errors included, as a mean of 2-norms.
  double Scale(size_t parameter) const;
  // Returns how far the elements of a parameter may lie off, together (2-norm).
  double Tolerance(size_t parameter) const;
  // Returns half the distance between neighbours of 1 in the coarsest type that
  // a plain average of the parameter passes through.
  double CoarsestUnit(size_t parameter) const;
  // Returns whether averages() is known.
  bool known() const { return !averages_.empty(); }
  // Returns the 2-norm of averages(rank).
  double NormOf(size_t rank) const;

  // Returns the mean over the ranks of the errors that the hooks hold back.
  Gradients MeanErrorOf(bool after) const;
  // Returns how much of `given` + error may be lost by roundings, likewise.
  double ConservationTolerance(size_t parameter) const;

 private:
  // Returns the shares by rank, as Bucket::share, and the gradients as they
  // come.
  std::vector<double> Shares() const;
  std::vector<Gradients> Own() const;
  std::vector<Gradients> Given() const;
  void Emulate();
  void FollowFormulas();
  // Returns the formulas' averages, from the hooks' state; with everything that
  // goes in changed by about `noise`, relatively.
  Gradients Formulas(double noise) const;
  double Smallest(size_t parameter) const;

  const std::vector<const RankStep*> ranks_;
  const std::vector<double> earlier_;
  const std::vector<ParameterSpec>& parameters_;
  const Meaning meaning_;
  bool exact_ = true;
  std::vector<Gradients> given_;
  std::vector<Gradients> averages_;  // one, or one by rank
  // By how much roundings may change the averages of the formulas.
  std::vector<double> sensitivity_;
};

// Returns half of the distance between 1 and the next value of the type.
double UnitOf(DType dtype);

// Returns "" if the shards fit together as `state`; else what does not.
std::string Merged(const std::vector<const SavedState*>& saved,
                   HookState& state);

}  // namespace coxswain::property

#endif  // COXSWAIN_TESTS_PROPERTY_EXPECTATION_H_
