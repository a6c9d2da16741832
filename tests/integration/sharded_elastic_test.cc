// A sharded optimizer whose ranks are lost and added while it trains, against a
// real coordinator in the same process, each worker a thread.
// sharded_kills_test.cc kills processes.

#include <ATen/Parallel.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <atomic>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/cancel_signal.h"
#include "base/mutex.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "client/checkpoint/checkpoint_client.h"
#include "client/schedule/schedule_client.h"
#include "client/torch/elastic/elastic_training.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "hooks/registry/planned_hook.h"
#include "hooks/wrapper_hook.h"
#include "server/coordinator.h"
#include "tests/support/in_threads.h"
#include "tests/support/quick_coordinator.h"
#include "train/torch/train.h"

namespace coxswain::torch::sharded_elastic_test {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::torch::Tensor;

constexpr absl::Duration kTimeout = absl::Seconds(60);
constexpr int64_t kRows = 4;

// Of odd sizes, so that slices begin and end within parameters; with buffers.
struct Net : ::torch::nn::Module {
  Net() {
    fc = register_module("fc", ::torch::nn::Linear(17, 23));
    norm = register_module("norm", ::torch::nn::BatchNorm1d(23));
    out = register_module("out", ::torch::nn::Linear(23, 3));
    const ::torch::NoGradGuard no_grad;
    double number = 1;
    for (Tensor& parameter : parameters()) {
      const Tensor places =
          ::torch::arange(parameter.numel(), ::torch::kFloat64);
      parameter.copy_(::torch::sin(places * number).view(parameter.sizes()) *
                      0.3);
      number += 0.7;
    }
  }
  Tensor Loss(int64_t batch) {
    const Tensor numbers =
        ::torch::arange(kRows * 17, ::torch::kFloat64).view({kRows, 17});
    const Tensor rows =
        ::torch::sin(numbers * 1.7 + static_cast<double>(batch) * 0.31)
            .to(::torch::kFloat32);
    return out(::torch::relu(norm(fc(rows)))).square().mean();
  }
  std::string Bits() const {
    std::string bits;
    for (const auto& tensors : {parameters(), buffers()}) {
      for (const Tensor& tensor : tensors) {
        const Tensor dense = tensor.detach().contiguous();
        bits.append(static_cast<const char*>(dense.data_ptr()), dense.nbytes());
      }
    }
    return bits;
  }

  ::torch::nn::Linear fc{nullptr};
  ::torch::nn::BatchNorm1d norm{nullptr};
  ::torch::nn::Linear out{nullptr};
};

// What one worker came to.
struct Ended {
  absl::Status status;
  std::string bits;
  int64_t step = 0;
  int64_t batches = 0;
};

// How many ranks took each step, by its number; of steps that were taken again,
// the last time.
class Course {
 public:
  void Note(int64_t step, int ranks) {
    MutexLock lock(&mutex_);
    ranks_[step] = ranks;
  }
  std::map<int64_t, int> ranks() const {
    MutexLock lock(&mutex_);
    return ranks_;
  }

 private:
  mutable Mutex mutex_;
  std::map<int64_t, int> ranks_ ABSL_GUARDED_BY(mutex_);
};

class ShardedElasticTest : public ::testing::TestWithParam<int> {
 protected:
  using Body = std::function<absl::Status(Training&, Net&)>;
  // Called before the gradients of a step are computed.
  using At = std::function<absl::Status(Training&)>;

  ShardedElasticTest() {
    auto started = server::Coordinator::Start(QuickCoordinator());
    EXPECT_OK(started);
    if (started.ok()) coordinator_ = std::move(started).value();
  }

  static TrainOptions Options(int zero) {
    TrainOptions options;
    options.zero = zero;
    options.resume = "newest";
    options.ddp.reducer.buckets = {300, 500};
    options.stop_on_sigterm = false;
    return options;
  }
  static TrainOptions Elastic(int zero) {
    TrainOptions options = Options(zero);
    options.elastic = true;
    return options;
  }

  // Of one of three ranks.
  ElasticTrainingOptions WithoutTrain(int slot) const {
    ElasticTrainingOptions options;
    options.ddp.zero = GetParam();
    options.ddp.reducer.buckets = {300, 500};
    options.ddp.make_hook = MakePlannedHook;
    options.resume = "newest";
    options.run.session = SessionOf("job", slot, 3, /*elastic=*/true);
    return options;
  }

