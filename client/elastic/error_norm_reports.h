#ifndef COXSWAIN_CLIENT_ELASTIC_ERROR_NORM_REPORTS_H_
#define COXSWAIN_CLIENT_ELASTIC_ERROR_NORM_REPORTS_H_

#include <cstdint>

#include "absl/time/time.h"
#include "base/clock.h"
#include "client/reduce/hook.h"
#include "client/session/session.h"

namespace coxswain {

// Reports the norm of a rank's error, so that it is known what is lost with the
// rank: about once a second, and on a GPU, where the state has to be fetched
// first, so seldom that it costs no more than 1% of the time.
class ErrorNormReports {
 public:
  // The clock outlives it.
  explicit ErrorNormReports(const Clock* clock) : clock_(*clock) {}

  // After each step.
  void AfterStep(Session& session, const Hook& hook, int64_t step);

 private:
  const Clock& clock_;
  absl::Time next_;
};

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_ELASTIC_ERROR_NORM_REPORTS_H_
