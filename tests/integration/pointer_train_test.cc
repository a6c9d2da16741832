// One call that trains without libtorch, against a real coordinator in the same
// process, each worker a thread.

#include <unistd.h>

#include <cmath>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/coordinator.h"
#include "tests/support/in_threads.h"
#include "train/train.h"

namespace coxswain::pointer_train_test {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;

constexpr absl::Duration kTimeout = absl::Seconds(60);

// A model with an optimizer that has momentum, whose gradients depend on its
// values and on the micro-batch that they are of.
struct Model {
  std::vector<double> value = std::vector<double>(12, 0.25);
  std::vector<double> gradient = std::vector<double>(12);
  std::vector<double> momentum = std::vector<double>(12);

  double Backward(int64_t batch) {
    double loss = 0;
    for (size_t i = 0; i < value.size(); ++i) {
      const double target = std::sin(12.9898 * static_cast<double>(batch) +
                                     78.233 * static_cast<double>(i));
      gradient[i] = value[i] - target;
      loss += gradient[i] * gradient[i] / 2;
    }
    return loss;
  }

  absl::Status Step() {
    for (size_t i = 0; i < value.size(); ++i) {
      momentum[i] = 0.5 * momentum[i] + gradient[i];
      value[i] -= 0.1 * momentum[i];
    }
    return absl::OkStatus();
  }

  // A step with the mean of these micro-batches, as a single process takes it.
  void PlainStep(const std::vector<int64_t>& batches) {
    std::vector<double> sum(value.size());
    for (const int64_t batch : batches) {
      Backward(batch);
      for (size_t i = 0; i < sum.size(); ++i) sum[i] += gradient[i];
    }
    for (size_t i = 0; i < sum.size(); ++i) {
      gradient[i] = sum[i] / static_cast<double>(batches.size());
    }
    EXPECT_OK(Step());
  }

  // Steps that all ranks take together over this many micro-batches each.
  void PlainSteps(int64_t* next, int64_t steps, int64_t batches) {
    for (int64_t step = 0; step < steps; ++step) {
      std::vector<int64_t> numbers;
      for (int64_t i = 0; i < batches; ++i) numbers.push_back((*next)++);
      PlainStep(numbers);
    }
  }

  std::vector<TrainedParameter> parameters() {
    return {{"weight", {3, 4}, value.data(), gradient.data(), DType::kFloat64}};
  }

  TrainedOptimizer optimizer() {
    TrainedOptimizer optimizer;
    optimizer.step = [this] { return Step(); };
    optimizer.save = [this]() -> absl::StatusOr<std::string> {
      return std::string(reinterpret_cast<const char*>(momentum.data()),
                         momentum.size() * sizeof(double));
    };
    optimizer.load = [this](absl::string_view bytes) -> absl::Status {
      if (bytes.size() != momentum.size() * sizeof(double)) {
        return absl::DataLossError("not the momenta");
      }
      std::memcpy(momentum.data(), bytes.data(), bytes.size());
      return absl::OkStatus();
    };
    return optimizer;
  }
};

Model Plain(int64_t steps, int64_t batches) {
  Model model;
  int64_t next = 0;
  model.PlainSteps(&next, steps, batches);
  return model;
}

void ExpectClose(const Model& a, const Model& b) {
  for (size_t i = 0; i < a.value.size(); ++i) {
    EXPECT_NEAR(a.value[i], b.value[i], 1e-12) << i;
  }
}

// What one worker came to.
struct Ended {
  absl::Status status;
  Model model;
  int64_t step = 0;
  int64_t counter = 0;
};

class PointerTrainTest : public ::testing::Test {
 protected:
  using Body = std::function<absl::Status(Training&, Model&)>;

  PointerTrainTest() {
    server::CoordinatorOptions options;
    options.listen = "127.0.0.1:0";
    options.state_dir = absl::StrCat(
        ::testing::TempDir(), "/pointer-train-", getpid(), "-",
        ::testing::UnitTest::GetInstance()->current_test_info()->name());
    options.tick_interval = absl::Milliseconds(10);
    auto started = server::Coordinator::Start(options);
    EXPECT_OK(started);
    if (started.ok()) coordinator_ = std::move(started).value();
  }

