#ifndef COXSWAIN_HOOKS_KERNELS_CUDA_LOW_RANK_H_
#define COXSWAIN_HOOKS_KERNELS_CUDA_LOW_RANK_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/element_type.h"
#include "client/device/launch.h"

// The matrix arithmetic of PowerSGD on a GPU, for all gradients of a bucket
// together: hooks/kernels/low_rank.h, cut into tiles. Free of Abseil.
//
// A step, with the calls of orthogonalise.h, is 11 launches however many
// gradients there are; bytes an element of a float matrix in brackets:
//
//   OrthogonaliseOnDevice  Q                                      2 launches
//   TakeOnDevice           X = gradient + error, P = X Q   [12]   2
//     all-reduce of P and the raw elements
//   CheckOnDevice          finite?                                1
//   OrthogonaliseOnDevice  P                                      2
//   ProjectOnDevice        Q = transpose(X) P              [4]    2
//     all-reduce of Q
//   CheckOnDevice          finite?                                1
//   FinishOnDevice         gradient = P transpose(Q)       [4]    1
//
// All memory is the caller's and on the device: tables, tiles, partial sums,
// and what they point to. Matrices are stored by rows, factors by columns.
// Arrays do not overlap unless noted. Any alignment; 16 bytes for a matrix
// whose m is a multiple of 16 bytes is fastest. T is float or double; sums are
// in T and in a fixed order, which depends on n, m and r alone: a result does
// not depend on the order of blocks, nor on what else is in the list, but for
// the sign of a zero, which the largest rank there may change.
//
// A poisoned step: `poisoned` becomes 1 when something that is not finite was
// received, or a factor nears the largest number (there a NaN is sent, so that
// all ranks know). Then FinishOnDevice leaves gradients as they are, or fills
// them with NaN; what the next step would begin with is of no use, and the
// caller, having read the flag, does not take it over.

namespace coxswain {

// A gradient that is compressed.
template <typename T>
struct DeviceLowRankMatrix {
  int64_t n = 0;
  int64_t m = 0;
  int64_t r = 0;             // >= 1
  void* gradient = nullptr;  // n x m, of the type of the call
  // The error is previous - previous_p transpose(previous_q). Null: zero; the
  // factors null: nothing to subtract.
  const T* previous = nullptr;
  const T* previous_p = nullptr;  // n x r
  const T* previous_q = nullptr;  // m x r
  // n x m, may be `previous`. Null: without error feedback, X is the gradient.
  T* x = nullptr;
  const T* first_q = nullptr;  // m x r, what X is multiplied with; may be `q`
  T* p = nullptr;              // n x r, sent and received
  T* q = nullptr;              // m x r, sent and received
  T* own_q = nullptr;  // m x r, q as it was before the division; or null
};

// One that is not: sent = gradient + error, and after the exchange
// x = gradient + error - mean.
template <typename T>
struct DeviceRawTensor {
  int64_t count = 0;
  void* gradient = nullptr;
  const T* error = nullptr;  // null: zero
  T* x = nullptr;            // may be `error`; null: no error is kept
  T* sent = nullptr;         // and received
};

struct LowRankShape {
  int64_t n = 0;
  int64_t m = 0;
  int64_t r = 0;
};

// A block's part of a matrix (or of a raw tensor, or of a factor).
struct LowRankTile {
  int64_t row = 0;      // the first one; or the first element
  int64_t column = 0;   // the first one
  int64_t partial = 0;  // where its sums go, or come from
  int32_t item = 0;     // index into the table
  int32_t kind = 0;
};

// Where a launch's tiles stand among those of the plan.
struct LowRankTiles {
  int64_t begin = 0;
  int64_t count = 0;
};

// How the gradients of a bucket are cut: a pure function of their shapes. To
// be uploaded once: `tiles`; and room for `partials` numbers of type T.
struct LowRankPlan {
  std::vector<LowRankTile> tiles;
  LowRankTiles take, take_sums, project, project_sums, finish;
  int64_t partials = 0;
  int64_t rank = 0;  // the largest
};

// `raws`: counts of elements. `element_bytes`: sizeof(T).
LowRankPlan PlanLowRank(const std::vector<LowRankShape>& matrices,
                        const std::vector<int64_t>& raws, size_t element_bytes);

// Device memory, except for `plan` (whose vector is not read).
template <typename T>
struct DeviceLowRank {
  const LowRankPlan* plan = nullptr;
  const LowRankTile* tiles = nullptr;                // plan->tiles
  const DeviceLowRankMatrix<T>* matrices = nullptr;  // as planned
  const DeviceRawTensor<T>* raws = nullptr;          // as planned
  T* partials = nullptr;
  uint32_t* poisoned = nullptr;  // one word
  // Of gradients: that of T, or, if T is float, a 16-bit one.
  ElementType gradient_type = ElementType::kFloat32;
};

// X = gradient + error; p = X first_q / divisor; raw elements / divisor to
// `sent`, and undivided to x; poisoned = 0. 2 launches.
template <typename T>
void TakeOnDevice(LaunchTarget* target, const DeviceLowRank<T>& on, T divisor);

// values[i] /= divisor, and *poisoned = 1 if one is not finite. 1 launch, none
// if there are no values.
template <typename T>
void CheckOnDevice(LaunchTarget* target, T* values, int64_t count, T divisor,
                   uint32_t* poisoned);

// own_q = transpose(X) p, q = own_q / divisor. 2 launches, none without
// matrices.
template <typename T>
void ProjectOnDevice(LaunchTarget* target, const DeviceLowRank<T>& on,
                     T divisor);

enum class PoisonedGradients { kLeave, kFillWithNan };

// Gradients = p transpose(q), and those of raw tensors = sent / raw_divisor;
// x of raw tensors -= that. If *poisoned, only what is documented there. 1
// launch.
template <typename T>
void FinishOnDevice(LaunchTarget* target, const DeviceLowRank<T>& on,
                    T raw_divisor, PoisonedGradients poisoned);

}  // namespace coxswain

#endif  // COXSWAIN_HOOKS_KERNELS_CUDA_LOW_RANK_H_
