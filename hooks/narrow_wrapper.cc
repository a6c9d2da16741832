#include "hooks/narrow_wrapper.h"

#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "hooks/narrow_communicator.h"
#include "hooks/scratch.h"

namespace coxswain {
namespace {

// An inner exchange and the communicator that it uses.
class NarrowExchange : public Exchange {
 public:
  NarrowExchange(Communicator& communicator, DType dtype, ScratchPool& scratch)
      : communicator_(communicator, dtype, scratch) {}

  absl::Status Prepare(Hook& inner, const Bucket& bucket) {
    COXSWAIN_ASSIGN_OR_RETURN(exchange_, inner.Prepare(bucket, communicator_));
    return absl::OkStatus();
  }

  absl::StatusOr<WorkPtr> Advance() override { return exchange_->Advance(); }

 private:
  NarrowCommunicator communicator_;
  std::unique_ptr<Exchange> exchange_;  // goes before what it uses
};

class NarrowWrapper : public Hook {
 public:
  NarrowWrapper(std::string spec, DType dtype, std::unique_ptr<Hook> inner)
      : spec_(std::move(spec)), dtype_(dtype), inner_(std::move(inner)) {}

  std::string spec() const override { return spec_; }

  absl::Status Configure(const std::vector<ParameterSpec>& parameters,
                         int world_size) override {
    return inner_->Configure(parameters, world_size);
  }

  absl::StatusOr<std::unique_ptr<Exchange>> Prepare(
      const Bucket& bucket, Communicator& communicator) override {
    auto exchange =
        std::make_unique<NarrowExchange>(communicator, dtype_, scratch_);
    COXSWAIN_RETURN_IF_ERROR(exchange->Prepare(*inner_, bucket));
    return exchange;
  }

  absl::Status Commit() override { return inner_->Commit(); }
  void Rollback() override { inner_->Rollback(); }
  int64_t step() const override { return inner_->step(); }
  bool started() const override { return inner_->started(); }
  bool needs_averager() const override { return inner_->needs_averager(); }
  std::vector<NonFiniteGradient> non_finite() const override {
    return inner_->non_finite();
  }

  absl::StatusOr<HookState> SaveState(Communicator& communicator) override {
    return inner_->SaveState(communicator);
  }
  absl::Status LoadState(const HookState& state, int rank,
                         int world_size) override {
    return inner_->LoadState(state, rank, world_size);
  }

 private:
  const std::string spec_;
  const DType dtype_;
  ScratchPool scratch_;
  const std::unique_ptr<Hook> inner_;
};

}  // namespace

std::unique_ptr<Hook> MakeNarrowWrapper(std::string spec, DType dtype,
                                        std::unique_ptr<Hook> inner) {
  return std::make_unique<NarrowWrapper>(std::move(spec), dtype,
                                         std::move(inner));
}

}  // namespace coxswain
