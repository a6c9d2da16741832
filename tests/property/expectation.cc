#include "tests/property/expectation.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "base/random.h"
#include "tests/hooks/reference/rounding.h"

namespace coxswain::property {
namespace {

using reference::LowRankReference;
using reference::Matrix;
using reference::RoundTo;

constexpr double kNoLimit = std::numeric_limits<double>::infinity();

bool IsNarrow(DType dtype) {
  return dtype == DType::kFloat16 || dtype == DType::kBFloat16;
}

double Norm(const std::vector<double>& values) {
  double sum = 0;
  for (const double value : values) sum += value * value;
  return std::sqrt(sum);
}

size_t RowsOf(const ParameterSpec& parameter) {
  const bool matrix = !parameter.shape.empty() && parameter.count() > 0;
  return matrix ? static_cast<size_t>(parameter.shape[0]) : 1;
}

// Columns one after the other become an m x r matrix.
Matrix FactorOf(const StateTensor& tensor) {
  return Transposed(Matrix(static_cast<size_t>(tensor.shape[0]),
                           static_cast<size_t>(tensor.shape[1]),
                           ValuesOf(tensor)));
}

// Adds what a rank's hook knows to the reference's state.
void Adopt(const HookState& alone, size_t rank, size_t ranks,
           const std::vector<ParameterSpec>& parameters,
           LowRankReference& reference) {
  for (const StateTensor& tensor : alone.tensors) {
    for (size_t i = 0; i < parameters.size(); ++i) {
      if (parameters[i].name != tensor.parameter) continue;
      reference::LowRankState& state = reference.states()[i];
      if (tensor.kind == "q") state.q = FactorOf(tensor);
      if (tensor.kind == "p") state.p = FactorOf(tensor);
      if (tensor.kind != "error") continue;
      std::vector<double> values = ValuesOf(tensor);
      const size_t rows = RowsOf(parameters[i]);
      const size_t columns = values.size() / rows;
      state.errors.resize(ranks, Matrix(rows, columns));
      state.errors[rank] = Matrix(rows, columns, std::move(values));
    }
  }
}

// Returns what a hook with errors adds them to, if weights differ: computed in
// float32 at least.
double Weighted(DType dtype, double value, double factor) {
  if (factor == 1) return value;
  if (dtype == DType::kFloat64) return value * factor;
  return RoundTo(DType::kFloat32, value * RoundTo(DType::kFloat32, factor));
}

// Adds noise in proportion to the values' norm, or from nothing.
void Disturb(std::vector<double>& values, double noise, uint64_t stream) {
  if (noise == 0 || values.empty()) return;
  const double norm = Norm(values);
  const double size = noise * (norm > 0 ? norm : 1);
  const CounterRandom random(stream, values.size());
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] += size * random.Normal(i) / std::sqrt(values.size());
  }
}

}  // namespace

double UnitOf(DType dtype) {
  switch (dtype) {
    case DType::kFloat64:
      return 0x1p-53;
    case DType::kFloat32:
      return 0x1p-24;
    default:
      return dtype == DType::kFloat16 ? 0x1p-11 : 0x1p-8;
  }
}

std::string Merged(const std::vector<const SavedState*>& saved,
                   HookState& state) {
  std::vector<HookState> shards;
  for (const SavedState* one : saved) shards.push_back(one->shard);
  auto merged = MergeHookStates(std::move(shards));
  if (merged.ok()) state = *std::move(merged);
  return std::string(merged.status().message());
}

Expectation::Expectation(std::vector<const RankStep*> ranks,
                         std::vector<double> earlier)
    : ranks_(std::move(ranks)),
      earlier_(std::move(earlier)),
      parameters_(ranks_[0]->parameters),
      meaning_(MeaningOf(ranks_[0]->hook)),
      exact_(!meaning_.has_state() ||
             ranks_[0]->state_before.step < meaning_.start),
      given_(Given()) {
  if (meaning_.kind == Meaning::Kind::kLocal) {
    averages_ = given_;
  } else if (exact_) {
    Emulate();
  } else if (meaning_.kind == Meaning::Kind::kLowRank) {
    FollowFormulas();
  }
}

const Gradients& Expectation::averages(size_t rank) const {
  return averages_.size() == 1 ? averages_[0] : averages_.at(rank);
}

std::vector<double> Expectation::Shares() const {
  double total = 0;
  for (const RankStep* rank : ranks_) total += rank->weight;
  std::vector<double> shares;
  for (const RankStep* rank : ranks_) {
    shares.push_back(rank->weight == 0 ? 1 / static_cast<double>(ranks_.size())
                                       : rank->divisor / total);
  }
  return shares;
}

std::vector<Gradients> Expectation::Own() const {
  std::vector<Gradients> all;
  for (const RankStep* rank : ranks_) {
    Gradients& own = all.emplace_back();
    for (size_t i = 0; i < parameters_.size(); ++i) {
      const auto number = static_cast<size_t>(rank->numbers[i]);
      std::vector<double> values = rank->own[number].values;
      values.resize(static_cast<size_t>(parameters_[i].count()));
      if (rank->weight == 0) values.assign(values.size(), 0);
      own.push_back(std::move(values));
    }
  }
  return all;
}

