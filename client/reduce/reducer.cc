#include "client/reduce/reducer.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "base/status_prefix.h"
#include "client/comm/wait_holding.h"
#include "client/reduce/agreement.h"
#include "client/reduce/gathered_state.h"
#include "client/reduce/gradient_statistics.h"
#include "client/reduce/root_broadcast.h"

namespace coxswain {
namespace {

absl::Status CheckParameters(const std::vector<ParameterSpec>& parameters) {
  if (parameters.empty()) {
    return absl::InvalidArgumentError(
        "the model has no trainable parameters, so there is nothing to reduce");
  }
  std::set<std::string> names;
  for (const ParameterSpec& parameter : parameters) {
    if (!names.insert(parameter.name).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("two parameters are named \"", parameter.name,
                       "\"; give each one a name of its own"));
    }
    if (parameter.device.kind != Device::Kind::kCpu) {
      return absl::UnimplementedError(absl::StrCat(
          "parameter \"", parameter.name,
          "\" is not in host memory; the reducer handles host memory only"));
    }
  }
  return absl::OkStatus();
}

// memcpy wants valid pointers even for nothing.
void CopyBytes(void* to, const void* from, int64_t bytes) {
  if (bytes > 0) std::memcpy(to, from, static_cast<size_t>(bytes));
}

void Clear(const Span& span) {
  if (span.count > 0) {
    std::memset(span.data, 0, static_cast<size_t>(span.bytes()));
  }
}

// Reversed registration order, which a layout is made by at first.
std::vector<int> FirstOrder(size_t parameters) {
  std::vector<int> order(parameters);
  std::iota(order.rbegin(), order.rend(), 0);
  return order;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Reducer>> Reducer::Create(
    const ReducerOptions& options, std::vector<ParameterSpec> parameters,
    Hook* hook, Communicator* communicator) {
  COXSWAIN_RETURN_IF_ERROR(CheckReducerOptions(options));
  std::unique_ptr<Reducer> reducer(new Reducer(options, hook, communicator));
  COXSWAIN_RETURN_IF_ERROR(
      reducer->ApplyLayout(options.buckets, std::move(parameters), {}));
  Reducer* const raw = reducer.get();
  reducer->thread_ = std::thread([raw] { raw->Run(); });
  return reducer;
}

Reducer::Reducer(const ReducerOptions& options, Hook* hook,
                 Communicator* communicator)
    : options_(options), hook_(hook), communicator_(communicator) {}

absl::Status Reducer::ApplyLayout(const BucketPlanOptions& buckets,
                                  std::vector<ParameterSpec> parameters,
                                  const std::vector<int>& order) {
  COXSWAIN_RETURN_IF_ERROR(CheckParameters(parameters));
  COXSWAIN_ASSIGN_OR_RETURN(
      std::unique_ptr<BucketLayout> layout,
      BucketLayout::Create(buckets, parameters, order, *communicator_));
  COXSWAIN_RETURN_IF_ERROR(hook_->Configure(parameters, communicator_->size()));
  if (layout_ != nullptr) layout->CopyFrom(*layout_, parameters_, parameters);
  layout_ = std::move(layout);
  parameters_ = std::move(parameters);
  order_ = order;
  ++layout_version_;
  return absl::OkStatus();
}

Reducer::~Reducer() {
  if (!thread_.joinable()) return;  // Create failed
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

absl::Status Reducer::CheckWeight(double weight) const {
  if (weight >= 0 && !std::isinf(weight) &&
      (weight == 1 || options_.uneven_inputs)) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "a step of weight ", weight,
      options_.uneven_inputs ? "; a weight is finite and not negative"
                             : "; other weights than 1 need uneven_inputs"));
}

absl::Status Reducer::BeginStep(double weight) {
  COXSWAIN_RETURN_IF_ERROR(CheckIdle("to exchange gradients"));
  COXSWAIN_RETURN_IF_ERROR(CheckWeight(weight));
  if (!options_.rebuild || hook_->needs_frozen_layout()) frozen_ = true;
  weight_ = weight;
  StepExchange::Context context;
  context.options = &options_;
  context.buckets = &buckets();
  context.hook = hook_;
  context.communicator = communicator_;
  context.marks = &marks_;
  context.fail = [this](const absl::Status& status) { return Fail(status); };
  context.parameters = parameters_.size();
  context.weight = weight;
  context.learns_order = !frozen_;
  exchange_ = std::make_unique<StepExchange>(std::move(context));
  if (weight == 0) {
    for (const Bucket& bucket : buckets()) Clear(bucket.data);
  }
  marks_.Begin(buckets(), parameters_.size(), /*complete=*/weight == 0,
               exchange_->report().begun);
  MutexLock lock(&mutex_);
  step_ = exchange_->report().step;
  state_ = State::kCollecting;
  exchanging_ = true;
  changed_.NotifyAll();
  return absl::OkStatus();
}

absl::Status Reducer::MarkReady(int parameter) {
  return MarkReady(parameter, MarkOptions());
}

absl::Status Reducer::MarkReady(int parameter, const MarkOptions& mark) {
  COXSWAIN_RETURN_IF_ERROR(Claim(parameter, {mark.used, nullptr}));
  CountDown(parameter);
  return absl::OkStatus();
}

absl::Status Reducer::MarkReady(int parameter, Span gradient) {
  return MarkReady(parameter, gradient, MarkOptions());
}

absl::Status Reducer::MarkReady(int parameter, Span gradient,
                                const MarkOptions& mark) {
  COXSWAIN_RETURN_IF_ERROR(
      Claim(parameter, {mark.used, mark.copy_back ? gradient.data : nullptr}));
  const Span view = GradientView(parameter);
  if (gradient.count != view.count || gradient.dtype != view.dtype) {
    return Fail(absl::InvalidArgumentError(absl::StrCat(
        "the gradient of \"", parameters_[static_cast<size_t>(parameter)].name,
        "\" has ", gradient.count, " x ", NameOf(gradient.dtype),
        ", its parameter ", view.count, " x ", NameOf(view.dtype))));
  }
  CopyBytes(view.data, gradient.data, view.bytes());
  CountDown(parameter);
  return absl::OkStatus();
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

absl::Status Reducer::MarkedTwice(int parameter) const {
  if (weight_ == 0) {
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

void Reducer::CountDown(int parameter) {
  marks_.CountDown(parameter, Place(parameter).bucket, options_.clock->Now());
}

std::vector<int> Reducer::Unmarked() const { return marks_.Unclaimed(); }

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
  if (!WaitForExchangeThread(options_.timeout)) {
    (void)Fail(absl::DeadlineExceededError(
        absl::StrCat("the exchange has not ended within ",
                     absl::FormatDuration(options_.timeout),
                     " after the last gradient; look for a rank that is "
                     "stuck, or raise the timeout")));
    WaitForExchangeThread(options_.after_abort());
  }
  marks_.Close();
  if (!status().ok()) {
    Rollback();
    return status();
  }
  StepReport report = exchange_->report();
  if (!report.empty) Deliver(report);
  report.finished = options_.clock->Now();
  report.waited = report.finished - begun;
  Publish(report);
  return absl::OkStatus();
}

void Reducer::MarkMissing() {
  for (const int parameter : Unmarked()) {
    // Another thread's error may come first: then nothing counts any more.
    if (!Claim(parameter, {/*used=*/false, nullptr}).ok()) return;
    Clear(GradientView(parameter));
    CountDown(parameter);
  }
}

void Reducer::Deliver(StepReport& report) {
  const GradientStatistics& statistics = exchange_->statistics();
  report.gradient_norm = std::sqrt(statistics.sum_of_squares);
  report.non_finite = statistics.non_finite;
  if (options_.max_norm > 0 && statistics.non_finite == 0) {
    // As torch.nn.utils.clip_grad_norm_ has it.
    report.clip_scale =
        std::min(1.0, options_.max_norm / (report.gradient_norm + 1e-6));
  }
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const int parameter = static_cast<int>(i);
    if (unused_everywhere(parameter)) continue;
    const Span view = GradientView(parameter);
    void* const outside = marks_.TakeOutside(parameter);
    if (outside != nullptr) {
      CopyScaled(view, report.clip_scale, outside);
    } else if (report.clip_scale != 1) {
      Scale(view, report.clip_scale);
    }
  }
}

void Reducer::Publish(const StepReport& summary) {
  StepReport report = summary;
  report.buckets = exchange_->timings();
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
  if (options_.on_step) options_.on_step(report);
}

bool Reducer::unused_everywhere(int parameter) const {
  const size_t index = static_cast<size_t>(parameter);
  if (exchange_ == nullptr || index >= exchange_->users().size()) return false;
  return exchange_->users()[index] == 0;
}

absl::Status Reducer::Commit() {
  if (const absl::Status broken = status(); !broken.ok()) {
    EndStep();
    return broken;
  }
  {
    MutexLock lock(&mutex_);
    if (state_ != State::kExchanged || report_.empty) {
      return absl::FailedPreconditionError(
          state_ == State::kExchanged
              ? "no rank had data for this step; roll it back"
              : "there is no exchanged step to commit; call Finish first");
    }
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
  if (EndStep()) (void)Rebuild();  // the reducer keeps the error
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
        "the step was given up before all its gradients were exchanged"));
  }
  // A communicator that has been aborted ends every wait at once; where one
  // does not, the hook is still at work, and is rolled back at the very end.
  rollback_due_ = !WaitForExchangeThread(options_.after_abort());
  if (!rollback_due_) hook_->Rollback();
  return status().ok();
}

