#ifndef COXSWAIN_TESTS_SYSTEM_TOY_ELASTIC_TOY_TRAINING_H_
#define COXSWAIN_TESTS_SYSTEM_TOY_ELASTIC_TOY_TRAINING_H_

#include <cstdint>
#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/elastic/elastic_run.h"
#include "client/reduce/reducer.h"
#include "hooks/registry/planned_hook.h"
#include "schedule/plan.h"
#include "schedule/ticket.h"
#include "tests/system/toy/elastic_toy_state.h"

namespace coxswain {

struct ToyTrainingOptions {
  int64_t steps = 100;
  absl::Duration timeout = absl::Minutes(1);  // of an exchange
  // Called at these points of each step: before its exchange, in it, between
  // its decision and what follows, and after it. An error ends the step there.
  enum class Point { kBefore, kWithin, kDecided, kAfter };
  std::function<absl::Status(Point, const ElasticGeneration&)> at;
  // Called after each step, with its decision.
  std::function<void(const schedule::Decision&, const ElasticGeneration&)>
      after_decision;
  std::function<absl::StatusOr<std::unique_ptr<Hook>>(const schedule::Plan&)>
      make_hook = MakePlannedHook;
};

// The training function for ElasticRun: steps until the state has as many as
// the options ask for, or the members change. An example of a program without a
// framework.
absl::Status TrainElasticToy(const ToyTrainingOptions& options,
                             ElasticToyState* state,
                             ElasticGeneration& generation,
                             ElasticRun::Trained* trained);

}  // namespace coxswain

#endif  // COXSWAIN_TESTS_SYSTEM_TOY_ELASTIC_TOY_TRAINING_H_
