#include "hooks/low_rank/powersgd.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "hooks/low_rank/device_powersgd.h"
#include "hooks/low_rank/low_rank_config.h"
#include "hooks/low_rank/low_rank_hook.h"
#include "hooks/low_rank/powersgd_exchange.h"

namespace coxswain {
namespace {

class PowerSgdHook : public LowRankHook {
 public:
  PowerSgdHook(std::string spec, OptionValues options)
      : LowRankHook("powersgd", std::move(spec), std::move(options)) {}

 protected:
  int64_t RankOf(const ParameterSpec& parameter) const override {
    return LowRankOf(parameter.shape, config().rank,
                     config().min_compression_rate);
  }

  bool KeepsError(int64_t r) const override {
    return config().error_feedback && (r > 0 || config().pytorch);
  }

  std::unique_ptr<Exchange> Compress(const Bucket& bucket,
                                     Communicator& communicator,
                                     const LowRankStep& step) override {
    return bucket.data.dtype == DType::kFloat64
               ? MakePowerSgdExchange(bucket, TensorsOf<double>(bucket),
                                      communicator, step)
               : MakePowerSgdExchange(bucket, TensorsOf<float>(bucket),
                                      communicator, step);
  }

  absl::StatusOr<std::unique_ptr<Exchange>> CompressOnDevice(
      const Bucket& bucket, Communicator& communicator,
      const LowRankStep& step) override {
    return bucket.data.dtype == DType::kFloat64
               ? device_.Prepare(bucket, TensorsOf<double>(bucket),
                                 communicator, step)
               : device_.Prepare(bucket, TensorsOf<float>(bucket), communicator,
                                 step);
  }

  absl::Status FetchFromDevice() const override { return device_.Fetch(); }
  void ForgetDevice() override { device_.Forget(); }

  void EndStep(bool commit) override {
    LowRankHook::EndStep(commit);
    device_.EndStep(commit);
  }

 private:
  DevicePowerSgd device_;
};

OptionDescription ModeOption() {
  return ChoiceOption(
      "mode", "local", {"local", "pytorch"},
      "local: each rank keeps what it left out itself; pytorch: "
      "the residual and order of operations of PyTorch");
}

CostCard Card() {
  CostCard card;
  card.bytes =
      "r (n + m) elements for each compressed n x m matrix, all elements of "
      "the rest; in the gradients' own type. A step that is not finite: 4 "
      "bytes "
      "a rank in place of Q";
  card.collectives = "2 all-reduces";
  card.memory =
      "8 bytes an element of the compressed matrices (gradient plus error, "
      "committed and staged; of all tensors with mode=pytorch), and "
      "2 r (n + 2 m) elements of factors; without error_feedback 2 r m "
      "elements "
      "only. In flight what is sent";
  card.numerics =
      "lossy; what a step leaves out is sent later. Computed in float32 "
      "(float64 for float64). Raw tensors are exact up to the rounding of "
      "sums. mode=pytorch divides after the sums, which overflow sooner. Where "
      "the members of a running job change from W to W', errors are multiplied "
      "by W'/W; mode=pytorch starts anew without errors";
  card.avoid =
      "models whose gradients are mostly vectors, networks faster than the "
      "arithmetic, and the first steps of a training (see start_step)";
  return card;
}

}  // namespace

HookRow PowerSgdRow() {
  HookRow row;
  row.description.name = "powersgd";
  row.description.aliases = {"powerSGD", "power_sgd"};
  row.description.help = "low-rank gradients with error feedback";
  row.description.options = {
      RankOption(1),
      StartStepOption(),
      MinCompressionRateOption(),
      ErrorFeedbackOption(),
      WarmStartOption(),
      DoubleOption("orthogonalization_epsilon", 0, 0, 1,
                   "added to the norms by gram_schmidt"),
      SeedOption(),
      StatsEveryOption(),
      BoolOption("batch_same_shape", false,
                 "accepted without effect: all matrices of a bucket are always "
                 "treated together",
                 {"batch_tensors_with_same_shape"}),
      ModeOption(),
      OrthogonalizeOption(),
  };
  row.description.card = Card();
  row.on_device = true;
  row.check = [](const OptionValues& options, bool) {
    return CheckMemory(options);
  };
  row.make = [](std::string spec, OptionValues options, std::unique_ptr<Hook>) {
    return std::make_unique<PowerSgdHook>(std::move(spec), std::move(options));
  };
  return row;
}

}  // namespace coxswain
