// The int8 hook on buckets in the memory of emulated GPUs: each of its bits is
// that of the CPU's path, which int8_test.cc and the conformance suite judge.

#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/status_matchers.h"
#include "client/device/emulated/emulated_runtime.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "hooks/int8/int8.h"
#include "hooks/registry/registry.h"
#include "tests/conformance/hook_world.h"
#include "tests/conformance/lockstep_world.h"
#include "tests/conformance/stream_communicator.h"

namespace coxswain {
namespace {

using testing::HasSubstr;

constexpr uint64_t kStream = 23;
constexpr Device kGpu{Device::Kind::kCuda, 0};

std::vector<ParameterSpec> Parameters(DType dtype, Device device,
                                      const std::vector<int64_t>& counts) {
  std::vector<ParameterSpec> parameters;
  for (const int64_t count : counts) {
    parameters.push_back(
        {absl::StrCat("p", parameters.size()), {count}, dtype, device, {}});
  }
  return parameters;
}

std::vector<Gradients> Local(const std::vector<ParameterSpec>& parameters,
                             int size, int64_t step) {
  std::vector<Gradients> local;
  for (int rank = 0; rank < size; ++rank) {
    local.push_back(NormalGradients(parameters, kStream, rank, step));
  }
  return local;
}

// NaN equals NaN here.
void ExpectSameValues(const Gradients& a, const Gradients& b) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t p = 0; p < a.size(); ++p) {
    ASSERT_EQ(a[p].size(), b[p].size());
    for (size_t i = 0; i < a[p].size(); ++i) {
      if (std::isnan(a[p][i]) && std::isnan(b[p][i])) continue;
      ASSERT_EQ(a[p][i], b[p][i]) << "element " << i << " of parameter " << p;
    }
  }
}

const std::vector<int64_t> kCounts = {100, 0, 1, 700, 33, 256, 5};
const std::vector<HookWorld::Buckets> kLayouts = {
    {{6, 5, 4, 3}, {2, 1, 0}},
    {{3}, {0, 2}, {4}, {6, 5}, {1}},
    {{0, 1, 2, 3, 4, 5, 6}},
};

// The same job on CPUs and on GPUs.
class Both {
 public:
  Both(const std::string& spec, DType dtype, int size)
      : cpu(spec, Parameters(dtype, Device(), kCounts), size, kLayouts[0]),
        gpu(spec, Parameters(dtype, kGpu, kCounts), size, kLayouts[0]) {}

  void Rebucket(const HookWorld::Buckets& buckets) {
    cpu.Rebucket(buckets);
    gpu.Rebucket(buckets);
  }
  void Exchange(const std::vector<Gradients>& local) {
    ExpectSameValues(cpu.Exchange(local), gpu.Exchange(local));
    ASSERT_EQ(cpu.payload_bytes(), gpu.payload_bytes());
    ASSERT_EQ(cpu.NonFinite().size(), gpu.NonFinite().size());
  }
  void Commit() {
    cpu.Commit();
    gpu.Commit();
  }
  void Rollback() {
    cpu.Rollback();
    gpu.Rollback();
  }
  void ExpectSameState() {
    EXPECT_EQ(SerializeHookState(cpu.Save()), SerializeHookState(gpu.Save()));
    for (int rank = 0; rank < cpu.size(); ++rank) {
      EXPECT_EQ(SerializeHookState(cpu.SaveOwn(rank)),
                SerializeHookState(gpu.SaveOwn(rank)));
      EXPECT_EQ(cpu.hook(rank).ErrorNorm(), gpu.hook(rank).ErrorNorm());
    }
  }

  HookWorld cpu;
  HookWorld gpu;
};

// With other buckets, rollbacks, given-up steps and steps that are not finite
// in between.
void ExpectSameBits(const std::string& spec, DType dtype, int size) {
  SCOPED_TRACE(absl::StrCat(spec, " of ", NameOf(dtype), " on ", size));
  Both both(spec, dtype, size);
  const auto parameters = Parameters(dtype, Device(), kCounts);
  for (int64_t step = 0; step < 9; ++step) {
    const auto local = Local(parameters, size, step);
    if (step % 3 == 2) {
      both.Rebucket(kLayouts[static_cast<size_t>(step / 3 + 1) % 3]);
    }
    if (step == 4) {
      auto bad = local;
      bad[0][3][5] = std::numeric_limits<double>::infinity();
      both.Exchange(bad);
      both.Rollback();
      both.cpu.GiveUp(local, 2);
      both.gpu.GiveUp(local, 1);
      both.Rollback();
    }
    both.Exchange(local);
    both.Commit();
    if (step % 4 == 3) both.ExpectSameState();
    if (testing::Test::HasFatalFailure()) return;
  }
  both.ExpectSameState();
}

