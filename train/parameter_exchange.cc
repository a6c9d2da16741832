#include "train/parameter_exchange.h"

#include <cstring>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/crc32c.h"
#include "base/status_macros.h"
#include "client/reduce/gradient_statistics.h"
#include "client/reduce/planned_step.h"
#include "client/reduce/step_report.h"
#include "hooks/registry/planned_hook.h"
#include "train/life.h"

namespace coxswain {
namespace {

bool IsFloat(DType dtype) {
  return dtype == DType::kFloat32 || dtype == DType::kFloat64 ||
         dtype == DType::kFloat16 || dtype == DType::kBFloat16;
}

absl::StatusOr<ParameterSpec> DescribeOne(const TrainedParameter& parameter) {
  ParameterSpec spec;
  spec.name = parameter.name;
  spec.shape = parameter.shape;
  spec.dtype = parameter.dtype;
  const auto refuse = [&](absl::string_view why) {
    return absl::InvalidArgumentError(
        absl::StrCat("the parameter \"", parameter.name, "\" ", why));
  };
  if (!IsFloat(parameter.dtype)) {
    return refuse(absl::StrCat("is of type ", NameOf(parameter.dtype),
                               "; those that are trained are of float32, "
                               "float64, float16 or bfloat16"));
  }
  for (const int64_t extent : parameter.shape) {
    if (extent >= 0) continue;
    return refuse(absl::StrCat("has the shape [",
                               absl::StrJoin(parameter.shape, ", "), "]"));
  }
  if (spec.count() == 0) return spec;
  if (parameter.value == nullptr || parameter.gradient == nullptr) {
    return refuse(absl::StrCat(
        "has no ", parameter.value == nullptr ? "value" : "gradient",
        ": give it the memory of ", spec.count(), " elements"));
  }
  if (parameter.value == parameter.gradient) {
    return refuse("has its gradient in the memory of its value");
  }
  return spec;
}

Span SpanOf(const TrainedParameter& parameter, void* data, int64_t count) {
  Span span;
  span.data = data;
  span.count = count;
  span.dtype = parameter.dtype;
  return span;
}

void CopyTo(const Span& from, void* to) {
  if (from.count > 0) {
    std::memcpy(to, from.data, static_cast<size_t>(from.bytes()));
  }
}

}  // namespace

absl::StatusOr<std::vector<ParameterSpec>> DescribeTrained(
    const std::vector<TrainedParameter>& parameters) {
  if (parameters.empty()) {
    return absl::InvalidArgumentError("there are no parameters to train");
  }
  std::vector<ParameterSpec> specs;
  std::set<std::string> names;
  for (const TrainedParameter& parameter : parameters) {
    COXSWAIN_ASSIGN_OR_RETURN(ParameterSpec spec, DescribeOne(parameter));
    if (!names.insert(spec.name).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("two parameters are called \"", spec.name,
                       "\": give each a name of its own"));
    }
    specs.push_back(std::move(spec));
  }
  return specs;
}

absl::StatusOr<std::unique_ptr<ParameterExchange>> ParameterExchange::Create(
    const Options& options, const std::vector<TrainedParameter>& parameters,
    Communicator* communicator) {
  COXSWAIN_ASSIGN_OR_RETURN(
      Accumulator accumulator,
      Accumulator::Create(
          {options.plan, communicator->rank(), communicator->size()}));
  std::unique_ptr<ParameterExchange> exchange(
      new ParameterExchange(options, std::move(accumulator), communicator));
  COXSWAIN_RETURN_IF_ERROR(exchange->Connect(parameters));
  return exchange;
}

