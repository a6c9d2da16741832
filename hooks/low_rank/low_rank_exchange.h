#ifndef COXSWAIN_HOOKS_LOW_RANK_LOW_RANK_EXCHANGE_H_
#define COXSWAIN_HOOKS_LOW_RANK_LOW_RANK_EXCHANGE_H_

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/strings/string_view.h"
#include "client/comm/communicator.h"
#include "client/reduce/bucket.h"
#include "client/reduce/bucket_slices.h"
#include "client/reduce/hook.h"
#include "hooks/kernels/low_rank.h"
#include "hooks/kernels/orthogonalise.h"
#include "hooks/low_rank/low_rank_config.h"
#include "hooks/low_rank/low_rank_tensor.h"
#include "hooks/narrow_communicator.h"
#include "hooks/non_finite.h"
#include "hooks/scratch.h"

namespace coxswain {

// Orthogonalises by the options. mode=pytorch does as PyTorch: one and two
// columns by Gram-Schmidt with epsilon, more without it.
template <typename T>
std::vector<int64_t> OrthogonaliseFactors(
    const std::vector<TallMatrix<T>>& factors, const LowRankConfig& config);

// The stream that a factor is drawn from in a step: a pure function, so that
// all ranks draw the same whatever their buckets and histories.
uint64_t FactorStream(absl::string_view name, int64_t step);

// A factor that a step begins with, and where it is drawn from: element (j, k)
// is CounterRandom(seed, stream).Normal(k n + j).
template <typename T>
struct FirstFactor {
  TallMatrix<T> matrix;
  uint64_t stream = 0;
};

// Where the last step left a factor of `count` elements, or zeros, which
// ReadyFactors draws, if it left none.
template <typename T>
void StartFactor(const std::vector<T>& last, int64_t count, T* out) {
  if (last.empty()) {
    std::fill_n(out, count, T{0});
  } else {
    std::copy_n(last.data(), count, out);
  }
}

// Orthogonalises them. Columns that are zero, because the factor is not yet
// drawn or a gradient was zero or of a lower rank, are drawn: they would stay
// zero for ever.
template <typename T>
void ReadyFactors(const std::vector<FirstFactor<T>>& factors,
                  const LowRankConfig& config);

// What the exchanges of a step report to their hook.
struct LowRankReport {
  bool poisoned = false;
  std::vector<NonFiniteGradient> non_finite;
  int64_t elements = 0;  // of the gradients
  int64_t sent = 0;      // elements handed to collectives instead
};

// What a hook lends to the exchanges of a step; it outlives them.
struct LowRankStep {
  const LowRankConfig& config;
  const std::vector<ParameterSpec>& parameters;  // of the model
  ScratchPool& scratch;
  LowRankReport& report;
  int64_t number = 0;  // committed steps before this one
  // If each rank keeps the averages of its own slice only: what is sent and
  // remembered is the same, and the averages are formed there alone.
  std::optional<BucketSlices> slices;
};

// What the exchanges of the low-rank hooks share. T is float, or double if
// the gradients are. 16-bit gradients travel in their own type.
//
// Infinities are not looked for before the first collective: they make the
// factors that are sent not finite, and so their sum, on all ranks. Those scan
// the sum and so agree that the step is poisoned. SendReport then lets them
// find whose gradients it were, by an int32 per rank, which no 16-bit wrapper
// rounds. FinishPoisoned fills the bucket with NaN.
template <typename T>
class LowRankExchange : public Exchange {
 protected:
  // The tensors of the bucket, and where what is exchanged of them stands.
  // `offset` is the first element in the bucket.
  struct Raw {
    LowRankTensor<T>& tensor;
    Span gradient;
    int64_t offset;
    T* values;
  };
  struct Matrix {
    LowRankTensor<T>& tensor;
    Span gradient;
    int64_t offset;
    T* p;  // n x r by columns
    T* q;  // m x r

    int64_t p_count() const { return tensor.n * tensor.r; }
    int64_t q_count() const { return tensor.m * tensor.r; }
  };

  LowRankExchange(const Bucket& bucket, Communicator& communicator,
                  const LowRankStep& step);

  // Fills raws_ and matrices_: raw elements and the P of each matrix are in
  // `first`, in the bucket's order, and the Q in `second`, or the reverse.
  void Place(const std::vector<LowRankTensor<T>*>& tensors, T* first, T* second,
             bool p_is_first);
  // X = gradient + error, kept for the next step, or without error feedback
  // the gradient.
  static LowRankPass<T> Accumulation(const Matrix& matrix);
  // Makes each gradient what its values or factors give, as far as this rank
  // keeps it: the raw ones their values, the matrices P transpose(Q).
  void WriteAverages();

  // Elements of a run.
  struct Range {
    int64_t begin = 0;
    int64_t count = 0;
  };
  // Returns which of `count` elements from `offset` in the bucket on this rank
  // keeps; and which of the rows of a matrix there, of `columns` each, have
  // such elements.
  Range Kept(int64_t offset, int64_t count) const;
  Range KeptRows(int64_t offset, int64_t rows, int64_t columns) const;

  // Sums over the ranks; the memory is kept until the back end is done with
  // it, even if this exchange is given up before. Nothing if it is empty.
  WorkPtr Send(const std::shared_ptr<T>& data, int64_t count);

  // While the bucket still holds this rank's gradients.
  WorkPtr SendReport();
  // After SendReport, or without if the second sum has overflowed. True if no
  // gradient is to blame: a sum has overflowed, or an error has.
  bool FinishPoisoned();

  static bool AllFinite(const T* values, int64_t count);
  // Poisons the step if this rank's factors are so near to the largest number
  // that the error which follows from them may overflow. Their sum does not
  // show it: other ranks' may cancel them.
  static void Guard(T* factors, int64_t count);
  // values[i] /= number of ranks.
  void Average(T* values, int64_t count) const;

  const Bucket bucket_;
  const LowRankStep step_;
  ScratchPool& scratch_;
  std::vector<Raw> raws_;
  std::vector<Matrix> matrices_;

 private:
  Communicator* communicator_;  // what was given, or narrow_
  std::optional<NarrowCommunicator> narrow_;
  std::optional<NonFiniteSearch> search_;  // SendReport's
};

}  // namespace coxswain

#endif  // COXSWAIN_HOOKS_LOW_RANK_LOW_RANK_EXCHANGE_H_
