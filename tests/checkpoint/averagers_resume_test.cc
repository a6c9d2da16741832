#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "client/comm/in_process/in_process_world.h"
#include "gtest/gtest.h"
#include "hooks/registry/registry.h"
#include "tests/checkpoint/replay.h"
#include "tests/checkpoint/stored_jobs.h"
#include "tests/support/in_threads.h"

// Averagers keep what does not depend on the number of ranks, and are linear in
// the ranks' parameters: with gradients of the same mean, the parameters that
// another number of ranks agrees on are those of the uninterrupted run.

namespace coxswain {
namespace {

constexpr int64_t kStartStep = 2;  // of all specs below
constexpr int64_t kSavedAt = 13;
constexpr int64_t kEnd = 23;
constexpr double kRate = 1.0 / 64;

double Read(const Span& span, size_t i) {
  if (span.dtype == DType::kFloat64) return static_cast<double*>(span.data)[i];
  return double{static_cast<float*>(span.data)[i]};
}

void Write(const Span& span, size_t i, double value) {
  if (span.dtype == DType::kFloat64) {
    static_cast<double*>(span.data)[i] = value;
  } else {
    static_cast<float*>(span.data)[i] = static_cast<float>(value);
  }
}

// The ranks of a job that trains with an averager.
class AveragedJob {
 public:
  AveragedJob(std::string spec, DType dtype, int size, const Gradients& values)
      : parameters_(ResumeModel(dtype)), ranks_(static_cast<size_t>(size)) {
    const auto world = InProcessWorld::Create(size, absl::Seconds(30));
    InThreads(size, [&](int number) {
      Rank& rank = At(number);
      rank.communicator = world->MakeRank(number);
      rank.hook = *MakeHook(spec);
      rank.averager = *MakeAverager(spec);
      Allocate(rank, values);
      EXPECT_OK(rank.hook->Configure(parameters_, size));
      EXPECT_OK(rank.averager->Configure(parameters_, rank.values,
                                         *rank.communicator));
    });
  }

  int size() const { return static_cast<int>(ranks_.size()); }
  Averager& averager(int rank) { return *At(rank).averager; }

  // A step of plain gradient descent.
  void Step(int64_t step) {
    auto local = Replayed(parameters_, Signal::kShared, size(), step);
    // The hook averages them.
    if (step < kStartStep) local.assign(local.size(), MeanOver(local));
    InThreads(size(), [&](int number) {
      Rank& rank = At(number);
      for (size_t p = 0; p < rank.values.size(); ++p) {
        const auto& gradient = local[static_cast<size_t>(number)][p];
        for (size_t i = 0; i < gradient.size(); ++i) {
          Write(rank.values[p], i,
                Read(rank.values[p], i) - kRate * gradient[i]);
        }
      }
      EXPECT_OK(rank.averager->AfterOptimizerStep(rank.values));
    });
  }

  // Returns the parameters that all ranks agree on.
  Gradients Agree() {
    InThreads(size(), [&](int rank) {
      EXPECT_OK(averager(rank).AverageNow(At(rank).values));
    });
    for (int rank = 1; rank < size(); ++rank) {
      EXPECT_EQ(Values(rank), Values(0));
    }
    return Values(0);
  }

  TrainingState SaveAndLoad(StoredJobs& jobs, int64_t step) {
    return jobs.SaveAndLoad(
        size(), [&](CheckpointClient& checkpoints, int number) {
          Rank& rank = At(number);
          return SaveTrainingState(checkpoints, *rank.communicator, step,
                                   *rank.hook, {}, {}, rank.averager.get());
        });
  }

  void Load(const TrainingState& state) {
    for (int rank = 0; rank < size(); ++rank) {
      EXPECT_OK(At(rank).hook->LoadState(state.hook, rank, size()));
      EXPECT_OK(averager(rank).LoadState(state.averager, rank, size()));
    }
  }

