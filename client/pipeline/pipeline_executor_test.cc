#include "client/pipeline/pipeline_executor.h"

#include <algorithm>
#include <fstream>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "client/comm/shm/shm_communicator.h"
#include "client/comm/tcp/tcp_communicator.h"
#include "client/pipeline/trace_actions.h"
#include "schedule/pipeline/generate.h"
#include "tests/conformance/connected_group.h"

namespace coxswain {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr absl::Duration kMinute = absl::Minutes(1);

Activation Doubles(const std::vector<double>& values) {
  auto memory = std::make_shared<std::vector<double>>(values);
  void* const data = memory->data();
  return {DType::kFloat64,
          {static_cast<int64_t>(values.size())},
          std::shared_ptr<void>(memory, data)};
}
std::vector<double> ValuesOf(const Activation& tensor) {
  std::vector<double> values(static_cast<size_t>(tensor.elements()));
  const auto* const data = static_cast<const double*>(tensor.memory.get());
  std::copy_n(data, values.size(), values.begin());
  return values;
}
Activation Mask(std::vector<int64_t> values) {
  auto memory = std::make_shared<std::vector<int64_t>>(std::move(values));
  void* const data = memory->data();
  const auto count = static_cast<int64_t>(memory->size());
  return {DType::kInt64, {count}, std::shared_ptr<void>(memory, data)};
}

// Micro-batches are of different sizes, the third one without elements.
size_t SizeOfMicroBatch(int micro_batch) {
  return micro_batch == 2 ? 0 : static_cast<size_t>(1 + micro_batch * 97 % 211);
}
double InputOf(int micro_batch, size_t i) {
  return static_cast<double>((static_cast<size_t>(micro_batch) * 5 + i) % 7);
}

// y = w x, elementwise and in whole numbers, so that all sums are exact; with a
// mask of integers that goes through all stages, and has no gradient. The loss
// is the sum of the last y where the mask is not zero.
class ToyStage : public StageRunner {
 public:
  ToyStage(int stage, bool last) : stage_(stage), last_(last) {}

  absl::Status Forward(int micro_batch, Activations inputs,
                       Activations* outputs) override {
    if (micro_batch == fails_at) return absl::DataLossError("the toy fails");
    std::vector<double> x(SizeOfMicroBatch(micro_batch));
    std::vector<int64_t> mask(x.size());
    if (stage_ == 0) {
      for (size_t i = 0; i < x.size(); ++i) {
        x[i] = InputOf(micro_batch, i);
        mask[i] = static_cast<int64_t>(i % 3);
      }
    } else {
      EXPECT_EQ(inputs.size(), 2u);
      x = ValuesOf(inputs[0]);
      std::copy_n(static_cast<const int64_t*>(inputs[1].memory.get()),
                  mask.size(), mask.begin());
    }
    EXPECT_EQ(x.size(), SizeOfMicroBatch(micro_batch));
    std::vector<double> y(x.size());
    for (size_t i = 0; i < x.size(); ++i) y[i] = weight() * x[i];
    kept_[micro_batch] = x;
    masks_[micro_batch] = mask;
    if (last_) {
      for (size_t i = 0; i < y.size(); ++i) loss += mask[i] != 0 ? y[i] : 0;
      return absl::OkStatus();
    }
    *outputs = {Doubles(y), Mask(mask)};
    return absl::OkStatus();
  }

  absl::Status BackwardInput(int micro_batch, Activations output_gradients,
                             Activations* input_gradients) override {
    const std::vector<double>& x = kept_.at(micro_batch);
    std::vector<double> gradient(x.size());
    if (last_) {
      EXPECT_TRUE(output_gradients.empty());
      for (size_t i = 0; i < x.size(); ++i) {
        gradient[i] = masks_.at(micro_batch)[i] != 0 ? 1 : 0;
      }
    } else {
      EXPECT_EQ(output_gradients.size(), 2u);
      EXPECT_TRUE(output_gradients[1].absent);
      gradient = ValuesOf(output_gradients[0]);
    }
    std::vector<double> back(x.size());
    for (size_t i = 0; i < x.size(); ++i) back[i] = weight() * gradient[i];
    gradients_[micro_batch] = gradient;
    if (stage_ > 0) {
      *input_gradients = {Doubles(back),
                          {DType::kInt64, {}, nullptr, /*absent=*/true}};
    }
    return absl::OkStatus();
  }

  absl::Status BackwardWeight(int micro_batch) override {
    const std::vector<double>& x = kept_.at(micro_batch);
    for (size_t i = 0; i < x.size(); ++i) {
      weight_gradient += x[i] * gradients_.at(micro_batch)[i];
    }
    kept_.erase(micro_batch);
    gradients_.erase(micro_batch);
    return absl::OkStatus();
  }

