#include "client/accumulate/accumulator.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace coxswain {
namespace {

absl::Status CheckOptions(const Accumulator::Options& options) {
  if (options.plan.accumulation_steps < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("accumulation_steps must be at least 1, got ",
                     options.plan.accumulation_steps));
  }
  if (options.rank < 0 || options.rank >= options.world_size) {
    return absl::InvalidArgumentError(absl::StrCat(
        "rank ", options.rank, " of ", options.world_size, " ranks"));
  }
  return options.plan.terms.Validate();
}

}  // namespace

schedule::Ticket TicketOf(const WindowSum& sum) {
  schedule::Ticket ticket;
  ticket.step = sum.step;
  ticket.micro = sum.micro;
  ticket.micro_batches = sum.micro_batches;
  ticket.window = sum.window;
  ticket.weight = sum.weight;
  ticket.end_of_data = sum.end_of_data;
  return ticket;
}

absl::StatusOr<Accumulator> Accumulator::Create(const Options& options) {
  COXSWAIN_RETURN_IF_ERROR(CheckOptions(options));
  return Accumulator(options);
}

absl::StatusOr<Accumulator> Accumulator::Create(int accumulation_steps) {
  Options options;
  options.plan.accumulation_steps = accumulation_steps;
  return Create(options);
}

Accumulator::Stream& Accumulator::Find(absl::string_view stream) {
  return streams_[std::string(stream)];
}

const Accumulator::Stream* Accumulator::Look(absl::string_view stream) const {
  const auto found = streams_.find(std::string(stream));
  return found == streams_.end() ? nullptr : &found->second;
}

absl::Status Accumulator::BeginEpoch(int64_t micro_batches,
                                     absl::string_view stream) {
  if (micro_batches < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("an epoch of ", micro_batches, " micro-batches"));
  }
  Stream& state = Find(stream);
  if (state.micro > 0 && terms().tail != schedule::TailPolicy::kCarry) {
    return absl::FailedPreconditionError(absl::StrCat(
        "stream \"", stream, "\" begins an epoch after ", state.micro, " of ",
        state.window, " micro-batches of step ", state.step,
        "; call EndOfData and exchange what they summed up"));
  }
  state.left = micro_batches;
  return absl::OkStatus();
}

absl::StatusOr<MicroBatch> Accumulator::BeginMicroBatch(
    absl::string_view stream) {
  return BeginMicroBatch(stream, Begin());
}

absl::StatusOr<MicroBatch> Accumulator::BeginMicroBatch(
    absl::string_view stream, const Begin& begin) {
  Stream& state = Find(stream);
  COXSWAIN_RETURN_IF_ERROR(CheckBegin(stream, state, begin));
  if (state.micro == 0) BeginWindow(state, begin);
  const double weight = state.weighted ? *begin.weight : 1;
  if (state.first_weight == 0) state.first_weight = weight;
  state.weight += weight;
  ++state.micro;
  if (state.left > 0) --state.left;
  if (begin.end_of_data) state.left = 0;

  MicroBatch micro;
  micro.step = state.step;
  micro.micro = state.micro - 1;
  micro.window = state.window;
  micro.empty = weight == 0;
  micro.loss_scale =
      micro.empty ? 0 : weight / (state.first_weight * state.window);
  micro.sync =
      state.micro == state.window ||
      (begin.end_of_data && terms().tail == schedule::TailPolicy::kFlush);
  micro.exchange = micro.sync || (state.each && !state.dropped);
  micro.scheduler_steps = micro.sync ? SchedulerSteps(state) : 0;
  state.gradients = micro.sync;
  state.sum = micro.exchange ? SumOf(state, micro.sync) : WindowSum();
  if (micro.sync) EndWindow(state);
  return micro;
}

int Accumulator::micro_batches_due(absl::string_view stream) const {
  const Stream* const state = Look(stream);
  if (state == nullptr) return Window();
  const int due = state->micro == 0 ? Window() : state->window - state->micro;
  return state->left < 0
             ? due
             : static_cast<int>(std::min<int64_t>(due, state->left));
}

