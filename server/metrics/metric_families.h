#ifndef COXSWAIN_SERVER_METRICS_METRIC_FAMILIES_H_
#define COXSWAIN_SERVER_METRICS_METRIC_FAMILIES_H_

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "base/histogram.h"
#include "prometheus/metric_family.h"

namespace coxswain::server {

// Collects samples, and brings those of one metric together, as the text format
// wants them. One thread.
class MetricFamilies {
 public:
  using Labels = std::vector<std::pair<std::string, std::string>>;

  // The name and the help count the first time.
  void Gauge(absl::string_view name, absl::string_view help, double value,
             const Labels& labels = {});
  // Its name ends in _total.
  void Counter(absl::string_view name, absl::string_view help, double value,
               const Labels& labels = {});
  void Durations(absl::string_view name, absl::string_view help,
                 const Histogram& histogram, const Labels& labels = {});

  std::string Text() const;

 private:
  prometheus::ClientMetric* Add(absl::string_view name, absl::string_view help,
                                prometheus::MetricType type,
                                const Labels& labels);

  std::vector<prometheus::MetricFamily> families_;
  std::map<std::string, size_t> by_name_;
};

}  // namespace coxswain::server

#endif  // COXSWAIN_SERVER_METRICS_METRIC_FAMILIES_H_
