#include "client/torch/device_stream.h"

#include <c10/core/impl/FakeGuardImpl.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/linear.h>

#include "base/status_matchers.h"

namespace coxswain::torch {
namespace {

using testing::HasSubstr;

TEST(DeviceStreamTest, AModuleIsWhereItsParametersAre) {
  EXPECT_EQ(DeviceOf(*::torch::nn::Linear(2, 3)), Device());
  EXPECT_EQ(DeviceOf(*::torch::nn::ReLU()), Device());
}

// Debian's libtorch has no CUDA; with one that has, there is nothing to see.
TEST(DeviceStreamTest, WithoutCudaThereIsNoStream) {
  if (c10::impl::hasDeviceGuardImpl(c10::DeviceType::CUDA)) GTEST_SKIP();
  EXPECT_THAT(CurrentStream(Device{Device::Kind::kCuda, 0}),
              StatusIs(absl::StatusCode::kUnimplemented,
                       HasSubstr("built without CUDA")));
}

// Its streams are 0 until another one is made current.
TEST(DeviceStreamTest, TheStreamIsTheOneThatIsCurrent) {
  if (c10::impl::hasDeviceGuardImpl(c10::DeviceType::CUDA)) GTEST_SKIP();
  using Fake = c10::impl::FakeGuardImpl<c10::DeviceType::CUDA>;
  static const Fake fake;
  c10::impl::device_guard_impl_registry[static_cast<size_t>(
      c10::DeviceType::CUDA)] = &fake;
  const Device device = {Device::Kind::kCuda, 1};
  ASSERT_OK_AND_ASSIGN(const DeviceStream stream, CurrentStream(device));
  EXPECT_EQ(stream, nullptr);
  fake.exchangeStream(
      c10::Stream(c10::Stream::UNSAFE, c10::Device(c10::kCUDA, 1), 5));
  EXPECT_THAT(CurrentStream(device),
              StatusIs(absl::StatusCode::kUnimplemented,
                       HasSubstr("set ReducerOptions::caller_stream")));
  Fake::resetStreams();
  c10::impl::device_guard_impl_registry[static_cast<size_t>(
      c10::DeviceType::CUDA)] = nullptr;
}

}  // namespace
}  // namespace coxswain::torch
