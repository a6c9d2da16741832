// The quickstart's trainer on the real images: two workers, two epochs, the
// same seeds, once per hook.

#include <iostream>
#include <map>
#include <string>
#include <variant>

#include "examples/fashion_mnist/events.h"
#include "gtest/gtest.h"
#include "tests/system/scenario.h"

namespace coxswain {
namespace {

using examples::Event;
using examples::ParseEvent;
using examples::ResultEvent;

constexpr char kTrainer[] = "examples/fashion_mnist/train";
// A run takes half a minute on an idle machine of two cores.
constexpr absl::Duration kRun = absl::Minutes(12);

ResultEvent Train(const std::string& hook) {
  const auto launcher =
      Start({kCoxswain, "run", "--nproc", "2", "--no-prefix", "--", kTrainer,
             "--events", "--epochs", "2", "--hook", hook});
  const auto exit = launcher->Wait(kRun);
  EXPECT_TRUE(exit.ok()) << exit.status();
  if (!exit.ok()) return {};
  EXPECT_EQ(exit->Status(), 0) << launcher->err();
  for (const std::string& line : LinesWith(launcher->out(), "{")) {
    const auto event = ParseEvent(line);
    if (event.ok() && std::holds_alternative<ResultEvent>(*event)) {
      std::cout << line << std::endl;
      return std::get<ResultEvent>(*event);
    }
  }
  ADD_FAILURE() << "no result from " << hook << ": " << launcher->out();
  return {};
}

// Trains with allreduce and with `hooks`, which are to send so many times less.
void Compare(const std::map<std::string, double>& hooks) {
  const ResultEvent plain = Train("allreduce");
  ASSERT_GT(plain.test_accuracy, 0.85);
  EXPECT_EQ(plain.world_size, 2);
  // The first step shows the order of the gradients once.
  EXPECT_NEAR(plain.bytes_sent_per_step, 4 * 206922, 1);
  EXPECT_NEAR(plain.compression_ratio, 1, 1e-6);
  for (const auto& [hook, ratio] : hooks) {
    const ResultEvent result = Train(hook);
    EXPECT_GE(result.test_accuracy, plain.test_accuracy - 0.01) << hook;
    EXPECT_GE(result.compression_ratio, ratio - 1e-5) << hook;
    EXPECT_EQ(result.steps, plain.steps) << hook;
    EXPECT_GT(result.compressed_steps, 0) << hook;
    EXPECT_GT(result.wire_bytes_per_step, result.bytes_sent_per_step * 0.99)
        << hook;
  }
}

TEST(AccuracyTest, PowerSgdIsWithinOnePointAfterTwoEpochs) {
  Compare({{"powersgd(rank=2,start_step=20)", 8}});
}

TEST(AccuracyTest, SixteenBitsAreWithinOnePointAfterTwoEpochs) {
  Compare({{"fp16", 2}, {"bf16", 2}});
}

}  // namespace
}  // namespace coxswain
