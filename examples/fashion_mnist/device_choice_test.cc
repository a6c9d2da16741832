#include "examples/fashion_mnist/device_choice.h"

#include <string>

#include "base/status_matchers.h"

namespace coxswain::examples {
namespace {

using testing::AllOf;
using testing::HasSubstr;

DeviceFacts Gpus(int count, int local_rank = 0, int local_world_size = 1) {
  DeviceFacts facts;
  facts.torch_has_cuda = true;
  facts.torch_gpus = count;
  facts.gpus = count;
  if (count == 0) facts.why_none = "no driver is loaded";
  facts.local_rank = local_rank;
  facts.local_world_size = local_world_size;
  return facts;
}

std::string Choose(absl::string_view asked, const DeviceFacts& facts) {
  const auto choice = ChooseDevice(asked, facts);
  return choice.ok() ? NameOf(choice->device) + ": " + choice->why
                     : choice.status().ToString();
}

TEST(DeviceChoiceTest, TheCpuIsAlwaysThere) {
  EXPECT_EQ(Choose("cpu", Gpus(2)), "the CPU: --device asks for it");
  EXPECT_EQ(Choose("cpu", DeviceFacts()), "the CPU: --device asks for it");
}

TEST(DeviceChoiceTest, AutoReportsItsChoiceAndWhy) {
  EXPECT_EQ(Choose("auto", DeviceFacts()),
            "the CPU: libtorch was built without CUDA");
  EXPECT_EQ(Choose("auto", Gpus(0)), "the CPU: no driver is loaded");
  EXPECT_EQ(Choose("auto", Gpus(2, 1, 2)),
            "cuda:1: it is that of local rank 1");
  DeviceFacts tcp = Gpus(2);
  tcp.backend = "tcp";
  EXPECT_EQ(Choose("auto", tcp), "the CPU: the back end tcp moves its memory");
  // All workers of a host choose alike.
  EXPECT_EQ(Choose("auto", Gpus(1, 0, 2)), "the CPU: 2 workers here and 1 GPU");
  EXPECT_EQ(Choose("auto", Gpus(1, 1, 2)), "the CPU: 2 workers here and 1 GPU");
}

TEST(DeviceChoiceTest, TheLauncherAssigns) {
  DeviceFacts facts = Gpus(4, 0, 2);
  facts.assigned = 3;
  EXPECT_EQ(Choose("auto", facts), "cuda:3: the launcher has assigned it");
  EXPECT_EQ(Choose("cuda", facts), "cuda:3: the launcher has assigned it");
  facts.local_world_size = 1;
  EXPECT_EQ(Choose("cuda:1", facts), "cuda:1: --device asks for it");
}

TEST(DeviceChoiceTest, AGpuThatIsNotThereIsAnErrorWithTheReason) {
  EXPECT_THAT(ChooseDevice("cuda", DeviceFacts()),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr("--device cuda: libtorch was built "
                                       "without CUDA"),
                             HasSubstr("--device cpu"))));
  EXPECT_THAT(ChooseDevice("cuda:0", Gpus(0)),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("--device cuda:0: no driver is loaded")));
  EXPECT_THAT(
      ChooseDevice("cuda:2", Gpus(2)),
      StatusIs(
          absl::StatusCode::kFailedPrecondition,
          HasSubstr("would use GPU 2, counted from 0, with 2 GPUs visible")));
  EXPECT_THAT(ChooseDevice("cuda:0", Gpus(2, 1, 2)),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("2 workers here would share GPU 0")));
  EXPECT_THAT(ChooseDevice("cuda", Gpus(1, 1, 2)),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("local rank 1 would use GPU 1")));
  EXPECT_THAT(ChooseDevice("cuda", Gpus(1, 0, 2)),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("2 workers here, with 1 GPU visible")));
  DeviceFacts blind = Gpus(0);
  blind.gpus = 2;
  EXPECT_THAT(ChooseDevice("cuda", blind),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("libtorch sees no GPU")));
}

TEST(DeviceChoiceTest, WhatIsNoDeviceIsRefused) {
  for (const char* wrong : {"", "gpu", "cuda:", "cuda:x", "cuda:-1", "CPU"}) {
    EXPECT_THAT(ChooseDevice(wrong, Gpus(2)),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         HasSubstr("auto, cpu, cuda or cuda:N")))
        << wrong;
  }
}

TEST(DeviceChoiceTest, HereAutoIsWhatThisMachineHas) {
  const DeviceFacts facts = FindDevices(Device(), 0, 1);
  ASSERT_OK_AND_ASSIGN(const DeviceChoice choice, ChooseDevice("auto", facts));
  if (facts.torch_gpus > 0 && facts.gpus > 0) GTEST_SKIP();
  EXPECT_EQ(choice.device, Device());
  EXPECT_FALSE(choice.why.empty());
}

}  // namespace
}  // namespace coxswain::examples
