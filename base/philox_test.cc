#include "base/philox.h"

#include <cstdint>
#include <set>
#include <vector>

#include "base/random.h"
#include "gtest/gtest.h"

namespace coxswain {
namespace {

// The vectors that the authors publish (Random123, kat_vectors).
TEST(PhiloxTest, DrawsThePublishedVectors) {
  EXPECT_EQ(Philox({}, {}),
            (PhiloxBlock{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(Philox({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
                   {0xffffffff, 0xffffffff}),
            (PhiloxBlock{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(Philox({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
                   {0xa4093822, 0x299f31d0}),
            (PhiloxBlock{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(PlaceRandomTest, EveryPartOfAPlaceChangesWhatIsDrawn) {
  DrawPlace place;
  std::vector<DrawPlace> places(8, place);
  places[1].seed = 1;
  places[2].seed = uint64_t{1} << 32;
  places[3].purpose = DrawPlace::Purpose::kDropout;
  places[4].step = 1;
  places[5].data_index = 1;
  places[6].micro_batch = 1;
  places[7].name = 1;
  std::set<double> drawn;
  for (const DrawPlace& each : places) {
    const PlaceRandom random(each);
    for (const uint64_t element : {uint64_t{0}, uint64_t{1}, uint64_t{1} << 32})
      drawn.insert(random.Uniform(element));
  }
  EXPECT_EQ(drawn.size(), places.size() * 3);
}

TEST(PlaceRandomTest, NumbersHaveTheMomentsOfTheirDistributions) {
  constexpr int kDraws = 100000;
  DrawPlace place;
  place.seed = 5;
  place.name = StableHash("layer.weight");
  const PlaceRandom random(place);
  double uniform = 0, normal = 0, squares = 0;
  for (uint64_t i = 0; i < kDraws; ++i) {
    const double u = random.Uniform(i);
    ASSERT_TRUE(u >= 0 && u < 1) << u;
    uniform += u;
    const double x = random.Normal(i);
    normal += x;
    squares += x * x;
  }
  EXPECT_NEAR(uniform / kDraws, 0.5, 0.005);
  EXPECT_NEAR(normal / kDraws, 0, 0.02);
  EXPECT_NEAR(squares / kDraws, 1, 0.02);
}

}  // namespace
}  // namespace coxswain
