#include "client/reduce/reducer.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "base/status_prefix.h"
#include "base/wait_count.h"

namespace coxswain {

void FollowPlan(const schedule::Plan& plan, int world_size,
                ReducerOptions* options) {
  options->uneven_inputs = plan.needs_header(world_size);
  options->end_at_first =
      plan.terms.uneven_data == schedule::UnevenData::kEndAtFirst;
  // Without enforcement nobody adds the votes up.
  options->norm_by_vote = plan.terms.commit_vote &&
                          plan.terms.enforcement != schedule::Enforcement::kOff;
  options->plan_version = plan.version;
}

std::map<std::string, std::string> ReducerSettings(
    const ReducerOptions& options) {
  const auto on_off = [](bool value) { return value ? "true" : "false"; };
  std::map<std::string, std::string> settings = options.settings;
  settings["first_bucket_bytes"] =
      absl::StrCat(options.buckets.first_bucket_bytes);
  settings["bucket_bytes"] = absl::StrCat(options.buckets.bucket_bytes);
  settings["rebuild"] = on_off(options.rebuild);
  settings["find_unused_parameters"] = on_off(options.find_unused_parameters);
  settings["uneven_inputs"] = on_off(options.uneven_inputs);
  settings["max_norm"] = absl::StrCat(options.max_norm);
  // Said only where it is so: workers of before do not know it.
  if (options.slices) settings["slices"] = on_off(true);
  if (options.hybrid.shard != nullptr) {
    settings["slices_of"] = absl::StrCat(options.hybrid.shard->size());
  }
  return settings;
}

namespace {

// Whether hybrid sharding's communicators are those of a mesh of two axes.
absl::Status CheckHybrid(const ReducerOptions& options,
                         const Communicator& communicator) {
  const auto [shard, replicas] = options.hybrid;
  if (shard == nullptr) return absl::OkStatus();
  if (shard->size() * replicas->size() == communicator.size() &&
      replicas->rank() * shard->size() + shard->rank() == communicator.rank()) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "rank ", communicator.rank(), " of ", communicator.size(), " is rank ",
      shard->rank(), " of ", shard->size(), " in hybrid.shard and ",
      replicas->rank(), " of ", replicas->size(),
      " in hybrid.replicas; ranks are numbered replica by replica, as those of "
      "a mesh dp=",
      replicas->size(), ",shard=", shard->size(), " are"));
}

// Whether there are parameters of all names in the options.
absl::Status CheckNames(const BucketPlanOptions& options,
                        const std::vector<ParameterSpec>& parameters) {
  std::set<std::string> names;
  for (const ParameterSpec& parameter : parameters) {
    names.insert(parameter.name);
  }
  for (const auto& [option, listed] :
       {std::make_pair("late_parameters", &options.late_parameters),
        std::make_pair("separate_parameters", &options.separate_parameters),
        std::make_pair("uncounted_parameters",
                       &options.uncounted_parameters)}) {
    for (const std::string& name : *listed) {
      if (names.count(name) > 0) continue;
      return absl::InvalidArgumentError(absl::StrCat(
          option, " has \"", name,
          "\", and no parameter of this rank has that name; list those of its "
          "own stages, by their names in the module"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckReducerOptions(const ReducerOptions& options) {
  if (!(options.max_norm >= 0) || std::isinf(options.max_norm)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "max_norm must be 0 (no clipping) or more, got ", options.max_norm));
  }
  if (options.end_at_first && !options.uneven_inputs) {
    return absl::InvalidArgumentError(
        "end_at_first needs uneven_inputs, by which a rank learns that another "
        "one is out of data");
  }
  if (options.release_buckets && !options.slices) {
    return absl::InvalidArgumentError(
        "release_buckets gives a bucket's memory back once its own slice is "
        "averaged, so it needs slices; set them, or leave it out");
  }
  const bool votes = options.norm_by_vote && options.gate != nullptr;
  if (options.counts_in_norm && options.max_norm > 0 && !votes) {
    return absl::InvalidArgumentError(absl::StrCat(
        "max_norm=", options.max_norm,
        " over the stages of a pipeline needs the ranks' votes, which bring "
        "the "
        "norm of all stages: set commit_vote=true in the plan's terms, with "
        "enforcement=audit or strict, and follow a session; or leave max_norm "
        "out"));
  }
  const auto [shard, replicas] = options.hybrid;
  if ((shard == nullptr) != (replicas == nullptr) ||
      (shard != nullptr && !options.slices)) {
    return absl::InvalidArgumentError(
        "hybrid sharding needs slices, and both communicators: that of the "
        "shard group and that of the replicas");
  }
  if (!options.on_average) return absl::OkStatus();
  if (options.max_norm > 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "max_norm=", options.max_norm,
        " needs the gradients of the whole step before the first one is used, "
        "so it does not go with an optimizer step per bucket; drop one"));
  }
  if (options.find_unused_parameters) {
    return absl::InvalidArgumentError(
        "find_unused_parameters finds at the end of the step which parameters "
        "no rank used, so it does not go with an optimizer step per bucket; "
        "drop one");
  }
  return absl::OkStatus();
}

absl::Status Reducer::CheckSlicing(const Hook& hook) {
  if (!hook.needs_averager()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "the hook ", hook.spec(),
      " lets the ranks' parameters diverge, so no rank can keep a slice of "
      "them "
      "for the others; take a hook that averages gradients, or no slices"));
}

