#include "hooks/averagers/post_local_sgd.h"

#include <memory>
#include <string>
#include <utility>

#include "hooks/averagers/stepped_averager.h"

namespace coxswain {
namespace {

class PostLocalSgd : public SteppedAverager {
 public:
  PostLocalSgd(std::string spec, int64_t start_step, int64_t period)
      : SteppedAverager(std::move(spec), start_step), period_(period) {}

 protected:
  bool Exchanges(int64_t call) const override {
    return (call - start_step()) % period_ == 0;
  }

 private:
  const int64_t period_;
};

}  // namespace

HookRow PostLocalSgdRow() {
  HookRow row;
  row.description.name = "post_local_sgd";
  row.description.help =
      "local steps after a start, parameters averaged every period";
  row.description.options = {
      IntOption("start_step", 1000, 0, 1'000'000'000,
                "steps that average gradients plainly over all ranks",
                {"start_localSGD_iter"}),
      IntOption("period", 8, 1, 1'000'000'000,
                "steps between two averages of the parameters"),
      IntOption("subgroup", 1, 1, 1 << 20,
                "consecutive ranks that average gradients among themselves "
                "after the start; 1: none do"),
      BoolOption("gradient_allreduce", true,
                 "whether subgroups average gradients after the start",
                 {"post_local_gradient_allreduce"}),
  };
  row.description.card = {
      "gradients: N elements before the start; after it N within the subgroup, "
      "0 without; parameters: 4 bytes an element (8 of float64) every period "
      "steps",
      "gradients: 1 all-reduce, 0 after the start without a subgroup; "
      "parameters: 1 all-reduce per 4 Mi elements every period steps",
      "two chunks of 4 Mi elements from the first average on",
      "between two averages the ranks hold different parameters; parameters "
      "are divided and summed in float32 (float64 for float64)",
      "with a large learning rate or a long period early in training; where "
      "every step must equal synchronous SGD",
  };
  row.make = [](std::string spec, OptionValues options, std::unique_ptr<Hook>) {
    return MakeLocalGradientsHook(
        std::move(spec), options.Int("start_step"),
        options.Bool("gradient_allreduce") ? options.Int("subgroup") : 1);
  };
  row.make_averager = [](std::string spec, const OptionValues& options) {
    return std::make_unique<PostLocalSgd>(
        std::move(spec), options.Int("start_step"), options.Int("period"));
  };
  return row;
}

}  // namespace coxswain
