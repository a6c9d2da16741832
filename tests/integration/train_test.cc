// One call that trains, against a real coordinator in the same process, each
// worker a thread.

#include "train/torch/train.h"

#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/coordinator.h"
#include "tests/support/in_threads.h"

namespace coxswain::torch::train_test {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::torch::Tensor;

constexpr absl::Duration kTimeout = absl::Seconds(60);
constexpr int64_t kRows = 8;

// With momentum, so that an optimizer's state counts.
::torch::optim::SGDOptions Descent() {
  return ::torch::optim::SGDOptions(0.1).momentum(0.9);
}

// Returns the rows of an endless data set.
Tensor Rows(int64_t first) {
  const Tensor number =
      ::torch::arange(first, first + kRows, ::torch::kFloat64);
  return ::torch::sin(number.view({-1, 1}) * 12.9898 +
                      ::torch::arange(4, ::torch::kFloat64) * 78.233);
}

using Net = ::torch::nn::LinearImpl;

std::shared_ptr<Net> MakeNet() {
  auto net = std::make_shared<Net>(4, 2);
  net->to(::torch::kFloat64);
  const ::torch::NoGradGuard no_grad;
  for (Tensor& parameter : net->parameters()) parameter.fill_(0.25);
  return net;
}

Tensor Loss(Net& net, int64_t first) {
  return net.forward(Rows(first)).square().mean();
}

// What one worker came to.
struct Ended {
  absl::Status status;
  std::vector<Tensor> parameters;
  int64_t step = 0;
  int64_t counter = 0;
};

class TrainTest : public ::testing::Test {
 protected:
  using Body = std::function<absl::Status(Training&, Net&)>;

  TrainTest() {
    server::CoordinatorOptions options;
    options.listen = "127.0.0.1:0";
    options.state_dir = absl::StrCat(
        ::testing::TempDir(), "/train-",
        ::testing::UnitTest::GetInstance()->current_test_info()->name());
    options.tick_interval = absl::Milliseconds(10);
    auto started = server::Coordinator::Start(options);
    EXPECT_OK(started);
    if (started.ok()) coordinator_ = std::move(started).value();
  }

  std::vector<Ended> Run(int ranks, const TrainOptions& options,
                         const Body& body) {
    std::vector<Ended> ended(static_cast<size_t>(ranks));
    InThreads(ranks, [&](int slot) {
      at::set_num_threads(1);
      Ended& mine = ended[static_cast<size_t>(slot)];
      TrainOptions own = options;
      own.session.emplace();
      own.session->coordinator =
          absl::StrCat("127.0.0.1:", coordinator_->port());
      own.session->job = "job";
      own.session->identity = {"host-a", slot};
      own.session->host = "host-a";
      own.session->world_size = ranks;
      own.session->mesh = mesh_;
      own.session->join_timeout = own.session->collective_timeout = kTimeout;
      own.stop_on_sigterm = false;
      const std::shared_ptr<Net> net = MakeNet();
      ::torch::optim::SGD optimizer(net->parameters(), Descent());
      mine.status = torch::Train(own, net, optimizer, [&](Training& training) {
        const absl::Status status = body(training, *net);
        mine.step = training.step();
        mine.counter = training.counter("rows");
        return status;
      });
      for (const Tensor& parameter : net->parameters()) {
        mine.parameters.push_back(parameter.detach().clone());
      }
    });
    return ended;
  }

  // Trains until `steps` are done, on rows of each rank's own.
  static Body Until(int64_t steps) {
    return [steps](Training& training, Net& net) -> absl::Status {
      while (training.going() && training.step() < steps) {
        int64_t& rows = training.counter("rows");
        COXSWAIN_RETURN_IF_ERROR(training.Step(
            [&] { return Loss(net, rows + training.rank() * kRows); }));
        rows += kRows * training.world_size();
      }
      return absl::OkStatus();
    };
  }

