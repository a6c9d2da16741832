#include "hooks/narrow_wrapper.h"

#include <utility>

#include "base/status_macros.h"
#include "hooks/device/device_scratch.h"
#include "hooks/narrow_communicator.h"
#include "hooks/scratch.h"
#include "hooks/wrapper_hook.h"

namespace coxswain {
namespace {

// An inner exchange and the communicator that it uses.
class NarrowExchange : public Exchange {
 public:
  NarrowExchange(Communicator& communicator, DType dtype, ScratchPool& scratch,
                 DeviceScratch& device_scratch)
      : communicator_(communicator, dtype, scratch, &device_scratch) {}

  absl::Status Prepare(Hook& inner, const Bucket& bucket) {
    COXSWAIN_ASSIGN_OR_RETURN(exchange_, inner.Prepare(bucket, communicator_));
    return absl::OkStatus();
  }

  absl::StatusOr<WorkPtr> Advance() override { return exchange_->Advance(); }

 private:
  NarrowCommunicator communicator_;
  std::unique_ptr<Exchange> exchange_;  // goes before what it uses
};

class NarrowWrapper : public WrapperHook {
 public:
  NarrowWrapper(std::string spec, DType dtype, std::unique_ptr<Hook> inner)
      : WrapperHook(std::move(spec), std::move(inner)), dtype_(dtype) {}

  absl::Status Configure(const std::vector<ParameterSpec>& parameters,
                         int world_size) override {
    device_scratch_.Clear();
    return WrapperHook::Configure(parameters, world_size);
  }

  absl::StatusOr<std::unique_ptr<Exchange>> Prepare(
      const Bucket& bucket, Communicator& communicator) override {
    auto exchange = std::make_unique<NarrowExchange>(communicator, dtype_,
                                                     scratch_, device_scratch_);
    COXSWAIN_RETURN_IF_ERROR(exchange->Prepare(inner(), bucket));
    return exchange;
  }

 private:
  const DType dtype_;
  ScratchPool scratch_;
  DeviceScratch device_scratch_;
};

}  // namespace

std::unique_ptr<Hook> MakeNarrowWrapper(std::string spec, DType dtype,
                                        std::unique_ptr<Hook> inner) {
  return std::make_unique<NarrowWrapper>(std::move(spec), dtype,
                                         std::move(inner));
}

}  // namespace coxswain
