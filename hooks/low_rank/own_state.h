#ifndef COXSWAIN_HOOKS_LOW_RANK_OWN_STATE_H_
#define COXSWAIN_HOOKS_LOW_RANK_OWN_STATE_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "client/reduce/hook_state.h"
#include "hooks/low_rank/low_rank_state.h"
#include "hooks/low_rank/low_rank_tensor.h"

namespace coxswain {

// What Hook::SaveOwn of a low-rank hook has of this rank alone. An error is
// kept as it stands, x - p transpose(q) uncomputed, so that a rank that goes on
// among the same ranks goes on bit by bit: one tensor of x, n x m by rows, and,
// unless the error is x, behind it p and q by columns. Options and factors are
// those of a checkpoint (low_rank_state.h); its mean errors have another kind,
// so that neither is taken for the other.
constexpr char kOwnError[] = "own_error";               // of a parameter
constexpr char kOwnBucketError[] = "own_bucket_error";  // batched_powersgd

// The committed error of `tensor`, which has one.
template <typename T>
StateTensor MakeOwnError(const char* kind, const LowRankTensor<T>& tensor);

// Makes it the error of `into`, a tensor of that shape, multiplied by `scale`;
// with 0 it is checked only. As UnfitTensor if it is none of such a tensor.
template <typename T>
absl::Status TakeOwnError(const std::string& hook, const StateTensor& saved,
                          double scale, LowRankTensor<T>& into);

// The 2-norm over all errors, computed in double from one piece after the
// other.
double NormOf(const std::vector<ErrorSource>& sources);

}  // namespace coxswain

#endif  // COXSWAIN_HOOKS_LOW_RANK_OWN_STATE_H_
