#include "client/reduce/step_digest.h"

#include <cmath>
#include <limits>
#include <set>

#include "gtest/gtest.h"

namespace coxswain {
namespace {

Bucket BucketOf(const std::vector<GradientSlot>& gradients,
                DType dtype = DType::kFloat32) {
  Bucket bucket;
  bucket.data.dtype = dtype;
  bucket.gradients = gradients;
  return bucket;
}

TEST(HashLayoutTest, TellsOrderPlaceSizeTypeAndDivision) {
  const GradientSlot a = {0, 0, 4};
  const GradientSlot b = {1, 4, 6};
  const std::set<uint64_t> hashes = {
      HashLayout({}),
      HashLayout({BucketOf({a, b})}),
      HashLayout({BucketOf({a}), BucketOf({b})}),
      HashLayout({BucketOf({b}), BucketOf({a})}),
      HashLayout({BucketOf({a, b}), BucketOf({})}),
      HashLayout({BucketOf({a, b}, DType::kFloat64)}),
      HashLayout({BucketOf({{1, 0, 4}, {0, 4, 6}})}),
      HashLayout({BucketOf({{0, 0, 4}, {1, 5, 6}})}),
      HashLayout({BucketOf({{0, 0, 4}, {1, 4, 7}})}),
  };
  EXPECT_EQ(hashes.size(), 9u);
  EXPECT_EQ(HashLayout({BucketOf({a, b})}), HashLayout({BucketOf({a, b})}));
}

StepReport ReportOf(int64_t step, int64_t bytes, double norm) {
  StepReport report;
  report.step = step;
  report.buckets.resize(1);
  report.buckets[0].gradient_bytes = bytes;
  report.gradient_norm = norm;
  return report;
}

uint64_t DigestOf(const std::vector<StepReport>& reports,
                  int64_t collectives = 1, bool same_averages = true) {
  StepDigest digest;
  for (const StepReport& report : reports) {
    digest.Add(report, collectives, same_averages);
  }
  return digest.value();
}

TEST(StepDigestTest, TellsWhatWasExchangedAndInWhichOrder) {
  StepReport empty = ReportOf(1, 8, 1.5);
  empty.empty = true;
  StepReport non_finite = ReportOf(1, 8, 1.5);
  non_finite.non_finite = 3;
  const StepReport one = ReportOf(1, 8, 1.5);
  const StepReport other = ReportOf(1, 16, 1.5);
  const std::set<uint64_t> digests = {
      DigestOf({}),
      DigestOf({one}),
      DigestOf({one, one}),
      DigestOf({one}, 2),
      DigestOf({other}),
      DigestOf({one, other}),
      DigestOf({other, one}),
      DigestOf({ReportOf(2, 8, 1.5)}),
      DigestOf({ReportOf(1, 8, std::nextafter(1.5, 2))}),
      DigestOf({empty}),
      DigestOf({non_finite}),
  };
  EXPECT_EQ(digests.size(), 11u);
}

TEST(StepDigestTest, LeavesOutWhatRanksMayDifferIn) {
  EXPECT_EQ(DigestOf({ReportOf(1, 8, 1)}, 1, /*same_averages=*/false),
            DigestOf({ReportOf(1, 8, 2)}, 1, /*same_averages=*/false));
  StepReport timed = ReportOf(1, 8, 1);
  timed.waited = absl::Seconds(1);
  timed.buckets[0].payload_bytes = 5;
  EXPECT_EQ(DigestOf({timed}), DigestOf({ReportOf(1, 8, 1)}));
  const double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_EQ(DigestOf({ReportOf(1, 8, nan)}), DigestOf({ReportOf(1, 8, -nan)}));
}

}  // namespace
}  // namespace coxswain