  std::string mesh_;
  std::unique_ptr<server::Coordinator> coordinator_;
};

// Steps of a number of micro-batches, of all ranks together.
struct Phase {
  int64_t steps = 0;
  int micro_batches = 1;
};

// Returns the parameters that plain libtorch trains on all ranks' rows.
std::vector<Tensor> Expected(const std::vector<Phase>& phases) {
  const std::shared_ptr<Net> net = MakeNet();
  ::torch::optim::SGD optimizer(net->parameters(), Descent());
  int64_t row = 0;
  for (const Phase& phase : phases) {
    for (int64_t step = 0; step < phase.steps; ++step) {
      for (int i = 0; i < phase.micro_batches; ++i, row += kRows) {
        (Loss(*net, row) / phase.micro_batches).backward();
      }
      optimizer.step();
      optimizer.zero_grad();
    }
  }
  std::vector<Tensor> parameters;
  for (const Tensor& parameter : net->parameters()) {
    parameters.push_back(parameter.detach());
  }
  return parameters;
}

void ExpectClose(const std::vector<Tensor>& a, const std::vector<Tensor>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    EXPECT_TRUE(::torch::allclose(a[i], b[i], 1e-9, 1e-12)) << i;
  }
}

TEST_F(TrainTest, AveragesOverRanksAndMicroBatches) {
  TrainOptions options;
  options.ddp.accumulation_steps = 3;
  for (const Ended& ended : Run(2, options, Until(5))) {
    EXPECT_OK(ended.status);
    EXPECT_EQ(ended.step, 5);
    EXPECT_EQ(ended.counter, 2 * 3 * 5 * kRows);
    ExpectClose(ended.parameters, Expected({{5, 6}}));
  }
}

TEST_F(TrainTest, AShortWindowIsFlushedAtTheEndOfTheEpoch) {
  TrainOptions options;
  options.ddp.accumulation_steps = 2;
  const auto ended = Run(2, options, [](Training& training, Net& net) {
    absl::Status status;
    for (int i = 0; i < 3 && status.ok(); ++i) {
      status = training.Step([&] { return Loss(net, training.rank()); });
      EXPECT_EQ(training.stepped(), i == 1);
    }
    return status.ok() ? training.EndEpoch() : status;
  });
  for (const Ended& one : ended) {
    EXPECT_OK(one.status);
    EXPECT_EQ(one.step, 2);
    ExpectClose(one.parameters, ended[0].parameters);
  }
}

TEST_F(TrainTest, GoesOnFromItsNewestCheckpointOnAnotherNumberOfRanks) {
  TrainOptions options;
  options.hook = "powersgd(start_step=2)";
  options.ddp.terms.checkpoint_every = 4;
  options.resume = "newest";
  const auto first = Run(2, options, Until(8));
  const auto second = Run(3, options, Until(10));
  for (const Ended& ended : first) {
    EXPECT_OK(ended.status);
    EXPECT_EQ(ended.counter, 8 * 2 * kRows);
  }
  for (const Ended& ended : second) {
    EXPECT_OK(ended.status);
    EXPECT_EQ(ended.step, 10);
    EXPECT_EQ(ended.counter, 8 * 2 * kRows + 2 * 3 * kRows);
    ExpectClose(ended.parameters, second[0].parameters);
  }
}

TEST_F(TrainTest, ARankWithoutDataSavesTheStepsOfTheOthers) {
  TrainOptions options;
  options.ddp.terms.uneven_data = schedule::UnevenData::kWaitForAll;
  options.ddp.terms.checkpoint_every = 1;
  options.resume = "newest";
  const auto trained =
      Run(2, options, [](Training& training, Net& net) -> absl::Status {
        for (int i = 0; i < (training.rank() == 0 ? 1 : 4); ++i) {
          COXSWAIN_RETURN_IF_ERROR(training.Step([&] { return Loss(net, i); }));
        }
        return training.EndEpoch();
      });
  const auto found =
      Run(2, options, [](Training&, Net&) { return absl::OkStatus(); });
  for (const auto& ended : {trained, found}) {
    for (const Ended& one : ended) {
      EXPECT_OK(one.status);
      EXPECT_EQ(one.step, 4);
      ExpectClose(one.parameters, trained[0].parameters);
    }
  }
}

