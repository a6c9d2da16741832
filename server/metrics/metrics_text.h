#ifndef COXSWAIN_SERVER_METRICS_METRICS_TEXT_H_
#define COXSWAIN_SERVER_METRICS_METRICS_TEXT_H_

#include <string>

#include "server/components/components.h"

namespace coxswain::server {

// What /metrics answers, in Prometheus' text format, version 0.0.4; each metric
// is explained in docs/observability.md. Copied from the components one after
// the other: each number is right, and two of them may be of different moments.
// Labels are jobs, of which there are at most max_jobs, and fixed or bounded
// lists. A job goes with its last generation, 5 minutes after that. Null: this
// coordinator stands by.
std::string MetricsText(const CoordinatorView* view);

}  // namespace coxswain::server

#endif  // COXSWAIN_SERVER_METRICS_METRICS_TEXT_H_
