// Random models, trained in random ways on 1 to 4 ranks through
// DistributedDataParallel, against what each rank computes without it.
//
// COXSWAIN_PROPERTY_SEEDS=COUNT or FIRST:COUNT runs other cases:
//   bazel test --test_env=COXSWAIN_PROPERTY_SEEDS=1000:500 TARGET
// A case that fails is made smaller, and printed as statements that make it.

#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gtest/gtest.h"
#include "tests/property/case.h"
#include "tests/property/oracle.h"
#include "tests/property/run_case.h"
#include "tests/property/shrink.h"

namespace coxswain::property {
namespace {

constexpr uint64_t kUsualCount = 400;
// After so many failures the rest is not worth the time.
constexpr int kEnough = 3;
constexpr int kShrinkingRuns = 600;

std::string Finding(const Case& one) { return Verdict(one, RunCase(one)); }

std::pair<uint64_t, uint64_t> FirstAndCount() {
  const char* text = std::getenv("COXSWAIN_PROPERTY_SEEDS");
  std::pair<uint64_t, uint64_t> result = {1, kUsualCount};
  if (text == nullptr) return result;
  const std::vector<std::string> parts = absl::StrSplit(text, ':');
  const bool fine =
      parts.size() <= 2 && absl::SimpleAtoi(parts.back(), &result.second) &&
      (parts.size() == 1 || absl::SimpleAtoi(parts[0], &result.first));
  EXPECT_TRUE(fine) << "COXSWAIN_PROPERTY_SEEDS is COUNT or FIRST:COUNT, not "
                    << text;
  return result;
}

// The hook's name, and what is special about the case.
void CountKinds(const Case& one, std::map<std::string, int>& counts) {
  const auto count = [&counts](bool is, const std::string& kind) {
    if (is) ++counts[kind];
  };
  count(true, absl::StrCat("hook ", one.hook.substr(0, one.hook.find('('))));
  count(true, absl::StrCat("ranks ", one.world));
  count(one.view, "gradients as bucket views");
  count(one.find_unused, "find_unused_parameters");
  count(one.uneven, "uneven inputs");
  count(one.static_graph, "static graph");
  count(one.overlapped, "overlapped optimizers");
  count(one.accumulate > 1, "declared accumulation");
  count(one.max_norm > 0, "clipping");
  for (const StepCase& step : one.steps) {
    count(true, "steps");
    count(!step.hook.empty(), "changes of the hook");
    count(step.buckets.bucket_bytes > 0, "changes of the buckets");
    count(step.ending == Ending::kDropped, "dropped steps");
    for (int rank = 0; rank < one.world; ++rank) {
      count(Flushes(one, step, rank), "flushes");
      count(step.uses[static_cast<size_t>(rank)].empty(), "ranks out of data");
    }
  }
}

TEST(RandomModelTest, EveryCaseDoesWhatItHasTo) {
  const auto [first, count] = FirstAndCount();
  std::map<std::string, int> counts;
  int failures = 0;
  for (uint64_t seed = first; seed < first + count; ++seed) {
    const Case one = RandomCase(seed);
    CountKinds(one, counts);
    if (Finding(one).empty()) continue;
    const Case smallest = Shrink(
        one, [](const Case& smaller) { return !Finding(smaller).empty(); },
        kShrinkingRuns);
    ADD_FAILURE() << "seed " << seed << ": " << Finding(one)
                  << "\nThe smallest case that fails: " << Finding(smallest)
                  << "\n"
                  << ToText(smallest);
    if (++failures == kEnough) break;
  }
  for (const auto& [kind, times] : counts) {
    std::cout << kind << ": " << times << "\n";
  }
}

}  // namespace
}  // namespace coxswain::property