  absl::Status Backward(int micro_batch, Activations output_gradients,
                        Activations* input_gradients) override {
    COXSWAIN_RETURN_IF_ERROR(BackwardInput(
        micro_batch, std::move(output_gradients), input_gradients));
    return BackwardWeight(micro_batch);
  }

  bool splits_backward() const override { return splits; }
  void Reset() override { kept_.clear(); }
  bool holds_nothing() const { return kept_.empty(); }

  double loss = 0;
  double weight_gradient = 0;
  int fails_at = -1;
  bool splits = true;

 private:
  double weight() const { return 2 + stage_ % 2; }

  const int stage_;
  const bool last_;
  std::map<int, std::vector<double>> kept_;
  std::map<int, std::vector<double>> gradients_;
  std::map<int, std::vector<int64_t>> masks_;
};

pipeline::Schedule ScheduleOf(const std::string& text, int ranks,
                              int micro_batches) {
  auto schedule = pipeline::MakeSchedule(text, ranks, micro_batches);
  EXPECT_OK(schedule);
  return *std::move(schedule);
}

struct Backend {
  const char* name;
  absl::StatusOr<std::unique_ptr<Communicator>> (*connect)(
      const CommunicatorOptions&);
};

// A rank's part: its stages and its executor.
struct Rank {
  Communicator* communicator = nullptr;
  std::vector<std::unique_ptr<ToyStage>> stages;
  std::unique_ptr<PipelineExecutor> executor;
};

class PipelineExecutorTest : public testing::TestWithParam<Backend> {
 protected:
  static std::vector<StageRunner*> RunnersOf(const Rank& rank) {
    std::vector<StageRunner*> runners;
    for (const auto& stage : rank.stages) runners.push_back(stage.get());
    return runners;
  }

  void Make(const pipeline::Schedule& schedule) {
    ranks_.clear();
    group_.clear();
    group_ = ConnectGroup(schedule.ranks(), kMinute, GetParam().connect);
    for (int rank = 0; rank < schedule.ranks(); ++rank) {
      Rank one;
      one.communicator = group_[static_cast<size_t>(rank)].get();
      for (const int stage : schedule.StagesOf(rank)) {
        one.stages.push_back(
            std::make_unique<ToyStage>(stage, stage + 1 == schedule.stages()));
      }
      ASSERT_OK_AND_ASSIGN(one.executor,
                           PipelineExecutor::Create(schedule, one.communicator,
                                                    RunnersOf(one), options_));
      ranks_.push_back(std::move(one));
    }
  }

  // Runs a step on all ranks; returns what each ends with.
  std::vector<absl::Status> Run() {
    std::vector<absl::Status> ends(ranks_.size());
    std::vector<std::thread> threads;
    for (size_t rank = 0; rank < ranks_.size(); ++rank) {
      threads.emplace_back(
          [&, rank] { ends[rank] = ranks_[rank].executor->Run(); });
    }
    for (std::thread& thread : threads) thread.join();
    return ends;
  }

  // Expects what one process computes of so many micro-batches, since the
  // stages were made.
  void ExpectSums(int micro_batches, int stages) {
    double product = 1;
    for (int stage = 0; stage < stages; ++stage) product *= 2 + stage % 2;
    double sum = 0;
    for (int i = 0; i < micro_batches; ++i) {
      for (size_t j = 0; j < SizeOfMicroBatch(i); ++j) {
        if (j % 3 != 0) sum += InputOf(i, j);
      }
    }
    for (const Rank& rank : ranks_) {
      const auto own =
          rank.executor->schedule().StagesOf(rank.communicator->rank());
      for (size_t i = 0; i < own.size(); ++i) {
        const ToyStage& stage = *rank.stages[i];
        EXPECT_EQ(stage.weight_gradient, sum * product / (2 + own[i] % 2))
            << "stage " << own[i];
        EXPECT_EQ(stage.loss, own[i] + 1 == stages ? sum * product : 0);
        EXPECT_TRUE(stage.holds_nothing());
      }
    }
  }

