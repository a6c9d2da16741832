#include "client/torch/module_bytes.h"

#include <torch/nn/module.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/linear.h>

#include <string>

#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace coxswain::torch {
namespace {

using ::testing::_;
using ::testing::AllOf;
using ::testing::HasSubstr;

struct Net : ::torch::nn::Module {
  explicit Net(int64_t width) {
    fc = register_module("fc", ::torch::nn::Linear(3, width));
    norm = register_module("norm", ::torch::nn::BatchNorm1d(width));
  }
  ::torch::nn::Linear fc{nullptr};
  ::torch::nn::BatchNorm1d norm{nullptr};
};

TEST(ModuleBytesTest, ParametersAndBuffersComeBack) {
  Net saved(4);
  saved.norm->running_mean.fill_(0.5);
  std::string bytes;
  ASSERT_OK(SaveModule(saved, &bytes));
  const char* const memory = bytes.data();
  saved.norm->running_mean.fill_(0.75);
  ASSERT_OK(SaveModule(saved, &bytes));
  EXPECT_EQ(bytes.data(), memory) << "it is used again";
  Net loaded(4);
  ASSERT_OK(LoadModule(bytes, &loaded));
  EXPECT_TRUE(loaded.fc->weight.equal(saved.fc->weight));
  EXPECT_TRUE(loaded.norm->running_mean.equal(saved.norm->running_mean));
  EXPECT_TRUE(
      loaded.norm->num_batches_tracked.equal(saved.norm->num_batches_tracked));
}

TEST(ModuleBytesTest, AnotherModelIsRefusedAndStaysAsItWas) {
  std::string bytes;
  ASSERT_OK(SaveModule(Net(4), &bytes));
  Net other(5);
  const auto before = other.norm->weight.detach().clone();
  EXPECT_THAT(LoadModule(bytes, &other),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr("fc.weight: saved Float [4, 3], here "
                                       "Float [5, 3]"),
                             HasSubstr("norm.running_mean"))));
  EXPECT_TRUE(other.norm->weight.equal(before));
}

TEST(ModuleBytesTest, WhatIsCutOffOrLongerIsRefused) {
  std::string bytes;
  ASSERT_OK(SaveModule(Net(2), &bytes));
  Net net(2);
  for (size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_THAT(LoadModule(bytes.substr(0, size), &net),
                StatusIs(absl::StatusCode::kDataLoss, _))
        << size;
  }
  EXPECT_THAT(LoadModule(bytes + "x", &net),
              StatusIs(absl::StatusCode::kDataLoss, _));
  std::string endless(8, '\xff');
  EXPECT_THAT(LoadModule(endless, &net),
              StatusIs(absl::StatusCode::kDataLoss, _));
}

}  // namespace
}  // namespace coxswain::torch
