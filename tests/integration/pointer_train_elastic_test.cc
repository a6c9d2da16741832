// One call that trains without libtorch and goes on when ranks are lost or
// added. tests/system kills real processes.

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "client/schedule/schedule_client.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/integration/pointer_training.h"
#include "tests/support/in_threads.h"
#include "train/train.h"

namespace coxswain::pointer_training {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class PointerTrainElasticTest : public PointerTrainTest {
 protected:
  using At = std::function<absl::Status(Training&)>;

  PointerTrainElasticTest() { min_world_size_ = 2; }

  static TrainOptions Elastic() {
    TrainOptions options = Options();
    options.elastic = true;
    return options;
  }

  // As Until, with `at` called before the gradients are computed.
  static Body Until(int64_t steps, const At& at) {
    return [=](Training& training, Model& model) -> absl::Status {
      while (training.going() && training.step() < steps) {
        int64_t& batches = training.counter("batches");
        COXSWAIN_RETURN_IF_ERROR(training.Step([&]() -> absl::StatusOr<double> {
          COXSWAIN_RETURN_IF_ERROR(at(training));
          return model.Backward(batches + training.rank());
        }));
        batches += training.world_size();
      }
      return absl::OkStatus();
    };
  }

  // Takes 12 steps, counted in `taken`. In one of them a bit of rank 1's
  // momenta changes, once.
  static Body FlipsAt(int64_t step, std::atomic<int>* taken) {
    const auto flipped = std::make_shared<std::atomic<bool>>(false);
    return [=](Training& training, Model& model) -> absl::Status {
      while (training.going() && training.step() < 12) {
        int64_t& batches = training.counter("batches");
        if (training.step() == step && training.rank() == 1 &&
            !flipped->exchange(true)) {
          reinterpret_cast<char*>(model.momentum.data())[6] ^= 1;
        }
        COXSWAIN_RETURN_IF_ERROR(training.Step(
            [&] { return model.Backward(batches + training.rank()); }));
        batches += training.world_size();
        if (training.stepped()) ++*taken;
      }
      return absl::OkStatus();
    };
  }

