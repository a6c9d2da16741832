#include "client/torch/declared_passes.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace coxswain::torch {
namespace {

// Of a reason that all ranks are told.
constexpr size_t kMaxReason = 256;

}  // namespace

absl::Status DeclaredPasses::CheckDeclare() const {
  if (pass_due_) {
    return absl::FailedPreconditionError(
        "a micro-batch begins, but the one before it has not run its backward: "
        "call Backward for each Accumulate, FailMicroBatch where its loss "
        "cannot be computed, or give the window up by DropWindow");
  }
  if (exchange_due_) {
    return absl::FailedPreconditionError(
        "a micro-batch begins, but the one before it, which exchanges "
        "gradients, did not: run its backward outside NoSync, then "
        "Synchronize, or give the window up by DropWindow");
  }
  return absl::OkStatus();
}

void DeclaredPasses::Declare(const MicroBatch& micro) {
  micro_ = micro;
  since_ = GraphMark::Now();
  declared_ = true;
  pass_due_ = true;
  exchange_due_ = micro.exchange;
  in_window_ = !micro.sync;
  spent_ = false;
  in_pass_ = false;
}

void DeclaredPasses::DeclareTail() {
  micro_.sync = micro_.exchange = true;
  exchange_due_ = true;
  in_window_ = false;
}

void DeclaredPasses::BeginPass() {
  in_pass_ = true;
  pass_due_ = false;
  ++passes_;
}

void DeclaredPasses::Fail(const absl::Status& why) {
  if (!failure_.empty()) return;
  failure_ = std::string(why.message()).substr(0, kMaxReason);
  if (failure_.empty()) failure_ = absl::StatusCodeToString(why.code());
}

void DeclaredPasses::EndExchange() {
  // Of a declared micro-batch; passes that are not declared all exchange.
  if (std::exchange(exchange_due_, false)) spent_ = true;
  pass_due_ = false;
  passes_ = 0;
  failure_.clear();
}

void DeclaredPasses::DropWindow() {
  EndExchange();
  in_window_ = false;
}

absl::Status DeclaredPasses::CheckNotSpent() const {
  if (!spent_) return absl::OkStatus();
  return absl::FailedPreconditionError(
      "a backward pass exchanges gradients, but the micro-batch that was "
      "declared last has exchanged its own: call Accumulate before each "
      "forward, and where one has several losses add them up, or run all but "
      "the last one's backward in a NoSync scope");
}

}  // namespace coxswain::torch