TEST_F(TrainTest, TheFirstRankWithoutDataEndsTheEpochOfAll) {
  TrainOptions options;
  options.ddp.terms.uneven_data = schedule::UnevenData::kEndAtFirst;
  const auto ended =
      Run(2, options, [](Training& training, Net& net) -> absl::Status {
        const int batches = training.rank() == 0 ? 2 : 4;
        for (int i = 0; i < batches && !training.epoch_ended(); ++i) {
          COXSWAIN_RETURN_IF_ERROR(training.Step([&] { return Loss(net, i); }));
        }
        return training.EndEpoch();
      });
  for (const Ended& one : ended) {
    EXPECT_OK(one.status);
    // The window that was given up counts on both.
    EXPECT_EQ(one.step, 3);
    ExpectClose(one.parameters, ended[0].parameters);
  }
}

TEST_F(TrainTest, TrainsThroughGenerationsWhereItIsElastic) {
  TrainOptions options;
  options.elastic = true;
  for (const Ended& ended : Run(2, options, Until(5))) {
    EXPECT_OK(ended.status);
    EXPECT_EQ(ended.step, 5);
    ExpectClose(ended.parameters, Expected({{5, 2}}));
  }
}

TEST_F(TrainTest, ZeroShardsTheOptimizer) {
  for (const int zero : {1, 2}) {
    TrainOptions options;
    options.zero = zero;
    options.ddp.accumulation_steps = 2;
    for (const Ended& ended : Run(3, options, Until(5))) {
      EXPECT_OK(ended.status);
      EXPECT_EQ(ended.step, 5);
      ExpectClose(ended.parameters, Expected({{5, 6}}));
    }
  }
}

// Where the mesh has both axes, replicas share their state within themselves.
TEST_F(TrainTest, ZeroSharesTheStateAsTheMeshHasIt) {
  struct Case {
    std::string mesh;
    int ranks = 0;
    int sharing = 0;
  };
  for (const Case& one : std::vector<Case>{{"dp=2,shard=2", 4, 2},
                                           {"dp=*,shard=3", 6, 3},
                                           {"shard=*", 3, 3},
                                           {"dp=*", 3, 3},
                                           {"", 2, 2}}) {
    for (const int zero : {1, 2}) {
      SCOPED_TRACE(absl::StrCat("mesh ", one.mesh, ", zero=", zero));
      TrainOptions options;
      options.zero = zero;
      options.ddp.accumulation_steps = 2;
      mesh_ = one.mesh;
      const auto ended =
          Run(one.ranks, options, [&one](Training& training, Net& net) {
            EXPECT_EQ(training.ddp().reducer().slicing().size(), one.sharing);
            return Until(5)(training, net);
          });
      for (const Ended& rank : ended) {
        EXPECT_OK(rank.status);
        EXPECT_EQ(rank.step, 5);
        ExpectClose(rank.parameters, Expected({{5, one.ranks * 2}}));
      }
    }
  }
}

TEST_F(TrainTest, ZeroGoesOnFromTheNewestOneOnAnotherNumberOfRanks) {
  TrainOptions options;
  options.zero = 1;
  options.resume = "newest";
  options.ddp.terms.checkpoint_every = 4;
  int64_t rows = 0;
  std::vector<Phase> phases;
  // On each number of ranks four steps more, the last of which is saved.
  for (const int ranks : {3, 2, 4, 1}) {
    SCOPED_TRACE(absl::StrCat(ranks, " ranks"));
    phases.push_back({4, ranks});
    const auto steps = static_cast<int64_t>(4 * phases.size());
    rows += 4 * ranks * kRows;
    const auto ended = Run(ranks, options, Until(steps));
    for (const Ended& one : ended) {
      ASSERT_OK(one.status);
      EXPECT_EQ(one.step, steps);
      EXPECT_EQ(one.counter, rows);
      ExpectClose(one.parameters, Expected(phases));
    }
  }
  // What has been restored, and nothing more, has the same bits.
  const auto nothing = [](Training&, Net&) { return absl::OkStatus(); };
  const auto saved = Run(3, options, nothing);
  options.zero = 2;
  const auto also = Run(2, options, nothing);
  for (const Ended& one : also) {
    ASSERT_OK(one.status);
    for (size_t i = 0; i < one.parameters.size(); ++i) {
      EXPECT_TRUE(::torch::equal(one.parameters[i], saved[0].parameters[i]));
    }
  }
  // Whole states and slices are two kinds of programs.
  options.zero = 0;
  EXPECT_THAT(Run(1, options, nothing)[0].status,
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("is sharded, and this program's is not")));
}