absl::Status ParameterExchange::Connect(
    const std::vector<TrainedParameter>& parameters) {
  COXSWAIN_ASSIGN_OR_RETURN(std::vector<ParameterSpec> specs,
                            DescribeTrained(parameters));
  for (size_t i = 0; i < specs.size(); ++i) {
    const int64_t count = specs[i].count();
    values_.push_back(SpanOf(parameters[i], parameters[i].value, count));
    gradients_.push_back(SpanOf(parameters[i], parameters[i].gradient, count));
  }
  COXSWAIN_ASSIGN_OR_RETURN(hook_, MakePlannedHook(options_.plan));
  COXSWAIN_ASSIGN_OR_RETURN(averager_, MakePlannedAverager(options_.plan));
  COXSWAIN_RETURN_IF_ERROR(CheckPlan(options_.plan, *hook_, averager_.get()));
  ReducerOptions reducer = options_.reducer;
  coxswain::FollowPlan(options_.plan, communicator_.size(), &reducer);
  reducer.statistics |= options_.skip_non_finite;
  COXSWAIN_ASSIGN_OR_RETURN(
      reducer_,
      Reducer::Create(reducer, std::move(specs), hook_.get(), &communicator_));
  COXSWAIN_RETURN_IF_ERROR(reducer_->BroadcastFromRoot(values_));
  return ConfigureAverager();
}

absl::Status ParameterExchange::CheckPlan(const schedule::Plan& plan,
                                          const Hook& hook,
                                          const Averager* averager) const {
  COXSWAIN_RETURN_IF_ERROR(
      CheckAveragerFits(plan, communicator_.size(), hook, averager));
  return CheckTermsFit(plan, options_.reducer, options_.skip_non_finite, hook,
                       averager);
}

absl::Status ParameterExchange::Keep(const absl::Status& status) {
  if (status.ok() || !status_.ok()) return status_;
  // The peers may be waiting for this rank.
  reducer_->Abort(status);
  reducer_->Rollback();
  status_ = reducer_->status();
  return status_;
}

// ---- a micro-batch ----

absl::StatusOr<MicroBatch> ParameterExchange::Begin(
    const Accumulator::Begin& begin) {
  if (in_micro_) {
    return Keep(
        absl::FailedPreconditionError("a micro-batch begins within another "
                                      "one: call Step where the gradients "
                                      "of the last one have been returned"));
  }
  COXSWAIN_RETURN_IF_ERROR(FollowNextPlan());
  absl::StatusOr<MicroBatch> micro =
      accumulator_.BeginMicroBatch(schedule::kTrainStream, begin);
  COXSWAIN_RETURN_IF_ERROR(Keep(micro.status()));
  micro_ = *micro;
  in_micro_ = true;
  announced_ = false;
  ended_ = false;
  ready_.assign(gradients_.size(), false);
  return micro_;
}

absl::Status ParameterExchange::Ready(int parameter) {
  COXSWAIN_RETURN_IF_ERROR(status_);
  const auto index = static_cast<size_t>(parameter);
  if (!in_micro_) {
    return Keep(
        absl::FailedPreconditionError("a gradient is ready outside of a "
                                      "micro-batch: GradientReady is for the "
                                      "function that Step is given"));
  }
  if (parameter < 0 || index >= gradients_.size()) {
    return Keep(absl::InvalidArgumentError(absl::StrCat(
        "there is no parameter ", parameter, " among ", gradients_.size())));
  }
  if (ready_[index]) {
    return Keep(absl::FailedPreconditionError(
        absl::StrCat("the gradient of \"", parameters()[index].name,
                     "\" is ready twice in one micro-batch")));
  }
  ready_[index] = true;
  if (micro_.exchange && !std::exchange(announced_, true)) {
    COXSWAIN_RETURN_IF_ERROR(
        BeginExchange(accumulator_.Sum(schedule::kTrainStream)));
  }
  Add(index);
  return micro_.exchange ? Mark(parameter) : absl::OkStatus();
}

void ParameterExchange::Add(size_t parameter) {
  const Span& gradient = gradients_[parameter];
  const Span sum = reducer_->GradientView(static_cast<int>(parameter));
  const bool first = micro_.micro == 0 || plan().terms.sync_each_batch;
  if (micro_.empty) {
    // It has no gradient.
    if (first && sum.count > 0) {
      std::memset(sum.data, 0, static_cast<size_t>(sum.bytes()));
    }
  } else if (!first) {
    AddScaled(gradient, micro_.loss_scale, sum.data);
  } else if (micro_.loss_scale == 1) {
    CopyTo(gradient, sum.data);
  } else {
    CopyScaled(gradient, micro_.loss_scale, sum.data);
  }
}

