#ifndef COXSWAIN_HOOKS_LOW_RANK_LOW_RANK_TENSOR_H_
#define COXSWAIN_HOOKS_LOW_RANK_LOW_RANK_TENSOR_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/host_memory.h"
#include "client/device/tensor.h"
#include "hooks/kernels/low_rank.h"
#include "hooks/narrow.h"

namespace coxswain {

// Returns a count that is not negative, as containers take it.
inline size_t AsSize(int64_t count) { return static_cast<size_t>(count); }

// Memory of a tensor's size, aligned to a cache line, whose contents are
// undefined until written.
template <typename T>
class AlignedArray {
 public:
  T* data() { return static_cast<T*>(data_.get()); }
  const T* data() const { return static_cast<const T*>(data_.get()); }

  // Makes room for exactly `count` elements. The contents are lost if that is
  // another number than before.
  void Allocate(int64_t count) {
    if (count == count_) return;
    const size_t bytes = static_cast<size_t>(count) * sizeof(T);
    data_ = AllocateHostMemory(bytes);
    COXSWAIN_CHECK(data_ != nullptr);
    count_ = count;
  }

 private:
  int64_t count_ = 0;
  HostMemory data_;
};

// What one step leaves behind for the next.
template <typename T>
struct LowRankMemory {
  // The error is x - error_p transpose(error_q), which is not computed before
  // the next step needs it: there it costs no pass over memory of its own.
  bool has_error = false;  // otherwise it is zero
  AlignedArray<T> x;       // n x m by rows, `count` of them
  std::vector<T> error_p;  // n x r by columns; empty: the error is x
  std::vector<T> error_q;  // m x r by columns

  // The factors that the next step begins with, by columns; empty: drawn.
  std::vector<T> p;
  std::vector<T> q;
};

// What a low-rank hook knows about one parameter, or about one bucket seen as
// a matrix. T is the type it computes in. An exchange fills `next` and sets
// `staged`; Commit makes that `now`. The two take turns, so that a rollback
// has nothing to undo.
template <typename T>
struct LowRankTensor {
  std::string name;
  std::vector<int64_t> shape;
  int64_t n = 0;      // rows
  int64_t m = 0;      // columns
  int64_t r = 0;      // columns of the factors; 0 if it travels raw
  int64_t count = 0;  // elements of x: n m, or fewer if the last row has a gap
  bool keeps_error = false;

  LowRankMemory<T> now;
  LowRankMemory<T> next;
  bool staged = false;
  // Steps on end that overflowed although no gradient was to blame.
  int overflows = 0;
  // What the next step reads the error from in place of `now`, after one that
  // overflowed (DropOverflow). Commit makes it that of now; after a rollback
  // `now`, and with it the state to be saved, is as it was before the step.
  std::optional<LowRankMemory<T>> mended;

  bool raw() const { return r == 0; }
  // Returns the error that a step begins with.
  const LowRankMemory<T>& error() const { return mended ? *mended : now; }
};

// Makes what a step has staged that of now, or forgets it.
template <typename T>
void EndStepOf(LowRankTensor<T>& tensor, bool commit) {
  if (tensor.staged && commit) {
    std::swap(tensor.now, tensor.next);
    tensor.overflows = 0;
    tensor.mended.reset();
  } else if (commit && tensor.mended) {
    tensor.now.has_error = tensor.mended->has_error;
    tensor.now.x = std::move(tensor.mended->x);
    tensor.now.error_p.clear();
    tensor.now.error_q.clear();
    tensor.mended.reset();
  }
  tensor.staged = false;
}

// Returns the part of an error that `x` still has to lose.
template <typename T>
LowRankProduct<T> ErrorProduct(const LowRankMemory<T>& memory, int64_t r) {
  if (memory.error_p.empty()) return {};
  return {memory.error_p.data(), memory.error_q.data(), r};
}

// `rows` rows from `first` on of a factor of n rows and r columns, likewise by
// columns.
template <typename T>
std::vector<T> RowsOf(const T* factor, int64_t n, int64_t r, int64_t first,
                      int64_t rows) {
  std::vector<T> out;
  out.reserve(static_cast<size_t>(rows * r));
  for (int64_t k = 0; k < r; ++k) {
    const T* column = factor + k * n + first;
    out.insert(out.end(), column, column + rows);
  }
  return out;
}

}  // namespace coxswain

#endif  // COXSWAIN_HOOKS_LOW_RANK_LOW_RANK_TENSOR_H_
