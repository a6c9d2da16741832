#include "client/reduce/bucket_stream.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/status_prefix.h"
#include "base/wait_count.h"
#include "client/reduce/hook_change.h"
#include "client/reduce/step_report.h"

namespace coxswain {
namespace {

absl::Status CheckHook(const Hook& hook) {
  if (!hook.needs_averager()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "the hook ", hook.spec(),
      " leaves the ranks' parameters apart and needs its averager, which "
      "buckets of another framework do not have; take a hook that averages "
      "gradients"));
}

// Of the state of all ranks: per element errors of two kinds at up to 8 bytes,
// factors, and text.
int64_t MaxStateBytes(int64_t elements) { return (64 << 20) + 32 * elements; }

}  // namespace

absl::StatusOr<std::unique_ptr<BucketStream>> BucketStream::Create(
    Options options, std::vector<ParameterSpec> parameters,
    const schedule::Plan& plan) {
  std::unique_ptr<BucketStream> stream(
      new BucketStream(std::move(options), std::move(parameters), plan));
  COXSWAIN_ASSIGN_OR_RETURN(stream->hook_, stream->options_.make_hook(plan));
  COXSWAIN_RETURN_IF_ERROR(CheckHook(*stream->hook_));
  COXSWAIN_RETURN_IF_ERROR(stream->hook_->Configure(
      stream->parameters_, stream->options_.communicator->size()));
  BucketStream* const raw = stream.get();
  stream->thread_ = std::thread([raw] { raw->Run(); });
  return stream;
}

BucketStream::BucketStream(Options options,
                           std::vector<ParameterSpec> parameters,
                           const schedule::Plan& plan)
    : options_(std::move(options)),
      parameters_(std::move(parameters)),
      plan_(plan),
      next_plan_(plan) {}

BucketStream::~BucketStream() {
  if (!thread_.joinable()) return;  // Create failed
  bool open = false;
  {
    MutexLock lock(&mutex_);
    open = state_ == State::kOpen;
    closing_ = true;
    changed_.NotifyAll();
  }
  if (open) Abort(absl::AbortedError("the exchange was given up"));
  thread_.join();
}

// ---- the caller ----

absl::Status BucketStream::Follow(const schedule::Plan& plan) {
  COXSWAIN_RETURN_IF_ERROR(CheckIdle());
  MutexLock lock(&mutex_);
  next_plan_ = plan;
  return absl::OkStatus();
}

absl::Status BucketStream::ChangeParameters(
    std::vector<ParameterSpec> parameters) {
  COXSWAIN_RETURN_IF_ERROR(CheckIdle());
  COXSWAIN_RETURN_IF_ERROR(
      hook_->Configure(parameters, options_.communicator->size()));
  parameters_ = std::move(parameters);
  return absl::OkStatus();
}

absl::Status BucketStream::CheckIdle() const {
  MutexLock lock(&mutex_);
  COXSWAIN_RETURN_IF_ERROR(status_);
  if (state_ == State::kIdle) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "rank ", options_.communicator->rank(),
      " has not ended the exchange that it has begun: wait for it, and have it "
      "decided on, before the next"));
}

absl::Status BucketStream::CheckBucket(const Bucket& bucket) const {
  const auto unfit = [&bucket](const std::string& why) {
    return absl::InvalidArgumentError(
        absl::StrCat("bucket ", bucket.index, " ", why));
  };
  if (bucket.gradients.empty()) return unfit("has no gradients");
  int64_t end = 0;
  for (const GradientSlot& slot : bucket.gradients) {
    if (slot.parameter < 0 ||
        slot.parameter >= static_cast<int>(parameters_.size())) {
      return unfit(absl::StrCat("has a gradient of parameter ", slot.parameter,
                                " among ", parameters_.size()));
    }
    const ParameterSpec& parameter =
        parameters_[static_cast<size_t>(slot.parameter)];
    if (slot.count != parameter.count() ||
        bucket.data.dtype != parameter.dtype) {
      return unfit(absl::StrCat(
          "has ", slot.count, " x ", NameOf(bucket.data.dtype),
          " as the gradient of \"", parameter.name, "\", which has ",
          parameter.count(), " x ", NameOf(parameter.dtype)));
    }
    if (slot.offset != end) {
      return unfit(absl::StrCat("has the gradient of \"", parameter.name,
                                "\" at ", slot.offset, ", and not at ", end,
                                ", where the one before it ends"));
    }
    end += slot.count;
  }
  if (end == bucket.data.count) return absl::OkStatus();
  return unfit(absl::StrCat("has ", bucket.data.count,
                            " elements, and its gradients ", end));
}

