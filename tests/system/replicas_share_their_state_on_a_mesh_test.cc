// A job whose mesh says which ranks share the optimizer's state.
#include <cmath>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/system/scenario.h"

namespace coxswain::share_on_a_mesh {
namespace {

using testing::HasSubstr;
using testing::SizeIs;

struct Shown {
  int sharing = 0;
  std::vector<double> values;
};

// What each rank of four has shown.
std::map<int, Shown> Train(const std::string& mesh, int zero) {
  std::vector<std::string> command = {kCoxswain, "run", "--nproc", "4",
                                      "--no-prefix"};
  if (!mesh.empty()) command.insert(command.end(), {"--mesh", mesh});
  command.insert(command.end(),
                 {"--", "tests/system/toy/hybrid_toy", absl::StrCat(zero)});
  const Ended ended = RunToEnd(command);
  EXPECT_EQ(ended.status, 0) << ended.err;
  std::map<int, Shown> shown;
  for (const std::string& line : LinesWith(ended.out, " shares with ")) {
    std::istringstream words(line);
    std::string word;
    int rank = -1;
    Shown one;
    words >> word >> rank >> word >> word >> one.sharing >> word;
    for (double value = 0; words >> value;) one.values.push_back(value);
    shown[rank] = one;
  }
  return shown;
}

TEST(ShareOnAMeshTest, EachReplicaSharesItsStateAndAllTrainTheSame) {
  const auto whole = Train("", 0);
  const auto hybrid = Train("dp=2,shard=*", 1);
  ASSERT_THAT(whole, SizeIs(4));
  ASSERT_THAT(hybrid, SizeIs(4));
  for (const auto& [rank, shown] : hybrid) {
    EXPECT_EQ(shown.sharing, 2);
    ASSERT_THAT(shown.values, SizeIs(5 * 7));
    for (size_t i = 0; i < shown.values.size(); ++i) {
      const double expected = whole.at(rank).values[i];
      EXPECT_LE(std::abs(shown.values[i] - expected),
                1e-12 * std::abs(expected))
          << "rank " << rank << ", element " << i;
      EXPECT_EQ(shown.values[i], hybrid.at(0).values[i]);
    }
  }
}

TEST(ShareOnAMeshTest, AMeshThatSharesNothingIsLogged) {
  const Ended ended =
      RunToEnd({kCoxswain, "run", "--nproc", "2", "--mesh", "shard=2", "--",
                "tests/system/toy/hybrid_toy", "0"});
  EXPECT_EQ(ended.status, 0) << ended.err;
  EXPECT_THAT(absl::StrCat(ended.out, ended.err),
              HasSubstr("mesh_shards_nothing"));
}

}  // namespace
}  // namespace coxswain::share_on_a_mesh
