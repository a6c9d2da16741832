#include "hooks/low_rank/acp_sgd.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "hooks/low_rank/acp_sgd_exchange.h"
#include "hooks/low_rank/low_rank_config.h"
#include "hooks/low_rank/low_rank_hook.h"

namespace coxswain {
namespace {

class AcpSgdHook : public LowRankHook {
 public:
  AcpSgdHook(std::string spec, OptionValues options)
      : LowRankHook("acp_sgd", std::move(spec), std::move(options)) {}

 protected:
  int64_t RankOf(const ParameterSpec& parameter) const override {
    return LowRankOf(parameter.shape, config().rank,
                     config().min_compression_rate);
  }

  bool KeepsError(int64_t r) const override {
    return config().error_feedback && r > 0;
  }

  std::unique_ptr<Exchange> Compress(const Bucket& bucket,
                                     Communicator& communicator,
                                     const LowRankStep& step) override {
    return bucket.data.dtype == DType::kFloat64
               ? MakeAcpSgdExchange(bucket, TensorsOf<double>(bucket),
                                    communicator, step)
               : MakeAcpSgdExchange(bucket, TensorsOf<float>(bucket),
                                    communicator, step);
  }
};

CostCard Card() {
  CostCard card;
  card.bytes =
      "r n elements (odd steps) or r m (even steps) for each compressed n x m "
      "matrix, all elements of the rest; in the gradients' own type";
  card.collectives =
      "1 all-reduce; in a step that is not finite another, of 4 bytes a rank";
  card.memory =
      "8 bytes an element of the compressed matrices (gradient plus error, "
      "committed and staged), and 4 r (n + m) elements of factors; without "
      "error_feedback 2 r (n + m) only. In flight what is sent, and the other "
      "factor";
  card.numerics =
      "lossy, and more so than powersgd of the same rank, as a step improves "
      "one factor; what it leaves out is sent later. Computed in float32 "
      "(float64 for float64). Raw tensors are exact up to the rounding of sums";
  card.avoid =
      "as powersgd; and where gradients turn quickly, since a step can only "
      "say what fits the other factor, which is a step old";
  return card;
}

}  // namespace

HookRow AcpSgdRow() {
  HookRow row;
  row.description.name = "acp_sgd";
  row.description.aliases = {"acp"};
  row.description.help =
      "low-rank gradients, one factor and one all-reduce a step";
  row.description.options = {
      RankOption(4),         StartStepOption(), MinCompressionRateOption(),
      ErrorFeedbackOption(), SeedOption(),      StatsEveryOption(),
      OrthogonalizeOption(),
  };
  row.description.card = Card();
  row.check = [](const OptionValues& options, bool) {
    return CheckStartStep(options, {"the factors"});
  };
  row.make = [](std::string spec, OptionValues options, std::unique_ptr<Hook>) {
    return std::make_unique<AcpSgdHook>(std::move(spec), std::move(options));
  };
  return row;
}

}  // namespace coxswain