  SessionOptions SessionOf(int slot, int ranks) const {
    SessionOptions session;
    session.coordinator = absl::StrCat("127.0.0.1:", coordinator_->port());
    session.job = "job";
    session.identity = {"host-a", slot};
    session.host = "host-a";
    session.world_size = ranks;
    session.join_timeout = session.collective_timeout = kTimeout;
    session.plan_overrides = plan_overrides_;
    return session;
  }

  std::vector<Ended> Run(int ranks, const TrainOptions& options,
                         const Body& body) {
    std::vector<Ended> ended(static_cast<size_t>(ranks));
    InThreads(ranks, [&](int slot) {
      Ended& mine = ended[static_cast<size_t>(slot)];
      TrainOptions own = options;
      own.session = SessionOf(slot, ranks);
      mine.status = Train(own, mine.model.parameters(), mine.model.optimizer(),
                          [&](Training& training) {
                            const absl::Status status =
                                body(training, mine.model);
                            mine.step = training.step();
                            mine.counter = training.counter("batches");
                            return status;
                          });
    });
    return ended;
  }

  static TrainOptions Options() {
    TrainOptions options;
    options.stop_on_sigterm = false;
    return options;
  }

  // Trains until `steps` are done, on micro-batches of each rank's own.
  static Body Until(int64_t steps) {
    return [steps](Training& training, Model& model) -> absl::Status {
      while (training.going() && training.step() < steps) {
        int64_t& batches = training.counter("batches");
        COXSWAIN_RETURN_IF_ERROR(training.Step(
            [&] { return model.Backward(batches + training.rank()); }));
        EXPECT_EQ(training.taken(), training.stepped());
        EXPECT_GT(training.loss(), 0);
        batches += training.world_size();
      }
      return absl::OkStatus();
    };
  }

