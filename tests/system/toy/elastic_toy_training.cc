#include "tests/system/toy/elastic_toy_training.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/crc32c.h"
#include "base/status_macros.h"
#include "client/elastic/load_hook_state.h"
#include "schedule/ticket.h"

namespace coxswain {
namespace {

using Point = ToyTrainingOptions::Point;

class Training {
 public:
  Training(const ToyTrainingOptions& options, ElasticToyState* state,
           ElasticGeneration* generation)
      : options_(options), state_(*state), generation_(*generation) {}

  absl::Status Run(ElasticRun::Trained* trained);

 private:
  absl::Status Start();
  absl::Status Loop(ElasticRun::Trained* trained);
  absl::StatusOr<schedule::Decision> Step();
  absl::Status Exchange();
  absl::Status MarkAll();
  void Apply();
  bool Finished() const {
    const int64_t most = plan_.terms.max_steps;
    return state_.step() >= options_.steps ||
           (most > 0 && state_.step() >= most);
  }
  void NoteError();
  absl::Status At(Point point) {
    return options_.at ? options_.at(point, generation_) : absl::OkStatus();
  }

  const ToyTrainingOptions& options_;
  ElasticToyState& state_;
  ElasticGeneration& generation_;
  schedule::Plan plan_;
  std::unique_ptr<Hook> hook_;
  std::unique_ptr<Reducer> reducer_;
  absl::Time error_noted_;
};

absl::Status Training::Run(ElasticRun::Trained* trained) {
  absl::Status status = Start();
  if (status.ok()) status = Loop(trained);
  if (hook_ == nullptr || reducer_ == nullptr) return status;
  // Whatever the step in flight has staged is forgotten with the reducer.
  reducer_.reset();
  COXSWAIN_ASSIGN_OR_RETURN(trained->hook_state, hook_->SaveOwn());
  return status;
}

absl::Status Training::Start() {
  plan_ = generation_.session->schedule().plan();
  COXSWAIN_ASSIGN_OR_RETURN(hook_, options_.make_hook(plan_));
  ReducerOptions options;
  options.buckets.first_bucket_bytes = 1024;  // several, of a small model
  options.buckets.bucket_bytes = 2048;
  options.timeout = options_.timeout;
  COXSWAIN_ASSIGN_OR_RETURN(options.gate,
                            generation_.session->schedule().Gate());
  FollowPlan(plan_, generation_.communicator->size(), &options);
  COXSWAIN_ASSIGN_OR_RETURN(
      std::unique_ptr<Reducer> reducer,
      Reducer::Create(options, state_.specs(), hook_.get(),
                      generation_.communicator));
  COXSWAIN_RETURN_IF_ERROR(LoadHookState(&generation_, plan_, hook_.get()));
  reducer_ = std::move(reducer);
  return absl::OkStatus();
}

absl::Status Training::Loop(ElasticRun::Trained* trained) {
  while (!Finished()) {
    COXSWAIN_ASSIGN_OR_RETURN(const schedule::Decision decision, Step());
    generation_.after_step(state_.step());
    NoteError();
    if (options_.after_decision) {
      options_.after_decision(decision, generation_);
    }
    COXSWAIN_RETURN_IF_ERROR(At(Point::kAfter));
    if (!decision.stop.empty()) break;
    if (!decision.regroup.empty()) {
      trained->outcome = ElasticRun::Outcome::kRegroup;
      break;
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<schedule::Decision> Training::Step() {
  COXSWAIN_RETURN_IF_ERROR(At(Point::kBefore));
  generation_.before_step(*hook_, plan_);
  COXSWAIN_RETURN_IF_ERROR(Exchange());
  COXSWAIN_ASSIGN_OR_RETURN(schedule::Decision decision, reducer_->Decide());
  COXSWAIN_RETURN_IF_ERROR(At(Point::kDecided));
  if (!decision.commit) {
    reducer_->Rollback();
    return decision;
  }
  // First, as all others take this step, too.
  Apply();
  COXSWAIN_RETURN_IF_ERROR(reducer_->Commit());
  if (decision.plan) {
    plan_ = *decision.plan;
    COXSWAIN_RETURN_IF_ERROR(reducer_->ChangePlan(plan_));
  }
  return decision;
}

absl::Status Training::Exchange() {
  schedule::Ticket ticket;
  ticket.step = state_.step();
  const int64_t every = plan_.terms.checksum_every;
  if (every > 0 && ticket.step % every == 0) {
    uint32_t checksum = 0;
    for (const Span& span : state_.Tensors()) {
      checksum = Crc32c({static_cast<const char*>(span.data),
                         static_cast<size_t>(span.bytes())},
                        checksum);
    }
    ticket.checksum = checksum;
  }
  COXSWAIN_RETURN_IF_ERROR(reducer_->BeginStep(ticket, /*divisor=*/1));
  COXSWAIN_RETURN_IF_ERROR(MarkAll());
  return reducer_->Finish();
}

absl::Status Training::MarkAll() {
  const std::vector<double> gradient = state_.Gradient(
      generation_.communicator->rank(), generation_.communicator->size());
  for (int p = static_cast<int>(state_.specs().size()); --p >= 0;) {
    const Span view = reducer_->GradientView(p);
    const double* const from = gradient.data() + state_.OffsetOf(p);
    for (int64_t i = 0; i < view.count; ++i) {
      if (view.dtype == DType::kFloat64) {
        static_cast<double*>(view.data)[i] = from[i];
      } else {
        static_cast<float*>(view.data)[i] = static_cast<float>(from[i]);
      }
    }
    COXSWAIN_RETURN_IF_ERROR(reducer_->MarkReady(p));
    if (p == 2) COXSWAIN_RETURN_IF_ERROR(At(Point::kWithin));
  }
  return absl::OkStatus();
}

void Training::Apply() {
  std::vector<Span> averages;
  for (size_t p = 0; p < state_.specs().size(); ++p) {
    averages.push_back(reducer_->GradientView(static_cast<int>(p)));
  }
  state_.Step(averages, generation_.session->generation(),
              generation_.communicator->size());
}

void Training::NoteError() {
  const absl::Time now = Clock::Real()->Now();
  if (now - error_noted_ < absl::Seconds(1)) return;
  error_noted_ = now;
  generation_.session->ReportErrorNorm(hook_->ErrorNorm(), state_.step());
}

}  // namespace

absl::Status TrainElasticToy(const ToyTrainingOptions& options,
                             ElasticToyState* state,
                             ElasticGeneration& generation,
                             ElasticRun::Trained* trained) {
  return Training(options, state, &generation).Run(trained);
}

}  // namespace coxswain
