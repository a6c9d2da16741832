// Buckets that a framework hands over one by one get what the reducer makes of
// the same gradients, bit for bit.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/status_matchers.h"
#include "client/comm/in_process/in_process_world.h"
#include "client/reduce/bucket_stream.h"
#include "client/reduce/reducer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "hooks/registry/registry.h"

namespace coxswain {
namespace {

constexpr int kStreamRanks = 3;
constexpr int kStreamSteps = 6;
constexpr absl::Duration kStreamTimeout = absl::Seconds(20);

std::vector<ParameterSpec> StreamParameters() {
  std::vector<ParameterSpec> parameters;
  for (int i = 0; i < 5; ++i) {
    ParameterSpec& spec = parameters.emplace_back();
    spec.name = absl::StrCat("p", i);
    spec.shape = {12 + i, 9};
  }
  return parameters;
}

float GradientAt(int rank, int step, int parameter, int64_t element) {
  const int64_t mixed = (element * 7 + step * 31 + parameter * 13) % 101;
  return 0.01f * static_cast<float>(mixed - 50) +
         0.001f * static_cast<float>((rank + 1) * (element % 5));
}

// What one rank has of both.
class BothWays {
 public:
  BothWays(const std::string& spec, int rank, Communicator* of_reducer,
           Communicator* of_stream)
      : rank_(rank), hook_(*MakeHook(spec)) {
    ReducerOptions options;
    // Two parameters share a bucket here and there.
    options.buckets = {600, 1200};
    options.rebuild = false;
    options.timeout = kStreamTimeout;
    reducer_ =
        *Reducer::Create(options, StreamParameters(), hook_.get(), of_reducer);
    BucketStream::Options stream;
    stream.communicator = of_stream;
    stream.clock = Clock::Real();
    stream.timeout = kStreamTimeout;
    stream.make_hook = [](const schedule::Plan& plan) {
      return MakeHook(plan.hook);
    };
    schedule::Plan plan;
    plan.hook = spec;
    stream_ =
        *BucketStream::Create(std::move(stream), StreamParameters(), plan);
  }

  void Step(int step) {
    ASSERT_OK(reducer_->BeginStep());
    for (int i = 0; i < 5; ++i) {
      const Span view = reducer_->GradientView(i);
      Fill(step, i, static_cast<float*>(view.data), view.count);
      ASSERT_OK(reducer_->MarkReady(i));
    }
    ASSERT_OK(reducer_->Finish());
    std::vector<std::vector<float>> memory;
    for (const Bucket& bucket : reducer_->buckets()) {
      std::vector<float>& data =
          memory.emplace_back(static_cast<size_t>(bucket.data.count));
      Bucket handed = bucket;
      handed.data.data = data.data();
      handed.last = memory.size() == reducer_->buckets().size();
      for (const GradientSlot& slot : bucket.gradients) {
        Fill(step, slot.parameter, data.data() + slot.offset, slot.count);
      }
      ASSERT_OK(stream_->Add(std::move(handed)));
    }
    ASSERT_OK(stream_->Wait(kStreamTimeout)
                  .value_or(absl::DeadlineExceededError("the stream")));
    for (size_t i = 0; i < memory.size(); ++i) {
      const Span& data = reducer_->buckets()[i].data;
      const auto* averages = static_cast<const float*>(data.data);
      EXPECT_EQ(memory[i], std::vector<float>(averages, averages + data.count))
          << "bucket " << i << " of step " << step << " on rank " << rank_;
    }
    ASSERT_OK(reducer_->Commit());
    ASSERT_OK(stream_->End(/*commit=*/true));
  }

 private:
  void Fill(int step, int parameter, float* data, int64_t count) const {
    for (int64_t i = 0; i < count; ++i) {
      data[i] = GradientAt(rank_, step, parameter, i);
    }
  }

  const int rank_;
  std::unique_ptr<Hook> hook_;
  std::unique_ptr<Reducer> reducer_;
  std::unique_ptr<BucketStream> stream_;
};

class StreamBitsTest : public testing::TestWithParam<std::string> {};

INSTANTIATE_TEST_SUITE_P(Hooks, StreamBitsTest,
                         testing::Values("allreduce", "fp16", "bf16", "int8",
                                         "powersgd(rank=2,start_step=2)",
                                         "fp16(powersgd(rank=2,start_step=2))",
                                         "batched_powersgd(start_step=2)"));

TEST_P(StreamBitsTest, AreThoseOfTheReducer) {
  const auto reducers = InProcessWorld::Create(kStreamRanks, kStreamTimeout);
  const auto streams = InProcessWorld::Create(kStreamRanks, kStreamTimeout);
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < kStreamRanks; ++rank) {
    ranks.emplace_back([rank, one = reducers->MakeRank(rank),
                        other = streams->MakeRank(rank)] {
      BothWays both(GetParam(), rank, one.get(), other.get());
      for (int step = 0; step < kStreamSteps; ++step) both.Step(step);
    });
  }
  for (std::thread& thread : ranks) thread.join();
}

}  // namespace
}  // namespace coxswain
