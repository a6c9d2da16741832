// A hook of one's own. predivide(factor=F) averages over W ranks by dividing
// by F before the sum and by W / F after it: in fp16(predivide(factor=8)),
// small gradients keep bits that they lose where all of W comes first.
#include "examples/custom_hook/predivide.h"

#include <utility>

#include "hooks/plain_hook.h"
#include "hooks/registry/registry.h"

namespace coxswain::examples {
namespace {

void Scale(const Span& span, double by) {
  for (int64_t i = 0; i < span.count; ++i) {
    if (span.dtype == DType::kFloat64)
      static_cast<double*>(span.data)[i] *= by;
    else
      static_cast<float*>(span.data)[i] *= static_cast<float>(by);
  }
}

class PredivideHook : public PlainHook {  // which counts the steps
 public:
  PredivideHook(std::string spec, double factor)
      : PlainHook(std::move(spec)), factor_(factor) {}

  absl::StatusOr<std::unique_ptr<Exchange>> Prepare(
      const Bucket& bucket, Communicator& ranks) override {
    const Span data = bucket.data;
    if (data.dtype != DType::kFloat32 && data.dtype != DType::kFloat64)
      return absl::InvalidArgumentError("predivide is for float32 and float64");
    return MakeExchange([data, &ranks, f = factor_](int call) {
      Scale(data, call == 0 ? 1 / f : f / ranks.size());
      return call == 0 ? ranks.AllReduce(data) : WorkPtr();
    });
  }

 private:
  const double factor_;
};

}  // namespace

absl::Status RegisterPredivide() {
  HookRow row;
  row.description.name = "predivide";
  row.description.help = "an average that is divided in part before the sum";
  row.description.options = {
      DoubleOption("factor", 2, 1, 1e6, "what to divide by before the sum")};
  row.make = [](std::string spec, OptionValues values, std::unique_ptr<Hook>) {
    return std::make_unique<PredivideHook>(spec, values.Double("factor"));
  };
  return RegisterHook(std::move(row));
}

}  // namespace coxswain::examples