 private:
  struct Rank {
    std::unique_ptr<Communicator> communicator;
    std::unique_ptr<Hook> hook;
    std::unique_ptr<Averager> averager;
    std::vector<std::string> memory;
    std::vector<Span> values;
  };
  Rank& At(int rank) { return ranks_[static_cast<size_t>(rank)]; }

  void Allocate(Rank& rank, const Gradients& values) {
    for (const ParameterSpec& parameter : parameters_) {
      Span span;
      span.count = parameter.count();
      span.dtype = parameter.dtype;
      rank.values.push_back(span);
      rank.memory.emplace_back(static_cast<size_t>(span.bytes()) + 1, '\0');
    }
    for (size_t p = 0; p < values.size(); ++p) {
      rank.values[p].data = rank.memory[p].data();
      for (size_t i = 0; i < values[p].size(); ++i) {
        Write(rank.values[p], i, values[p][i]);
      }
    }
  }

  Gradients Values(int rank) {
    Gradients values;
    for (const Span& span : At(rank).values) {
      values.emplace_back();
      for (size_t i = 0; i < static_cast<size_t>(span.count); ++i) {
        values.back().push_back(Read(span, i));
      }
    }
    return values;
  }

  const std::vector<ParameterSpec> parameters_;
  std::vector<Rank> ranks_;
};

struct Case {
  std::string name;
  std::string spec;
};

class AveragersResume : public testing::TestWithParam<Case> {};

TEST_P(AveragersResume, OtherNumbersOfRanksAgreeOnTheSameParameters) {
  StoredJobs jobs(absl::StrCat(testing::TempDir(), "/", GetParam().name));
  for (const auto& [dtype, bound] :
       {std::pair{DType::kFloat32, 1e-6}, {DType::kFloat64, 1e-12}}) {
    const auto parameters = ResumeModel(dtype);
    const Gradients initial = NormalGradients(parameters, 5, 0, 0);
    for (const auto& [before, after] :
         {std::pair{4, 2}, {2, 8}, {4, 8}, {8, 1}, {1, 4}, {4, 4}}) {
      jobs.Begin();
      AveragedJob whole(GetParam().spec, dtype, before, initial);
      for (int64_t step = 0; step < kSavedAt; ++step) whole.Step(step);
      const Gradients saved = whole.Agree();
      const TrainingState state = whole.SaveAndLoad(jobs, kSavedAt);
      AveragedJob resumed(GetParam().spec, dtype, after, saved);
      resumed.Load(state);
      EXPECT_EQ(resumed.averager(0).step(), kSavedAt);
      // When ranks are apart depends on how many there are.
      AveragedJob as_many(GetParam().spec, dtype, after, initial);
      for (int64_t step = 0; step < kSavedAt; ++step) as_many.Step(step);
      (void)as_many.Agree();
      for (int64_t step = kSavedAt; step < kEnd; ++step) {
        EXPECT_EQ(resumed.averager(0).diverged(),
                  as_many.averager(0).diverged());
        as_many.Step(step);
        whole.Step(step);
        resumed.Step(step);
      }
      EXPECT_LE(RelativeDifference(resumed.Agree(), whole.Agree()), bound)
          << before << " to " << after;
      EXPECT_LE(WorstGroup(resumed.Agree(), whole.Agree(),
                           {{0}, {1}, {2}, {3}, {4}, {6}, {7}, {8}, {9}}),
                bound)
          << before << " to " << after;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Averagers, AveragersResume,
    testing::Values(Case{"PostLocalSgd",
                         "post_local_sgd(start_step=2,period=4)"},
                    Case{"PostLocalSgdInPairs",
                         "post_local_sgd(start_step=2,period=3,subgroup=2)"},
                    Case{"HierarchicalSgd",
                         "hierarchical_sgd(start_step=2,levels=2x2+4xall)"},
                    Case{"Diloco", "diloco(start_step=2,inner_steps=4)"}),
    [](const testing::TestParamInfo<Case>& info) { return info.param.name; });

}  // namespace
}  // namespace coxswain