absl::Status BucketStream::Add(Bucket bucket) {
  const absl::Status fits = CheckBucket(bucket);
  if (!fits.ok()) return Fail(fits);
  MutexLock lock(&mutex_);
  COXSWAIN_RETURN_IF_ERROR(status_);
  const bool begins = state_ == State::kIdle;
  if (begins) {
    buckets_.clear();
    taken_ = 0;
    waited_ = absl::ZeroDuration();
    noted_ = false;
  }
  const bool complete =
      !begins && (state_ == State::kExchanged || buckets_.back()->last);
  if (complete || bucket.index != static_cast<int>(buckets_.size())) {
    return absl::FailedPreconditionError(absl::StrCat(
        "bucket ", bucket.index, " was handed over",
        complete ? " after the last one of an exchange that was not ended"
                 : absl::StrCat(", and the next one is ", buckets_.size())));
  }
  buckets_.push_back(std::make_shared<const Bucket>(std::move(bucket)));
  state_ = State::kOpen;
  if (begins) exchanging_ = true;
  changed_.NotifyAll();
  return absl::OkStatus();
}

std::optional<absl::Status> BucketStream::Wait(absl::Duration slice) {
  const absl::Time begun = options_.clock->Now();
  int64_t bytes = 0;
  absl::Duration waited;
  const absl::Status complete = CheckComplete();
  // What was handed over is in use until the thread has given up.
  if (!complete.ok()) (void)Fail(complete);
  {
    MutexLock lock(&mutex_);
    if (status_.ok() && state_ == State::kIdle) {
      return absl::FailedPreconditionError(
          "there is no exchange to wait for: no bucket was handed over");
    }
    WaitCount::Scope waits(options_.communicator->waits().get());
    const bool ended = changed_.WaitFor(
        &mutex_, slice,
        [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return !exchanging_; });
    waited_ += options_.clock->Now() - begun;
    if (!ended) {
      waits.GoesOn();
      return std::nullopt;
    }
    COXSWAIN_RETURN_IF_ERROR(status_);
    if (std::exchange(noted_, true)) return absl::OkStatus();
    for (const auto& bucket : buckets_) bytes += bucket->data.bytes();
    waited = waited_;
  }
  if (options_.gate != nullptr) options_.gate->NoteExchange(bytes, waited);
  return absl::OkStatus();
}

