#ifndef COXSWAIN_HOOKS_CAST_H_
#define COXSWAIN_HOOKS_CAST_H_

#include <memory>
#include <string>

#include "client/reduce/hook.h"
#include "hooks/hook_row.h"

namespace coxswain {

enum class CastOrder {
  kDivideThenCast,  // divide by the number of ranks in the wide type
  // As PyTorch: large gradients overflow before the division. Shares of ranks
  // with weights, which PyTorch does not have, are applied in the wide type.
  kCastThenDivide
};

// `fp16` and `bf16`: gradients of float32 or float64 travel as `dtype`
// (kFloat16 or kBFloat16). Gradients that are already 16 bits wide are
// averaged as they are, in their own type.
//
// Cost per bucket of N elements: 1 collective, 2 N bytes, scratch of 2 N
// bytes. Numerics: one rounding to 16 bits per rank, then the back end's sum
// in 16 bits. fp16 holds 11 bits and up to 65504 (beyond is an infinity, which
// the trainer sees); bf16 holds 8 bits in float32's range. Not for models that
// need their small gradients exactly; powersgd saves more bytes.
//
// On slices: the same in a reduce-scatter, of which each rank widens its own
// slice; on a GPU in full.
//
// On a GPU: a kernel before the collective and one after it, which move 6 bytes
// an element of float32 each, on the same stream without the host between; the
// order kCastThenDivide has one more.
std::unique_ptr<Hook> MakeCastHook(std::string spec, DType dtype,
                                   CastOrder order);

// `fp16` and `bf16`, which wrap another hook where they are given one.
HookRow Fp16Row();
HookRow Bf16Row();

}  // namespace coxswain

#endif  // COXSWAIN_HOOKS_CAST_H_
