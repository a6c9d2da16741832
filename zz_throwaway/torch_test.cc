#include <torch/torch.h>
#include "gloo/config.h"
#include "gloo/transport/tcp/device.h"
#include "gtest/gtest.h"
TEST(T, A) { auto m = torch::nn::Linear(2,3); EXPECT_EQ(m(torch::ones({4,2})).size(1), 3); auto d = gloo::transport::tcp::CreateDevice("localhost"); EXPECT_TRUE(d != nullptr); }
