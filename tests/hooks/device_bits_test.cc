#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "hooks/registry/registry.h"
#include "hooks/stats.h"
#include "tests/conformance/hook_world.h"
#include "tests/conformance/stream_communicator.h"

// The same hook, the same gradients: on the CPU and on an emulated GPU.

namespace coxswain {
namespace {

using testing::HasSubstr;

std::vector<ParameterSpec> ParametersOn(Device::Kind kind, DType dtype) {
  std::vector<ParameterSpec> parameters = OddParameters(dtype);
  for (ParameterSpec& parameter : parameters) parameter.device.kind = kind;
  return parameters;
}

std::vector<Gradients> LocalGradients(
    const std::vector<ParameterSpec>& parameters, int size, int64_t step) {
  std::vector<Gradients> local;
  for (int rank = 0; rank < size; ++rank) {
    local.push_back(NormalGradients(parameters, 5, rank, step));
  }
  return local;
}

struct Case {
  std::string spec;
  DType dtype = DType::kFloat32;
};

void ExpectSameBits(const Case& one, int size, int64_t steps) {
  SCOPED_TRACE(one.spec + " of " + std::string(NameOf(one.dtype)));
  const auto parameters = ParametersOn(Device::Kind::kCpu, one.dtype);
  HookWorld cpu(one.spec, parameters, size);
  HookWorld gpu(one.spec, ParametersOn(Device::Kind::kCuda, one.dtype), size);
  for (int64_t step = 0; step < steps; ++step) {
    const auto local = LocalGradients(parameters, size, step);
    EXPECT_EQ(cpu.ExchangeApart(local), gpu.ExchangeApart(local))
        << "step " << step << " of " << size << " ranks";
    cpu.Commit();
    gpu.Commit();
  }
  EXPECT_EQ(cpu.payload_bytes(), gpu.payload_bytes());
  EXPECT_EQ(cpu.collectives(), gpu.collectives());
  EXPECT_EQ(SerializeHookState(cpu.Save()), SerializeHookState(gpu.Save()));
}

class DeviceBitsTest : public testing::TestWithParam<Case> {};

TEST_P(DeviceBitsTest, AreThoseOfTheCpu) {
  for (int size = 1; size <= 4; ++size) ExpectSameBits(GetParam(), size, 4);
}

INSTANTIATE_TEST_SUITE_P(
    OwnPath, DeviceBitsTest,
    testing::Values(
        Case{"allreduce"}, Case{"allreduce", DType::kFloat64},
        Case{"allreduce", DType::kFloat16}, Case{"allreduce", DType::kBFloat16},
        Case{"fp16"}, Case{"fp16", DType::kFloat64},
        Case{"fp16", DType::kBFloat16}, Case{"fp16(order=cast_then_divide)"},
        Case{"bf16"}, Case{"bf16", DType::kFloat64},
        Case{"bf16(order=cast_then_divide)", DType::kFloat64},
        Case{"fp16(allreduce)"}, Case{"bf16(allreduce)", DType::kFloat64},
        Case{"stats(fp16)"}, Case{"fp16(stats(allreduce))"}, Case{"noop"}));

// These have no kernels for GPUs, and go by way of the host's memory.
INSTANTIATE_TEST_SUITE_P(
    Staged, DeviceBitsTest,
    testing::Values(Case{"acp_sgd(rank=2,start_step=2)"},
                    Case{"batched_powersgd(rank=2,start_step=2)"},
                    Case{"fp16(batched_powersgd(start_step=2))"},
                    Case{"stats(batched_powersgd(start_step=2))",
                         DType::kFloat64},
                    Case{"post_local_sgd(start_step=2,subgroup=2)"},
                    Case{"diloco(start_step=2)"},
                    Case{"hierarchical_sgd(start_step=2)"}));

// NaN would equal nothing.
std::vector<Gradients> WithoutNan(std::vector<Gradients> results) {
  for (Gradients& one : results) {
    for (auto& values : one) {
      for (double& value : values) value = std::isnan(value) ? 1e300 : value;
    }
  }
  return results;
}

class BucketsInFlightTest : public testing::TestWithParam<Case> {};

// Among the steps is one with a gradient that is not finite.
TEST_P(BucketsInFlightTest, HaveTheBitsOfOneAfterTheOther) {
  const auto parameters = ParametersOn(Device::Kind::kCuda, GetParam().dtype);
  HookWorld apart(GetParam().spec, parameters, 3);
  HookWorld together(GetParam().spec, parameters, 3);
  for (int64_t step = 0; step < 6; ++step) {
    auto local = LocalGradients(parameters, 3, step);
    if (step == 4) local[1][8][3] = std::numeric_limits<double>::infinity();
    EXPECT_EQ(WithoutNan(apart.ExchangeApart(local)),
              WithoutNan(together.ExchangeInFlight(local)))
        << "step " << step;
    EXPECT_EQ(apart.NonFinite().size(), together.NonFinite().size());
    apart.Commit();
    together.Commit();
  }
  EXPECT_EQ(apart.payload_bytes(), together.payload_bytes());
  EXPECT_EQ(apart.collectives(), together.collectives());
  EXPECT_EQ(SerializeHookState(apart.Save()),
            SerializeHookState(together.Save()));
}

INSTANTIATE_TEST_SUITE_P(
    OwnPath, BucketsInFlightTest,
    testing::Values(Case{"allreduce"}, Case{"allreduce", DType::kFloat16},
                    Case{"fp16"},
                    Case{"bf16(order=cast_then_divide)", DType::kFloat64},
                    Case{"fp16(allreduce)"}, Case{"stats(fp16)"}, Case{"noop"},
                    Case{"int8(block=64)"}, Case{"int8", DType::kFloat64},
                    Case{"int8(block=64)", DType::kBFloat16},
                    Case{"powersgd(rank=2,start_step=2)"},
                    Case{"powersgd(rank=2,start_step=2)", DType::kFloat64},
                    Case{"bf16(powersgd(rank=2,start_step=2))"}));

INSTANTIATE_TEST_SUITE_P(
    Staged, BucketsInFlightTest,
    testing::Values(Case{"acp_sgd(rank=2,start_step=2)"},
                    Case{"batched_powersgd(rank=2,start_step=2)"},
                    Case{"post_local_sgd(start_step=2,subgroup=3)"},
                    Case{"diloco(start_step=2)"},
                    Case{"hierarchical_sgd(start_step=2)"}));

// Recorded in the second step and replayed from then on, until the buckets
// change.
TEST(DeviceSequencesTest, AreRecordedOnceForEachBucket) {
  for (const std::string spec : {"allreduce", "fp16", "bf16"}) {
    SCOPED_TRACE(spec);
    const auto parameters = ParametersOn(Device::Kind::kCuda, DType::kFloat32);
    HookWorld world(spec, parameters, 2);
    const auto buckets =
        static_cast<int64_t>(HookWorld::DefaultBuckets(parameters).size());
    const auto& communicator =
        dynamic_cast<const StreamCommunicator&>(world.communicator(0));
    for (int64_t step = 0; step < 3; ++step) {
      world.Step(LocalGradients(parameters, 2, step));
      EXPECT_EQ(communicator.recorded(), step == 0 ? 0 : buckets);
      EXPECT_EQ(communicator.replayed(), buckets * step);
    }
    world.Rebucket(HookWorld::DefaultBuckets(parameters));
    world.Step(LocalGradients(parameters, 2, 3));
    EXPECT_EQ(communicator.recorded(), buckets);
    world.Step(LocalGradients(parameters, 2, 4));
    EXPECT_EQ(communicator.recorded(), 2 * buckets);
  }
}

// Two calls of Advance, and no wait of the host but the one at the end: the
// hook's part of a step is over while the stream is held.
TEST(DeviceSequencesTest, TheHostWaitsOnceForABucket) {
  for (const std::string spec : {"allreduce", "bf16", "fp16(allreduce)"}) {
    SCOPED_TRACE(spec);
    const auto parameters = ParametersOn(Device::Kind::kCuda, DType::kFloat32);
    HookWorld world(spec, parameters, 1);
    EmulatedRuntime& runtime = world.runtime(0);
    Communicator& communicator = world.communicator(0);
    DeviceQueue& queue = *communicator.device_queue();
    std::vector<float> values(100, 3);
    Bucket bucket;
    bucket.data = {values.data(), 100, DType::kFloat32, runtime.device()};
    bucket.gradients = {{0, 0, 100}};
    runtime.HoldStream(queue.stream());
    ASSERT_OK_AND_ASSIGN(auto exchange,
                         world.hook(0).Prepare(bucket, communicator));
    ASSERT_OK_AND_ASSIGN(const WorkPtr work, exchange->Advance());
    ASSERT_NE(work, nullptr);
    EXPECT_FALSE(work->Done());
    runtime.ReleaseStream(queue.stream());
    ASSERT_OK(work->Wait(absl::Seconds(60)));
    ASSERT_OK_AND_ASSIGN(const WorkPtr end, exchange->Advance());
    EXPECT_EQ(end, nullptr);
    EXPECT_EQ(values, std::vector<float>(100, 3));
    world.Rollback();
  }
}

TEST(DeviceStatsTest, CountsStepsThatAreNotFinite) {
  const auto parameters = ParametersOn(Device::Kind::kCuda, DType::kFloat32);
  HookWorld world("stats(allreduce)", parameters, 2);
  auto local = LocalGradients(parameters, 2, 0);
  world.Step(local);
  EXPECT_EQ(StatsOf(world.hook(0))->non_finite, 0);
  local[1][3][7] = std::numeric_limits<double>::infinity();
  world.ExchangeApart(local);
  world.Rollback();
  EXPECT_EQ(StatsOf(world.hook(0))->non_finite, 1);
  EXPECT_EQ(StatsOf(world.hook(1))->non_finite, 1);
}

// Every hook of the registry reports what is wrong where a bucket on a GPU
// meets a back end of the CPU, or another GPU.
TEST(DeviceErrorsTest, ABucketElsewhereIsRefused) {
  for (const HookDescription& hook : ListHooks()) {
    if (hook.name == "noop") continue;
    const std::string spec =
        hook.needs_inner ? hook.name + "(allreduce)" : hook.name;
    SCOPED_TRACE(spec);
    HookWorld cpu(spec, OddParameters(DType::kFloat32), 1);
    Bucket bucket;
    bucket.data = {nullptr, 6, DType::kFloat32, {Device::Kind::kCuda, 3}};
    bucket.gradients = {{1, 0, 6}};
    EXPECT_THAT(
        cpu.hook(0).Prepare(bucket, cpu.communicator(0)).status(),
        StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("GPU 3")));
    HookWorld gpu(spec, ParametersOn(Device::Kind::kCuda, DType::kFloat32), 1);
    EXPECT_THAT(gpu.hook(0).Prepare(bucket, gpu.communicator(0)).status(),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         HasSubstr("communicator is GPU 0")));
  }
}

}  // namespace
}  // namespace coxswain
