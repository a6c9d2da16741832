#ifndef COXSWAIN_TESTS_HOOKS_REDUCER_TEAM_H_
#define COXSWAIN_TESTS_HOOKS_REDUCER_TEAM_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "client/comm/communicator.h"
#include "client/reduce/reducer.h"
#include "hooks/wrapper_hook.h"
#include "tests/conformance/hook_world.h"

namespace coxswain {

// Which parameters each bucket has, in order.
using Layout = std::vector<std::vector<int>>;

// Watches a hook's buckets: fails the test if something is compressed before
// the layout is frozen.
class WatchedHook : public WrapperHook {
 public:
  static std::unique_ptr<WatchedHook> Make(const std::string& spec);

  WatchedHook(std::string spec, std::unique_ptr<Hook> inner);

  void Watch(const Reducer* reducer) { reducer_ = reducer; }
  // Returns the layout of the step prepared last.
  const Layout& layout() const { return layout_; }

  absl::StatusOr<std::unique_ptr<Exchange>> Prepare(
      const Bucket& bucket, Communicator& communicator) override;

 private:
  const Reducer* reducer_ = nullptr;
  Layout layout_;
};

// The ranks of a job in this process, each with a reducer, driven by the thread
// that calls. Their model has OddParameters in float64, at first in several
// small buckets, and each marks its gradients in an order of its own. A failure
// fails the test.
class ReducerTeam {
 public:
  // `configure` may change a rank's options.
  using Configure = std::function<void(int rank, ReducerOptions& options)>;

  ReducerTeam(const std::string& spec, int size,
              const Configure& configure = nullptr);
  ~ReducerTeam();

  int size() const { return static_cast<int>(communicators_.size()); }
  const std::vector<ParameterSpec>& parameters() const { return parameters_; }
  Reducer& reducer(int rank) { return *reducers_[Index(rank)]; }
  WatchedHook& hook(int rank) { return *hooks_[Index(rank)]; }
  Communicator& communicator(int rank) { return *communicators_[Index(rank)]; }

  // Makes a rank mark the parameters in order of registration, from this one on
  // and around. At first, rank 0 begins with parameter 0.
  void MarkFrom(int rank, int first) { first_marked_[Index(rank)] = first; }

  // Returns each rank's gradients of a step: a pure function of step and
  // parameters.
  std::vector<Gradients> Local(int64_t step) const;

  // Exchanges and commits a step. Checks that all ranks hold the same bits, and
  // returns them.
  Gradients Step(int64_t step);

  void ChangeBuckets(const BucketPlanOptions& buckets);
  void ChangeParameters(const std::vector<ParameterSpec>& parameters);
  // Expects OK, or, if there are texts, FAILED_PRECONDITION with all of them on
  // all ranks.
  void ChangeHook(const std::string& spec, bool carry_state,
                  const std::vector<std::string>& refused_with = {});

  // Save returns all shards of the hooks' state, merged; Load takes them.
  HookState Save();
  void Load(const HookState& state);

  // Returns the buckets; checks that they are the same on all ranks.
  Layout BucketsNow() const;

  // The parts of a step, for tests that do it otherwise.
  //
  // Calls `call` for each rank, all at the same time, and expects OK.
  void OnRanks(const std::function<absl::Status(int)>& call);
  void Mark(int rank, const Gradients& values);
  Gradients Read(int rank) const;

 private:
  static size_t Index(int rank) { return static_cast<size_t>(rank); }
  Layout LayoutOf(int rank) const;

  std::vector<ParameterSpec> parameters_;
  std::vector<int> first_marked_;
  std::vector<std::unique_ptr<Communicator>> communicators_;
  std::vector<std::unique_ptr<WatchedHook>> hooks_;
  std::vector<std::unique_ptr<Reducer>> reducers_;
};

// Returns the same job without a reducer, whose buckets never change.
HookWorld UnchangedWorld(const std::string& spec, int size);

// Steps [from, to) of both; expects the same bits.
void ExpectSameSteps(ReducerTeam& team, HookWorld& expected, int64_t from,
                     int64_t to);

}  // namespace coxswain

#endif  // COXSWAIN_TESTS_HOOKS_REDUCER_TEAM_H_
