#ifndef COXSWAIN_TESTS_GOLDEN_GOLDEN_FILE_H_
#define COXSWAIN_TESTS_GOLDEN_GOLDEN_FILE_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace coxswain {

// A tensor of a golden file, widened.
struct GoldenTensor {
  std::vector<int64_t> shape;
  std::vector<double> values;  // row-major

  // Return the elements of one slice along the first dimension, and the slice
  // itself.
  int64_t slice_size() const;
  std::vector<double> Slice(int64_t index) const;
};

// One case: what PyTorch computed (README.md describes its contents).
struct GoldenFile {
  std::map<std::string, std::string> metadata;
  std::map<std::string, GoldenTensor> tensors;
};

// Parses the safetensors format: a u64 header size, a JSON header, raw data,
// all little-endian; float64, float32, float16 and bfloat16 only. Fails with
// DATA_LOSS, naming what does not fit.
absl::StatusOr<GoldenFile> ParseGoldenFile(absl::string_view bytes);
// Reads the same from a path. Fails with NOT_FOUND if it cannot be read.
absl::StatusOr<GoldenFile> ReadGoldenFile(const std::string& path);

// Returns the larger one; NaN if one of them is.
double Worse(double a, double b);

}  // namespace coxswain

#endif  // COXSWAIN_TESTS_GOLDEN_GOLDEN_FILE_H_