absl::StatusOr<std::unique_ptr<Reducer>> Reducer::Create(
    const ReducerOptions& options, std::vector<ParameterSpec> parameters,
    Hook* hook, Communicator* communicator) {
  COXSWAIN_RETURN_IF_ERROR(CheckReducerOptions(options));
  if (options.slices) COXSWAIN_RETURN_IF_ERROR(CheckSlicing(*hook));
  COXSWAIN_RETURN_IF_ERROR(CheckHybrid(options, *communicator));
  COXSWAIN_RETURN_IF_ERROR(CheckNames(options.buckets, parameters));
  std::unique_ptr<Reducer> reducer(new Reducer(options, hook, communicator));
  COXSWAIN_RETURN_IF_ERROR(
      reducer->ApplyLayout(options.buckets, std::move(parameters), {}));
  Reducer* const raw = reducer.get();
  reducer->thread_ = std::thread([raw] { raw->Run(); });
  return reducer;
}

Reducer::Reducer(const ReducerOptions& options, Hook* hook,
                 Communicator* communicator)
    : options_(options),
      hook_(hook),
      hybrid_(Wrap(hook)),
      communicator_(communicator),
      pool_(options.release_buckets
                ? std::make_unique<BucketPool>(&slicing(), options.bucket_wait)
                : nullptr) {
  if (hybrid_ != nullptr) hook_ = hybrid_.get();
}

std::unique_ptr<HybridHook> Reducer::Wrap(Hook* hook) const {
  const auto [shard, replicas] = options_.hybrid;
  if (shard == nullptr) return nullptr;
  return std::make_unique<HybridHook>(hook, shard, replicas);
}

Reducer::~Reducer() {
  Stop();
  if (memory_ == nullptr) return;
  (void)memory_->FollowCaller();
  memory_->Quiesce(options_.after_abort());
}

void Reducer::Stop() {
  if (!thread_.joinable()) return;  // Create failed, or it has been
  EndStep();
  {
    MutexLock lock(&mutex_);
    closing_ = true;
    changed_.NotifyAll();
  }
  thread_.join();
  if (rollback_due_) hook_->Rollback();
}

const GradientPlace& Reducer::Place(int parameter) const {
  COXSWAIN_CHECK(parameter >= 0 &&
                 parameter < static_cast<int>(parameters_.size()));
  return layout_->place(parameter);
}

absl::Status Reducer::CheckIdle(absl::string_view what) const {
  MutexLock lock(&mutex_);
  COXSWAIN_RETURN_IF_ERROR(status_);
  if (state_ == State::kIdle) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "rank ", communicator_->rank(), " begins ", what, ", but its step ",
      step_,
      state_ == State::kCollecting
          ? " is still being exchanged"
          : " has been neither committed nor rolled back",
      "; each step has one exchange, and is finished before the next"));
}

absl::Status Reducer::BeginStep(double weight) {
  if (weight != 1 && !options_.uneven_inputs) {
    return absl::InvalidArgumentError(
        absl::StrCat("a step of weight ", weight,
                     "; other weights than 1 need uneven_inputs"));
  }
  schedule::Ticket ticket;
  ticket.step = hook_->step();
  ticket.micro_batches = weight == 0 ? 0 : 1;
  ticket.weight = weight;
  return BeginStep(ticket, weight);
}

