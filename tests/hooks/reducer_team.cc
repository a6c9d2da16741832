#include "tests/hooks/reducer_team.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "absl/time/time.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "client/comm/in_process/in_process_world.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "hooks/registry/registry.h"

namespace coxswain {
namespace {

constexpr uint64_t kStream = 21;
constexpr absl::Duration kSoon = absl::Seconds(60);

// Buckets of one to three parameters.
ReducerOptions SmallBuckets() {
  ReducerOptions options;
  options.buckets = {600, 1500};
  options.timeout = kSoon;
  return options;
}

}  // namespace

std::unique_ptr<WatchedHook> WatchedHook::Make(const std::string& spec) {
  auto hook = MakeHook(spec);
  EXPECT_OK(hook);
  return std::make_unique<WatchedHook>(spec, *std::move(hook));
}

WatchedHook::WatchedHook(std::string spec, std::unique_ptr<Hook> inner)
    : WrapperHook(std::move(spec), std::move(inner)) {}

absl::StatusOr<std::unique_ptr<Exchange>> WatchedHook::Prepare(
    const Bucket& bucket, Communicator& communicator) {
  if (bucket.index == 0) layout_.clear();
  std::vector<int>& parameters = layout_.emplace_back();
  for (const GradientSlot& slot : bucket.gradients) {
    parameters.push_back(slot.parameter);
  }
  if (needs_frozen_layout()) {
    EXPECT_TRUE(reducer_->layout_frozen()) << "step " << step();
  }
  return inner().Prepare(bucket, communicator);
}

ReducerTeam::ReducerTeam(const std::string& spec, int size,
                         const Configure& configure)
    : parameters_(OddParameters(DType::kFloat64)) {
  const auto world = InProcessWorld::Create(size, kSoon);
  for (int rank = 0; rank < size; ++rank) {
    communicators_.push_back(world->MakeRank(rank));
    hooks_.push_back(WatchedHook::Make(spec));
    ReducerOptions options = SmallBuckets();
    if (configure) configure(rank, options);
    auto made = Reducer::Create(options, parameters_, hooks_.back().get(),
                                communicators_.back().get());
    EXPECT_OK(made);
    reducers_.push_back(*std::move(made));
    hooks_.back()->Watch(reducers_.back().get());
    first_marked_.push_back(3 * rank);
  }
}

// The reducers end before what they use.
ReducerTeam::~ReducerTeam() { reducers_.clear(); }

std::vector<Gradients> ReducerTeam::Local(int64_t step) const {
  std::vector<Gradients> local;
  for (int rank = 0; rank < size(); ++rank) {
    local.push_back(NormalGradients(parameters_, kStream, rank, step));
  }
  return local;
}

Gradients ReducerTeam::Step(int64_t step) {
  const std::vector<Gradients> local = Local(step);
  OnRanks([&](int rank) {
    EXPECT_OK(reducer(rank).BeginStep());
    Mark(rank, local[Index(rank)]);
    return reducer(rank).Finish();
  });
  const Gradients result = Read(0);
  for (int rank = 1; rank < size(); ++rank) EXPECT_EQ(Read(rank), result);
  OnRanks([this](int rank) { return reducer(rank).Commit(); });
  return result;
}

void ReducerTeam::ChangeBuckets(const BucketPlanOptions& buckets) {
  OnRanks([&](int rank) { return reducer(rank).ChangeBuckets(buckets); });
}

void ReducerTeam::ChangeParameters(
    const std::vector<ParameterSpec>& parameters) {
  OnRanks([&](int rank) { return reducer(rank).ChangeParameters(parameters); });
  parameters_ = parameters;
}

void ReducerTeam::ChangeHook(const std::string& spec, bool carry_state,
                             const std::vector<std::string>& refused_with) {
  std::vector<std::unique_ptr<WatchedHook>> next;
  for (int rank = 0; rank < size(); ++rank) {
    next.push_back(WatchedHook::Make(spec));
    next.back()->Watch(&reducer(rank));
  }
  OnRanks([&](int rank) {
    const absl::Status status =
        reducer(rank).ChangeHook(next[Index(rank)].get(), carry_state);
    if (refused_with.empty()) return status;
    for (const std::string& text : refused_with) {
      EXPECT_THAT(status, StatusIs(absl::StatusCode::kFailedPrecondition,
                                   testing::HasSubstr(text)));
    }
    return absl::OkStatus();
  });
  if (refused_with.empty()) hooks_.swap(next);
}

HookState ReducerTeam::Save() {
  std::vector<HookState> shards(reducers_.size());
  OnRanks([&](int rank) -> absl::Status {
    COXSWAIN_ASSIGN_OR_RETURN(
        shards[Index(rank)],
        hook(rank).SaveState(*communicators_[Index(rank)]));
    return absl::OkStatus();
  });
  auto merged = MergeHookStates(std::move(shards));
  EXPECT_OK(merged);
  return merged.ok() ? *std::move(merged) : HookState();
}

void ReducerTeam::Load(const HookState& state) {
  OnRanks([&](int rank) { return hook(rank).LoadState(state, rank, size()); });
}

Layout ReducerTeam::BucketsNow() const {
  const Layout first = LayoutOf(0);
  for (int rank = 1; rank < size(); ++rank) EXPECT_EQ(LayoutOf(rank), first);
  return first;
}

void ReducerTeam::OnRanks(const std::function<absl::Status(int)>& call) {
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size(); ++rank) {
    threads.emplace_back(
        [&call, rank] { EXPECT_OK(call(rank)) << "rank " << rank; });
  }
  for (std::thread& thread : threads) thread.join();
}

void ReducerTeam::Mark(int rank, const Gradients& values) {
  const int count = static_cast<int>(values.size());
  for (int i = 0; i < count; ++i) {
    const int parameter = (first_marked_[Index(rank)] + i) % count;
    const Span view = reducer(rank).GradientView(parameter);
    const std::vector<double>& from = values[Index(parameter)];
    ASSERT_EQ(view.count, static_cast<int64_t>(from.size()));
    std::copy(from.begin(), from.end(), static_cast<double*>(view.data));
    EXPECT_OK(reducer(rank).MarkReady(parameter));
  }
}

Gradients ReducerTeam::Read(int rank) const {
  Gradients values;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const Span view = reducers_[Index(rank)]->GradientView(static_cast<int>(i));
    const auto* data = static_cast<const double*>(view.data);
    values.emplace_back(data, data + view.count);
  }
  return values;
}

Layout ReducerTeam::LayoutOf(int rank) const {
  Layout layout;
  for (const Bucket& bucket : reducers_[Index(rank)]->buckets()) {
    std::vector<int>& parameters = layout.emplace_back();
    for (const GradientSlot& slot : bucket.gradients) {
      parameters.push_back(slot.parameter);
    }
  }
  return layout;
}

HookWorld UnchangedWorld(const std::string& spec, int size) {
  return HookWorld(spec, OddParameters(DType::kFloat64), size);
}

void ExpectSameSteps(ReducerTeam& team, HookWorld& expected, int64_t from,
                     int64_t to) {
  for (int64_t step = from; step < to; ++step) {
    EXPECT_EQ(team.Step(step), expected.Step(team.Local(step)))
        << "step " << step;
  }
}

}  // namespace coxswain