absl::Status BucketStream::CheckComplete() const {
  MutexLock lock(&mutex_);
  if (!status_.ok() || state_ == State::kIdle || buckets_.back()->last) {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(absl::StrCat(
      "the exchange has ", buckets_.size(),
      " buckets, and the last one was not handed over: do some parameters "
      "have no gradient?"));
}

absl::Status BucketStream::CheckExchanged() const {
  MutexLock lock(&mutex_);
  COXSWAIN_RETURN_IF_ERROR(status_);
  if (state_ != State::kOpen) return absl::OkStatus();
  return absl::FailedPreconditionError("the exchange has not been waited for");
}

absl::Status BucketStream::End(bool commit) {
  COXSWAIN_RETURN_IF_ERROR(CheckExchanged());
  State state;
  {
    MutexLock lock(&mutex_);
    state = std::exchange(state_, State::kIdle);
  }
  if (state == State::kIdle) return absl::OkStatus();
  const absl::Status committed = commit ? hook_->Commit() : absl::OkStatus();
  if (!commit || !committed.ok()) hook_->Rollback();
  if (!committed.ok()) return Fail(WithPrefix("hook commit: ", committed));
  if (configured_ == layout_) return absl::OkStatus();
  configured_ = layout_;
  const absl::Status status =
      hook_->Configure(parameters_, options_.communicator->size());
  return status.ok() ? status : Fail(WithPrefix("other buckets: ", status));
}

uint64_t BucketStream::layout() const { return layout_; }

uint64_t BucketStream::digest() const {
  return steps_.value() ^ static_cast<uint64_t>(hook_->step());
}

int64_t BucketStream::elements() const {
  int64_t elements = 0;
  for (const ParameterSpec& parameter : parameters_) {
    elements += parameter.count();
  }
  return elements;
}

absl::StatusOr<HookState> BucketStream::SaveShard() {
  COXSWAIN_RETURN_IF_ERROR(CheckIdle());
  absl::StatusOr<HookState> state = hook_->SaveState(*options_.communicator);
  if (state.ok() || absl::IsUnimplemented(state.status())) return state;
  return Fail(WithPrefix("saving the hook's state: ", state.status()));
}

absl::StatusOr<HookState> BucketStream::SaveWhole() {
  COXSWAIN_RETURN_IF_ERROR(CheckIdle());
  absl::StatusOr<HookState> state =
      GatherHookState(*hook_, *options_.communicator, MaxStateBytes(elements()),
                      options_.timeout);
  if (state.ok() || absl::IsUnimplemented(state.status()) ||
      absl::IsResourceExhausted(state.status())) {
    return state;
  }
  return Fail(WithPrefix("saving the hook's state: ", state.status()));
}

absl::Status BucketStream::LoadState(const HookState& state) {
  COXSWAIN_RETURN_IF_ERROR(CheckIdle());
  return hook_->LoadState(state, options_.communicator->rank(),
                          options_.communicator->size());
}

absl::StatusOr<Hook*> BucketStream::hook() {
  COXSWAIN_RETURN_IF_ERROR(CheckIdle());
  return hook_.get();
}

absl::StatusOr<HookState> BucketStream::Release(bool commit,
                                                const absl::Status& reason,
                                                absl::Duration limit) {
  bool busy = false;
  {
    MutexLock lock(&mutex_);
    busy = exchanging_;
  }
  // Peers may still read the step's last data from this rank.
  (void)(busy ? Fail(reason) : Keep(reason));
  State state;
  {
    MutexLock lock(&mutex_);
    const bool ended = changed_.WaitFor(
        &mutex_, limit,
        [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return !exchanging_; });
    if (!ended) {
      return absl::DeadlineExceededError(absl::StrCat(
          "an exchange has not ended ", absl::FormatDuration(limit),
          " after it was aborted, so what its hook remembers is unknown"));
    }
    state = std::exchange(state_, State::kIdle);
  }
  if (commit && state == State::kExchanged) {
    COXSWAIN_RETURN_IF_ERROR(hook_->Commit());
  } else if (state != State::kIdle) {
    // Once more where the exchange has failed, which changes nothing.
    hook_->Rollback();
  }
  return hook_->SaveOwn();
}

void BucketStream::Abort(const absl::Status& reason) { (void)Fail(reason); }

absl::Status BucketStream::Keep(const absl::Status& status) {
  MutexLock lock(&mutex_);
  if (status_.ok()) status_ = status;
  changed_.NotifyAll();
  return status_;
}

absl::Status BucketStream::Fail(const absl::Status& status) {
  const absl::Status kept = Keep(status);
  options_.communicator->Abort(kept.message());
  return kept;
}

// ---- the thread ----

void BucketStream::Run() {
  // The backward pass goes on meanwhile; Wait waits.
  const WaitCount::Background background;
  while (true) {
    {
      MutexLock lock(&mutex_);
      changed_.WaitForWork(&mutex_, [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
        return closing_ || exchanging_;
      });
      if (!exchanging_) return;
    }
    std::unique_ptr<BucketFlights> flights;
    absl::Status status = ChangeHook();
    const int64_t before = options_.communicator->sequence();
    BucketFlights::Context context;
    context.hook = hook_.get();
    context.communicator = options_.communicator;
    context.clock = options_.clock;
    context.timeout = options_.timeout;
    flights = std::make_unique<BucketFlights>(std::move(context));
    if (status.ok()) status = ExchangeStep(*flights);
    collectives_ = options_.communicator->sequence() - before;
    if (!status.ok()) {
      options_.communicator->Abort(status.message());
      flights->Drain(std::max(options_.timeout, absl::Seconds(10)));
      hook_->Rollback();
    }
    EndExchange(*flights, status);
  }
}

absl::Status BucketStream::ExchangeStep(BucketFlights& flights) {
  bool last = false;
  while (!last) {
    COXSWAIN_ASSIGN_OR_RETURN(const std::shared_ptr<const Bucket> bucket,
                              Next());
    last = bucket->last;
    if (options_.gate != nullptr) options_.gate->NoteBucket(bucket->index);
    COXSWAIN_RETURN_IF_ERROR(flights.Round(bucket));
  }
  while (!flights.empty()) COXSWAIN_RETURN_IF_ERROR(flights.Round(nullptr));
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<const Bucket>> BucketStream::Next() {
  MutexLock lock(&mutex_);
  const bool came = changed_.WaitFor(
      &mutex_, options_.timeout, [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
        return !status_.ok() || taken_ < buckets_.size();
      });
  COXSWAIN_RETURN_IF_ERROR(status_);
  if (!came) {
    return absl::DeadlineExceededError(absl::StrCat(
        "rank ", options_.communicator->rank(), " has not handed over bucket ",
        taken_, " within ", absl::FormatDuration(options_.timeout),
        " of the one before it: has its backward pass ended with an error?"));
  }
  return buckets_[taken_++];
}

absl::Status BucketStream::ChangeHook() {
  schedule::Plan next;
  {
    MutexLock lock(&mutex_);
    next = next_plan_;
  }
  if (next.SameHook(plan_)) return absl::OkStatus();
  COXSWAIN_ASSIGN_OR_RETURN(std::unique_ptr<Hook> hook,
                            options_.make_hook(next));
  HookChange change;
  change.parameters = &parameters_;
  change.communicator = options_.communicator;
  change.timeout = options_.timeout;
  change.elements = elements();
  change.carry_state =
      next.terms.hook_state == schedule::HookStatePolicy::kCarry;
  change.fail = [](const absl::Status& status) { return status; };
  const absl::Status changed = ChangeOver(*hook_, *hook, change);
  if (!changed.ok()) {
    return absl::Status(
        changed.code(),
        absl::StrCat("version ", next.version, " of the plan changes the hook ",
                     hook_->spec(), " to ", hook->spec(),
                     ", which cannot go on in its place: ", changed.message(),
                     change.carry_state
                         ? "; propose it with hook_state=reset to begin "
                           "without its state"
                         : ""));
  }
  hook_ = std::move(hook);
  plan_ = next;
  return absl::OkStatus();
}

void BucketStream::EndExchange(const BucketFlights& flights,
                               const absl::Status& status) {
  std::vector<Bucket> exchanged;
  bool aborted = false;
  {
    MutexLock lock(&mutex_);
    aborted = !status_.ok();
    for (const auto& bucket : buckets_) exchanged.push_back(*bucket);
  }
  absl::Status shown = status;
  // What was aborted here needs no explanation.
  if (!status.ok() && !aborted && options_.explain) {
    shown = options_.explain(status);
  }
  layout_ = HashLayout(exchanged);
  StepReport report;
  report.step = hook_->step();
  report.buckets = flights.timings();
  steps_.Add(report, collectives_, /*same_averages=*/false);
  MutexLock lock(&mutex_);
  if (status_.ok()) status_ = shown;
  state_ = State::kExchanged;
  exchanging_ = false;
  changed_.NotifyAll();
}

}  // namespace coxswain
