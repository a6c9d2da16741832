#include "client/comm/tensor.h"

#include "base/check.h"

namespace coxswain {
namespace {

struct DTypeRow {
  DType dtype;
  const char* name;
  size_t size;
};
constexpr DTypeRow kDTypes[] = {
    {DType::kFloat32, "float32", 4}, {DType::kFloat64, "float64", 8},
    {DType::kFloat16, "float16", 2}, {DType::kBFloat16, "bfloat16", 2},
    {DType::kInt8, "int8", 1},       {DType::kInt32, "int32", 4},
    {DType::kInt64, "int64", 8},     {DType::kUInt8, "uint8", 1},
};

const DTypeRow& RowOf(DType dtype) {
  for (const DTypeRow& row : kDTypes) {
    if (row.dtype == dtype) return row;
  }
  COXSWAIN_CHECK(false);
  return kDTypes[0];
}

}  // namespace

size_t SizeOf(DType dtype) { return RowOf(dtype).size; }
absl::string_view NameOf(DType dtype) { return RowOf(dtype).name; }

std::optional<DType> DTypeFromName(absl::string_view name) {
  for (const DTypeRow& row : kDTypes) {
    if (name == row.name) return row.dtype;
  }
  return std::nullopt;
}

Span Span::Slice(int64_t offset, int64_t slice_count) const {
  COXSWAIN_CHECK(offset >= 0 && slice_count >= 0 &&
                 offset + slice_count <= count);
  Span slice = *this;
  slice.data =
      static_cast<char*>(data) + offset * static_cast<int64_t>(SizeOf(dtype));
  slice.count = slice_count;
  return slice;
}

}  // namespace coxswain
