#include "examples/fashion_mnist/dataset.h"

#include <fstream>
#include <string>

#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace coxswain::examples {
namespace {

using ::testing::HasSubstr;

constexpr char kInstalled[] = "/usr/share/datasets/fashion-mnist";

TEST(DatasetTest, ReadsThePackagedImages) {
  ASSERT_OK_AND_ASSIGN(const Dataset train, ReadDataset(kInstalled, "train"));
  EXPECT_EQ(train.count(), 60000);
  EXPECT_EQ(train.pixels.size(), size_t{60000} * Dataset::kPixels);
  ASSERT_OK_AND_ASSIGN(const Dataset test, ReadDataset(kInstalled, "t10k"));
  EXPECT_EQ(test.count(), 10000);
  // Every class is there equally often.
  std::vector<int> counts(Dataset::kClasses);
  for (const uint8_t label : test.labels) ++counts[label];
  EXPECT_THAT(counts, ::testing::Each(1000));
}

TEST(DatasetTest, MissingFilesNameThePackage) {
  EXPECT_THAT(ReadDataset("/nonexistent", "train"),
              StatusIs(absl::StatusCode::kNotFound,
                       HasSubstr("dataset-fashion-mnist")));
}

TEST(DatasetTest, DamagedFilesAreRefused) {
  const std::string folder = ::testing::TempDir();
  std::ofstream(folder + "/bad-images-idx3-ubyte.gz") << "not an IDX file";
  EXPECT_THAT(ReadDataset(folder, "bad"),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("magic number")));
  std::ofstream(folder + "/short-images-idx3-ubyte.gz") << "\1";
  EXPECT_THAT(ReadDataset(folder, "short"),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("damaged")));
}

}  // namespace
}  // namespace coxswain::examples