TEST(Int8DeviceTest, BitsAreThoseOfTheCpu) {
  for (const int size : {1, 2, 3, 4}) {
    ExpectSameBits("int8(block=64)", DType::kFloat32, size);
  }
}

TEST(Int8DeviceTest, BitsOfOtherTypesAreThoseOfTheCpu) {
  for (const DType dtype :
       {DType::kFloat64, DType::kFloat16, DType::kBFloat16}) {
    ExpectSameBits("int8", dtype, 3);
  }
}

TEST(Int8DeviceTest, BitsOfOddBlocksAndLateStartsAreThoseOfTheCpu) {
  ExpectSameBits("int8(block=35)", DType::kFloat32, 3);
  ExpectSameBits("int8(block=4096)", DType::kFloat32, 2);
  ExpectSameBits("int8(start_step=3)", DType::kFloat32, 2);
  ExpectSameBits("int8(error_feedback=false)", DType::kFloat32, 2);
}

TEST(Int8DeviceTest, NamesTheGradientsThatAreNotFinite) {
  Both both("int8(block=64)", DType::kFloat32, 3);
  auto local = Local(Parameters(DType::kFloat32, Device(), kCounts), 3, 0);
  local[2][3][699] = std::nan("");
  local[2][4][0] = std::nan("");
  local[1][0][7] = -std::numeric_limits<double>::infinity();
  both.Exchange(local);
  const auto found = both.gpu.NonFinite();
  ASSERT_EQ(found.size(), 2u);
  EXPECT_EQ(found[0].rank, 2);
  EXPECT_EQ(found[0].parameter, "p4");  // the first of its bucket
  EXPECT_EQ(found[1].rank, 1);
  EXPECT_EQ(found[1].parameter, "p0");
}

// Finite gradients, whose sum is not.
TEST(Int8DeviceTest, AnOverflowingSumNamesNoRank) {
  const auto parameters = Parameters(DType::kFloat32, kGpu, {3});
  HookWorld world("int8", parameters, 2);
  const Gradients large = {{3e38, 0, 1}};
  const Gradients result = world.Step({large, large});
  for (const double value : result[0]) EXPECT_TRUE(std::isnan(value));
  EXPECT_TRUE(world.NonFinite().empty());
}

// Errors that the CPU left are taken to the GPU, and back, from steps that were
// rolled back too.
TEST(Int8DeviceTest, BucketsMoveBetweenCpuAndGpu) {
  const auto on_cpu = Parameters(DType::kFloat32, Device(), kCounts);
  const auto on_gpu = Parameters(DType::kFloat32, kGpu, kCounts);
  HookWorld stays("int8(block=64)", on_cpu, 3);
  HookWorld moves("int8(block=64)", on_gpu, 3);
  for (int64_t step = 0; step < 8; ++step) {
    if (step % 2 == 1) {
      moves.Exchange(Local(on_cpu, 3, step + 100));
      if (step % 4 == 1) moves.Rollback();
      moves.Reconfigure(step % 4 == 1 ? on_cpu : on_gpu);
    }
    const auto local = Local(on_cpu, 3, step);
    ExpectSameValues(stays.Step(local), moves.Step(local));
  }
  EXPECT_EQ(SerializeHookState(stays.Save()), SerializeHookState(moves.Save()));
}

TEST(Int8DeviceTest, GoesOnFromAStateThatTheCpuSaved) {
  const auto on_cpu = Parameters(DType::kFloat32, Device(), kCounts);
  const auto on_gpu = Parameters(DType::kFloat32, kGpu, kCounts);
  HookWorld first("int8(block=64)", on_cpu, 2);
  for (int64_t step = 0; step < 3; ++step) first.Step(Local(on_cpu, 2, step));
  HookWorld second("int8(block=64)", on_gpu, 2);
  second.Step(Local(on_cpu, 2, 7));  // which the state takes the place of
  ASSERT_OK(second.Load(first.Save()));
  for (int64_t step = 3; step < 6; ++step) {
    const auto local = Local(on_cpu, 2, step);
    ExpectSameValues(first.Step(local), second.Step(local));
  }
  EXPECT_EQ(SerializeHookState(first.Save()),
            SerializeHookState(second.Save()));
}

