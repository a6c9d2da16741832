#ifndef COXSWAIN_CLIENT_TORCH_STATIC_GRAPH_H_
#define COXSWAIN_CLIENT_TORCH_STATIC_GRAPH_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace coxswain::torch {

// How many gradients each parameter gets in a backward pass that exchanges:
// learned in the first one, and required of the others.
//
// Threading: one thread at a time.
class StaticGraph {
 public:
  explicit StaticGraph(std::vector<std::string> names);

  // Begins a pass, and forgets one that did not reach its end.
  void BeginPass();
  // Notes that the parameter's gradient was added to. Returns whether it was
  // the last time in this pass, which is not known in the first pass. Fails
  // with FAILED_PRECONDITION if that was once too often.
  absl::StatusOr<bool> Arrived(int parameter);
  // Fails with FAILED_PRECONDITION, naming a parameter whose gradient was added
  // to less often than in the first pass.
  absl::Status EndPass();

  bool learned() const { return learned_; }
  // Returns, once learned, the parameters in the order in which their last
  // gradients came, and those that get none.
  const std::vector<int>& order() const { return order_; }
  const std::vector<int>& absent() const { return absent_; }

 private:
  struct Count {
    int expected = 0;
    int arrived = 0;
    int64_t last = 0;  // when, among all arrivals
  };
  absl::Status Differs(size_t parameter) const;
  void Learn();

  const std::vector<std::string> names_;
  std::vector<Count> counts_;  // by parameter
  bool learned_ = false;
  int64_t arrivals_ = 0;
  std::vector<int> order_;
  std::vector<int> absent_;
};

}  // namespace coxswain::torch

#endif  // COXSWAIN_CLIENT_TORCH_STATIC_GRAPH_H_
