#include "hooks/noop.h"

#include <utility>

#include "hooks/plain_hook.h"

namespace coxswain {
namespace {

class NoopHook : public PlainHook {
 public:
  using PlainHook::PlainHook;

  GradientReach reach() const override { return GradientReach::kOwn; }
  // A share is for averages, and there are none.
  bool applies_share() const override { return true; }

  absl::StatusOr<std::unique_ptr<Exchange>> Prepare(const Bucket&,
                                                    Communicator&) override {
    return MakeExchange([](int) { return WorkPtr(); });
  }
};

}  // namespace

std::unique_ptr<Hook> MakeNoopHook(std::string spec) {
  return std::make_unique<NoopHook>(std::move(spec));
}

HookRow NoopRow() {
  HookRow row;
  row.description.name = "noop";
  row.description.help = "no exchange at all, to measure the headroom";
  row.description.card = {
      "0",
      "0",
      "none",
      "each rank's gradients as they are: the ranks diverge from the first "
      "step",
      "training; it only shows how fast steps would be if communication "
      "were free",
  };
  row.on_device = true;
  row.make = [](std::string spec, OptionValues, std::unique_ptr<Hook>) {
    return MakeNoopHook(std::move(spec));
  };
  return row;
}

}  // namespace coxswain