TEST(Int8DeviceTest, LaunchesDoNotGrowWithTheGradients) {
  for (const size_t gradients : {1u, 40u}) {
    const auto parameters =
        Parameters(DType::kFloat32, kGpu, std::vector<int64_t>(gradients, 50));
    HookWorld::Buckets one(1);
    for (size_t i = 0; i < gradients; ++i) {
      one[0].push_back(static_cast<int>(i));
    }
    HookWorld world("int8(block=64)", parameters, 2, one);
    world.Step(Local(parameters, 2, 0));
    const int64_t launches = world.runtime(0).launches();
    const int64_t copies = world.runtime(0).copies();
    world.Step(Local(parameters, 2, 1));
    // Four kernels, two collectives, and at most the marks that are waited for.
    EXPECT_LE(world.runtime(0).launches() - launches, 4 + 2 + 2) << gradients;
    // The bucket's own copy to its device, the table, and the flag.
    EXPECT_EQ(world.runtime(0).copies() - copies, 3) << gradients;
  }
}

// Ranks that live on through changes of their group, on CPUs or GPUs.
class Members {
 public:
  Members(size_t count, bool on_device) : on_device_(on_device) {
    for (size_t i = 0; i < count; ++i) {
      runtimes_.push_back(std::make_unique<EmulatedRuntime>());
      auto hook = MakeHook("int8(block=64)");
      EXPECT_OK(hook);
      hooks_.push_back(*std::move(hook));
    }
    memory_.resize(count);
  }

  Hook& hook(size_t member) { return *hooks_[member]; }
  EmulatedRuntime& runtime(size_t member) { return *runtimes_[member]; }

  // These are the group from now on.
  void Regroup(std::vector<size_t> members) {
    members_ = std::move(members);
    communicators_.clear();
    const auto world = LockstepWorld::Create(static_cast<int>(members_.size()));
    const auto parameters = Parameters(DType::kFloat32, device(), {kCount});
    for (size_t rank = 0; rank < members_.size(); ++rank) {
      communicators_.push_back(world->MakeRank(static_cast<int>(rank)));
      if (on_device_) {
        communicators_.back() = std::make_unique<StreamCommunicator>(
            std::move(communicators_.back()), *runtimes_[members_[rank]]);
      }
      EXPECT_OK(hooks_[members_[rank]]->Configure(
          parameters, static_cast<int>(members_.size())));
    }
  }

  // One step with the gradients of that number; each rank's result.
  std::vector<std::vector<float>> Step(int64_t step) {
    std::vector<Bucket> buckets(members_.size());
    std::vector<std::unique_ptr<Exchange>> exchanges;
    const auto parameters = Parameters(DType::kFloat32, Device(), {kCount});
    for (size_t rank = 0; rank < members_.size(); ++rank) {
      auto& memory = memory_[members_[rank]];
      const auto values = NormalGradients(
          parameters, kStream, static_cast<int>(members_[rank]), step);
      memory.assign(values[0].begin(), values[0].end());
      buckets[rank].data =
          Span{memory.data(), kCount, DType::kFloat32, device()};
      buckets[rank].gradients = {{0, 0, kCount}};
      auto exchange =
          hooks_[members_[rank]]->Prepare(buckets[rank], *communicators_[rank]);
      EXPECT_OK(exchange);
      exchanges.push_back(*std::move(exchange));
    }
    while (AdvanceAll(exchanges)) {
    }
    std::vector<std::vector<float>> results;
    for (const size_t member : members_) {
      EXPECT_OK(hooks_[member]->Commit());
      results.push_back(memory_[member]);
    }
    return results;
  }

 private:
  static constexpr int64_t kCount = 1000;

  Device device() const { return on_device_ ? kGpu : Device(); }

  static bool AdvanceAll(std::vector<std::unique_ptr<Exchange>>& exchanges) {
    std::vector<WorkPtr> works;
    for (auto& exchange : exchanges) {
      auto work = exchange->Advance();
      EXPECT_OK(work);
      if (work.ok() && *work != nullptr) works.push_back(*work);
    }
    for (const WorkPtr& work : works) {
      EXPECT_OK(work->Wait(absl::Seconds(60)));
    }
    return !works.empty();
  }