  SessionOptions SessionOf(const std::string& job, int slot, int ranks,
                           bool elastic) const {
    SessionOptions session;
    session.coordinator = absl::StrCat("127.0.0.1:", coordinator_->port());
    session.job = job;
    session.identity = {"host-a", slot};
    session.host = "host-a";
    session.world_size = ranks;
    session.mesh = mesh_;
    // Of a mesh all are needed.
    if (elastic) session.min_world_size = mesh_.empty() ? 2 : ranks;
    session.join_timeout = session.collective_timeout = kTimeout;
    return session;
  }

  void RunOne(const std::string& job, int slot, int ranks,
              const TrainOptions& options, const Body& body,
              Ended* ended) const {
    at::set_num_threads(1);
    TrainOptions own = options;
    own.session = SessionOf(job, slot, ranks, options.elastic);
    const auto net = std::make_shared<Net>();
    ::torch::optim::AdamW optimizer(
        net->parameters(), ::torch::optim::AdamWOptions(0.02).amsgrad(true));
    ended->status = torch::Train(own, net, optimizer, [&](Training& training) {
      absl::Status status = body(training, *net);
      ended->step = training.step();
      ended->batches = training.counter("batches");
      return status;
    });
    ended->bits = net->Bits();
  }
  std::vector<Ended> Run(const std::string& job, int ranks,
                         const TrainOptions& options, const Body& body) const {
    std::vector<Ended> ended(static_cast<size_t>(ranks));
    InThreads(ranks, [&](int slot) {
      RunOne(job, slot, ranks, options, body,
             &ended[static_cast<size_t>(slot)]);
    });
    return ended;
  }

  // Trains until `steps` are done, on batches of each rank's own.
  static Body Until(int64_t steps, const At& at = nullptr,
                    Course* course = nullptr) {
    return [=](Training& training, Net& net) -> absl::Status {
      while (training.going() && training.step() < steps) {
        int64_t& batches = training.counter("batches");
        if (at != nullptr) COXSWAIN_RETURN_IF_ERROR(at(training));
        const int64_t step = training.step();
        COXSWAIN_RETURN_IF_ERROR(
            training.Step([&] { return net.Loss(batches + training.rank()); }));
        batches += training.world_size();
        if (course != nullptr) course->Note(step, training.world_size());
      }
      return absl::OkStatus();
    };
  }

  // Waits for the job's newest checkpoint to be of this step; returns its id.
  static absl::StatusOr<std::string> SavedAt(CheckpointClient& checkpoints,
                                             int64_t step) {
    constexpr absl::Duration kPause = absl::Milliseconds(10);
    const CancelSignal never;
    for (absl::Duration waited; waited < kTimeout; waited += kPause) {
      COXSWAIN_ASSIGN_OR_RETURN(const auto list, checkpoints.List());
      if (!list.empty() && list.front().step == step) return list.front().id;
      never.WaitFor(kPause);
    }
    return absl::DeadlineExceededError(
        absl::StrCat("the newest checkpoint is none of step ", step));
  }

  // Rank `rank` of `ranks` fails there, which its peers see as a loss; once the
  // job has a checkpoint of that step, unless that is 0.
  static At DiesAt(int ranks, int rank, int64_t step, int64_t saved = 0) {
    return [=](Training& training) -> absl::Status {
      if (training.world_size() != ranks || training.rank() != rank ||
          training.step() != step) {
        return absl::OkStatus();
      }
      if (saved > 0) {
        COXSWAIN_RETURN_IF_ERROR(
            SavedAt(training.session().checkpoints(), saved).status());
      }
      return absl::InternalError("this worker is to die here");
    };
  }

  // Returns the bits that undisturbed trainings without slices come to, one
  // after the other, on the same ranks.
  std::string Undisturbed(const std::map<int64_t, int>& course) const {
    std::string bits;
    for (auto step = course.begin(); step != course.end();) {
      const int ranks = step->second;
      while (step != course.end() && step->second == ranks) ++step;
      const int64_t until =
          step == course.end() ? course.rbegin()->first + 1 : step->first;
      // Its last step is saved.
      const auto asks = [until](Training& training) {
        if (training.step() + 1 == until) {
          training.session().schedule().RequestCheckpoint("the phase ends");
        }
        return absl::OkStatus();
      };
      for (const Ended& one :
           Run("undisturbed", ranks, Options(0), Until(until, asks))) {
        EXPECT_OK(one.status);
        EXPECT_EQ(one.step, until);
        bits = one.bits;
      }
    }
    return bits;
  }

