// ParameterExchange's steps: the exchange, what all ranks decide on it, and the
// optimizer's step.

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/crc32c.h"
#include "base/status_macros.h"
#include "client/reduce/gradient_statistics.h"
#include "client/reduce/planned_step.h"
#include "client/reduce/step_report.h"
#include "train/life.h"
#include "train/parameter_exchange.h"
#include "train/trained_model.h"

namespace coxswain {

absl::Status ParameterExchange::BeginExchange(const WindowSum& sum) {
  schedule::Ticket ticket = TicketOf(sum);
  const int64_t every = plan().terms.checksum_every;
  const bool apart = averager_ != nullptr && averager_->diverged();
  if (every > 0 && sum.step % every == 0 && sum.exchanged == 0 && !apart) {
    ticket.checksum = Checksum();
  }
  sum_ = sum;
  step_due_ = false;
  local_ = IsLocalStep(plan().terms, ticket, decided_, *hook_, averager_.get());
  return Keep(reducer_->BeginStep(ticket, sum.divisor, local_));
}

uint64_t ParameterExchange::Checksum() const {
  uint32_t checksum = 0;
  for (const Span& value : values_) {
    checksum = Crc32c({static_cast<const char*>(value.data),
                       static_cast<size_t>(value.bytes())},
                      checksum);
  }
  return checksum;
}

absl::Status ParameterExchange::FinishExchange() {
  COXSWAIN_RETURN_IF_ERROR(Keep(reducer_->Finish()));
  const schedule::Vote vote = VoteOfAverages();
  absl::StatusOr<schedule::Decision> decision =
      reducer_->Decide(local_ ? schedule::Vote() : vote,
                       /*unanimous=*/!plan().terms.commit_vote);
  COXSWAIN_RETURN_IF_ERROR(Keep(decision.status()));
  ++decided_;
  if (local_ && !vote.commit) {
    COXSWAIN_RETURN_IF_ERROR(SkipLocal(vote.reason, &*decision));
  } else {
    COXSWAIN_RETURN_IF_ERROR(EndExchange(*decision));
  }
  NoteDecision(*decision);
  if (ended_) {
    // The rest of its data is given up, too.
    (void)accumulator_.EndOfData(schedule::kTrainStream);
    in_window_ = false;
  }
  if (in_window_) return absl::OkStatus();
  step_due_ = decision_.commit && !reducer_->report().empty;
  if (step_due_) HandOverAverages();
  // What else this exchange has staged is part of no optimizer step.
  const bool staged = decision->commit && !reducer_->report().empty && !local_;
  return staged && !step_due_ ? Keep(reducer_->Commit()) : absl::OkStatus();
}

schedule::Vote ParameterExchange::VoteOfAverages() const {
  schedule::Vote vote;
  if (!options_.skip_non_finite || reducer_->report().empty) return vote;
  vote.reason = NonFinite();
  vote.commit = vote.reason.empty();
  return vote;
}

std::string ParameterExchange::NonFinite() const {
  return WhyNotFinite(
      *hook_, *reducer_, absl::StrCat("rank ", communicator_.rank()),
      [this](size_t i) {
        const Span average = reducer_->GradientView(static_cast<int>(i));
        return Measure(average).non_finite == 0;
      });
}

absl::Status ParameterExchange::EndExchange(
    const schedule::Decision& decision) {
  const bool empty = reducer_->report().empty;
  ended_ = reducer_->report().ended;
  if (!decision.commit || empty) {
    reducer_->Rollback();
    return Keep(reducer_->status());
  }
  if (!plan().terms.sync_each_batch) return absl::OkStatus();
  COXSWAIN_RETURN_IF_ERROR(Keep(AddAverages()));
  return in_window_ ? Keep(reducer_->Commit()) : absl::OkStatus();
}

absl::Status ParameterExchange::SkipLocal(const std::string& why,
                                          schedule::Decision* decision) {
  decision->commit = false;
  decision->reason =
      absl::StrCat("rank ", communicator_.rank(), ", in a local step: ", why);
  // The averager counts the step, and the hook with it, as on the other ranks.
  COXSWAIN_RETURN_IF_ERROR(Keep(reducer_->Commit()));
  return Keep(averager_->AfterOptimizerStep(values_));
}

void ParameterExchange::NoteDecision(const schedule::Decision& decision) {
  if (decision.plan) next_plan_ = decision.plan;
  const bool skipped_before = sum_.exchanged > 0 && !decision_.commit;
  std::string before = decision_.reason;
  decision_ = decision;
  if (skipped_before) {
    // A micro-batch of this window was skipped before.
    if (!decision.commit) absl::StrAppend(&before, "; ", decision.reason);
    decision_.commit = false;
    decision_.reason = std::move(before);
  }
  const StepReport report = reducer_->report();
  if (!report.empty) return;
  if (report.ranks_with_data > 0 && !report.ended) {
    decision_.commit = false;
    decision_.reason = "all micro-batches of the step had weight 0";
  } else {
    // A round without data, that was decided by no coordinator.
    decision_.checkpoint.clear();
  }
}

absl::Status ParameterExchange::AddAverages() {
  const bool first = sum_.exchanged == 0;
  sums_.resize(gradients_.size());
  for (size_t i = 0; i < gradients_.size(); ++i) {
    const Span average = reducer_->GradientView(static_cast<int>(i));
    if (sums_[i] == nullptr) {
      sums_[i] = AllocateHostMemory(static_cast<size_t>(average.bytes()));
    }
    if (sums_[i] == nullptr) {
      return absl::ResourceExhaustedError(
          absl::StrCat("no memory for the sum of \"", parameters()[i].name,
                       "\", which sync_each_batch needs"));
    }
    if (first) {
      CopyElements(average, sums_[i].get());
    } else {
      AddScaled(average, 1, sums_[i].get());
    }
  }
  return absl::OkStatus();
}

void ParameterExchange::HandOverAverages() {
  const bool each = plan().terms.sync_each_batch;
  for (size_t i = 0; i < gradients_.size(); ++i) {
    const Span& gradient = gradients_[i];
    Span average = reducer_->GradientView(static_cast<int>(i));
    if (each) average.data = sums_[i].get();
    if (each && sum_.rescale != 1) {
      CopyScaled(average, sum_.rescale, gradient.data);
    } else {
      CopyElements(average, gradient.data);
    }
  }
}

// ---- the optimizer's step ----

absl::Status ParameterExchange::StepOptimizer() {
  COXSWAIN_RETURN_IF_ERROR(status_);
  taken_ = std::exchange(step_due_, false);
  if (taken_) {
    COXSWAIN_RETURN_IF_ERROR(
        Keep(RunGuarded("the optimizer's step", options_.step_optimizer)));
  }
  // The values are those after the step, which counts, whatever fails now.
  AfterStep().IgnoreError();
  return absl::OkStatus();
}

absl::Status ParameterExchange::AfterStep() {
  if (taken_) {
    COXSWAIN_RETURN_IF_ERROR(Keep(reducer_->Commit()));
    if (averager_ != nullptr) {
      COXSWAIN_RETURN_IF_ERROR(Keep(averager_->AfterOptimizerStep(values_)));
    }
  }
  return FollowNextPlan();
}

absl::Status ParameterExchange::AverageParameters() {
  COXSWAIN_RETURN_IF_ERROR(status_);
  if (averager_ == nullptr) return absl::OkStatus();
  return Keep(averager_->AverageNow(values_));
}

}  // namespace coxswain
