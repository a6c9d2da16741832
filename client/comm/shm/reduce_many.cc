#include "client/comm/shm/reduce_many.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "base/float16.h"
#include "base/reduce_elements.h"

namespace coxswain {
namespace {

// A block's sum stays in the first-level cache.
constexpr int64_t kBlock = 2048;

// Sums in float of two 16-bit inputs at a time.
template <float (*kLoad)(uint16_t)>
void Accumulate(const uint16_t* in, float* sum, int64_t count, ReduceOp op) {
  if (op == ReduceOp::kSum) {
    for (int64_t i = 0; i < count; ++i) sum[i] += kLoad(in[i]);
    return;
  }
  float wide[kBlock];
  for (int64_t i = 0; i < count; ++i) wide[i] = kLoad(in[i]);
  ReduceElements(DType::kFloat32, op, sum, sum, wide,
                 static_cast<size_t>(count));
}

// Replaces values by quotients as they are stored in 16 bits.
template <float (*kLoad)(uint16_t), uint16_t (*kStore)(float)>
void Divide(const uint16_t* in, uint16_t* out, int64_t count, float divisor) {
  for (int64_t i = 0; i < count; ++i) out[i] = kStore(kLoad(in[i]) / divisor);
}

template <float (*kLoad)(uint16_t), uint16_t (*kStore)(float)>
void ReduceHalves(ReduceOp op, const std::vector<const char*>& inputs,
                  const std::vector<char*>& outputs, int64_t begin,
                  int64_t count, int divisor) {
  float sum[kBlock];
  uint16_t narrow[kBlock];
  const auto at = [&](const char* base) -> const uint16_t* {
    const uint16_t* const values =
        reinterpret_cast<const uint16_t*>(base) + begin;
    if (divisor == 1) return values;
    Divide<kLoad, kStore>(values, narrow, count, static_cast<float>(divisor));
    return narrow;
  };
  const uint16_t* const first = at(inputs[0]);
  for (int64_t i = 0; i < count; ++i) sum[i] = kLoad(first[i]);
  for (size_t k = 1; k < inputs.size(); ++k) {
    Accumulate<kLoad>(at(inputs[k]), sum, count, op);
  }
  for (int64_t i = 0; i < count; ++i) narrow[i] = kStore(sum[i]);
  for (char* const output : outputs) {
    std::memcpy(reinterpret_cast<uint16_t*>(output) + begin, narrow,
                static_cast<size_t>(count) * sizeof(uint16_t));
  }
}

void ReduceBlock(DType dtype, ReduceOp op,
                 const std::vector<const char*>& inputs,
                 const std::vector<char*>& outputs, int64_t begin,
                 int64_t count, int divisor) {
  alignas(64) char sum[kBlock * sizeof(double)];
  const int64_t width = static_cast<int64_t>(SizeOf(dtype));
  const size_t elements = static_cast<size_t>(count);
  const auto add = [&](const void* so_far, size_t k) {
    const char* const input = inputs[k] + begin * width;
    if (divisor == 1) {
      return ReduceElements(dtype, op, sum, so_far, input, elements);
    }
    AddQuotients(dtype, sum, so_far, /*divides_a=*/k == 1, input, divisor,
                 elements);
  };
  if (inputs.size() == 1) {
    std::memcpy(sum, inputs[0] + begin * width,
                elements * static_cast<size_t>(width));
  } else {
    add(inputs[0] + begin * width, 1);
  }
  for (size_t k = 2; k < inputs.size(); ++k) add(sum, k);
  for (char* const output : outputs) {
    std::memcpy(output + begin * width, sum,
                elements * static_cast<size_t>(width));
  }
}

}  // namespace

void ReduceMany(DType dtype, ReduceOp op,
                const std::vector<const char*>& inputs,
                const std::vector<char*>& outputs, int64_t count, int divisor) {
  COXSWAIN_CHECK(divisor == 1 || (op == ReduceOp::kSum && inputs.size() > 1));
  for (int64_t begin = 0; begin < count; begin += kBlock) {
    const int64_t block = std::min(kBlock, count - begin);
    switch (dtype) {
      case DType::kFloat16:
        ReduceHalves<Float16ToFloat, FloatToFloat16>(op, inputs, outputs, begin,
                                                     block, divisor);
        break;
      case DType::kBFloat16:
        ReduceHalves<BFloat16ToFloat, FloatToBFloat16>(op, inputs, outputs,
                                                       begin, block, divisor);
        break;
      default:
        ReduceBlock(dtype, op, inputs, outputs, begin, block, divisor);
    }
  }
}

}  // namespace coxswain
