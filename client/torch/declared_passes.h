#ifndef COXSWAIN_CLIENT_TORCH_DECLARED_PASSES_H_
#define COXSWAIN_CLIENT_TORCH_DECLARED_PASSES_H_

#include <torch/types.h>

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "client/accumulate/accumulator.h"

namespace coxswain::torch {

// Backward passes within the scope only sum up locally. Made by
// DistributedDataParallel::NoSync, which it must not outlive.
class [[nodiscard]] NoSyncScope {
 public:
  explicit NoSyncScope(int* depth) : depth_(depth) { ++*depth_; }
  ~NoSyncScope() { --*depth_; }
  NoSyncScope(const NoSyncScope&) = delete;
  NoSyncScope& operator=(const NoSyncScope&) = delete;

 private:
  int* depth_;
};

// A moment in the construction of graphs, by the count of the thread that noted
// it.
struct GraphMark {
  uint64_t sequence = 0;
  uint64_t thread = 0;

  static GraphMark Now();
};

// Returns whether the forward that the loss comes from ran before the mark:
// whatever is younger than the mark uses no parameter, but something older. A
// part that is computed again in the backward pass counts by its first run.
// Visits only as much of the graph as it needs to find a parameter. Throws what
// libtorch throws.
bool ForwardRanBefore(const GraphMark& mark, const ::torch::Tensor& loss);

// The declarations of the next backward passes, and their progress. Used by
// DistributedDataParallel.
//
// Threading: the thread that calls backward.
class DeclaredPasses {
 public:
  // Fails with FAILED_PRECONDITION if the micro-batch before has not run its
  // backward, or has not exchanged.
  absl::Status CheckDeclare() const;
  void Declare(const MicroBatch& micro);
  // Declares a whole window, whose passes count for nothing by themselves, by
  // its last micro-batch.
  void DeclareWindow(const MicroBatch& last);
  // Declares that the end of the data ends the window: its sum is to be
  // exchanged.
  void DeclareTail();
  // Returns whether micro-batches are declared at all.
  bool declared() const { return declared_; }
  // Returns whether passes exchange that are in no NoSync scope.
  bool exchanges() const { return micro_.exchange; }
  // Returns whether the micro-batch that was declared last counts for nothing.
  bool empty() const { return declared_ && micro_.empty; }
  const GraphMark& since() const { return since_; }

  // A backward pass of the micro-batch begins.
  void BeginPass();
  void EndPass() { in_pass_ = false; }
  bool in_pass() const { return in_pass_; }
  // Returns the passes since the last exchange, if nothing is declared.
  int passes() const { return passes_; }

  // Notes that this rank cannot compute its part of the window, and why.
  void Fail(const absl::Status& why);
  const std::string& failure() const { return failure_; }

  void EndExchange();
  void DropWindow();

  // Returns whether a declared micro-batch has still to run its backward.
  bool pass_due() const { return pass_due_; }
  // Returns whether the micro-batch declared last is to exchange, and has not.
  bool exchange_due() const { return exchange_due_; }
  // Returns whether one was declared that does not end its window.
  bool in_window() const { return in_window_; }
  // Fails with FAILED_PRECONDITION for a pass that exchanges after the declared
  // one did.
  absl::Status CheckNotSpent() const;

 private:
  MicroBatch micro_;  // declared last
  GraphMark since_;   // then
  bool declared_ = false;
  bool pass_due_ = false;
  bool exchange_due_ = false;
  bool in_window_ = false;
  bool spent_ = false;  // the micro-batch has exchanged its gradients
  bool in_pass_ = false;
  int passes_ = 0;
  std::string failure_;
};

}  // namespace coxswain::torch

#endif  // COXSWAIN_CLIENT_TORCH_DECLARED_PASSES_H_
