// The part of Reducer that takes a step's gradients, and ends the step: what
// all ranks do with it.

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/status_prefix.h"
#include "client/reduce/reducer.h"
#include "schedule/ticket.h"

namespace coxswain {

namespace {

// A smaller gradient is copied in less time than the calls of the system take
// that it would cost to send and receive it apart.
constexpr int64_t kInPlaceBytes = 64 << 10;

}  // namespace

// ---- gradients ----

absl::Status Reducer::BeginMarks() {
  const bool complete = without_data_;
  COXSWAIN_RETURN_IF_ERROR(memory_->Begin(buckets()));
  if (pool_ != nullptr) pool_->BeginStep();
  for (const Bucket& bucket : buckets()) {
    // What is absent from a pool's bucket is cleared by the exchange thread.
    if (!complete || pool_ != nullptr) break;
    COXSWAIN_RETURN_IF_ERROR(memory_->ClearGradient(bucket, bucket.data));
    COXSWAIN_RETURN_IF_ERROR(memory_->NoteGradient(bucket));
  }
  marks_.Begin(buckets(), parameters_.size(), complete,
               exchange_->report().begun);
  return absl::OkStatus();
}

absl::Status Reducer::MarkReady(int parameter) {
  return MarkReady(parameter, MarkOptions());
}

absl::Status Reducer::MarkReady(int parameter, const MarkOptions& mark) {
  COXSWAIN_RETURN_IF_ERROR(Claim(parameter, {mark.used}));
  if (pool_ != nullptr) {
    return Fail(absl::UnimplementedError(absl::StrCat(
        "the gradient of \"", parameters_[static_cast<size_t>(parameter)].name,
        "\" is marked in its bucket, which with release_buckets has no memory "
        "by then; hand the gradient over to MarkReady")));
  }
  return CountDown(parameter);
}

absl::Status Reducer::MarkReady(int parameter, Span gradient) {
  return MarkReady(parameter, gradient, MarkOptions());
}

absl::Status Reducer::MarkReady(int parameter, Span gradient,
                                const MarkOptions& mark) {
  const bool in_place =
      in_place_ && mark.in_place && gradient.bytes() >= kInPlaceBytes;
  const bool back = mark.copy_back || mark.in_place;
  if (back && options_.slices) {
    return Fail(absl::InvalidArgumentError(absl::StrCat(
        "the average of \"", parameters_[static_cast<size_t>(parameter)].name,
        "\" is to be copied out, but with slices no rank has all of it; read "
        "the own slice of its bucket")));
  }
  COXSWAIN_RETURN_IF_ERROR(
      Claim(parameter, {mark.used, back ? gradient.data : nullptr, in_place}));
  const Span view = GradientView(parameter);
  if (!(gradient.device == view.device)) {
    return Fail(absl::InvalidArgumentError(absl::StrCat(
        "the gradient of \"", parameters_[static_cast<size_t>(parameter)].name,
        "\" is not on the device of its parameter; move it there")));
  }
  if (gradient.count != view.count || gradient.dtype != view.dtype) {
    return Fail(absl::InvalidArgumentError(absl::StrCat(
        "the gradient of \"", parameters_[static_cast<size_t>(parameter)].name,
        "\" has ", gradient.count, " x ", NameOf(gradient.dtype),
        ", its parameter ", view.count, " x ", NameOf(view.dtype))));
  }
  if (in_place) return CountDown(parameter);
  const absl::StatusOr<Span> place = Memory(parameter);
  const absl::Status copied =
      place.ok()
          ? memory_->CopyGradient(BucketOf(parameter), *place, gradient.data)
          : place.status();
  if (!copied.ok()) return Fail(WithPrefix("taking a gradient: ", copied));
  return CountDown(parameter);
}

absl::Status Reducer::MarkZeros(int parameter) {
  COXSWAIN_RETURN_IF_ERROR(Claim(parameter, Zeros()));
  return ClearAndCount(parameter);
}

absl::Status Reducer::Claim(int parameter, const GradientMarks::Mark& mark) {
  COXSWAIN_RETURN_IF_ERROR(status());
  if (parameter < 0 || static_cast<size_t>(parameter) >= parameters_.size()) {
    return Fail(absl::InvalidArgumentError(absl::StrCat(
        "there is no parameter ", parameter, " among ", parameters_.size())));
  }
  switch (marks_.Claim(parameter, mark)) {
    case GradientMarks::Claimed::kYes:
      return absl::OkStatus();
    case GradientMarks::Claimed::kTwice:
      return Fail(MarkedTwice(parameter));
    default:
      return absl::FailedPreconditionError(
          "a gradient was marked ready outside a step; call BeginStep first");
  }
}

GradientMarks::Mark Reducer::Zeros() const {
  GradientMarks::Mark mark;
  mark.used = false;
  mark.absent = pool_ != nullptr;
  return mark;
}

absl::StatusOr<Span> Reducer::Memory(int parameter) {
  const GradientPlace& place = Place(parameter);
  if (pool_ == nullptr) return place.view;
  pool_->AwaitSpace(place.bucket);
  COXSWAIN_ASSIGN_OR_RETURN(const Span bucket, pool_->Take(place.bucket));
  return bucket.Slice(place.offset, place.view.count);
}

absl::Status Reducer::MarkedTwice(int parameter) const {
  if (without_data_) {
    return absl::FailedPreconditionError(absl::StrCat(
        "parameter \"", parameters_[static_cast<size_t>(parameter)].name,
        "\" was marked ready in a step of weight 0, whose gradients are zeros; "
        "begin the step with this rank's weight"));
  }
  return absl::FailedPreconditionError(absl::StrCat(
      "parameter \"", parameters_[static_cast<size_t>(parameter)].name,
      "\" was marked ready twice in one step. Either two backward passes "
      "ran in it (let all but the last one only sum up locally), or the "
      "parameter gets several gradients in one pass (it is used by a "
      "part that is computed again in backward, or by another backward "
      "inside)"));
}

const Bucket& Reducer::BucketOf(int parameter) const {
  return buckets()[static_cast<size_t>(Place(parameter).bucket)];
}

absl::Status Reducer::CountDown(int parameter) {
  const absl::Status noted = memory_->NoteGradient(BucketOf(parameter));
  if (!noted.ok()) return Fail(WithPrefix("taking a gradient: ", noted));
  if (pool_ != nullptr) pool_->NoteGradient(Place(parameter).bucket);
  marks_.CountDown(parameter, Place(parameter).bucket, options_.clock->Now());
  return absl::OkStatus();
}

absl::Status Reducer::ClearAndCount(int parameter) {
  if (pool_ != nullptr) return CountDown(parameter);
  const absl::Status cleared =
      memory_->ClearGradient(BucketOf(parameter), GradientView(parameter));
  if (!cleared.ok()) return Fail(WithPrefix("writing zeros: ", cleared));
  return CountDown(parameter);
}

std::vector<int> Reducer::Unmarked() const { return marks_.Unclaimed(); }

void Reducer::MarkMissing() {
  for (const int parameter : Unmarked()) {
    // Another thread's error may come first: then nothing counts any more.
    if (!Claim(parameter, Zeros()).ok()) return;
    if (!ClearAndCount(parameter).ok()) return;
  }
}

// ---- the end of the step ----

absl::StatusOr<schedule::Decision> Reducer::Decide(const schedule::Vote& vote,
                                                   bool unanimous) {
  {
    MutexLock lock(&mutex_);
    COXSWAIN_RETURN_IF_ERROR(status_);
    if (state_ != State::kExchanged) {
      return absl::FailedPreconditionError(
          "there is no exchanged step to decide on; call Finish first");
    }
  }
  const absl::Time begun = options_.clock->Now();
  absl::StatusOr<schedule::Decision> decision =
      DecideOnce(WithSums(vote), unanimous);
  absl::Status status = decision.status();
  if (status.ok()) status = TakeNorm(*decision);
  if (!status.ok()) {
    (void)Fail(status);
    EndStep();
    return this->status();
  }
  MutexLock lock(&mutex_);
  totals_.in_gate += options_.clock->Now() - begun;
  return decision;
}

schedule::Vote Reducer::WithSums(const schedule::Vote& vote) const {
  schedule::Vote complete = vote;
  if (!norm_due_) return complete;
  complete.sums.emplace();
  if (!Counts()) return complete;
  const GradientStatistics own = memory_->statistics();
  complete.sums->sum_of_squares = own.sum_of_squares;
  complete.sums->non_finite = own.non_finite;
  return complete;
}

bool Reducer::Counts() const {
  if (!options_.slices) return *options_.counts_in_norm;
  // Of what several replicas have, the first one's count.
  Communicator* const replicas = options_.hybrid.replicas;
  return replicas == nullptr || replicas->rank() == 0;
}

absl::Status Reducer::TakeNorm(const schedule::Decision& decision) {
  if (!std::exchange(norm_due_, false)) return absl::OkStatus();
  GradientStatistics all;
  if (decision.sums) {
    all.sum_of_squares = decision.sums->sum_of_squares;
    all.non_finite = decision.sums->non_finite;
  } else if (decision.commit) {
    // The decision is the same on all ranks, and so is this.
    votes_sum_ = false;
    if (options_.counts_in_norm && options_.max_norm > 0) {
      return absl::FailedPreconditionError(
          "the coordinator is of a version that does not add up what votes "
          "have of the norm, so that of all stages, for max_norm, is not "
          "known: start a newer coordinator, or leave max_norm out");
    }
    COXSWAIN_RETURN_IF_ERROR(
        WithPrefix("norm: ", exchange_->ExchangeStatistics()));
    all = options_.slices ? exchange_->statistics() : memory_->statistics();
  } else {
    return absl::OkStatus();
  }
  StepReport report = this->report();
  NoteStatistics(all, &report);
  {
    MutexLock lock(&mutex_);
    report_ = report;
  }
  if (!decision.commit || report.clip_scale == 1) return absl::OkStatus();
  COXSWAIN_RETURN_IF_ERROR(Clip(report.clip_scale));
  return memory_->NoteDelivered();
}

absl::StatusOr<schedule::Decision> Reducer::AskGate(const schedule::Vote& vote,
                                                    bool unanimous) {
  if (local()) {
    options_.gate->EndLocal();
    return schedule::Decision();
  }
  absl::StatusOr<schedule::Decision> decision = options_.gate->Decide(vote);
  if (!decision.ok()) return WithPrefix("decision: ", decision.status());
  if (unanimous && !vote.commit && decision->commit) {
    decision->commit = false;
    decision->reason = vote.reason;
  }
  return decision;
}

absl::StatusOr<schedule::Decision> Reducer::DecideOnce(
    const schedule::Vote& vote, bool unanimous) {
  {
    MutexLock lock(&mutex_);
    if (decision_) return *decision_;
  }
  schedule::Decision decision;
  decision.commit = vote.commit;
  decision.reason = vote.reason;
  if (options_.gate != nullptr) {
    COXSWAIN_ASSIGN_OR_RETURN(decision, AskGate(vote, unanimous));
  }
  MutexLock lock(&mutex_);
  decision_ = decision;
  return decision;
}

absl::Status Reducer::CheckCommit() const {
  if (state_ != State::kExchanged) {
    return absl::FailedPreconditionError(
        "there is no exchanged step to commit; call Finish first");
  }
  if (report_.empty) {
    return absl::FailedPreconditionError(
        "no rank had data for this step; roll it back");
  }
  if (!decision_) {
    if (options_.gate == nullptr) return absl::OkStatus();
    return absl::FailedPreconditionError(
        "the step has not been decided on; call Decide first");
  }
  if (decision_->commit) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "all ranks skip this step (", decision_->reason, "); roll it back"));
}