  std::map<std::string, std::string> plan_overrides_;
  std::unique_ptr<server::Coordinator> coordinator_;
};

TEST_F(PointerTrainTest, AveragesAsOneProcessWouldCompute) {
  for (const int ranks : {2, 3}) {
    TrainOptions options = Options();
    options.accumulation_steps = 3;
    for (const Ended& ended : Run(ranks, options, Until(5))) {
      EXPECT_OK(ended.status);
      EXPECT_EQ(ended.step, 5);
      ExpectClose(ended.model, Plain(5, ranks * 3));
    }
  }
}

TEST_F(PointerTrainTest, AnOperatorThatRaisesTheAccumulationChangesNoScale) {
  plan_overrides_["accumulation"] = "4";
  for (const Ended& ended : Run(2, Options(), Until(5))) {
    EXPECT_OK(ended.status);
    ExpectClose(ended.model, Plain(5, 2 * 4));
  }
}

TEST_F(PointerTrainTest, AShortWindowIsTakenAtTheEndOfTheEpoch) {
  TrainOptions options = Options();
  options.accumulation_steps = 4;
  Model plain = Plain(1, 2 * 4);
  plain.PlainStep({8, 9});
  for (const Ended& ended :
       Run(2, options, [](Training&training, Model&model) -> absl::Status {
         for (int64_t i = 0; i < 5; ++i) {
           COXSWAIN_RETURN_IF_ERROR(training.Step(
               [&] { return model.Backward(2 * i + training.rank()); }));
           EXPECT_EQ(training.stepped(), i == 3);
         }
         return training.EndEpoch();
       })) {
    EXPECT_OK(ended.status);
    EXPECT_EQ(ended.step, 2);
    ExpectClose(ended.model, plain);
  }
}

TEST_F(PointerTrainTest, GoesOnFromItsNewestCheckpointOnAnotherNumberOfRanks) {
  TrainOptions options = Options();
  options.terms.checkpoint_every = 4;
  options.resume = "newest";
  const auto first = Run(2, options, Until(8));
  const auto second = Run(3, options, Until(10));
  Model plain;
  int64_t next = 0;
  plain.PlainSteps(&next, 8, 2);
  for (const Ended& ended : first) {
    EXPECT_OK(ended.status);
    ExpectClose(ended.model, plain);
  }
  plain.PlainSteps(&next, 2, 3);
  for (const Ended& ended : second) {
    EXPECT_OK(ended.status);
    EXPECT_EQ(ended.step, 10);
    EXPECT_EQ(ended.counter, 8 * 2 + 2 * 3);
    ExpectClose(ended.model, plain);
  }
}

TEST_F(PointerTrainTest, ARankWithoutDataSavesTheStepsOfTheOthers) {
  TrainOptions options = Options();
  options.terms.uneven_data = schedule::UnevenData::kWaitForAll;
  options.terms.checkpoint_every = 1;
  options.resume = "newest";
  const auto trained =
      Run(2, options, [](Training& training, Model& model) -> absl::Status {
        for (int i = 0; i < (training.rank() == 0 ? 1 : 4); ++i) {
          COXSWAIN_RETURN_IF_ERROR(
              training.Step([&] { return model.Backward(i); }));
        }
        return training.EndEpoch();
      });
  for (const Ended& ended : trained) {
    EXPECT_OK(ended.status);
    EXPECT_EQ(ended.step, 4);
    ExpectClose(ended.model, trained[0].model);
  }
  const auto found =
      Run(2, options, [](Training&, Model&) { return absl::OkStatus(); });
  for (const Ended& ended : found) {
    EXPECT_OK(ended.status);
    EXPECT_EQ(ended.step, 4);
    ExpectClose(ended.model, trained[0].model);
  }
}

TEST_F(PointerTrainTest, TheFirstRankWithoutDataEndsTheEpochOfAll) {
  TrainOptions options = Options();
  options.terms.uneven_data = schedule::UnevenData::kEndAtFirst;
  const auto ended =
      Run(2, options, [](Training& training, Model& model) -> absl::Status {
        for (int epoch = 0; epoch < 2; ++epoch) {
          const int batches = training.rank() == 0 ? 2 : 4;
          for (int i = 0; i < batches && !training.epoch_ended(); ++i) {
            COXSWAIN_RETURN_IF_ERROR(
                training.Step([&] { return model.Backward(i); }));
            EXPECT_EQ(training.taken(), i < 2);
          }
          COXSWAIN_RETURN_IF_ERROR(training.EndEpoch());
        }
        return absl::OkStatus();
      });
  for (const Ended& one : ended) {
    EXPECT_OK(one.status);
    // The window that was given up counts on both.
    EXPECT_EQ(one.step, 6);
    ExpectClose(one.model, ended[0].model);
  }
}

TEST_F(PointerTrainTest, AllRanksEndWithOneModelWhereAHookLetsThemGoApart) {
  TrainOptions options = Options();
  options.hook = "post_local_sgd(start_step=2,period=4)";
  const auto ended = Run(2, options, Until(9));
  for (const Ended& one : ended) {
    EXPECT_OK(one.status);
    ExpectClose(one.model, ended[0].model);
  }
}

TEST_F(PointerTrainTest, AnErrorNamesWhoAndWhyOnAllRanks) {
  const auto ended =
      Run(2, Options(), [](Training& training, Model& model) -> absl::Status {
        while (true) {
          COXSWAIN_RETURN_IF_ERROR(
              training.Step([&]() -> absl::StatusOr<double> {
                if (training.rank() == 1 && training.step() == 3) {
                  return absl::DataLossError("the disk is gone");
                }
                return model.Backward(training.step());
              }));
        }
      });
  const auto its_own =
      StatusIs(absl::StatusCode::kDataLoss, HasSubstr("the disk is gone"));
  const auto of_the_peer =
      StatusIs(absl::StatusCode::kAborted,
               AllOf(HasSubstr("rank 1"), HasSubstr("the disk is gone")));
  for (const Ended& one : ended) {
    EXPECT_THAT(one.status, AnyOf(its_own, of_the_peer));
  }
  EXPECT_NE(ended[0].status.code(), ended[1].status.code());
}

TEST_F(PointerTrainTest, WhatAProgramThrowsIsAnErrorToo) {
  const auto throws = [](const std::string& where) {
    return StatusIs(absl::StatusCode::kInternal,
                    AllOf(HasSubstr(where), HasSubstr("oops")));
  };
  EXPECT_THAT(Run(1, Options(),
                  [](Training&, Model&) -> absl::Status {
                    throw std::runtime_error("oops");
                  })[0]
                  .status,
              throws("the body of Train threw"));
  EXPECT_THAT(Run(1, Options(),
                  [](Training& training, Model&) {
                    return training.Step([]() -> absl::StatusOr<double> {
                      throw std::runtime_error("oops");
                    });
                  })[0]
                  .status,
              throws("the function of gradients threw"));
}

TEST_F(PointerTrainTest, WhatMakesNoSenseIsRefusedBeforeItJoins) {
  Model model;
  TrainOptions options = Options();
  options.session = SessionOf(0, 2);
  // Joining would wait for a coordinator that is not there.
  coordinator_.reset();
  const auto refused = [&](const TrainOptions& wrong,
                           const std::vector<TrainedParameter>& parameters,
                           const TrainedOptimizer& optimizer,
                           const std::string& why) {
    EXPECT_THAT(Train(wrong, parameters, optimizer,
                      [](Training&) { return absl::OkStatus(); }),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(why)));
  };
  TrainOptions hook = options;
  hook.hook = "powersdg(rank=4)";
  refused(hook, model.parameters(), model.optimizer(), "powersdg");
  hook.hook = "powersgd(rank=many)";
  refused(hook, model.parameters(), model.optimizer(), "rank");
  TrainOptions taken = options;
  taken.settings["max_norm"] = "1";
  refused(taken, model.parameters(), model.optimizer(), "\"max_norm\"");
  TrainOptions norm = options;
  norm.max_norm = -1;
  refused(norm, model.parameters(), model.optimizer(), "max_norm");
  refused(options, {}, model.optimizer(), "no parameters");
  refused(options, model.parameters(), {}, "no step");
  TrainedOptimizer half = model.optimizer();
  half.load = nullptr;
  refused(options, model.parameters(), half, "save without load");
}

