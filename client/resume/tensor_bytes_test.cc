#include "client/resume/tensor_bytes.h"

#include <cstring>
#include <string>
#include <vector>

#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace coxswain {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

const std::vector<TensorForm>& Forms() {
  static const auto* const forms =
      new std::vector<TensorForm>{{"weight", "int8 [2, 2]", 4},
                                  {"none", "int8 [0]", 0},
                                  {"bias", "int8 [2]", 2}};
  return *forms;
}

std::string Saved() {
  const std::vector<std::string> elements = {"abcd", "", "ef"};
  std::string bytes = "what stood here before";
  SaveTensors(
      Forms(),
      [&](size_t i, char* to) {
        std::memcpy(to, elements[i].data(), elements[i].size());
      },
      &bytes);
  return bytes;
}

TEST(TensorBytesTest, ComeBackByName) {
  const std::string bytes = Saved();
  ASSERT_OK_AND_ASSIGN(const auto loaded, LoadTensors(bytes, Forms()));
  EXPECT_THAT(loaded, ElementsAre("abcd", "", "ef"));
  const std::vector<TensorForm> other_order = {Forms()[2], Forms()[0],
                                               Forms()[1]};
  ASSERT_OK_AND_ASSIGN(const auto moved, LoadTensors(bytes, other_order));
  EXPECT_THAT(moved, ElementsAre("ef", "abcd", ""));
}

TEST(TensorBytesTest, NamesWhatDiffers) {
  std::vector<TensorForm> here = Forms();
  here[0].form = "int8 [4]";
  here[2].name = "offset";
  EXPECT_THAT(LoadTensors(Saved(), here),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr("weight: saved int8 [2, 2], here int8"),
                             HasSubstr("offset (int8 [2]) not in"),
                             HasSubstr("bias (int8 [2]) only in"))));
}

TEST(TensorBytesTest, NoPartIsAcceptedForTheWhole) {
  const std::string bytes = Saved();
  for (size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_THAT(LoadTensors(absl::string_view(bytes).substr(0, size), Forms()),
                StatusIs(absl::StatusCode::kDataLoss, HasSubstr("model")))
        << size;
  }
  EXPECT_THAT(LoadTensors(bytes + "x", Forms()),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("model")));
}

}  // namespace
}  // namespace coxswain
