#ifndef COXSWAIN_EXAMPLES_FASHION_MNIST_DATASET_H_
#define COXSWAIN_EXAMPLES_FASHION_MNIST_DATASET_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace coxswain::examples {

// Images and labels of one half of Fashion-MNIST (Xiao, Rasul, Vollgraf,
// 2017), as packaged by Debian in gzip-compressed IDX files.
struct Dataset {
  static constexpr int64_t kSide = 28;
  static constexpr int64_t kPixels = kSide * kSide;
  static constexpr int kClasses = 10;

  std::vector<uint8_t> pixels;  // count() x kPixels, row by row
  std::vector<uint8_t> labels;  // 0 to 9

  int64_t count() const { return static_cast<int64_t>(labels.size()); }
};

// Reads "<folder>/<prefix>-images-idx3-ubyte.gz" and the labels beside it;
// `prefix` is "train" or "t10k". Fails with NOT_FOUND, naming the package that
// has the files, or with DATA_LOSS, naming what is wrong with them.
absl::StatusOr<Dataset> ReadDataset(const std::string& folder,
                                    const std::string& prefix);

}  // namespace coxswain::examples

#endif  // COXSWAIN_EXAMPLES_FASHION_MNIST_DATASET_H_
