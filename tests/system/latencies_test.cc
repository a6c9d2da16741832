#include "tests/system/latencies.h"

#include "gtest/gtest.h"

namespace coxswain {
namespace {

TEST(LatenciesTest, QuantilesAreOnesThatOccurred) {
  Latencies latencies;
  EXPECT_EQ(latencies.Quantile(0.5), absl::ZeroDuration());
  for (int i = 200; i > 0; --i) latencies.Add(absl::Milliseconds(i));
  EXPECT_EQ(latencies.Quantile(0.5), absl::Milliseconds(100));
  EXPECT_EQ(latencies.Quantile(0.99), absl::Milliseconds(198));
  EXPECT_EQ(latencies.Quantile(1), absl::Milliseconds(200));
  EXPECT_EQ(latencies.Quantile(0), absl::Milliseconds(1));
  EXPECT_EQ(latencies.ToString(),
            "p50 100.0 ms, p99 198.0 ms, most 200.0 ms, of 200");
}

}  // namespace
}  // namespace coxswain