absl::Status Reducer::CheckTicket(const schedule::Ticket& ticket,
                                  double divisor) const {
  const auto sensible = [](double value) {
    return value >= 0 && !std::isinf(value);
  };
  if (!sensible(ticket.weight) || !sensible(divisor) ||
      (divisor == 0 && ticket.weight > 0)) {
    return absl::InvalidArgumentError(
        absl::StrCat("a step of weight ", ticket.weight, " and divisor ",
                     divisor, "; they are finite and not negative"));
  }
  if (ticket.weight > 0 || options_.uneven_inputs) return absl::OkStatus();
  return absl::InvalidArgumentError(
      "a step of weight 0, for a rank without data, needs uneven_inputs");
}

schedule::Ticket Reducer::Complete(const schedule::Ticket& ticket) const {
  schedule::Ticket complete = ticket;
  complete.plan_version = options_.plan_version;
  complete.hook = hook_->spec();
  complete.layout = layout_hash_;
  complete.digest = digest_.value();
  return complete;
}

void Reducer::MakeExchange(const schedule::Ticket& ticket, double divisor) {
  StepExchange::Context context;
  context.options = &options_;
  context.buckets = &buckets();
  context.hook = hook_;
  context.communicator = communicator_;
  context.slicing = &slicing();
  context.marks = &marks_;
  context.memory = memory_.get();
  context.pool = pool_.get();
  if (pool_ != nullptr || NeedsSums(ticket)) context.own = own_.get();
  context.fail = [this](const absl::Status& status) { return Fail(status); };
  context.decide = [this] { return DecideOnce(schedule::Vote()); };
  context.parameters = parameters_.size();
  context.ticket = ticket;
  context.divisor = divisor;
  // Where nothing travels, no order is of any use.
  context.learns_order = !frozen_ && hook_->reach() != GradientReach::kOwn;
  context.norm_by_vote = NormByVote();
  exchange_ = std::make_unique<StepExchange>(std::move(context));
}

bool Reducer::CanExchangeInPlace() const {
  // Weights, and what waits for the end of the step, go through the buckets.
  return !options_.slices && hook_->takes_parts() &&
         communicator_->has_mean() &&
         communicator_->device_queue() == nullptr && !options_.uneven_inputs &&
         !options_.find_unused_parameters && options_.max_norm == 0 &&
         !options_.on_average;
}

absl::Status Reducer::BeginStep(const schedule::Ticket& ticket, double divisor,
                                bool local) {
  COXSWAIN_RETURN_IF_ERROR(CheckIdle("to exchange gradients"));
  COXSWAIN_RETURN_IF_ERROR(CheckTicket(ticket, divisor));
  if (!options_.rebuild || options_.slices || hook_->needs_frozen_layout()) {
    frozen_ = true;
  }
  without_data_ = ticket.without_data();
  in_place_ = CanExchangeInPlace();
  const schedule::Ticket complete = Complete(ticket);
  {
    MutexLock lock(&mutex_);
    step_ = hook_->step();
    local_ = local;
    decision_.reset();
  }
  norm_due_ = false;
  COXSWAIN_RETURN_IF_ERROR(KeepSums(ticket));
  MakeExchange(complete, divisor);
  COXSWAIN_RETURN_IF_ERROR(Announce(complete));
  const absl::Status begun = BeginMarks();
  if (!begun.ok()) return Fail(WithPrefix("beginning it: ", begun));
  MutexLock lock(&mutex_);
  state_ = State::kCollecting;
  exchanging_ = true;
  changed_.NotifyAll();
  return absl::OkStatus();
}

bool Reducer::NeedsSums(const schedule::Ticket& ticket) const {
  // With sync_each_batch each ticket has one micro-batch of its window.
  const bool each = ticket.micro_batches == 1 && ticket.window > 1;
  return options_.slices && (each || ticket.micro > 0);
}

absl::Status Reducer::KeepSums(const schedule::Ticket& ticket) {
  if (own_ != nullptr || !NeedsSums(ticket)) return absl::OkStatus();
  absl::StatusOr<std::unique_ptr<OwnSlices>> own =
      OwnSlices::Create(buckets(), slicing());
  if (!own.ok()) {
    return Fail(WithPrefix("memory for sums of averages: ", own.status()));
  }
  own_ = *std::move(own);
  return absl::OkStatus();
}

