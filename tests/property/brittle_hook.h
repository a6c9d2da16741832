#ifndef COXSWAIN_TESTS_PROPERTY_BRITTLE_HOOK_H_
#define COXSWAIN_TESTS_PROPERTY_BRITTLE_HOOK_H_

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/reduce/hook.h"
#include "hooks/wrapper_hook.h"

namespace coxswain {

// Another hook, with trouble in one of its exchanges' calls. Knows whether it
// is in a step. Threads as of any hook.
class BrittleHook : public WrapperHook {
 public:
  BrittleHook(std::string spec, std::unique_ptr<Hook> inner)
      : WrapperHook(std::move(spec), std::move(inner)) {}

  // Calls `trouble` in place of the `calls`-th call of Advance from now,
  // counted from 0; if it returns OK, the call itself follows. Called between
  // steps.
  void Trouble(int calls, std::function<absl::Status()> trouble) {
    calls_left_ = calls;
    trouble_ = std::move(trouble);
  }
  void NoTrouble() { calls_left_ = -1; }

  // Has prepared what it has neither committed nor rolled back.
  bool in_step() const { return in_step_; }

  absl::StatusOr<std::unique_ptr<Exchange>> Prepare(
      const Bucket& bucket, Communicator& communicator) override {
    in_step_ = true;
    auto exchange = inner().Prepare(bucket, communicator);
    if (!exchange.ok()) return exchange.status();
    return std::make_unique<BrittleExchange>(this, *std::move(exchange));
  }
  absl::Status Commit() override {
    in_step_ = false;
    return inner().Commit();
  }
  void Rollback() override {
    in_step_ = false;
    inner().Rollback();
  }

 private:
  class BrittleExchange : public Exchange {
   public:
    BrittleExchange(BrittleHook* hook, std::unique_ptr<Exchange> inner)
        : hook_(hook), inner_(std::move(inner)) {}
    absl::StatusOr<WorkPtr> Advance() override {
      if (hook_->calls_left_ >= 0 && hook_->calls_left_-- == 0) {
        absl::Status status = hook_->trouble_();
        if (!status.ok()) return status;
      }
      return inner_->Advance();
    }

   private:
    BrittleHook* const hook_;
    const std::unique_ptr<Exchange> inner_;
  };

  int calls_left_ = -1;
  std::function<absl::Status()> trouble_;
  bool in_step_ = false;
};

}  // namespace coxswain

#endif  // COXSWAIN_TESTS_PROPERTY_BRITTLE_HOOK_H_