TEST_F(PointerTrainTest, SettingsThatDifferAreAnErrorOnAllRanks) {
  std::vector<absl::Status> statuses(2);
  InThreads(2, [&](int slot) {
    Model model;
    TrainOptions options = Options();
    options.session = SessionOf(slot, 2);
    options.settings["learning_rate"] = slot == 0 ? "0.1" : "0.2";
    statuses[static_cast<size_t>(slot)] =
        Train(options, model.parameters(), model.optimizer(),
              [](Training&) { return absl::OkStatus(); });
  });
  for (const absl::Status& status : statuses) {
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kFailedPrecondition,
                                 HasSubstr("learning_rate")));
  }
}

// SIGTERM changes its process for good, and so comes to one of its own.
using PointerTrainDeathTest = PointerTrainTest;

TEST_F(PointerTrainDeathTest, SigtermSavesTheStepAndStopsAllRanks) {
  ::testing::FLAGS_gtest_death_test_style = "threadsafe";
  const auto stop = [this] {
    TrainOptions options;
    options.resume = "newest";
    const auto stopped =
        Run(2, options, [](Training& training, Model& model) -> absl::Status {
          while (training.going()) {
            if (training.rank() == 1 && training.step() == 3) {
              std::raise(SIGTERM);
            }
            COXSWAIN_RETURN_IF_ERROR(
                training.Step([&] { return model.Backward(0); }));
          }
          EXPECT_THAT(training.decision().stop, HasSubstr("SIGTERM"));
          return absl::OkStatus();
        });
    for (const Ended& ended : stopped) EXPECT_OK(ended.status);
    EXPECT_GE(stopped[0].step, 4);
    options.stop_on_sigterm = false;
    for (const Ended& found :
         Run(2, options, [](Training&, Model&) { return absl::OkStatus(); })) {
      EXPECT_OK(found.status);
      EXPECT_EQ(found.step, stopped[0].step);
      ExpectClose(found.model, stopped[0].model);
    }
    std::_Exit(HasFailure() ? 1 : 0);
  };
  EXPECT_EXIT(stop(), ::testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace coxswain::pointer_train_test