  std::unique_ptr<server::Coordinator> coordinator_;
  std::string mesh_;  // that the workers ask for
};

INSTANTIATE_TEST_SUITE_P(Zero, ShardedElasticTest, ::testing::Values(1, 2));

TEST_P(ShardedElasticTest, FourRanksThenThreeThenFourKeepTheBits) {
  TrainOptions options = Elastic(GetParam());
  options.ddp.terms.checkpoint_every = 4;
  Course course;
  std::promise<void> shrunk;
  std::atomic<bool> noted{false};
  std::atomic<int> grown{0};
  // Of slot 3 only the first one.
  const At dies_at = DiesAt(4, 3, 6, /*saved=*/4);
  const At at = [&](Training& training) -> absl::Status {
    if (training.world_size() == 4 && training.session().generation() > 1 &&
        training.rank() == 0 && ++grown == 7) {
      training.session().schedule().RequestStop("seven steps with all four");
    }
    // At the second step of three ranks, the first is noted in `course`.
    if (training.world_size() == 3 && training.rank() == 0 &&
        training.step() > 4 && !noted.exchange(true)) {
      shrunk.set_value();
    }
    return absl::OkStatus();
  };
  std::vector<Ended> ended(4);
  Ended lost;
  std::vector<std::thread> threads;
  for (int slot = 0; slot < 3; ++slot) {
    threads.emplace_back([&, slot] {
      RunOne("job", slot, 4, options, Until(100'000, at, &course),
             &ended[static_cast<size_t>(slot)]);
    });
  }
  std::thread dies([&] {
    RunOne("job", 3, 4, options, Until(100'000, dies_at, &course), &lost);
  });
  dies.join();
  EXPECT_THAT(lost.status,
              StatusIs(absl::StatusCode::kInternal, HasSubstr("to die here")));
  threads.emplace_back([&] {
    // In the second generation it would be one of four again.
    shrunk.get_future().wait();
    RunOne("job", 3, 4, options, Until(100'000, at, &course), &ended[3]);
  });
  for (std::thread& thread : threads) thread.join();
  const std::map<int64_t, int> ranks = course.ranks();
  EXPECT_EQ(ranks.at(3), 4);
  EXPECT_EQ(ranks.at(4), 3) << "taken again, from the checkpoint of step 4";
  EXPECT_EQ(ranks.rbegin()->second, 4);
  int64_t batches = 0;
  for (const auto& [step, size] : ranks) batches += size;
  const std::string undisturbed = Undisturbed(ranks);
  for (const Ended& one : ended) {
    EXPECT_OK(one.status);
    EXPECT_EQ(one.step, ranks.rbegin()->first + 1);
    EXPECT_EQ(one.batches, batches);
    EXPECT_TRUE(one.bits == undisturbed);
  }
}

// No slice is lost, so no checkpoint is needed.
TEST_P(ShardedElasticTest, RanksThatAreAddedGetTheirSlicesFromTheOthers) {
  TrainOptions options = Elastic(GetParam());
  options.resume = "";
  Course course;
  std::promise<void> trained;
  std::atomic<int> grown{0};
  const auto at = [&](Training& training) -> absl::Status {
    if (training.world_size() == 2 && training.rank() == 0 &&
        training.step() == 5) {
      trained.set_value();
    }
    if (training.world_size() == 4 && training.rank() == 0 && ++grown == 5) {
      training.session().schedule().RequestStop("five steps with all four");
    }
    return absl::OkStatus();
  };
  std::vector<Ended> ended(4);
  const std::shared_future<void> when_trained = trained.get_future();
  InThreads(4, [&](int slot) {
    // The last two come when the others have trained.
    if (slot >= 2) when_trained.wait();
    RunOne("job", slot, 4, options, Until(100'000, at, &course),
           &ended[static_cast<size_t>(slot)]);
  });
  const std::string undisturbed = Undisturbed(course.ranks());
  for (const Ended& one : ended) {
    EXPECT_OK(one.status);
    EXPECT_TRUE(one.bits == undisturbed);
  }
  EXPECT_EQ(course.ranks().at(0), 2);
}

// The replica of the lost rank has its slices, of the optimizer and of the
// hook.
TEST_P(ShardedElasticTest, AHookBetweenReplicasGoesOnWithItsState) {
  mesh_ = "dp=2,shard=2";
  TrainOptions options = Elastic(GetParam());
  options.hook = "powersgd(rank=1,start_step=2)";
  options.resume = "";
  std::vector<int64_t> hook_steps(4);
  std::vector<double> errors(4);  // when the second generation begins
  const auto body = [&](bool dies) -> Body {
    const At dies_at = DiesAt(4, 3, 6);
    return [&, dies_at, dies](Training& training, Net& net) -> absl::Status {
      const auto rank = static_cast<size_t>(training.rank());
      if (training.step() == 6)
        errors[rank] = training.ddp().hook().ErrorNorm();
      COXSWAIN_RETURN_IF_ERROR(Until(12, dies ? dies_at : At())(training, net));
      hook_steps[rank] = training.ddp().hook().step();
      return absl::OkStatus();
    };
  };
  std::vector<Ended> ended(4);
  Ended lost;
  std::vector<std::thread> threads;
  for (int slot = 0; slot < 3; ++slot) {
    threads.emplace_back([&, slot] {
      RunOne("job", slot, 4, options, body(/*dies=*/false),
             &ended[static_cast<size_t>(slot)]);
    });
  }
  RunOne("job", 3, 4, options, body(/*dies=*/true), &lost);
  EXPECT_THAT(lost.status,
              StatusIs(absl::StatusCode::kInternal, HasSubstr("to die here")));
  RunOne("job", 3, 4, options, body(/*dies=*/false), &ended[3]);
  for (std::thread& thread : threads) thread.join();
  for (const Ended& one : ended) {
    EXPECT_OK(one.status);
    EXPECT_TRUE(one.bits == ended[0].bits);
  }
  EXPECT_THAT(hook_steps, Each(12));
  // What the survivors had not sent, in both slices.
  EXPECT_GT(errors[0], 0);
  EXPECT_GT(errors[1], 0);
  EXPECT_GT(errors[2], 0);
}

TEST_P(ShardedElasticTest, WithoutACheckpointALostSliceEndsTheJob) {
  const auto ended =
      Run("job", 3, Elastic(GetParam()), Until(20, DiesAt(3, 1, 5)));
  for (const Ended& one : {ended[0], ended[2]}) {
    EXPECT_THAT(
        one.status,
        StatusIs(absl::StatusCode::kDataLoss,
                 AllOf(HasSubstr("a part of the sharded state of step 5 is on "
                                 "no rank that is left"),
                       HasSubstr("rank 1 (host-a/1"),
                       HasSubstr("the job has no checkpoint to go back to"),
                       HasSubstr("checkpoint_every"))));
  }
}

// What an earlier training has saved may be of another one.
TEST_P(ShardedElasticTest, OnlyAJobThatResumesFromTheNewestGoesBackToIt) {
  TrainOptions options = Elastic(GetParam());
  options.ddp.terms.checkpoint_every = 2;
  options.resume = "";
  const auto ended = Run("job", 3, options, Until(20, DiesAt(3, 1, 5)));
  for (const Ended& one : {ended[0], ended[2]}) {
    EXPECT_THAT(one.status, StatusIs(absl::StatusCode::kDataLoss,
                                     HasSubstr("set resume to \"newest\"")));
  }
}

// Before a step after it, nothing is lost of what was trained since.
TEST_P(ShardedElasticTest, BeforeAStepAJobGoesBackToTheCheckpointItNames) {
  std::string id;
  Course course;
  TrainOptions options = Elastic(GetParam());
  options.ddp.terms.checkpoint_every = 3;
  const auto notes = [&](Training& training) -> absl::Status {
    if (training.rank() != 0 || training.step() != 4) return absl::OkStatus();
    COXSWAIN_ASSIGN_OR_RETURN(
        id, SavedAt(training.session().checkpoints(), /*step=*/3));
    return absl::OkStatus();
  };
  for (const Ended& one : Run("job", 3, options, Until(5, notes, &course))) {
    EXPECT_OK(one.status);
  }
  options.resume = id;
  const auto ended = Run("job", 3, options, Until(8, DiesAt(3, 1, 3), &course));
  const std::string undisturbed = Undisturbed(course.ranks());
  for (const Ended& one : {ended[0], ended[2]}) {
    EXPECT_OK(one.status);
    EXPECT_EQ(one.step, 8);
    EXPECT_TRUE(one.bits == undisturbed);
  }
  EXPECT_EQ(course.ranks().at(2), 3);
  EXPECT_EQ(course.ranks().at(3), 2);
}

TEST_P(ShardedElasticTest, BeforeTheFirstStepNothingIsLost) {
  Course course;
  const auto ended =
      Run("job", 3, Elastic(GetParam()), Until(6, DiesAt(3, 1, 0), &course));
  const std::string undisturbed = Undisturbed(course.ranks());
  for (const Ended& one : {ended[0], ended[2]}) {
    EXPECT_OK(one.status);
    EXPECT_EQ(one.batches, 6 * 2);
    EXPECT_TRUE(one.bits == undisturbed);
  }
}

// The state of before is that of a checkpoint, and is lost likewise.
TEST_P(ShardedElasticTest, ASecondLossBeforeAStepGoesBackAgain) {
  TrainOptions options = Elastic(GetParam());
  options.ddp.terms.checkpoint_every = 3;
  Course course;
  const auto at = [](Training& training) -> absl::Status {
    COXSWAIN_RETURN_IF_ERROR(DiesAt(5, 4, 5, /*saved=*/3)(training));
    COXSWAIN_RETURN_IF_ERROR(DiesAt(4, 0, 3)(training));
    return DiesAt(3, 1, 4)(training);
  };
  const auto ended = Run("job", 5, options, Until(9, at, &course));
  int survivors = 0;
  const std::string undisturbed = Undisturbed(course.ranks());
  for (const Ended& one : ended) {
    if (absl::IsInternal(one.status)) continue;
    ++survivors;
    EXPECT_OK(one.status);
    EXPECT_EQ(one.step, 9);
    EXPECT_TRUE(one.bits == undisturbed);
  }
  EXPECT_EQ(survivors, 2);
  EXPECT_EQ(course.ranks().at(3), 2);
}

absl::Status TakeStep(ElasticTraining& t, Net& net, Course* course) {
  const int64_t step = t.step();
  const MicroBatch micro = t.Accumulate();
  COXSWAIN_RETURN_IF_ERROR(
      t.Backward(net.Loss(t.counter("batches") + t.rank()), micro));
  COXSWAIN_RETURN_IF_ERROR(t.StepOptimizer().status());
  t.counter("batches") += t.world_size();
  course->Note(step, t.world_size());
  return absl::OkStatus();
}

// Takes no state over from a checkpoint while `failing`.
class FailsToLoad : public WrapperHook {
 public:
  FailsToLoad(std::string spec, std::unique_ptr<Hook> inner,
              const std::atomic<bool>* failing)
      : WrapperHook(std::move(spec), std::move(inner)), failing_(*failing) {}
  absl::StatusOr<std::unique_ptr<Exchange>> Prepare(
      const Bucket& bucket, Communicator& communicator) override {
    return inner().Prepare(bucket, communicator);
  }
  absl::StatusOr<std::unique_ptr<Exchange>> PrepareSlice(
      const Bucket& bucket, const BucketSlices& slices,
      Communicator& communicator) override {
    return inner().PrepareSlice(bucket, slices, communicator);
  }
  absl::Status LoadState(const HookState& state, int rank,
                         int world_size) override {
    if (failing_) return absl::UnavailableError("the network is gone");
    return inner().LoadState(state, rank, world_size);
  }

 private:
  const std::atomic<bool>& failing_;
};

// A hook's state is loaded last.
TEST_P(ShardedElasticTest, AReturnThatFailsHalfWayLeavesNothingBehind) {
  std::atomic<bool> failing{true};
  std::promise<void> past_step[2];
  std::vector<std::string> bits(3);
  std::vector<absl::Status> statuses(3);
  std::vector<std::vector<int64_t>> forwards(3);  // by generation
  Course course;
  InThreads(3, [&](int slot) {
    at::set_num_threads(1);
    const auto at = static_cast<size_t>(slot);
    const auto net = std::make_shared<Net>();
    ::torch::optim::AdamW optimizer(
        net->parameters(), ::torch::optim::AdamWOptions(0.02).amsgrad(true));
    ElasticTrainingOptions options = WithoutTrain(slot);
    options.ddp.terms.checkpoint_every = 4;
    options.ddp.make_hook = [&](const schedule::Plan& plan)
        -> absl::StatusOr<std::unique_ptr<Hook>> {
      COXSWAIN_ASSIGN_OR_RETURN(std::unique_ptr<Hook> hook,
                                MakePlannedHook(plan));
      std::string spec = hook->spec();
      return std::make_unique<FailsToLoad>(std::move(spec), std::move(hook),
                                           &failing);
    };
    options.run.reason_timeout = absl::Seconds(1);
    options.run.on_recovery = [&](const RecoveryReport& report) {
      forwards[at].push_back(net->norm->num_batches_tracked.item<int64_t>());
      if (report.generation > 2) failing = false;
    };
    statuses[at] = ElasticTraining::Run(
        options, net, optimizer, [&](ElasticTraining& t) -> absl::Status {
          while (t.step() < 8 && t.going()) {
            const int64_t step = t.step();
            if (slot < 2 && step == 6 && t.session().generation() == 1) {
              past_step[at].set_value();
            }
            if (slot == 2 && step == 6) {
              for (std::promise<void>& past : past_step) {
                past.get_future().wait();
              }
              COXSWAIN_RETURN_IF_ERROR(
                  SavedAt(t.session().checkpoints(), 4).status());
              return absl::InternalError("this worker is to die here");
            }
            COXSWAIN_RETURN_IF_ERROR(TakeStep(t, *net, &course));
          }
          return absl::OkStatus();
        });
    bits[at] = net->Bits();
  });
  const std::string undisturbed = Undisturbed(course.ranks());
  for (const size_t at : {0, 1}) {
    EXPECT_OK(statuses[at]);
    EXPECT_THAT(forwards[at], ElementsAre(0, 6, 6))
        << "the third generation begins with the buffers of step 6";
    EXPECT_TRUE(bits[at] == undisturbed);
  }
  EXPECT_EQ(course.ranks().at(4), 2);
}

// A worker that drains saves its last step, to which the others go back.
TEST_P(ShardedElasticTest, NothingIsLostWithARankThatDrains) {
  std::atomic<bool> drains{false};
  std::vector<std::string> bits(3);
  std::vector<absl::Status> statuses(3);
  std::vector<std::vector<std::string>> warnings(3);
  Course course;
  InThreads(3, [&](int slot) {
    at::set_num_threads(1);
    const auto at = static_cast<size_t>(slot);
    const auto net = std::make_shared<Net>();
    ::torch::optim::AdamW optimizer(
        net->parameters(), ::torch::optim::AdamWOptions(0.02).amsgrad(true));
    ElasticTrainingOptions options = WithoutTrain(slot);
    if (slot == 1) options.run.drain_requested = [&] { return drains.load(); };
    statuses[at] = ElasticTraining::Run(
        options, net, optimizer, [&](ElasticTraining& t) -> absl::Status {
          while (t.step() < 12 && t.going()) {
            if (t.step() == 6) drains = true;
            COXSWAIN_RETURN_IF_ERROR(TakeStep(t, *net, &course));
          }
          for (const std::string& one : t.recovery().warnings) {
            warnings[at].push_back(one);
          }
          return absl::OkStatus();
        });
    bits[at] = net->Bits();
  });
  const std::string undisturbed = Undisturbed(course.ranks());
  for (const size_t at : {0, 2}) {
    EXPECT_OK(statuses[at]);
    EXPECT_TRUE(bits[at] == undisturbed);
    EXPECT_THAT(warnings[at], IsEmpty()) << "no step is taken again";
  }
  EXPECT_OK(statuses[1]);
  EXPECT_EQ(course.ranks().at(6), 3);
  EXPECT_EQ(course.ranks().at(11), 2);
}

}  // namespace
}  // namespace coxswain::torch::sharded_elastic_test
