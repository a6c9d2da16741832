#ifndef COXSWAIN_CLIENT_CHECKPOINT_STATE_HOOK_FOR_TEST_H_
#define COXSWAIN_CLIENT_CHECKPOINT_STATE_HOOK_FOR_TEST_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/reduce/hook.h"

namespace coxswain {

// A hook that has a state and trains nothing.
class StateHook : public Hook {
 public:
  absl::Status Configure(const std::vector<ParameterSpec>&, int) override {
    return absl::OkStatus();
  }
  absl::StatusOr<std::unique_ptr<Exchange>> Prepare(const Bucket&,
                                                    Communicator&) override {
    return absl::UnimplementedError("not a hook for training");
  }
  absl::Status Commit() override { return absl::OkStatus(); }
  void Rollback() override {}
  int64_t step() const override { return 40; }
  bool needs_averager() const override { return needs; }

  bool needs = false;
};

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_CHECKPOINT_STATE_HOOK_FOR_TEST_H_