absl::Status Reducer::Announce(const schedule::Ticket& ticket) {
  if (options_.gate == nullptr) return absl::OkStatus();
  if (local()) {
    options_.gate->BeginLocal(ticket);
    return absl::OkStatus();
  }
  const absl::Time begun = options_.clock->Now();
  const absl::Status status = options_.gate->Announce(ticket);
  if (!status.ok()) return Fail(WithPrefix("announcing it: ", status));
  MutexLock lock(&mutex_);
  totals_.in_gate += options_.clock->Now() - begun;
  return absl::OkStatus();
}

absl::Status Reducer::Finish() {
  {
    MutexLock lock(&mutex_);
    if (state_ != State::kCollecting) {
      COXSWAIN_RETURN_IF_ERROR(status_);
      return absl::FailedPreconditionError(
          "there is no step to finish; call BeginStep first");
    }
  }
  const absl::Time begun = options_.clock->Now();
  MarkMissing();
  absl::Duration limit = options_.timeout;
  if (options_.gate != nullptr) limit += options_.gate->timeout();
  const WaitCount::Scope waits(communicator_->waits().get());
  if (!WaitForExchangeThread(limit)) {
    (void)Fail(absl::DeadlineExceededError(absl::StrCat(
        "the exchange has not ended within ", absl::FormatDuration(limit),
        " after the last gradient; look for a rank that is "
        "stuck, or raise the timeout")));
    WaitForExchangeThread(options_.after_abort());
  }
  marks_.Close();
  if (!status().ok()) {
    Rollback();
    return status();
  }
  // An empty step has exchanged none of its buckets.
  if (pool_ != nullptr) pool_->EndStep();
  StepReport report = exchange_->report();
  if (!report.empty) {
    const absl::Status delivered = Deliver(report);
    if (!delivered.ok()) {
      (void)Fail(WithPrefix("handing the averages over: ", delivered));
      Rollback();
      return status();
    }
  }
  report.finished = options_.clock->Now();
  report.waited = report.finished - begun;
  Publish(report);
  return absl::OkStatus();
}

void Reducer::NoteStatistics(const GradientStatistics& statistics,
                             StepReport* report) const {
  report->gradient_norm = std::sqrt(statistics.sum_of_squares);
  report->non_finite = statistics.non_finite;
  if (options_.max_norm > 0 && statistics.non_finite == 0) {
    // As torch.nn.utils.clip_grad_norm_ has it.
    report->clip_scale =
        std::min(1.0, options_.max_norm / (report->gradient_norm + 1e-6));
  }
}

bool Reducer::NormByVote() const {
  const bool parts = options_.slices || options_.counts_in_norm;
  return parts && options_.measures() && options_.norm_by_vote && votes_sum_ &&
         options_.gate != nullptr && !options_.on_average && !local();
}

absl::Status Reducer::Clip(double factor) {
  for (const Bucket& bucket : buckets()) {
    if (options_.slices) {
      COXSWAIN_RETURN_IF_ERROR(
          memory_->Deliver(OwnSlice(bucket), factor, nullptr));
      continue;
    }
    for (const GradientSlot& slot : bucket.gradients) {
      if (unused_everywhere(slot.parameter)) continue;
      COXSWAIN_RETURN_IF_ERROR(
          memory_->Deliver(bucket.Gradient(slot), factor, nullptr));
    }
  }
  return absl::OkStatus();
}

absl::Status Reducer::DeliverWholes(double factor) {
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const int parameter = static_cast<int>(i);
    if (unused_everywhere(parameter)) continue;
    COXSWAIN_RETURN_IF_ERROR(memory_->Deliver(GradientView(parameter), factor,
                                              marks_.TakeOutside(parameter)));
  }
  return absl::OkStatus();
}

absl::Status Reducer::Deliver(StepReport& report) {
  if (NormByVote()) {
    norm_due_ = true;
    report.non_finite = memory_->statistics().non_finite;
    if (!options_.slices) COXSWAIN_RETURN_IF_ERROR(DeliverWholes(1));
    return memory_->NoteDelivered();
  }
  NoteStatistics(
      options_.slices ? exchange_->statistics() : memory_->statistics(),
      &report);
  COXSWAIN_RETURN_IF_ERROR(options_.slices ? Clip(report.clip_scale)
                                           : DeliverWholes(report.clip_scale));
  return memory_->NoteDelivered();
}

