#ifndef COXSWAIN_CLIENT_TORCH_DECLARED_WINDOW_H_
#define COXSWAIN_CLIENT_TORCH_DECLARED_WINDOW_H_

#include <cstddef>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/reduce/bucket.h"

namespace coxswain::torch {

// A window that is declared as a whole: which parameters' gradients are
// complete, while its backward passes run in any order. Used by
// DistributedDataParallel.
//
// Life-cycle: Begin, last passes, End; then the next window.
//
// Threading: the thread that calls backward.
class DeclaredWindow {
 public:
  // What becomes of a gradient that a pass has added to.
  enum class Gradient { kSummedUp, kLast, kComplete };

  // `exchanges`: the window ends, so there are last passes.
  void Begin(bool exchanges, size_t parameters);
  void End() { open_ = in_last_pass_ = false; }
  bool open() const { return open_; }
  bool exchanges() const { return exchanges_; }

  // Begins a pass that is the last one for these of the described parameters.
  // FAILED_PRECONDITION: there is no window, or another last pass has not
  // ended; INVALID_ARGUMENT: there is no such parameter, or it has had its last
  // pass.
  absl::Status BeginLastPass(const std::vector<int>& parameters,
                             const std::vector<ParameterSpec>& described);
  // Returns the parameters of the last pass, which ends: they are complete.
  absl::StatusOr<std::vector<int>> EndLastPass();
  // FAILED_PRECONDITION if a last pass has begun and not ended.
  absl::Status CheckNoLastPass() const;

  // Returns what becomes of the gradient.
  Gradient Arrived(int parameter) const;

  // Notes that this rank cannot compute the rest. No pass follows.
  void Fail();
  bool failed() const { return open_ && failed_; }

 private:
  bool open_ = false;
  bool exchanges_ = false;
  bool failed_ = false;
  bool in_last_pass_ = false;
  std::vector<int> last_;            // parameters of the last pass begun last
  std::vector<Gradient> gradients_;  // by parameter
};

}  // namespace coxswain::torch

#endif  // COXSWAIN_CLIENT_TORCH_DECLARED_WINDOW_H_
