#include "hooks/low_rank/low_rank_config.h"

#include <algorithm>
#include <limits>
#include <map>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace coxswain {
namespace {

constexpr int64_t kMax = std::numeric_limits<int64_t>::max();

Orthogonalisation MethodOf(const std::string& name) {
  if (name == "cholesky_qr2") return Orthogonalisation::kCholeskyQr2;
  if (name == "gram_schmidt") return Orthogonalisation::kGramSchmidt;
  return Orthogonalisation::kAuto;
}

}  // namespace

LowRankConfig LowRankConfigOf(const OptionValues& options) {
  const std::map<std::string, std::string> texts = options.Texts();
  const auto has = [&](const char* name) { return texts.count(name) != 0; };
  LowRankConfig config;
  config.rank = options.Int("rank");
  config.start_step = options.Int("start_step");
  config.error_feedback = options.Bool("error_feedback");
  config.seed = static_cast<uint64_t>(options.Int("seed"));
  config.stats_every = options.Int("stats_every");
  config.method = MethodOf(options.Choice("orthogonalize"));
  if (has("min_compression_rate")) {
    config.min_compression_rate = options.Double("min_compression_rate");
  }
  if (has("warm_start")) config.warm_start = options.Bool("warm_start");
  if (has("orthogonalization_epsilon")) {
    config.epsilon = options.Double("orthogonalization_epsilon");
  }
  if (has("mode")) config.pytorch = options.Choice("mode") == "pytorch";
  return config;
}

OptionDescription RankOption(int64_t default_rank) {
  return IntOption("rank", default_rank, 1, 1024,
                   "columns of the factors; more is more exact and more bytes",
                   {"matrix_approximation_rank"});
}

OptionDescription StartStepOption() {
  return IntOption("start_step", 1000, 0, kMax,
                   "steps of plain averages before compression starts",
                   {"start_powerSGD_iter"});
}

OptionDescription MinCompressionRateOption() {
  return DoubleOption("min_compression_rate", 2, 0, 1e6,
                      "compress a matrix only if that saves this factor");
}

OptionDescription ErrorFeedbackOption() {
  return BoolOption("error_feedback", true, "send later what a step leaves out",
                    {"use_error_feedback"});
}

OptionDescription WarmStartOption() {
  return BoolOption("warm_start", true, "go on from the last step's Q");
}

OptionDescription SeedOption() {
  return IntOption("seed", 0, 0, kMax, "seed of the first factors",
                   {"random_seed"});
}

OptionDescription StatsEveryOption() {
  return IntOption("stats_every", 10000, 1, kMax,
                   "compressed steps between two log lines on what was saved",
                   {"compression_stats_logging_frequency"});
}

OptionDescription OrthogonalizeOption() {
  return ChoiceOption("orthogonalize", "auto",
                      {"auto", "cholesky_qr2", "gram_schmidt"},
                      "method; cholesky_qr2 falls back to gram_schmidt where "
                      "columns are nearly dependent");
}

absl::Status CheckStartStep(const OptionValues& options,
                            const std::vector<std::string>& remembers) {
  const int64_t start_step = options.Int("start_step");
  if (remembers.empty() || start_step >= 2) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      absl::StrJoin(remembers, " and "), " need start_step of at least 2, got ",
      start_step, ": buckets may still change in the first two steps"));
}

absl::Status CheckMemory(const OptionValues& options) {
  std::vector<std::string> remembers;
  for (const char* option : {"error_feedback", "warm_start"}) {
    if (options.Bool(option)) remembers.emplace_back(option);
  }
  return CheckStartStep(options, remembers);
}

const std::set<std::string>& OptionsThatMayChange() {
  static const auto* options = new std::set<std::string>{
      "start_step", "orthogonalization_epsilon", "stats_every",
      "batch_same_shape", "orthogonalize"};
  return *options;
}

int64_t LowRankOf(const std::vector<int64_t>& shape, int64_t rank,
                  double min_compression_rate) {
  if (shape.size() < 2) return 0;
  const int64_t n = shape[0];
  int64_t m = 1;
  for (size_t i = 1; i < shape.size(); ++i) m *= shape[i];
  const int64_t r = std::min({n, m, rank});
  const double factors = static_cast<double>(n + m) * static_cast<double>(r);
  const double whole = static_cast<double>(n) * static_cast<double>(m);
  return factors * min_compression_rate < whole ? r : 0;
}

}  // namespace coxswain
