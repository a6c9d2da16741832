#include "client/comm/tensor.h"

#include "base/check.h"

namespace coxswain {
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