absl::Status Reducer::Rebuild() {
  if (frozen_ || exchange_->ready_order().empty()) return absl::OkStatus();
  frozen_ = true;
  const std::vector<int> order = exchange_->ready_order();
  if (order == FirstOrder(parameters_.size())) return absl::OkStatus();
  const absl::Status status = ApplyLayout(options_.buckets, parameters_, order);
  return status.ok() ? status
                     : Fail(WithPrefix("dividing the buckets anew: ", status));
}

absl::Status Reducer::ChangeBuckets(const BucketPlanOptions& buckets) {
  COXSWAIN_RETURN_IF_ERROR(CheckIdle("to change its buckets"));
  COXSWAIN_RETURN_IF_ERROR(ApplyLayout(buckets, parameters_, order_));
  options_.buckets = buckets;
  agreed_ = false;
  return absl::OkStatus();
}

absl::Status Reducer::ChangeParameters(std::vector<ParameterSpec> parameters) {
  COXSWAIN_RETURN_IF_ERROR(CheckIdle("to change its parameters"));
  COXSWAIN_RETURN_IF_ERROR(
      ApplyLayout(options_.buckets, std::move(parameters), {}));
  exchange_.reset();  // its results are by the old numbers
  // A new order is learned, unless the hook needs the layout to stay.
  frozen_ = false;
  agreed_ = false;
  return absl::OkStatus();
}