absl::StatusOr<std::vector<MicroBatch>> Accumulator::BeginWindow(
    absl::string_view stream, absl::Span<const Begin> micro_batches) {
  if (terms().sync_each_batch) {
    return absl::FailedPreconditionError(absl::StrCat(
        "stream \"", stream,
        "\" begins a window as a whole, and the plan exchanges each of its "
        "micro-batches (sync_each_batch): begin them one by one, or set "
        "sync_each_batch=false"));
  }
  const int due = micro_batches_due(stream);
  const auto given = static_cast<int64_t>(micro_batches.size());
  const bool ends = given > 0 && micro_batches.back().end_of_data;
  // Past the end of the data the first one fails.
  if (due > 0 && (given > due || given == 0 || (given < due && !ends))) {
    return absl::InvalidArgumentError(absl::StrCat(
        "stream \"", stream, "\" begins a window of ", given,
        " micro-batches, and ", due,
        " are due: pass as many, or fewer with end_of_data at the last one"));
  }
  const Stream before = Find(stream);
  std::vector<MicroBatch> begun;
  for (const Begin& begin : micro_batches) {
    absl::StatusOr<MicroBatch> micro = BeginMicroBatch(stream, begin);
    if (!micro.ok()) {
      Find(stream) = before;
      return micro.status();
    }
    begun.push_back(*micro);
  }
  return begun;
}

absl::Status Accumulator::CheckBegin(absl::string_view stream,
                                     const Stream& state,
                                     const Begin& begin) const {
  COXSWAIN_RETURN_IF_ERROR(CheckWeight(stream, state, begin.weight));
  if (finished(stream)) {
    return absl::OutOfRangeError(
        absl::StrCat("stream \"", stream, "\" has done the ", terms().max_steps,
                     " steps of the plan's max_steps"));
  }
  if (state.left != 0) return absl::OkStatus();
  return absl::OutOfRangeError(absl::StrCat(
      "stream \"", stream,
      "\" begins a micro-batch after the end of its data; call BeginEpoch for "
      "more, or EndOfData if their number is not known"));
}

absl::Status Accumulator::CheckWeight(absl::string_view stream,
                                      const Stream& state,
                                      std::optional<double> weight) const {
  if (weight.has_value() && (!(*weight >= 0) || std::isinf(*weight))) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a micro-batch of weight ", *weight, " on stream \"", stream,
        "\"; a weight is finite and not negative: state the number of samples "
        "or tokens"));
  }
  const bool weighted = state.micro > 0
                            ? state.weighted
                            : terms().weighting != schedule::Weighting::kMean;
  if (weight.has_value() || !weighted) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "a micro-batch on stream \"", stream,
      "\" without a weight: the plan weighs micro-batches by their ",
      terms().weighting == schedule::Weighting::kTokens ? "tokens" : "samples",
      ": state the number (Begin::weight)"));
}

void Accumulator::BeginWindow(Stream& state, const Begin& begin) {
  state.full = Window();
  state.window = state.full;
  if (terms().tail == schedule::TailPolicy::kFlush) {
    if (state.left > 0) {
      state.window =
          static_cast<int>(std::min<int64_t>(state.full, state.left));
    }
    if (begin.end_of_data) state.window = 1;
  }
  state.dropped = terms().tail == schedule::TailPolicy::kDrop &&
                  state.left >= 0 && state.left < state.full;
  state.weighted = terms().weighting != schedule::Weighting::kMean;
  state.each = terms().sync_each_batch;
  state.first_weight = state.weighted ? 0 : 1;
  state.weight = 0;
}

void Accumulator::EndWindow(Stream& state) {
  state.micro = 0;
  ++state.step;
}

WindowSum Accumulator::SumOf(const Stream& state, bool ends) const {
  WindowSum sum;
  sum.step = state.step;
  sum.micro = state.each ? state.micro - 1 : 0;
  sum.micro_batches = state.each ? 1 : state.micro;
  sum.window = state.window;
  sum.weight = state.each ? 1 : state.weight;
  sum.divisor = state.each ? 1 : state.first_weight * state.window;
  // An exchange before its end does not end a window, however short that is.
  sum.end_of_data = ends && state.micro < state.full;
  if (ends) sum.rescale = static_cast<double>(state.window) / state.micro;
  sum.exchanged = state.each ? state.micro - 1 : 0;
  if (ends) sum.scheduler_steps = SchedulerSteps(state);
  return sum;
}

int64_t Accumulator::SchedulerSteps(const Stream& state) const {
  const schedule::SchedulerUnit unit = terms().adjust_scheduler;
  if (unit == schedule::SchedulerUnit::kStep) return 1;
  const int ranks =
      unit == schedule::SchedulerUnit::kBatch ? 1 : options_.world_size;
  if (ranks_alike()) return static_cast<int64_t>(state.micro) * ranks;
  int64_t steps = 0;
  for (int rank = 0; rank < ranks; ++rank) steps += WindowOf(rank);
  return steps;
}