  const bool on_device_;
  std::vector<std::unique_ptr<EmulatedRuntime>> runtimes_;  // outlive hooks
  std::vector<std::vector<float>> memory_;
  std::vector<std::unique_ptr<Hook>> hooks_;
  std::vector<size_t> members_;
  std::vector<std::unique_ptr<Communicator>> communicators_;
};

// Rank 0 of 3 leaves, then a fresh one joins: slices change their owners, and
// their errors are folded on the GPU.
TEST(Int8DeviceTest, ErrorsSurviveAnotherWorldSize) {
  Members cpu(4, false), gpu(4, true);
  for (const auto& members :
       std::vector<std::vector<size_t>>{{0, 1, 2}, {1, 2}, {3, 1, 2}}) {
    cpu.Regroup(members);
    gpu.Regroup(members);
    for (int64_t step = 0; step < 3; ++step) {
      EXPECT_EQ(cpu.Step(step), gpu.Step(step)) << members.size();
    }
    for (const size_t member : members) {
      const auto saved = gpu.hook(member).SaveOwn();
      ASSERT_OK(saved);
      EXPECT_EQ(SerializeHookState(*cpu.hook(member).SaveOwn()),
                SerializeHookState(*saved));
      // As elastic training does it between two groups.
      ASSERT_OK(cpu.hook(member).LoadOwn(*saved, member == 1 ? 1.5 : 1));
      ASSERT_OK(gpu.hook(member).LoadOwn(*saved, member == 1 ? 1.5 : 1));
    }
  }
}

TEST(Int8DeviceTest, KeepsNoMemoryOfTheDevice) {
  EmulatedRuntime runtime;
  const int64_t before = runtime.leaked();
  {
    auto hook = MakeHook("int8");
    ASSERT_OK(hook);
    const auto parameters = Parameters(DType::kFloat32, kGpu, {300});
    ASSERT_OK((*hook)->Configure(parameters, 1));
    StreamCommunicator communicator(LockstepWorld::Create(1)->MakeRank(0),
                                    runtime);
    std::vector<float> gradients(300, 1.5f);
    Bucket bucket;
    bucket.data = Span{gradients.data(), 300, DType::kFloat32, kGpu};
    bucket.gradients = {{0, 0, 300}};
    for (int64_t before_failure = 0; before_failure < 4; ++before_failure) {
      // Memory is out now and then; the step is given up, and done again.
      runtime.FailAllocation(static_cast<int>(before_failure));
      auto exchange = (*hook)->Prepare(bucket, communicator);
      if (exchange.ok()) {
        const auto work = (*exchange)->Advance();
        if (work.ok()) {
          ASSERT_OK((*work)->Wait(absl::Seconds(60)));
        }
        exchange->reset();
      }
      (*hook)->Rollback();
    }
    auto exchange = (*hook)->Prepare(bucket, communicator);
    ASSERT_OK(exchange);
    const auto work = (*exchange)->Advance();
    ASSERT_OK(work);
    ASSERT_OK((*work)->Wait(absl::Seconds(60)));
    const auto end = (*exchange)->Advance();
    ASSERT_OK(end);
    EXPECT_EQ(*end, nullptr);
    for (const float value : gradients) EXPECT_NEAR(value, 1.5f, 0.02f);
    ASSERT_OK((*hook)->Commit());
  }
  EXPECT_EQ(runtime.leaked(), before);
}

TEST(Int8DeviceTest, RefusesACommunicatorOfTheCpuAndAnotherGpu) {
  auto hook = MakeHook("int8");
  ASSERT_OK(hook);
  const auto parameters = Parameters(DType::kFloat32, kGpu, {30});
  ASSERT_OK((*hook)->Configure(parameters, 1));
  std::vector<float> gradients(30, 1);
  Bucket bucket;
  bucket.data = Span{gradients.data(), 30, DType::kFloat32, kGpu};
  bucket.gradients = {{0, 0, 30}};
  const auto on_cpu = LockstepWorld::Create(1)->MakeRank(0);
  const auto refused = (*hook)->Prepare(bucket, *on_cpu);
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(refused.status().message(), HasSubstr("lockstep"));
}

}  // namespace
}  // namespace coxswain