absl::Status Reducer::Commit() {
  if (absl::Status broken = status(); !broken.ok()) {
    EndStep();
    return broken;
  }
  {
    MutexLock lock(&mutex_);
    COXSWAIN_RETURN_IF_ERROR(CheckCommit());
    state_ = State::kIdle;
  }
  const absl::Status status = hook_->Commit();
  if (!status.ok()) {
    hook_->Rollback();
    return Fail(WithPrefix("hook commit: ", status));
  }
  return Rebuild();
}

void Reducer::Rollback() {
  const absl::Status fits = CheckRollback();
  if (!fits.ok()) (void)Fail(fits);
  if (EndStep()) (void)Rebuild();  // the reducer keeps the error
}

absl::Status Reducer::CheckRollback() const {
  MutexLock lock(&mutex_);
  if (state_ != State::kExchanged || options_.gate == nullptr) {
    return absl::OkStatus();
  }
  if (decision_ && (!decision_->commit || report_.empty)) {
    return absl::OkStatus();
  }
  return absl::AbortedError(
      decision_ ? "it was rolled back, but the other ranks commit it"
                : "it was rolled back before all ranks had decided to: vote "
                  "against it in Decide");
}

bool Reducer::EndStep() {
  State state;
  {
    MutexLock lock(&mutex_);
    state = std::exchange(state_, State::kIdle);
  }
  if (state == State::kIdle) return false;
  if (state == State::kCollecting) {
    Abort(absl::AbortedError(
        "the step was aborted before all its gradients were exchanged"));
  }
  // A communicator that has been aborted ends every wait at once; where one
  // does not, the hook is still at work, and is rolled back at the very end.
  rollback_due_ = !WaitForExchangeThread(options_.after_abort());
  if (!rollback_due_) hook_->Rollback();
  return status().ok();
}

}  // namespace coxswain
