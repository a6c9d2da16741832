#include "hooks/allreduce.h"

#include <utility>

#include "base/status_macros.h"
#include "hooks/kernels/elementwise.h"
#include "hooks/plain_hook.h"

namespace coxswain {
namespace {

void DivideInPlace(const Span& span, int divisor) {
  if (divisor == 1) return;
  switch (span.dtype) {
    case DType::kFloat32:
      return Divide(static_cast<float*>(span.data), span.count,
                    static_cast<float>(divisor));
    case DType::kFloat64:
      return Divide(static_cast<double*>(span.data), span.count, divisor);
    case DType::kFloat16:
      return DivideFloat16(static_cast<uint16_t*>(span.data), span.count,
                           static_cast<float>(divisor));
    case DType::kBFloat16:
      return DivideBFloat16(static_cast<uint16_t*>(span.data), span.count,
                            static_cast<float>(divisor));
    default:
      return;  // CheckBucket has refused it
  }
}

class AllReduceExchange : public Exchange {
 public:
  AllReduceExchange(Span data, Communicator& communicator)
      : data_(data), communicator_(communicator) {}

  absl::StatusOr<WorkPtr> Advance() override {
    if (std::exchange(started_, true)) return WorkPtr();
    DivideInPlace(data_, communicator_.size());
    return communicator_.AllReduce(data_);
  }

 private:
  const Span data_;
  Communicator& communicator_;
  bool started_ = false;
};

class AllReduceHook : public PlainHook {
 public:
  using PlainHook::PlainHook;

  absl::StatusOr<std::unique_ptr<Exchange>> Prepare(
      const Bucket& bucket, Communicator& communicator) override {
    COXSWAIN_RETURN_IF_ERROR(CheckBucket(spec(), bucket));
    return PrepareAllReduce(bucket, communicator);
  }
};

}  // namespace

std::unique_ptr<Hook> MakeAllReduceHook(std::string spec) {
  return std::make_unique<AllReduceHook>(std::move(spec));
}

HookRow AllReduceRow() {
  HookRow row;
  row.description.name = "allreduce";
  row.description.help = "the average of the gradients, uncompressed";
  row.description.card = {
      "those of the gradients: 4 N bytes for a bucket of N float32 elements",
      "1 all-reduce",
      "none",
      "one rounding by the division, then the back end's sum in the gradients' "
      "type",
      "networks that are slower than the computation",
  };
  row.make = [](std::string spec, OptionValues, std::unique_ptr<Hook>) {
    return MakeAllReduceHook(std::move(spec));
  };
  return row;
}

absl::StatusOr<std::unique_ptr<Exchange>> PrepareAllReduce(
    const Bucket& bucket, Communicator& communicator) {
  return std::make_unique<AllReduceExchange>(bucket.data, communicator);
}

}  // namespace coxswain