absl::Status ParameterExchange::Mark(int parameter) {
  // The header exchange tells the divisor; and with sync_each_batch it is the
  // sum of averages that is short.
  const bool here = !plan().terms.sync_each_batch &&
                    !plan().needs_header(communicator_.size());
  if (here && sum_.rescale != 1) {
    Scale(reducer_->GradientView(parameter), sum_.rescale);
  }
  return Keep(reducer_->MarkReady(parameter));
}

absl::Status ParameterExchange::End() {
  COXSWAIN_RETURN_IF_ERROR(status_);
  for (size_t i = 0; i < ready_.size(); ++i) {
    if (ready_[i]) continue;
    COXSWAIN_RETURN_IF_ERROR(Ready(static_cast<int>(i)));
  }
  in_micro_ = false;
  in_window_ = !micro_.sync;
  return micro_.exchange ? FinishExchange() : absl::OkStatus();
}

// ---- the end of the data ----

absl::StatusOr<bool> ParameterExchange::Flush() {
  COXSWAIN_RETURN_IF_ERROR(status_);
  const schedule::Terms& terms = plan().terms;
  if (terms.sync_each_batch && terms.tail == schedule::TailPolicy::kFlush &&
      in_window_) {
    // Its exchanges are over, and no decision has ended it.
    return Keep(absl::FailedPreconditionError(
        "the data ends in the middle of a window whose micro-batches were "
        "exchanged each (sync_each_batch), so there is no exchange left in "
        "which all ranks could decide its optimizer step: say end_of_data with "
        "the last micro-batch"));
  }
  const WindowSum sum = accumulator_.EndOfData(schedule::kTrainStream);
  if (sum.micro_batches == 0 && sum.exchanged == 0) return false;
  in_window_ = false;
  if (terms.tail == schedule::TailPolicy::kDrop) return false;
  COXSWAIN_RETURN_IF_ERROR(BeginExchange(sum));
  for (size_t i = 0; i < gradients_.size(); ++i) {
    COXSWAIN_RETURN_IF_ERROR(Mark(static_cast<int>(i)));
  }
  COXSWAIN_RETURN_IF_ERROR(FinishExchange());
  return true;
}

absl::StatusOr<bool> ParameterExchange::StepWithoutData() {
  COXSWAIN_RETURN_IF_ERROR(status_);
  if (in_window_ || in_micro_) {
    return Keep(absl::FailedPreconditionError(
        "this rank takes part without data in the middle of a window: with "
        "uneven_data the plan's tail is to be flush or drop"));
  }
  COXSWAIN_RETURN_IF_ERROR(FollowNextPlan());
  const Accumulator before = accumulator_;
  COXSWAIN_RETURN_IF_ERROR(
      BeginExchange(accumulator_.StepWithoutData(schedule::kTrainStream)));
  COXSWAIN_RETURN_IF_ERROR(FinishExchange());
  const StepReport report = reducer_->report();
  // A step of no rank is none, as the coordinator has it. Where others had data
  // that is given up with the epoch, they have counted its window.
  if (report.ranks_with_data == 0) accumulator_ = before;
  return report.ranks_with_data > 0 && !report.ended;
}

// ---- the exchange ----

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
  constexpr size_t kNamed = 4;
  std::vector<std::string> found;
  for (const NonFiniteGradient& gradient : hook_->non_finite()) {
    if (found.size() == kNamed) break;
    found.push_back(absl::StrCat("the gradient of \"", gradient.parameter,
                                 "\" on rank ", gradient.rank));
  }
  if (!found.empty()) {
    return absl::StrCat("not finite: ", absl::StrJoin(found, ", "));
  }
  const int64_t elements = reducer_->report().non_finite;
  if (elements == 0) return "";
  for (size_t i = 0; i < gradients_.size() && found.size() < kNamed; ++i) {
    const Span average = reducer_->GradientView(static_cast<int>(i));
    if (Measure(average).non_finite == 0) continue;
    found.push_back(absl::StrCat("\"", reducer_->parameters()[i].name, "\""));
  }
  return absl::StrCat("not finite: ", elements, " elements of the averages of ",
                      absl::StrJoin(found, ", "), ", as rank ",
                      communicator_.rank(), " sees them");
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
      CopyTo(average, sums_[i].get());
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
      CopyTo(average, gradient.data);
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