bool Accumulator::ranks_alike() const {
  return terms().uneven_data == schedule::UnevenData::kRefuse &&
         WindowOf(0) == WindowOf(options_.world_size - 1);
}

WindowSum Accumulator::Sum(absl::string_view stream) const {
  const Stream* const state = Look(stream);
  return state == nullptr ? WindowSum() : state->sum;
}

WindowSum Accumulator::EndOfData(absl::string_view stream) {
  Stream& state = Find(stream);
  state.left = -1;
  WindowSum nothing;
  nothing.step = state.step;
  if (state.micro == 0 || terms().tail == schedule::TailPolicy::kCarry)
    return nothing;
  WindowSum rest = SumOf(state, /*ends=*/true);
  if (state.each) {
    rest.micro_batches = state.dropped ? state.micro : 0;
    rest.exchanged = state.dropped ? 0 : state.micro;
  }
  if (terms().tail == schedule::TailPolicy::kDrop) {
    DropWindow(stream);
    return rest;
  }
  state.gradients = true;
  state.sum = rest;
  EndWindow(state);
  return rest;
}

void Accumulator::DropWindow(absl::string_view stream) {
  Stream& state = Find(stream);
  state.micro = 0;
  state.gradients = false;
  state.sum = WindowSum();
}

WindowSum Accumulator::StepWithoutData(absl::string_view stream) {
  DropWindow(stream);
  Stream& state = Find(stream);
  state.window = Window();
  state.sum.step = state.step++;
  state.sum.window = state.window;
  state.sum.end_of_data = true;
  // As those do that have data.
  Stream others;
  others.micro = state.window;
  state.sum.scheduler_steps = SchedulerSteps(others);
  state.gradients = true;
  return state.sum;
}

absl::Status Accumulator::CheckOptimizerStep(absl::string_view stream) const {
  const Stream* const state = Look(stream);
  if (state == nullptr || (!state->gradients && state->micro == 0)) {
    return absl::FailedPreconditionError(
        absl::StrCat("optimizer step on stream \"", stream,
                     "\" without a micro-batch that was begun and not "
                     "dropped: there are no gradients"));
  }
  if (state->gradients) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "optimizer step on stream \"", stream, "\" after ", state->micro, " of ",
      state->window, " micro-batches of step ", state->step,
      ": its gradients have not been ", state->each ? "summed up" : "exchanged",
      ", and the ranks would drift apart; step only where sync is true"));
}

bool Accumulator::finished(absl::string_view stream) const {
  const Stream* const state = Look(stream);
  return stream == schedule::kTrainStream && state != nullptr &&
         state->micro == 0 && terms().max_steps > 0 &&
         state->step >= terms().max_steps;
}

absl::Status Accumulator::ChangePlan(const schedule::Plan& plan) {
  Options options = options_;
  options.plan = plan;
  COXSWAIN_RETURN_IF_ERROR(CheckOptions(options));
  const Stream* const train = Look(schedule::kTrainStream);
  if (train != nullptr && train->micro > 0) {
    const bool alike = plan.terms.weighting == terms().weighting &&
                       plan.terms.sync_each_batch == terms().sync_each_batch;
    if (terms().tail != schedule::TailPolicy::kCarry || !alike) {
      return absl::FailedPreconditionError(absl::StrCat(
          "plan ", plan.version, " comes after ", train->micro, " of ",
          train->window, " micro-batches of step ", train->step,
          alike ? "" : ", and weighs or exchanges them differently",
          "; change it where a window has ended"));
    }
  }
  options_ = std::move(options);
  return absl::OkStatus();
}

absl::StatusOr<std::map<std::string, int64_t>> Accumulator::Position() const {
  const Stream* const train = Look(schedule::kTrainStream);
  if (train != nullptr && train->micro > 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("stream \"", schedule::kTrainStream,
                     "\" is at micro-batch ", train->micro, " of ",
                     train->window, "; take the position after one with sync"));
  }
  std::map<std::string, int64_t> position;
  for (const auto& [name, state] : streams_) position[name] = state.step;
  return position;
}

absl::Status Accumulator::Restore(
    const std::map<std::string, int64_t>& position) {
  std::map<std::string, Stream> streams;
  for (const auto& [name, step] : position) {
    if (step < 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("stream \"", name, "\" at step ", step));
    }
    streams[name].step = step;
  }
  streams_ = std::move(streams);
  return absl::OkStatus();
}

}  // namespace coxswain
