#include "schedule/memory/model.h"

#include <cstdint>
#include <string>
#include <vector>

#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace coxswain::memory::model_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string ErrorOf(const std::string& text) {
  const auto model = ParseModel(text);
  EXPECT_EQ(model.status().code(), absl::StatusCode::kInvalidArgument) << text;
  return std::string(model.status().message());
}

TEST(MemoryModelTest, ReadsLayers) {
  ASSERT_OK_AND_ASSIGN(
      const Model model,
      ParseModel(R"({"dtype": "bfloat16", "input": 7, "layers": [
        {"name": "in", "parameters": [6, 2], "activations": 5, "output": 4},
        {"parameters": 9, "repeat": 2, "working": 3}, {}]})"));
  EXPECT_EQ(model.element_bytes, 2);
  EXPECT_EQ(model.input, 7);
  ASSERT_EQ(model.layers.size(), 4);
  EXPECT_EQ(model.layers[0].name, "in");
  ASSERT_EQ(model.layers[0].parameters.size(), 2);
  EXPECT_EQ(model.layers[0].parameters[0].elements, 6);
  EXPECT_EQ(model.layers[0].parameters[1].elements, 2);
  EXPECT_EQ(model.layers[0].parameters[1].parts, 0);
  EXPECT_EQ(model.layers[0].activations.whole, 5);
  EXPECT_EQ(model.layers[0].output.whole, 4);
  EXPECT_EQ(model.layers[2].elements(), 9);
  EXPECT_EQ(model.layers[2].working.all(), 3);
  EXPECT_EQ(model.layers[3].elements(), 0);
}

// GPT-2's 124 million, and a second matrix of the vocabulary.
TEST(MemoryModelTest, MakesATransformersLayers) {
  ASSERT_OK_AND_ASSIGN(
      const Model model,
      ParseModel(R"({"dtype": "float16", "transformer": {"layers": 12,
        "hidden": 768, "heads": 12, "vocabulary": 50257, "sequence": 1024,
        "batch": 4}})"));
  int64_t elements = 0;
  for (const Layer& layer : model.layers) elements += layer.elements();
  EXPECT_EQ(model.layers.size(), 14);
  EXPECT_EQ(elements, 124439808 + 50257 * 768);
  // Korthikanti et al.: s b h (34 + 5 a s / h).
  constexpr int64_t kSbh = int64_t{1024} * 4 * 768;
  EXPECT_EQ(model.layers[1].activations.all(),
            kSbh * (34 + 5 * 12 * 1024 / 768));
  // s b h (10 + 24 / t + 5 a s / (h t)).
  EXPECT_EQ(model.layers[1].activations.tp, kSbh * (24 + 5 * 12 * 1024 / 768));
  EXPECT_EQ(model.layers[1].output.all(), 2 * kSbh);
}

TEST(MemoryModelTest, ReadsWhatTpDivides) {
  ASSERT_OK_AND_ASSIGN(const Model model,
                       ParseModel(R"({"layers": [{"parameters": [
          {"shape": [12, 5], "tp": 0, "unit": 3}, {"shape": [2, 8], "tp": 1},
          {"shape": [7, 2]}, 9],
        "activations": {"whole": 1, "tp": 20, "sequence": 300}}]})"));
  const Layer& layer = model.layers[0];
  EXPECT_EQ(layer.elements(), 60 + 16 + 14 + 9);
  std::vector<int64_t> parts;
  for (const Parameter& one : layer.parameters) parts.push_back(one.parts);
  EXPECT_THAT(parts, ElementsAre(4, 8, 0, 0));
  EXPECT_EQ(layer.activations.whole, 1);
  EXPECT_EQ(layer.activations.tp, 20);
  EXPECT_EQ(layer.activations.sequence, 300);
  EXPECT_EQ(layer.output.all(), 0);
}

TEST(MemoryModelTest, ErrorsNameTheFieldOfWhatTpDivides) {
  const auto of_parameter = [](const std::string& text) {
    return ErrorOf(R"({"layers": [{"parameters": [)" + text + "]}]}");
  };
  EXPECT_THAT(of_parameter(R"({"tp": 0})"),
              HasSubstr("layers[0].parameters[0].shape: a list of"));
  EXPECT_THAT(of_parameter(R"({"shape": [2, 3], "tp": 2})"),
              HasSubstr("parameters[0].tp: a whole number from 0 to 1"));
  EXPECT_THAT(of_parameter(R"({"shape": [4], "tp": 0, "unit": 3})"),
              HasSubstr("parameters[0].unit: a divisor of 4"));
  EXPECT_THAT(of_parameter(R"({"shape": [16777216, 16777217]})"),
              HasSubstr("larger than any memory"));
  EXPECT_THAT(of_parameter(R"({"shape": [4], "dim": 0})"),
              HasSubstr("no field \"dim\""));
  EXPECT_THAT(ErrorOf(R"({"layers": [{"output": {"all": 3}}]})"),
              HasSubstr("layers[0].output: there is no field \"all\""));
  EXPECT_THAT(ErrorOf(R"({"layers": [{"working": {"tp": -3}}]})"),
              HasSubstr("layers[0].working.tp: a whole number"));
}

TEST(MemoryModelTest, ErrorsNameTheField) {
  EXPECT_THAT(ErrorOf("{"), HasSubstr("no JSON"));
  EXPECT_THAT(ErrorOf("[]"), HasSubstr("a map of fields is expected"));
  EXPECT_THAT(ErrorOf("{}"), HasSubstr("either \"layers\" or"));
  EXPECT_THAT(ErrorOf(R"({"layer": []})"),
              HasSubstr("no field \"layer\"; did you mean 'layers'?"));
  EXPECT_THAT(ErrorOf(R"({"layers": []})"), HasSubstr("at least one layer"));
  EXPECT_THAT(ErrorOf(R"({"layers": [{}, {"parameters": -1}]})"),
              HasSubstr("layers[1].parameters: a whole number from 0 to"));
  EXPECT_THAT(ErrorOf(R"({"layers": [{"parameters": [1, 0.5]}]})"),
              HasSubstr("layers[0].parameters: a whole number from 1 to"));
  EXPECT_THAT(ErrorOf(R"({"layers": [{"repeat": 65537}]})"),
              HasSubstr("layers[0].repeat"));
  EXPECT_THAT(ErrorOf(R"({"layers": [{"repeat": 65536}, {}]})"),
              HasSubstr("at most 65536 layers"));
  EXPECT_THAT(ErrorOf(R"({"dtype": "int8", "layers": [{}]})"),
              HasSubstr("dtype: float32"));
  EXPECT_THAT(ErrorOf(R"({"transformer": {"layers": 2}})"),
              HasSubstr("transformer.hidden: is required"));
  EXPECT_THAT(
      ErrorOf(R"({"layers": [{"parameters": 281474976710656, "repeat": 2}]})"),
      HasSubstr("larger than any memory"));
  EXPECT_THAT(ErrorOf(R"({"transformer": {"layers": 2, "hidden": 1048576,
      "heads": 1048576, "vocabulary": 2, "sequence": 1048576, "batch": 2}})"),
              HasSubstr("larger than any memory"));
  EXPECT_THAT(ErrorOf(std::string(kMaxModelText + 1, ' ')),
              HasSubstr("it has more than"));
}

}  // namespace
}  // namespace coxswain::memory::model_test
