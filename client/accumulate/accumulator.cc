#include "client/accumulate/accumulator.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace coxswain {

absl::StatusOr<Accumulator> Accumulator::Create(int accumulation_steps) {
  if (accumulation_steps < 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        "accumulation_steps must be at least 1, got ", accumulation_steps));
  }
  return Accumulator(accumulation_steps);
}

Accumulator::Stream& Accumulator::Find(absl::string_view stream) {
  return streams_[std::string(stream)];
}

absl::Status Accumulator::BeginEpoch(int64_t micro_batches,
                                     absl::string_view stream) {
  if (micro_batches < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("an epoch of ", micro_batches, " micro-batches"));
  }
  Stream& state = Find(stream);
  if (state.micro > 0) {
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
  Stream& state = Find(stream);
  if (state.left == 0) {
    return absl::OutOfRangeError(absl::StrCat(
        "stream \"", stream,
        "\" begins more micro-batches than BeginEpoch was told; call "
        "BeginEpoch again, or EndOfData if their number is not known"));
  }
  if (state.micro == 0) {
    state.window = accumulation_steps_;
    if (state.left > 0) {
      state.window =
          static_cast<int>(std::min<int64_t>(state.window, state.left));
    }
  }
  MicroBatch micro;
  micro.step = state.step;
  micro.micro = state.micro;
  micro.window = state.window;
  micro.sync = state.micro + 1 == state.window;
  if (state.left > 0) --state.left;
  state.gradients = micro.sync;
  state.micro = micro.sync ? 0 : state.micro + 1;
  if (micro.sync) ++state.step;
  return micro;
}

Tail Accumulator::EndOfData(absl::string_view stream) {
  Stream& state = Find(stream);
  state.left = -1;
  Tail tail;
  tail.step = state.step;
  tail.micros = state.micro;
  if (state.micro == 0) return tail;
  tail.rescale = static_cast<double>(state.window) / state.micro;
  state.gradients = true;
  state.micro = 0;
  ++state.step;
  return tail;
}

absl::Status Accumulator::CheckOptimizerStep(absl::string_view stream) const {
  const auto found = streams_.find(std::string(stream));
  if (found == streams_.end() ||
      (!found->second.gradients && found->second.micro == 0)) {
    return absl::FailedPreconditionError(absl::StrCat(
        "optimizer step on stream \"", stream,
        "\" before its first micro-batch: there are no gradients"));
  }
  const Stream& state = found->second;
  if (state.gradients) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "optimizer step on stream \"", stream, "\" after ", state.micro, " of ",
      state.window, " micro-batches of step ", state.step,
      ": its gradients have not been exchanged, and the ranks would drift "
      "apart; step only where sync is true"));
}

absl::StatusOr<std::map<std::string, int64_t>> Accumulator::Position() const {
  std::map<std::string, int64_t> position;
  for (const auto& [name, state] : streams_) {
    if (state.micro > 0) {
      return absl::FailedPreconditionError(absl::StrCat(
          "stream \"", name, "\" is at micro-batch ", state.micro, " of ",
          state.window, "; take the position after one with sync"));
    }
    position[name] = state.step;
  }
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
