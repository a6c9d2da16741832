#ifndef COXSWAIN_HOOKS_LOW_RANK_LOW_RANK_STATE_H_
#define COXSWAIN_HOOKS_LOW_RANK_LOW_RANK_STATE_H_

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "client/comm/communicator.h"
#include "client/reduce/bucket.h"
#include "client/reduce/hook_state.h"
#include "hooks/kernels/low_rank.h"
#include "hooks/low_rank/low_rank_tensor.h"

namespace coxswain {

// The low-rank hooks' part of a checkpoint:
//   options   each option's value, and "parameters": a line for each parameter
//             of the model, "name float32[3,4]" (rank 0's shard)
//   "error"   the mean over the ranks of a parameter's error, in its shape; in
//             one rank's shard, absent if it is zero on all ranks
//   factors   as each hook documents (rank 0's shard)
// Errors are float32, or float64 where the parameter is.

constexpr char kErrorKind[] = "error";

// Where a parameter's error is to be read: the elements from `offset` on of
// x - product, which is n x m by rows. Zero if x is null.
template <typename T>
struct ErrorView {
  const T* x = nullptr;
  LowRankProduct<T> product;
  int64_t n = 0;
  int64_t m = 0;
  int64_t offset = 0;
};

// out[i] = element begin + i of the error, i < length. No more of the product
// is computed than that.
template <typename T>
void ReadError(const ErrorView<T>& error, int64_t begin, int64_t length,
               double* out);

// Returns the committed error of a whole tensor.
template <typename T>
ErrorView<T> ErrorViewOf(const LowRankTensor<T>& tensor);

// Mends the error after a step that overflowed although all gradients are
// finite. Between steps of gradients near the largest number, an error may
// overflow although nothing else does: the elements in question are set to
// zero. Or the errors have grown so large that what is sent of them overflows,
// in float16 most likely; as such a step leaves them as they are, so would all
// later ones. So the third on end drops this rank's whole error of the tensor,
// and logs it. The next step begins with the mended error, whether this one is
// committed or rolled back; the committed error changes with a commit only.
template <typename T>
void DropOverflow(LowRankTensor<T>& tensor);

// A parameter that may have an error.
struct ErrorSource {
  const ParameterSpec* parameter = nullptr;
  std::variant<ErrorView<float>, ErrorView<double>> error;
};

// Collective. Appends this rank's shard of the mean errors; `sources` are in
// registration order, the same parameters on all ranks.
absl::Status SaveErrors(const std::vector<ErrorSource>& sources,
                        Communicator& communicator, HookState& state);

// Returns the rank that keeps each one's mean error: runs of parameters of
// about equal bytes. `parameters` as the sources above.
std::vector<int> ShardOwners(
    const std::vector<const ParameterSpec*>& parameters, int world_size);

template <typename T>
StateTensor MakeStateTensor(absl::string_view kind, absl::string_view parameter,
                            std::vector<int64_t> shape,
                            const std::vector<T>& values);

// What Hook::SaveOwn of a low-rank hook has of this rank alone. An error is
// kept as it stands, x - p transpose(q) uncomputed, so that a rank that goes on
// among the same ranks goes on bit by bit: one tensor of x, n x m by rows, and,
// unless the error is x, behind it p and q by columns. Options and factors are
// those of a checkpoint; its mean errors have another kind, so that neither is
// taken for the other.
constexpr char kOwnError[] = "own_error";               // of a parameter
constexpr char kOwnBucketError[] = "own_bucket_error";  // batched_powersgd

// Returns the committed error of `tensor`, which has one.
template <typename T>
StateTensor MakeOwnError(const char* kind, const LowRankTensor<T>& tensor);

// Makes it the error of `into`, a tensor of that shape, multiplied by `scale`;
// with 0 it is checked only. As UnfitTensor if it is none of such a tensor.
template <typename T>
absl::Status TakeOwnError(const std::string& hook, const StateTensor& saved,
                          double scale, LowRankTensor<T>& into);

// Returns the 2-norm over all errors, computed in double from one piece after
// the other.
double NormOf(const std::vector<ErrorSource>& sources);

}  // namespace coxswain

#endif  // COXSWAIN_HOOKS_LOW_RANK_LOW_RANK_STATE_H_
