#ifndef COXSWAIN_HOOKS_LOW_RANK_BUCKET_MATRICES_H_
#define COXSWAIN_HOOKS_LOW_RANK_BUCKET_MATRICES_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "client/reduce/bucket.h"
#include "client/reduce/hook_state.h"
#include "hooks/low_rank/low_rank_state.h"
#include "hooks/low_rank/low_rank_tensor.h"

namespace coxswain {

// The buckets of one type that batched_powersgd sees as matrices. A
// parameter's error is in the matrix of the bucket that it was last exchanged
// in, or, if it has been in none, in its own tensor. It moves when the buckets
// change.
template <typename T>
class BucketMatrices {
 public:
  using Tensors = std::vector<LowRankTensor<T>*>;  // by registration index

  // Returns the matrix of a bucket of these parameters; made, with factors of
  // up to `rank` columns, if there is none. Then the errors move in from
  // `tensors`, and Q is that of `factors`, saved for a bucket of the same
  // parameters, if there is one (it is taken out), or else to be drawn.
  LowRankTensor<T>& For(const Bucket& bucket, int64_t rank, bool keeps_error,
                        const Tensors& tensors,
                        std::vector<StateTensor>& factors);

  // Where a parameter's committed error stands, if it is in a bucket.
  const ErrorView<T>* Find(int parameter, ErrorView<T>* view) const;

  bool empty() const { return matrices_.empty(); }

  // Swaps in what a step has staged, or forgets it.
  void EndStep(bool commit);

  // Appends Q of each bucket: kind "q/" and a hash of the parameters' names,
  // under the first one's name, shape [r, m].
  void SaveFactors(HookState& state) const;

  // Appends this rank's error of each bucket (hooks/low_rank/low_rank_state.h),
  // under the names of its parameters, a line each.
  void SaveOwn(HookState& state) const;
  // Makes the bucket that such an error is of, and takes it over times `scale`.
  // `numbers`: its parameters, which are among `tensors`. As UnfitTensor if
  // the error does not fit, or another bucket has one of them.
  absl::Status LoadOwn(const std::string& hook, const StateTensor& saved,
                       const std::vector<int>& numbers, int64_t rank,
                       bool keeps_error, double scale, const Tensors& tensors);

  // Moves all errors back, and forgets the buckets.
  void Dissolve(const Tensors& tensors);
  // Forgets the errors too.
  void Clear() { matrices_.clear(); }

 private:
  struct Matrix {
    std::vector<GradientSlot> slots;
    std::string first;  // name of the first parameter
    LowRankTensor<T> tensor;
  };

  Matrix* Known(const Bucket& bucket);
  bool HasAnyOf(const std::vector<GradientSlot>& slots) const;
  // Returns a bucket of these gradients, without error or factor.
  static std::unique_ptr<Matrix> MakeMatrix(
      const std::vector<GradientSlot>& slots, int64_t rank, bool keeps_error,
      const Tensors& tensors);
  static void MoveBack(const Matrix& matrix, const Tensors& tensors);
  static void MoveIn(Matrix& matrix, const Tensors& tensors);

  std::vector<std::unique_ptr<Matrix>> matrices_;
};

// Returns the kind of the state tensor that holds Q of a bucket, by the names
// of its parameters; what it begins with.
std::string BucketFactorKind(const std::string& names);
constexpr char kBucketFactor[] = "q/";

}  // namespace coxswain

#endif  // COXSWAIN_HOOKS_LOW_RANK_BUCKET_MATRICES_H_