  // Rank 2 of three fails in that step, at the window's micro-batch `micro`.
  static At DiesAt(int64_t step, int micro = 0) {
    return [=, seen = 0](Training& training) mutable {
      const bool here = training.world_size() == 3 && training.rank() == 2 &&
                        training.step() == step;
      if (!here || seen++ < micro) return absl::OkStatus();
      return absl::InternalError("this worker is to die here");
    };
  }
};

TEST_F(PointerTrainElasticTest, SurvivorsBeginTheWindowAgain) {
  TrainOptions options = Elastic();
  options.accumulation_steps = 3;
  const auto ended = Run(3, options, Until(12, DiesAt(5, /*micro=*/1)));
  Model plain;
  int64_t next = 0;
  plain.PlainSteps(&next, 5, 3 * 3);
  plain.PlainSteps(&next, 7, 2 * 3);
  for (const Ended& one : {ended[0], ended[1]}) {
    EXPECT_OK(one.status);
    EXPECT_EQ(one.step, 12);
    EXPECT_EQ(one.counter, next);
    ExpectClose(one.model, plain);
  }
  EXPECT_THAT(ended[2].status,
              StatusIs(absl::StatusCode::kInternal, HasSubstr("to die here")));
}

TEST_F(PointerTrainElasticTest, ANewcomerTakesOverAllThatTheOthersHave) {
  std::atomic<int> grown{0};
  const auto count = [&](Training& training) {
    if (training.world_size() == 3 && training.step() > 8 &&
        training.rank() == 0 && ++grown == 10) {
      training.session().schedule().RequestStop("ten steps with all three");
    }
    return absl::OkStatus();
  };
  const TrainOptions options = Elastic();
  Ended a, b, lost, again;
  std::vector<std::thread> threads;
  const auto start = [&](int slot, const At& at, Ended* ended) {
    return std::thread([this, slot, at, ended, &options] {
      RunOne(slot, 3, options, Until(100'000, at), ended);
    });
  };
  threads.push_back(start(0, count, &a));
  threads.push_back(start(1, count, &b));
  std::thread dies = start(2, DiesAt(8), &lost);
  dies.join();
  int64_t began_at = -1;
  threads.push_back(std::thread([&] {
    RunOne(
        2, 3, options,
        [&](Training& training, Model& model) {
          if (began_at < 0) began_at = training.step();
          return Until(100'000, count)(training, model);
        },
        &again);
  }));
  for (std::thread& thread : threads) thread.join();
  EXPECT_GE(began_at, 8);
  for (const Ended* one : {&a, &b, &again}) {
    EXPECT_OK(one->status);
    EXPECT_EQ(one->step, a.step);
    EXPECT_EQ(one->counter, a.counter);
    EXPECT_EQ(one->model.value, a.model.value);
    EXPECT_EQ(one->model.momentum, a.model.momentum);
  }
}

// One bit of an optimizer's state, in the middle of a window. What is gone back
// to has values, momenta, counters and the place in the window.
TEST_F(PointerTrainElasticTest, TwoRanksThatDifferTakeTheStepsAgain) {
  TrainOptions options = Elastic();
  options.accumulation_steps = 2;
  options.terms.checksum_every = 4;
  std::atomic<int> steps{0};
  const auto undisturbed = Run(2, options, FlipsAt(-1, &steps));
  EXPECT_EQ(steps, 2 * 12);
  steps = 0;
  const auto ended = Run(2, options, FlipsAt(5, &steps));
  // From step 8 back to 4.
  EXPECT_EQ(steps, 2 * (12 + 4));
  for (size_t rank = 0; rank < 2; ++rank) {
    EXPECT_OK(ended[rank].status);
    EXPECT_EQ(ended[rank].step, 12);
    EXPECT_EQ(ended[rank].counter, 12 * 2 * 2);
    EXPECT_EQ(ended[rank].model.value, undisturbed[rank].model.value);
    EXPECT_EQ(ended[rank].model.momentum, undisturbed[rank].model.momentum);
  }
}

// What was saved of the steps that are taken again may be wrong.
TEST_F(PointerTrainElasticTest, ThoseThatGoBackToTheBeginningLoadNoCheckpoint) {
  TrainOptions options = Elastic();
  options.accumulation_steps = 2;
  options.terms.checksum_every = 4;
  options.terms.checkpoint_every = 2;
  options.resume = "newest";
  std::atomic<int> steps{0};
  const auto ended = Run(2, options, FlipsAt(1, &steps));
  EXPECT_EQ(steps, 2 * (12 + 4));
  for (const Ended& one : ended) {
    EXPECT_OK(one.status);
    EXPECT_EQ(one.counter, 12 * 2 * 2);
    ExpectClose(one.model, Plain(12, 2 * 2));
  }
}

// A body may look at no errors: it is not finished for that where a peer was
// lost, and has not ended well where the error is its own.
TEST_F(PointerTrainElasticTest, ErrorsCountWhereTheBodyLooksAtNone) {
  const auto ended = Run(3, Elastic(), [](Training& training, Model& model) {
    for (int i = 0; i < 100 && training.step() < 12; ++i) {
      const bool fails = training.world_size() == 3 && training.rank() == 2 &&
                         training.step() == 5;
      training
          .Step([&] {
            if (fails) training.GradientReady(99).IgnoreError();
            return model.Backward(training.rank());
          })
          .IgnoreError();
    }
    return absl::OkStatus();
  });
  for (const Ended& one : {ended[0], ended[1]}) {
    EXPECT_OK(one.status);
    EXPECT_EQ(one.step, 12);
    EXPECT_EQ(one.model.value, ended[0].model.value);
  }
  EXPECT_THAT(ended[2].status, StatusIs(absl::StatusCode::kInvalidArgument,
                                        HasSubstr("no parameter 99")));
}

TEST_F(PointerTrainElasticTest, GoesOnFromWhatATrainingWithoutItHasSaved) {
  TrainOptions options = Options();
  options.terms.checkpoint_every = 4;
  options.resume = "newest";
  min_world_size_ = 0;
  for (const Ended& one : Run(2, options, PointerTrainTest::Until(4))) {
    EXPECT_OK(one.status);
  }
  options.elastic = true;
  min_world_size_ = 2;
  const auto ended = Run(3, options, [](Training& training, Model& model) {
    EXPECT_GE(training.step(), 4) << "when the body begins";
    return Until(8, DiesAt(6))(training, model);
  });
  Model plain;
  int64_t next = 0;
  plain.PlainSteps(&next, 4, 2);
  plain.PlainSteps(&next, 2, 3);
  plain.PlainSteps(&next, 2, 2);
  for (const Ended& one : {ended[0], ended[1]}) {
    EXPECT_OK(one.status);
    EXPECT_EQ(one.counter, next);
    ExpectClose(one.model, plain);
  }
}

TEST_F(PointerTrainElasticTest, OptimizersThatHaveGoneApartAreNamed) {
  std::vector<absl::Status> statuses(3);
  InThreads(3, [&](int slot) {
    Model model;
    TrainOptions options = Elastic();
    options.session = SessionOf(slot, 3);
    TrainedOptimizer optimizer = model.optimizer();
    optimizer.load = [](absl::string_view) { return absl::OkStatus(); };
    optimizer.save = [slot] { return absl::StrCat("of slot ", slot); };
    statuses[static_cast<size_t>(slot)] =
        Train(options, model.parameters(), optimizer, [&](Training& training) {
          return Until(12, DiesAt(5))(training, model);
        });
  });
  const auto apart = StatusIs(absl::StatusCode::kDataLoss, HasSubstr("rank"));
  for (const absl::Status& status : statuses) EXPECT_THAT(status, apart);
}

TEST_F(PointerTrainElasticTest, AHookThatNeedsAnAveragerIsRefusedByAll) {
  TrainOptions options = Elastic();
  options.hook = "post_local_sgd(start_step=2,period=2)";
  for (const Ended& one : Run(3, options, PointerTrainTest::Until(4))) {
    EXPECT_THAT(one.status, StatusIs(absl::StatusCode::kUnimplemented,
                                     AllOf(HasSubstr("post_local_sgd"),
                                           HasSubstr("averager"))));
  }
}

}  // namespace
}  // namespace coxswain::pointer_training