std::vector<Gradients> Expectation::Given() const {
  std::vector<Gradients> given = Own();
  if (meaning_.kind == Meaning::Kind::kLocal) return given;
  const std::vector<double> shares = Shares();
  for (size_t rank = 0; rank < given.size(); ++rank) {
    const double factor = shares[rank] * static_cast<double>(ranks_.size());
    for (size_t i = 0; i < parameters_.size(); ++i) {
      for (double& value : given[rank][i]) {
        value = Weighted(parameters_[i].dtype, value, factor);
      }
    }
  }
  return given;
}

void Expectation::Emulate() {
  Gradients& result = averages_.emplace_back();
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const DType wide = parameters_[i].dtype;
    const bool narrows = meaning_.narrows && !IsNarrow(wide);
    std::vector<Gradients> local;
    for (const Gradients& own : Own()) local.push_back({own[i]});
    result.push_back(reference::CastReference(
        local, wide, narrows ? meaning_.narrow : wide,
        // What is narrow already is divided in its type.
        meaning_.divide_first || !narrows, Shares())[0]);
  }
}

Gradients Expectation::Formulas(double noise) const {
  LowRankReference reference(parameters_, meaning_.low_rank);
  std::vector<Gradients> given = given_;
  for (size_t rank = 0; rank < ranks_.size(); ++rank) {
    Adopt(ranks_[rank]->state_before.alone, rank, ranks_.size(), parameters_,
          reference);
    for (auto& values : given[rank]) Disturb(values, noise, rank);
  }
  for (auto& [index, state] : reference.states()) {
    Disturb(state.q.values, noise, 100 + index);
    Disturb(state.p.values, noise, 200 + index);
  }
  return reference.Step(given, ranks_[0]->state_before.step);
}

// Where a factor has lost a column (the gradients were zero, or of a lower
// rank), the hooks draw it anew and the formulas leave it open; where it nearly
// has, roundings decide. Both show when the factors are changed a little.
void Expectation::FollowFormulas() {
  averages_.push_back(Formulas(0));
  sensitivity_.assign(parameters_.size(), 0);
  for (size_t i = 0; i < parameters_.size(); ++i) {
    // More than what the reference takes for a column that is left over.
    const Gradients other = Formulas(std::max(1e-12, 8 * CoarsestUnit(i)));
    std::vector<double> change = averages_[0][i];
    for (size_t k = 0; k < change.size(); ++k) change[k] -= other[i][k];
    // A thousandth is no rounding: then only the hook knows what it drew.
    const bool open = Norm(change) > 1e-3 * Scale(i);
    sensitivity_[i] = open ? kNoLimit : 16 * Norm(change);
  }
}

double Expectation::Scale(size_t parameter) const {
  double sum = 0;
  for (size_t rank = 0; rank < ranks_.size(); ++rank) {
    const Gradients error =
        MeanError(ranks_[rank]->state_before.alone, parameters_, 1);
    for (size_t i = 0; i < given_[rank].size(); ++i) {
      // Some hooks mix what is in one bucket.
      if (i != parameter && meaning_.kind != Meaning::Kind::kFeedback) continue;
      sum += Norm(given_[rank][i]) + Norm(error[i]);
    }
  }
  const auto number = static_cast<size_t>(ranks_[0]->numbers[parameter]);
  return std::max(earlier_[number], sum / static_cast<double>(ranks_.size()));
}

// As in tests/hooks/low_rank_reference_test.cc: the roundings, amplified by
// the condition of the factors.
double Expectation::Tolerance(size_t parameter) const {
  if (exact_) return 0;
  const DType dtype = parameters_[parameter].dtype;
  double relative = dtype == DType::kFloat64   ? 1e-10
                    : dtype == DType::kFloat32 ? 3e-6
                                               : 16 * UnitOf(dtype);
  if (meaning_.narrows) {
    relative = std::max(relative, 16 * UnitOf(meaning_.narrow));
  }
  return relative * Scale(parameter) + sensitivity_.at(parameter) +
         Smallest(parameter);
}

// The smallest numbers of float16 are 2^-24 apart.
double Expectation::Smallest(size_t parameter) const {
  const bool half = parameters_[parameter].dtype == DType::kFloat16 ||
                    (meaning_.narrows && meaning_.narrow == DType::kFloat16);
  const auto count = static_cast<double>(parameters_[parameter].count());
  return half ? 0x1p-23 * std::sqrt(count) : 0;
}

double Expectation::CoarsestUnit(size_t parameter) const {
  const double unit = UnitOf(parameters_[parameter].dtype);
  return meaning_.narrows ? std::max(unit, UnitOf(meaning_.narrow)) : unit;
}

double Expectation::NormOf(size_t rank) const {
  std::vector<double> norms;
  if (averages_.empty()) return 0;
  for (const auto& values : averages(rank)) norms.push_back(Norm(values));
  return Norm(norms);
}

Gradients Expectation::MeanErrorOf(bool after) const {
  std::vector<const SavedState*> saved;
  for (const RankStep* rank : ranks_) {
    saved.push_back(after ? &rank->state_after : &rank->state_before);
  }
  HookState state;
  (void)Merged(saved, state);
  return MeanError(state, parameters_, static_cast<int>(ranks_.size()));
}

// The average and the error are each rounded once or a few times to the type
// of the gradients; what a 16-bit wrapper rounds is not fed back.
double Expectation::ConservationTolerance(size_t parameter) const {
  double unit = UnitOf(parameters_[parameter].dtype);
  if (meaning_.narrows) unit = std::max(unit, 16 * UnitOf(meaning_.narrow));
  return 64 * unit * Scale(parameter) + Smallest(parameter);
}

}  // namespace coxswain::property