// That of the last step is written before the job is left.
TEST_F(TrainTest, ZeroSavesWhatAnOperatorAsksFor) {
  TrainOptions options;
  options.zero = 2;
  options.resume = "newest";
  const auto asking = [](Training& training, Net& net) -> absl::Status {
    while (training.step() < 3) {
      training.session().schedule().RequestCheckpoint("a test");
      COXSWAIN_RETURN_IF_ERROR(training.Step([&] { return Loss(net, 0); }));
    }
    return absl::OkStatus();
  };
  const auto trained = Run(2, options, asking);
  const auto found =
      Run(3, options, [](Training&, Net&) { return absl::OkStatus(); });
  for (const Ended& one : found) {
    EXPECT_OK(one.status);
    EXPECT_EQ(one.step, 3);
    ExpectClose(one.parameters, trained[0].parameters);
  }
}

TEST_F(TrainTest, AHookThatNeedsAnAveragerIsRefusedWithZero) {
  TrainOptions options;
  options.zero = 1;
  options.hook = "post_local_sgd";
  EXPECT_THAT(Run(1, options, Until(1))[0].status,
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("zero=1 does not go with the hook")));
}

TEST_F(TrainTest, AnErrorOfOneRankEndsAllOfThem) {
  const auto ended = Run(2, {}, [](Training& training, Net& net) {
    absl::Status status;
    while (status.ok()) {
      status = training.Step([&]() -> Tensor {
        if (training.rank() == 1 && training.step() == 3) {
          throw std::runtime_error("the disk failed");
        }
        return Loss(net, 0);
      });
    }
    return status;
  });
  const auto its_own =
      StatusIs(absl::StatusCode::kInternal,
               AllOf(HasSubstr("loss function"), HasSubstr("the disk failed")));
  const auto of_the_peer =
      StatusIs(absl::StatusCode::kAborted,
               AllOf(HasSubstr("rank 1"), HasSubstr("the disk failed")));
  for (const Ended& one : ended) {
    EXPECT_THAT(one.status, AnyOf(its_own, of_the_peer));
  }
  EXPECT_NE(ended[0].status.code(), ended[1].status.code());
}

TEST_F(TrainTest, ABodyThatThrowsIsAnErrorToo) {
  for (const Ended& ended : Run(1, {}, [](Training&, Net&) -> absl::Status {
         throw std::runtime_error("oops");
       })) {
    EXPECT_THAT(ended.status,
                StatusIs(absl::StatusCode::kInternal, HasSubstr("oops")));
  }
}

TEST_F(TrainTest, ALossIsOneNumber) {
  const auto ended = Run(1, {}, [](Training& training, Net& net) {
    return training.Step([&] { return net.forward(Rows(0)); });
  });
  EXPECT_THAT(ended[0].status, StatusIs(absl::StatusCode::kInvalidArgument,
                                        HasSubstr("16 elements")));
}

TEST_F(TrainTest, OptionsThatMakeNoSenseAreRefusedBeforeItJoins) {
  TrainOptions unknown;
  unknown.hook = "powersdg";
  EXPECT_THAT(
      Run(1, unknown, Until(1))[0].status,
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("powersdg")));
  TrainOptions taken;
  taken.settings["find_unused_parameters"] = "maybe";
  taken.elastic = true;
  EXPECT_THAT(
      Run(1, taken, Until(1))[0].status,
      StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("settings")));
}

}  // namespace
}  // namespace coxswain::torch::train_test
