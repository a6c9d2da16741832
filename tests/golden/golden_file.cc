#include "tests/golden/golden_file.h"

#include <cmath>
#include <cstring>
#include <fstream>
#include <functional>
#include <iterator>
#include <numeric>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/float16.h"
#include "base/status_macros.h"
#include "nlohmann/json.hpp"

namespace coxswain {
namespace {

using Json = nlohmann::json;

absl::Status Broken(absl::string_view what) {
  return absl::DataLossError(
      absl::StrCat("a golden file is broken: ", what,
                   "; tests/golden/regenerate.sh makes new ones"));
}

template <typename T, typename ToDouble>
std::vector<double> Widen(absl::string_view raw, ToDouble to_double) {
  std::vector<double> values;
  for (size_t at = 0; at < raw.size(); at += sizeof(T)) {
    T stored;
    std::memcpy(&stored, raw.data() + at, sizeof(T));
    values.push_back(double{to_double(stored)});
  }
  return values;
}

absl::StatusOr<std::vector<double>> Decode(const std::string& dtype,
                                           absl::string_view raw) {
  if (dtype == "F64")
    return Widen<double>(raw, [](double value) { return value; });
  if (dtype == "F32")
    return Widen<float>(raw, [](float value) { return value; });
  if (dtype == "F16") return Widen<uint16_t>(raw, Float16ToFloat);
  if (dtype == "BF16") return Widen<uint16_t>(raw, BFloat16ToFloat);
  return Broken(absl::StrCat("unknown type ", dtype));
}

absl::StatusOr<GoldenTensor> ParseTensor(const Json& entry,
                                         absl::string_view data) {
  const std::string dtype = entry.value("dtype", "");
  const auto shape = entry.value("shape", std::vector<int64_t>());
  const auto range = entry.value("data_offsets", std::vector<uint64_t>());
  if (range.size() != 2 || range[0] > range[1] || range[1] > data.size()) {
    return Broken("a tensor lies outside the data");
  }
  const int64_t count = std::accumulate(shape.begin(), shape.end(), int64_t{1},
                                        std::multiplies<int64_t>());
  const int64_t width = dtype == "F64" ? 8 : dtype == "F32" ? 4 : 2;
  if (static_cast<int64_t>(range[1] - range[0]) != count * width) {
    return Broken("a tensor's size is not that of its shape");
  }
  GoldenTensor tensor;
  tensor.shape = shape;
  COXSWAIN_ASSIGN_OR_RETURN(
      tensor.values, Decode(dtype, data.substr(range[0], range[1] - range[0])));
  return tensor;
}

}  // namespace

int64_t GoldenTensor::slice_size() const {
  return static_cast<int64_t>(values.size()) / shape[0];
}

std::vector<double> GoldenTensor::Slice(int64_t index) const {
  const auto first = values.begin() + index * slice_size();
  return std::vector<double>(first, first + slice_size());
}

absl::StatusOr<GoldenFile> ParseGoldenFile(absl::string_view bytes) {
  uint64_t header_size = 0;
  if (bytes.size() < sizeof(header_size)) return Broken("no header");
  std::memcpy(&header_size, bytes.data(), sizeof(header_size));
  bytes.remove_prefix(sizeof(header_size));
  if (header_size > bytes.size()) return Broken("the header is cut off");
  const Json header =
      Json::parse(bytes.begin(), bytes.begin() + header_size, nullptr, false);
  if (!header.is_object()) return Broken("the header is not a JSON object");
  GoldenFile file;
  for (const auto& [name, entry] : header.items()) {
    if (name == "__metadata__") {
      file.metadata = entry.get<std::map<std::string, std::string>>();
      continue;
    }
    COXSWAIN_ASSIGN_OR_RETURN(file.tensors[name],
                              ParseTensor(entry, bytes.substr(header_size)));
  }
  return file;
}

absl::StatusOr<GoldenFile> ReadGoldenFile(const std::string& path) {
  std::ifstream stream(path, std::ios::binary);
  if (!stream) return absl::NotFoundError(absl::StrCat("cannot read ", path));
  const std::string bytes{std::istreambuf_iterator<char>(stream),
                          std::istreambuf_iterator<char>()};
  return ParseGoldenFile(bytes);
}

double Worse(double a, double b) { return std::isnan(a) || a > b ? a : b; }

}  // namespace coxswain