void Reducer::Publish(const StepReport& summary) {
  StepReport report = summary;
  report.buckets = exchange_->timings();
  const bool same_averages = exchange_->collectives() > 0 &&
                             hook_->reach() == GradientReach::kAll &&
                             !norm_due_;  // the norm is not known yet
  digest_.Add(report, exchange_->collectives(), same_averages);
  const std::vector<absl::Time> ready = marks_.ready_times();
  {
    MutexLock lock(&mutex_);
    state_ = State::kExchanged;
    ++totals_.steps;
    totals_.in_finish += report.waited;
    for (size_t i = 0; i < report.buckets.size(); ++i) {
      BucketTiming& bucket = report.buckets[i];
      bucket.ready = ready[i];
      totals_.gradient_bytes += bucket.gradient_bytes;
      totals_.payload_bytes += bucket.payload_bytes;
      totals_.in_hook += bucket.in_hook;
      totals_.in_collectives += bucket.waited;
    }
    report_ = report;
  }
  if (options_.gate != nullptr) {
    int64_t bytes = 0;
    for (const BucketTiming& bucket : report.buckets) {
      bytes += bucket.gradient_bytes;
    }
    options_.gate->NoteExchange(bytes, report.waited);
  }
  if (options_.on_step) options_.on_step(report);
}

bool Reducer::unused_everywhere(int parameter) const {
  const size_t index = static_cast<size_t>(parameter);
  if (exchange_ == nullptr || index >= exchange_->users().size()) return false;
  return exchange_->users()[index] == 0;
}

std::vector<int> Reducer::own_non_finite() const {
  if (exchange_ == nullptr) return {};
  return exchange_->own_non_finite();
}

void Reducer::Abort(const absl::Status& reason) { (void)Fail(reason); }

absl::Status Reducer::status() const {
  MutexLock lock(&mutex_);
  return status_;
}

int64_t Reducer::step() const {
  MutexLock lock(&mutex_);
  return step_;
}

StepReport Reducer::report() const {
  MutexLock lock(&mutex_);
  return report_;
}

ReducerTotals Reducer::totals() const {
  MutexLock lock(&mutex_);
  ReducerTotals totals = totals_;
  if (pool_ != nullptr) totals.bucket_memory = pool_->use();
  return totals;
}

absl::Status Reducer::Fail(const absl::Status& status) {
  if (Keep(status)) {
    communicator_->Abort(this->status().message());
    // A rank that waits for this one in one group is waited for in the other.
    for (Communicator* const part :
         {options_.hybrid.shard, options_.hybrid.replicas}) {
      if (part != nullptr) part->Abort(this->status().message());
    }
    if (options_.gate != nullptr) options_.gate->Abort(this->status());
  }
  return this->status();
}

bool Reducer::Keep(const absl::Status& status) {
  {
    MutexLock lock(&mutex_);
    if (!status_.ok()) return false;
    status_ = WithPrefix(
        absl::StrCat("rank ", communicator_->rank(), ", step ", step_, ", "),
        status);
  }
  marks_.Stop(this->status());
  return true;
}

bool Reducer::WaitForExchangeThread(absl::Duration timeout) {
  MutexLock lock(&mutex_);
  return changed_.WaitFor(
      &mutex_, timeout,
      [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return !exchanging_; });
}

void Reducer::Run() {
  // The backward pass goes on meanwhile; Finish waits.
  const WaitCount::Background background;
  while (true) {
    {
      MutexLock lock(&mutex_);
      changed_.WaitForWork(&mutex_, [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
        return exchanging_ || closing_;
      });
      if (!exchanging_) return;
    }
    const absl::Status status = Exchange();
    if (!status.ok()) (void)Fail(status);
    if (pool_ != nullptr) pool_->EndExchange();
    MutexLock lock(&mutex_);
    exchanging_ = false;
    changed_.NotifyAll();
  }
}

absl::Status Reducer::Exchange() {
  if (options_.gate != nullptr && !local()) {
    COXSWAIN_RETURN_IF_ERROR(
        WithPrefix("grant: ", options_.gate->AwaitGrant()));
  }
  COXSWAIN_RETURN_IF_ERROR(EnsureAgreement());
  COXSWAIN_RETURN_IF_ERROR(exchange_->ExchangeHeader());
  absl::Status plans = exchange_->CheckPlans();
  if (!plans.ok()) {
    // As in EnsureAgreement.
    (void)Keep(plans);
    return plans;
  }
  return exchange_->Run();
}

}  // namespace coxswain
