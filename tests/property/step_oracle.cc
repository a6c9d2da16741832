#include "tests/property/step_oracle.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "tests/hooks/reference/rounding.h"

namespace coxswain::property {
namespace {

using reference::RoundTo;

// As RandomModel::kRate, without libtorch.
constexpr double kRate = 1.0 / 64;

std::string Show(const Elements& elements) {
  if (!elements.defined) return "undefined";
  std::string text = "{";
  for (size_t i = 0; i < elements.values.size() && i < 4; ++i) {
    absl::StrAppend(&text, i == 0 ? "" : ", ", elements.values[i]);
  }
  return absl::StrCat(text, elements.values.size() > 4 ? ", ...}" : "}");
}

// Of one type, as Reducer multiplies.
double Times(DType dtype, double value, double scale) {
  if (scale == 1) return value;
  if (dtype == DType::kFloat64) return value * scale;
  const double narrow = RoundTo(DType::kFloat32, scale);
  return RoundTo(dtype, RoundTo(DType::kFloat32, value * narrow));
}

}  // namespace

bool Same(const Elements& a, const Elements& b) {
  return a.defined == b.defined && a.bytes == b.bytes;
}

std::string Differ(absl::string_view what, const Elements& is,
                   const Elements& ought) {
  return absl::StrCat(what, " is ", Show(is), ", not ", Show(ought));
}

std::string StepOracle::Check(const StepCase& step) const {
  for (const auto& finding :
       {Layout(), Bookkeeping(), Gradients(), Nearness(), Statistics(),
        State(step.ending != Ending::kDropped), Conservation(step),
        Buffers()}) {
    if (!finding.empty()) return finding;
  }
  return "";
}

std::string StepOracle::On(size_t rank, size_t parameter) const {
  return absl::StrCat("rank ", rank, ", p", case_.parameters[parameter].id,
                      ": ");
}

bool StepOracle::Untouched(size_t parameter) const {
  if (!case_.find_unused) return false;
  return std::none_of(ranks_.begin(), ranks_.end(), [&](const RankStep* one) {
    return one->used[parameter];
  });
}

// The same on all ranks, and frozen before anything is compressed.
std::string StepOracle::Layout() const {
  for (size_t rank = 0; rank < ranks_.size(); ++rank) {
    const RankStep& own = *ranks_[rank];
    if (own.buckets != first().buckets) {
      return absl::StrCat("rank ", rank, " has other buckets than rank 0");
    }
    if (own.parameters.size() != own.numbers.size()) {
      return absl::StrCat("rank ", rank, " reduces ", own.parameters.size(),
                          " parameters, ", own.numbers.size(),
                          " are trainable");
    }
    if (!own.frozen && !expectation_.exact()) {
      return "compressed before the layout was frozen";
    }
  }
  return "";
}

// Parameters are equal on all ranks, and gradients are what the last step and
// the caller have left.
std::string StepOracle::Bookkeeping() const {
  for (size_t rank = 0; rank < ranks_.size(); ++rank) {
    const RankStep& own = *ranks_[rank];
    for (size_t i = 0; i < own.values.size(); ++i) {
      if (!apart_ && !Same(own.values[i], first().values[i])) {
        return On(rank, i) +
               Differ("the value", own.values[i], first().values[i]);
      }
      if (!Same(own.before[i], own.expected[i])) {
        return On(rank, i) + Differ("the gradient before the step",
                                    own.before[i], own.expected[i]);
      }
      const bool trained = std::count(own.numbers.begin(), own.numbers.end(),
                                      static_cast<int>(i)) > 0;
      if (!trained && !Same(own.after[i], own.expected[i])) {
        return On(rank, i) + Differ("the gradient of what is frozen",
                                    own.after[i], own.expected[i]);
      }
    }
  }
  return "";
}

std::string StepOracle::Gradients() const {
  for (size_t rank = 0; rank < ranks_.size(); ++rank) {
    for (size_t slot = 0; slot < first().numbers.size(); ++slot) {
      std::string finding = Gradient(rank, slot);
      const auto number = static_cast<size_t>(first().numbers[slot]);
      if (!finding.empty()) return On(rank, number) + finding;
    }
  }
  return "";
}

std::string StepOracle::Gradient(size_t rank, size_t slot) const {
  const auto number = static_cast<size_t>(first().numbers[slot]);
  const RankStep& own = *ranks_[rank];
  const bool local = expectation_.meaning().kind == Meaning::Kind::kLocal;
  const bool unused_here = local && case_.find_unused && !own.used[number];
  if (Untouched(number) || unused_here) {
    if (Same(own.after[number], own.expected[number])) return "";
    return Differ("the gradient of what no rank has used", own.after[number],
                  own.expected[number]);
  }
  if (case_.overlapped) return Moved(rank, slot);
  if (!own.after[number].defined) return "the gradient is undefined";
  if (!local && !Same(own.after[number], first().after[number])) {
    return Differ("unlike on rank 0, the gradient", own.after[number],
                  first().after[number]);
  }
  return Average(rank, slot);
}

// With overlapped optimizers, which leave zeros.
std::string StepOracle::Moved(size_t rank, size_t slot) const {
  const auto number = static_cast<size_t>(first().numbers[slot]);
  const RankStep& own = *ranks_[rank];
  const Elements& moved = own.moved[number];
  for (const double value : own.after[number].values) {
    if (value != 0) return "an overlapped optimizer left a gradient";
  }
  const bool local = expectation_.meaning().kind == Meaning::Kind::kLocal;
  if (!apart_ && !local && !Same(moved, first().moved[number])) {
    return Differ("unlike on rank 0, the new value", moved,
                  first().moved[number]);
  }
  if (!expectation_.known()) return "";
  const double unit = UnitOf(own.parameters[slot].dtype);
  Elements ought = own.values[number];
  double off = 0;
  double allowed = expectation_.Tolerance(slot) * kRate;
  for (size_t i = 0; i < moved.values.size(); ++i) {
    const double change = kRate * expectation_.averages(rank)[slot][i];
    ought.values[i] -= change;
    off += std::pow(moved.values[i] - ought.values[i], 2);
    // The change and the sum are rounded.
    allowed += 2 * unit * (std::fabs(ought.values[i]) + 2 * std::fabs(change));
    if (unit > 0x1p-20) allowed += 0x1p-24;
  }
  if (std::sqrt(off) <= allowed) return "";
  return absl::StrCat(Differ("the new value", moved, ought), ", off by ",
                      std::sqrt(off), " where ", allowed, " is allowed");
}

std::string StepOracle::Average(size_t rank, size_t slot) const {
  if (!expectation_.known()) return "";
  const auto number = static_cast<size_t>(first().numbers[slot]);
  const RankStep& own = *ranks_[rank];
  Elements ought = own.after[number];
  ought.values = expectation_.averages(rank)[slot];
  double off = 0;
  for (size_t i = 0; i < ought.values.size(); ++i) {
    ought.values[i] = Times(own.parameters[slot].dtype, ought.values[i],
                            own.report.clip_scale);
    const double difference = own.after[number].values.at(i) - ought.values[i];
    off += difference * difference;
  }
  const double allowed = expectation_.Tolerance(slot) * own.report.clip_scale;
  if (std::sqrt(off) <= allowed) return "";
  return absl::StrCat(Differ("the average", own.after[number], ought),
                      ", off by ", std::sqrt(off), " where ", allowed,
                      " is allowed");
}

// The mean over the ranks with data, in float64, against hooks that average
// plainly.
std::string StepOracle::Nearness() const {
  if (!expectation_.exact() || case_.overlapped ||
      expectation_.meaning().kind == Meaning::Kind::kLocal) {
    return "";
  }
  for (size_t slot = 0; slot < first().numbers.size(); ++slot) {
    const auto number = static_cast<size_t>(first().numbers[slot]);
    if (Untouched(number)) continue;
    std::string finding = Nearness(slot);
    if (!finding.empty()) return On(0, number) + finding;
  }
  return "";
}

std::string StepOracle::Nearness(size_t slot) const {
  const auto number = static_cast<size_t>(first().numbers[slot]);
  const Elements& after = first().after[number];
  const double unit = expectation_.CoarsestUnit(slot);
  double total = 0;
  for (const RankStep* rank : ranks_) total += rank->weight;
  for (size_t i = 0; i < after.values.size(); ++i) {
    double sum = 0;
    double magnitude = 0;
    for (const RankStep* rank : ranks_) {
      const Elements& own = rank->own[number];
      if (!own.defined || rank->weight == 0) continue;
      sum += rank->divisor * own.values[i];
      magnitude += std::fabs(rank->divisor * own.values[i]);
    }
    const double scale = first().report.clip_scale / total;
    // One rounding of the weight, the product, the cast, the quotient and the
    // clipped result, and one for each addition; the smallest numbers of 16
    // bits are 2^-24 apart.
    const double roundings = static_cast<double>(ranks_.size()) + 5;
    const double allowed =
        roundings * (unit * magnitude * scale + (unit > 0x1p-20 ? 0x1p-24 : 0));
    if (std::fabs(after.values[i] - sum * scale) <= allowed) continue;
    return absl::StrCat("element ", i, " is ", after.values[i],
                        ", in one process it is ", sum * scale);
  }
  return "";
}

}  // namespace coxswain::property
