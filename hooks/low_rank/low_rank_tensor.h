#ifndef COXSWAIN_HOOKS_LOW_RANK_LOW_RANK_TENSOR_H_
#define COXSWAIN_HOOKS_LOW_RANK_LOW_RANK_TENSOR_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "client/comm/tensor.h"
#include "hooks/kernels/low_rank.h"

namespace coxswain {

// Memory of a tensor's size, aligned to a cache line, whose contents are
// undefined until written.
template <typename T>
class AlignedArray {
 public:
  T* data() { return data_.get(); }
  const T* data() const { return data_.get(); }

  // Makes room for exactly `count` elements. The contents are lost if that is
  // another number than before.
  void Allocate(int64_t count) {
    if (count == count_) return;
    const size_t bytes = static_cast<size_t>(count) * sizeof(T);
    data_.reset(static_cast<T*>(::operator new(bytes, kAlignment)));
    count_ = count;
  }

 private:
  static constexpr std::align_val_t kAlignment{64};
  struct Free {
    void operator()(T* data) const { ::operator delete(data, kAlignment); }
  };

  int64_t count_ = 0;
  std::unique_ptr<T, Free> data_;
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

  bool raw() const { return r == 0; }
};

// The part of an error that `x` still has to lose.
template <typename T>
LowRankProduct<T> ErrorProduct(const LowRankMemory<T>& memory, int64_t r) {
  if (memory.error_p.empty()) return {};
  return {memory.error_p.data(), memory.error_q.data(), r};
}

template <typename T>
constexpr DType kDTypeOf = sizeof(T) == sizeof(double) ? DType::kFloat64
                                                       : DType::kFloat32;

}  // namespace coxswain

#endif  // COXSWAIN_HOOKS_LOW_RANK_LOW_RANK_TENSOR_H_
