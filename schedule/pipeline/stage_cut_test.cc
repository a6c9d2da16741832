#include "schedule/pipeline/stage_cut.h"

#include <string>
#include <vector>

#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace coxswain::pipeline {
namespace {

using ::testing::HasSubstr;

std::string Even(int layers, int stages) {
  const auto cut = StageCut::Even(layers, stages);
  return cut.ok() ? cut->ToString() : std::string(cut.status().message());
}

TEST(StageCutTest, EvenOnesDifferByOneLayer) {
  EXPECT_EQ(Even(8, 2), "0-3,4-7");
  EXPECT_EQ(Even(7, 3), "0-2,3-4,5-6");
  EXPECT_EQ(Even(3, 3), "0,1,2");
  EXPECT_EQ(Even(1, 1), "0");
}

TEST(StageCutTest, ByWeightTheHeaviestStageIsAsLightAsItCanBe) {
  const auto cut = [](const std::vector<int64_t>& weights, int stages) {
    return StageCut::ByWeight(weights, stages).value().ToString();
  };
  EXPECT_EQ(cut({100, 1, 1, 1, 1, 98}, 2), "0-1,2-5");
  EXPECT_EQ(cut({10, 1, 1, 1, 7}, 2), "0,1-4");
  EXPECT_EQ(cut({0, 0, 0}, 3), "0,1,2");
  EXPECT_EQ(cut({1, 2, 3, 4, 5}, 3), "0-2,3,4");
}

TEST(StageCutTest, WhatIsWrittenIsReadAgain) {
  for (const char* text : {"0-3,4-7", "0,1-6,7"}) {
    const auto cut = StageCut::Parse(text, 8, text[1] == '-' ? 2 : 3);
    ASSERT_OK(cut);
    EXPECT_EQ(cut->ToString(), text);
    for (int stage = 0; stage < cut->stages(); ++stage) {
      for (int layer = cut->begin(stage); layer < cut->end(stage); ++layer) {
        EXPECT_EQ(cut->StageOf(layer), stage);
      }
    }
  }
  EXPECT_EQ(StageCut::Parse("0-0,1-1", 2, 2).value().ToString(), "0,1");
}

TEST(StageCutTest, WhatIsNoCutIsNamed) {
  EXPECT_THAT(StageCut::Even(2, 4),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("2 layers does not make 4 stages")));
  EXPECT_THAT(StageCut::ByWeight({1, 1}, 3),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("2 layers does not make 3 stages")));
  const auto expect = [](const char* text, const char* why) {
    EXPECT_THAT(StageCut::Parse(text, 8, 2),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(why)))
        << text;
  };
  expect("", "\"\" is no stage");
  expect("0-3,x", "\"x\" is no stage");
  expect("0-3,5-7", "\"5-7\" is to begin with layer 4");
  expect("0-3,3-7", "\"3-7\" is to begin with layer 4");
  expect("0-3,4-8", "ends with layer 8, and the model has 8 layers");
  expect("0-3,4-6", "leaves out the layers from 7 on");
  expect("0-2,3-5,6-7", "it has 3 stages, and the pipeline has 2");
}

}  // namespace
}  // namespace coxswain::pipeline