absl::Status Reducer::ChangeHook(Hook* hook, bool carry_state) {
  COXSWAIN_RETURN_IF_ERROR(CheckIdle("to change its hook"));
  if (hook->needs_averager()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the hook ", hook->spec(),
        " needs its averager, which a change of hooks does not bring along; "
        "begin with it"));
  }
  absl::Status own = hook->Configure(parameters_, communicator_->size());
  if (carry_state) {
    // Per element: errors of two kinds at up to 8 bytes, factors, and text.
    int64_t limit = 64 << 20;
    for (const Bucket& bucket : buckets()) limit += 32 * bucket.data.count;
    absl::StatusOr<HookState> state =
        GatherHookState(*hook_, *communicator_, limit, options_.timeout);
    if (!state.ok()) return Fail(WithPrefix("hook change: ", state.status()));
    if (own.ok()) {
      own =
          hook->LoadState(*state, communicator_->rank(), communicator_->size());
    }
  }
  COXSWAIN_RETURN_IF_ERROR(AllOrNone(own));
  hook_ = hook;
  agreed_ = false;
  return absl::OkStatus();
}

absl::Status Reducer::AllOrNone(const absl::Status& own) {
  auto failed = std::make_shared<int32_t>(own.ok() ? 0 : 1);
  Span span;
  span.data = failed.get();
  span.count = 1;
  span.dtype = DType::kInt32;
  const absl::Status status =
      WaitHolding(communicator_->AllReduce(span), failed, options_.timeout);
  if (!status.ok()) return Fail(WithPrefix("hook change: ", status));
  COXSWAIN_RETURN_IF_ERROR(own);
  if (*failed == 0) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat(*failed, " other ranks of ", communicator_->size(),
                   " could not change over to the new hook; see their logs"));
}

absl::Status Reducer::BroadcastFromRoot(const std::vector<Span>& spans,
                                        int root) {
  COXSWAIN_RETURN_IF_ERROR(CheckIdle("a broadcast"));
  COXSWAIN_RETURN_IF_ERROR(EnsureAgreement());
  const absl::Status status =
      BroadcastSpans(*communicator_, spans, root, options_.timeout);
  if (status.ok() || absl::IsUnimplemented(status)) return status;
  return Fail(status);
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
  return totals_;
}

absl::Status Reducer::Fail(const absl::Status& status) {
  if (Keep(status)) communicator_->Abort(this->status().message());
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
  while (true) {
    {
      MutexLock lock(&mutex_);
      changed_.WaitForWork(&mutex_, [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
        return exchanging_ || closing_;
      });
      if (!exchanging_) return;
    }
    absl::Status status = EnsureAgreement();
    if (status.ok()) status = exchange_->Run();
    if (!status.ok()) (void)Fail(status);
    MutexLock lock(&mutex_);
    exchanging_ = false;
    changed_.NotifyAll();
  }
}

absl::Status Reducer::EnsureAgreement() {
  if (agreed_ || !options_.verify) return absl::OkStatus();
  const absl::Status status =
      CheckAgreement(*communicator_, Description(), options_.timeout);
  agreed_ = status.ok();
  if (status.ok()) return status;
  if (!absl::IsFailedPrecondition(status)) return Fail(status);
  // All ranks have seen the difference, and need the communicator for that.
  (void)Keep(status);
  return this->status();
}

std::vector<std::string> Reducer::Description() const {
  const BucketPlanOptions& buckets = options_.buckets;
  std::vector<std::string> lines = {
      absl::StrCat("hook ", hook_->spec()),
      absl::StrCat("committed steps of the hook ", hook_->step()),
      absl::StrCat("first_bucket_bytes ", buckets.first_bucket_bytes),
      absl::StrCat("bucket_bytes ", buckets.bucket_bytes),
      absl::StrCat("rebuild ", options_.rebuild),
      absl::StrCat("find_unused_parameters ", options_.find_unused_parameters),
      absl::StrCat("uneven_inputs ", options_.uneven_inputs),
      absl::StrCat("max_norm ", options_.max_norm)};
  for (const auto& [name, value] : options_.settings) {
    lines.push_back(absl::StrCat(name, " ", value));
  }
  for (size_t i = 0; i < parameters_.size(); ++i) {
    lines.push_back(DescribeParameter(static_cast<int>(i), parameters_[i]));
  }
  return lines;
}

}  // namespace coxswain
