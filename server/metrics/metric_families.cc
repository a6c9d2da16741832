#include "server/metrics/metric_families.h"

#include <cstddef>
#include <limits>

#include "absl/strings/str_cat.h"
#include "prometheus/text_serializer.h"

namespace coxswain::server {

prometheus::ClientMetric* MetricFamilies::Add(absl::string_view name,
                                              absl::string_view help,
                                              prometheus::MetricType type,
                                              const Labels& labels) {
  const std::string full = absl::StrCat("coxswain_", name);
  const auto [entry, added] = by_name_.emplace(full, families_.size());
  if (added) {
    prometheus::MetricFamily family;
    family.name = full;
    family.help = std::string(help);
    family.type = type;
    families_.push_back(std::move(family));
  }
  auto& metrics = families_[entry->second].metric;
  prometheus::ClientMetric& metric = metrics.emplace_back();
  for (const auto& [label, value] : labels) {
    metric.label.push_back({label, value});
  }
  return &metric;
}

void MetricFamilies::Gauge(absl::string_view name, absl::string_view help,
                           double value, const Labels& labels) {
  Add(name, help, prometheus::MetricType::Gauge, labels)->gauge.value = value;
}

void MetricFamilies::Counter(absl::string_view name, absl::string_view help,
                             double value, const Labels& labels) {
  Add(name, help, prometheus::MetricType::Counter, labels)->counter.value =
      value;
}

void MetricFamilies::Durations(absl::string_view name, absl::string_view help,
                               const Histogram& histogram,
                               const Labels& labels) {
  auto& target =
      Add(name, help, prometheus::MetricType::Histogram, labels)->histogram;
  target.sample_count = histogram.count();
  target.sample_sum = histogram.sum();
  for (size_t i = 0; i < Histogram::kBounds.size(); ++i) {
    target.bucket.push_back({histogram.Cumulative(i), Histogram::kBounds[i]});
  }
  target.bucket.push_back(
      {histogram.count(), std::numeric_limits<double>::infinity()});
}

std::string MetricFamilies::Text() const {
  return prometheus::TextSerializer().Serialize(families_);
}

}  // namespace coxswain::server