  PipelineExecutorOptions options_;
  std::vector<std::unique_ptr<Communicator>> group_;
  std::vector<Rank> ranks_;
};

TEST_P(PipelineExecutorTest, EveryScheduleComputesWhatOneProcessDoes) {
  for (const char* const text : {"gpipe", "gpipe(order=fifo)", "1f1b",
                                 "interleaved(chunks=2)", "zb_h1"}) {
    for (const auto& [ranks, micro_batches] : std::vector<std::pair<int, int>>{
             {1, 3}, {2, 1}, {2, 5}, {4, 3}, {4, 7}, {4, 8}}) {
      SCOPED_TRACE(absl::StrCat(text, ", ", ranks, " ranks, ", micro_batches,
                                " micro-batches"));
      const auto schedule = ScheduleOf(text, ranks, micro_batches);
      ASSERT_NO_FATAL_FAILURE(Make(schedule));
      for (const auto& status : Run()) EXPECT_OK(status);
      ExpectSums(micro_batches, schedule.stages());
    }
  }
}

TEST_P(PipelineExecutorTest, MessagesMayBeLargerThanAllSlots) {
  options_.slot_bytes = 8;
  options_.slots = 1;
  options_.capacity = 1;
  const auto schedule = ScheduleOf("1f1b", 3, 6);
  ASSERT_NO_FATAL_FAILURE(Make(schedule));
  for (const auto& status : Run()) EXPECT_OK(status);
  ExpectSums(6, 3);
}

TEST_P(PipelineExecutorTest, TheNumberOfMicroBatchesChangesBetweenSteps) {
  ASSERT_NO_FATAL_FAILURE(Make(ScheduleOf("1f1b", 2, 2)));
  for (const auto& status : Run()) ASSERT_OK(status);
  ExpectSums(2, 2);
  for (Rank& rank : ranks_) {
    ASSERT_OK(rank.executor->SetSchedule(ScheduleOf("1f1b", 2, 7)));
    for (auto& stage : rank.stages) {
      stage->loss = 0;
      stage->weight_gradient = 0;
    }
  }
  for (const auto& status : Run()) ASSERT_OK(status);
  ExpectSums(7, 2);
  EXPECT_EQ(ranks_[0].executor->place().step, 1);
}

TEST_P(PipelineExecutorTest, APlaceIsKnownAlsoOnceTheExecutorHasEnded) {
  ASSERT_NO_FATAL_FAILURE(Make(ScheduleOf("1f1b", 2, 2)));
  const auto source = ranks_[1].executor->PlaceSource();
  EXPECT_FALSE(source().has_value());
  for (const auto& status : Run()) ASSERT_OK(status);
  ranks_[1].executor.reset();
  const auto place = source();
  ASSERT_TRUE(place.has_value());
  EXPECT_EQ(place->step, 0);
  EXPECT_EQ(place->micro_batches, 2);
  EXPECT_EQ(place->schedule, ScheduleOf("1f1b", 2, 2).Hash());
  EXPECT_EQ(place->action,
            8);  // F and B of two, each with a receive and a send
  ASSERT_EQ(place->passes.size(), 1u);
  EXPECT_EQ(place->passes[0].stage, 1);
}

TEST_P(PipelineExecutorTest, AStepThatIsPassedCounts) {
  ASSERT_NO_FATAL_FAILURE(Make(ScheduleOf("1f1b", 2, 2)));
  for (const auto& status : Run()) ASSERT_OK(status);
  ranks_[1].executor->PassStep();
  const PipelinePlace place = ranks_[1].executor->place();
  EXPECT_EQ(place.step, 1);
  EXPECT_EQ(place.action, 8);  // as many as its list has
}

TEST_P(PipelineExecutorTest, TheActionsOfAStepAreTraced) {
  const std::string path = testing::TempDir() + "/pipeline_trace.json";
  ASSERT_OK_AND_ASSIGN(std::shared_ptr<TraceFile> trace,
                       TraceFile::Open(path, 0));
  options_.on_step = TraceActions(trace);
  ASSERT_NO_FATAL_FAILURE(Make(ScheduleOf("1f1b", 1, 2)));
  for (const auto& status : Run()) ASSERT_OK(status);
  ranks_.clear();
  options_.on_step = nullptr;
  trace.reset();
  std::ifstream in(TracePath(path, 0));
  const std::string text((std::istreambuf_iterator<char>(in)),
                         std::istreambuf_iterator<char>());
  for (const char* const name : {"\"0F0\"", "\"0B0\"", "\"0F1\"", "\"0B1\""}) {
    EXPECT_THAT(text, HasSubstr(name));
  }
}

// However far it is: what ranks between pass on does not grow.
TEST_P(PipelineExecutorTest, AStageThatFailsIsNamedOnAllRanks) {
  constexpr int kRanks = 12;
  ASSERT_NO_FATAL_FAILURE(Make(ScheduleOf("1f1b", kRanks, 16)));
  ranks_[kRanks - 1].stages[0]->fails_at = 3;
  const auto ends = Run();
  EXPECT_THAT(ends[kRanks - 1],
              StatusIs(absl::StatusCode::kDataLoss,
                       HasSubstr("stage 11, 11F3: the toy fails")));
  for (int rank = 0; rank < kRanks - 1; ++rank) {
    EXPECT_THAT(ends[static_cast<size_t>(rank)],
                StatusIs(absl::StatusCode::kUnavailable,
                         AllOf(HasSubstr(absl::StrCat("stage ", rank, ", ")),
                               HasSubstr("stage 11, 11F3: the toy fails"))));
    EXPECT_TRUE(ranks_[static_cast<size_t>(rank)].stages[0]->holds_nothing());
  }
  // It is of no use any more.
  EXPECT_FALSE(ranks_[0].executor->Run().ok());
}

// Nothing of a step is lost though the ranks leave one after the other.
TEST_P(PipelineExecutorTest, ARankMayLeaveOnceItsPartIsDone) {
  options_.slot_bytes = 1024;
  options_.slots = 64;
  ASSERT_NO_FATAL_FAILURE(Make(ScheduleOf("gpipe", 3, 8)));
  std::vector<absl::Status> ends(ranks_.size());
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < ranks_.size(); ++rank) {
    threads.emplace_back([&, rank] {
      ends[rank] = ranks_[rank].executor->Run();
      ranks_[rank].executor.reset();
      group_[rank].reset();
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const auto& status : ends) EXPECT_OK(status);
}

TEST_P(PipelineExecutorTest, RanksWhoseSchedulesDifferFindOut) {
  ASSERT_NO_FATAL_FAILURE(Make(ScheduleOf("gpipe", 2, 4)));
  ASSERT_OK(
      ranks_[1].executor->SetSchedule(ScheduleOf("gpipe(order=fifo)", 2, 4)));
  EXPECT_THAT(
      Run()[0],
      StatusIs(absl::StatusCode::kInternal,
               AllOf(HasSubstr("stage 0, 0RECV_B3: rank 1 sent micro-batch 0 "
                               "where 3 is due"))));
}

TEST_P(PipelineExecutorTest, APeerThatDoesNothingIsNamedAtTheDeadline) {
  options_.timeout = absl::Milliseconds(100);
  ASSERT_NO_FATAL_FAILURE(Make(ScheduleOf("1f1b", 2, 4)));
  EXPECT_THAT(ranks_[1].executor->Run(),
              StatusIs(absl::StatusCode::kDeadlineExceeded,
                       HasSubstr("stage 1, 1RECV_F0: rank 0 did not send a "
                                 "message within 100ms")));
}

TEST_P(PipelineExecutorTest, WhatDoesNotFitIsRefused) {
  ASSERT_NO_FATAL_FAILURE(Make(ScheduleOf("1f1b", 2, 4)));
  Rank& rank = ranks_[0];
  const auto refused = [&](const pipeline::Schedule& schedule,
                           absl::StatusCode code, const char* why) {
    EXPECT_THAT(PipelineExecutor::Create(schedule, rank.communicator,
                                         RunnersOf(rank), options_),
                StatusIs(code, HasSubstr(why)));
    EXPECT_THAT(rank.executor->SetSchedule(schedule),
                StatusIs(code, HasSubstr(why)));
  };
  refused(ScheduleOf("1f1b", 3, 4), absl::StatusCode::kInvalidArgument,
          "3 ranks in a group of 2");
  refused(ScheduleOf("interleaved(chunks=2)", 2, 4),
          absl::StatusCode::kInvalidArgument,
          "gives rank 0 2 stages, and it has 1");
  rank.stages[0]->splits = false;
  refused(ScheduleOf("zb_h1", 2, 4), absl::StatusCode::kUnimplemented,
          "stage 0 has no backward passes in halves, and the schedule has 0I0");
  options_.capacity = 0;
  EXPECT_THAT(
      PipelineExecutor::Create(ScheduleOf("1f1b", 2, 4), rank.communicator,
                               RunnersOf(rank), options_),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("0")));
}

TEST_P(PipelineExecutorTest, AMessageThatIsTooLargeIsRefusedAtItsSender) {
  options_.max_message_bytes = 100;
  ASSERT_NO_FATAL_FAILURE(Make(ScheduleOf("1f1b", 2, 4)));
  EXPECT_THAT(Run()[0], StatusIs(absl::StatusCode::kInvalidArgument,
                                 AllOf(HasSubstr("stage 0, 0SEND_F1"),
                                       HasSubstr("more than 100 bytes"))));
}

INSTANTIATE_TEST_SUITE_P(Backends, PipelineExecutorTest,
                         testing::Values(Backend{"Shm", ConnectShm},
                                         Backend{"Tcp", ConnectTcp}),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace coxswain
