#include "client/elastic/catch_up/elements.h"

#include "client/elastic/catch_up/frame.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace coxswain::catch_up {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// As many pieces of nothing, if that is what its number is.
CatchUpTarget::Part PartOf(int parameter, int64_t elements, DType dtype) {
  return {{nullptr, elements, dtype, Device()}, parameter};
}

constexpr int64_t kFloats = kPieceBytes / 4;  // in a piece

TEST(CatchUpElementsTest, MomentaAndTheirParametersBelongTogether) {
  // The pieces of both: 0 and 1, 2 to 4; of their momenta: 5 and 6, 7 to 9.
  const Parts state = {PartOf(0, 2 * kFloats, DType::kFloat32),
                       PartOf(1, 3 * kFloats, DType::kFloat32),
                       PartOf(0, 2 * kFloats, DType::kFloat32),
                       PartOf(1, 3 * kFloats, DType::kFloat32)};
  EXPECT_THAT(PiecesWith(ElementsOf(state, 1), state), ElementsAre(1, 6));
  EXPECT_THAT(PiecesWith(ElementsOf(state, 7), state), ElementsAre(2, 7));
}

TEST(CatchUpElementsTest, APieceMayHoldSeveralParameters) {
  const Parts state = {
      PartOf(0, 10, DType::kFloat32), PartOf(1, 2 * kFloats, DType::kFloat32),
      PartOf(2, 10, DType::kFloat32), PartOf(1, 2 * kFloats, DType::kFloat32)};
  // The end of the first piece: parameter 1 up to 40 bytes before its first
  // megabyte, whose momenta begin 80 bytes into piece 2.
  EXPECT_THAT(ElementsOf(state, 0), SizeIs(2));
  EXPECT_THAT(PiecesWith(ElementsOf(state, 0), state), ElementsAre(0, 2, 3));
  EXPECT_THAT(ElementsOf(state, 9), IsEmpty());
}

TEST(CatchUpElementsTest, TheSameElementsMayHaveOtherTypes) {
  const Parts averages = {PartOf(4, 4 * kFloats, DType::kFloat32)};
  const Parts state = {PartOf(3, kFloats, DType::kFloat32),
                       PartOf(4, 4 * kFloats, DType::kFloat64),
                       PartOf(4, 4 * kFloats, DType::kBFloat16)};
  EXPECT_THAT(PiecesWith(ElementsOf(averages, 0), state), ElementsAre(1, 2, 9));
  EXPECT_THAT(PiecesWith(ElementsOf(averages, 3), state),
              ElementsAre(7, 8, 10));
}

TEST(CatchUpElementsTest, ThatOfALargeParameterIsFound) {
  constexpr int64_t kMany = int64_t{1} << 40;
  const Parts state = {PartOf(0, kMany, DType::kFloat32),
                       PartOf(0, kMany, DType::kFloat64)};
  const int64_t last = 4 * (kMany / kPieceBytes) - 1;
  EXPECT_THAT(PiecesWith(ElementsOf(state, last), state),
              ElementsAre(last, 3 * last + 1, 3 * last + 2));
}

}  // namespace
}  // namespace coxswain::catch_up
