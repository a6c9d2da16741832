#include "tests/bench/parameter_server/gathered_step.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/status_macros.h"

namespace coxswain::bench {
namespace {

constexpr absl::Duration kTimeout = absl::Minutes(2);
constexpr int64_t kBlock = int64_t{64} << 10;  // elements
constexpr int kSlots = 8;

Span SpanOf(std::vector<float>& elements, int64_t begin, int64_t count) {
  return {elements.data() + begin, count, DType::kFloat32, {}};
}

absl::Status SendAll(ChannelSender& channel, std::vector<float>& elements) {
  const auto size = static_cast<int64_t>(elements.size());
  for (int64_t begin = 0; begin < size; begin += kBlock) {
    COXSWAIN_RETURN_IF_ERROR(channel.Send(
        SpanOf(elements, begin, std::min(kBlock, size - begin)), kTimeout));
  }
  return absl::OkStatus();
}

absl::Status ReceiveAll(ChannelReceiver& channel,
                        std::vector<float>& elements) {
  const auto size = static_cast<int64_t>(elements.size());
  for (int64_t begin = 0; begin < size; begin += kBlock) {
    COXSWAIN_RETURN_IF_ERROR(channel.Receive(
        SpanOf(elements, begin, std::min(kBlock, size - begin)), kTimeout));
  }
  return absl::OkStatus();
}

}  // namespace

GatheredStep::GatheredStep(Communicator* communicator,
                           const GatheredStepSizes& sizes)
    : communicator_(communicator),
      sizes_(sizes),
      parameters_(static_cast<size_t>(sizes.parameters)),
      gradients_(static_cast<size_t>(sizes.parameters), 1.0f),
      sums_(static_cast<size_t>(sizes.parameters)),
      inputs_(static_cast<size_t>(sizes.inputs)),
      outputs_(static_cast<size_t>(sizes.outputs)),
      received_(static_cast<size_t>(kBlock)) {}

absl::StatusOr<std::unique_ptr<GatheredStep>> GatheredStep::Create(
    Communicator* communicator, const GatheredStepSizes& sizes) {
  auto step =
      std::unique_ptr<GatheredStep>(new GatheredStep(communicator, sizes));
  ChannelOptions options;
  options.slot_bytes = kBlock * static_cast<int64_t>(sizeof(float));
  options.slots = kSlots;
  const bool leads = communicator->rank() == 0;
  for (int peer = leads ? 1 : 0; peer < (leads ? communicator->size() : 1);
       ++peer) {
    options.peer = peer;
    Ends ends;
    COXSWAIN_ASSIGN_OR_RETURN(ends.to, communicator->OpenSender(options));
    COXSWAIN_ASSIGN_OR_RETURN(ends.from, communicator->OpenReceiver(options));
    step->peers_.push_back(std::move(ends));
  }
  return step;
}

absl::Status GatheredStep::Run() {
  return communicator_->rank() == 0 ? Lead() : Follow();
}

absl::Status GatheredStep::ReplicateParameters() {
  return communicator_
      ->Broadcast(SpanOf(parameters_, 0, sizes_.parameters), /*root=*/0)
      ->Wait(kTimeout);
}

absl::Status GatheredStep::Lead() {
  for (Ends& peer : peers_) {
    COXSWAIN_RETURN_IF_ERROR(SendAll(*peer.to, inputs_));
  }
  COXSWAIN_RETURN_IF_ERROR(ReplicateParameters());
  for (Ends& peer : peers_) {
    COXSWAIN_RETURN_IF_ERROR(ReceiveAll(*peer.from, outputs_));
  }
  for (Ends& peer : peers_) {
    COXSWAIN_RETURN_IF_ERROR(SendAll(*peer.to, outputs_));
  }
  for (int64_t begin = 0; begin < sizes_.parameters; begin += kBlock) {
    const int64_t count = std::min(kBlock, sizes_.parameters - begin);
    const float* others = gradients_.data() + begin;
    float* const sums = sums_.data() + begin;
    for (Ends& peer : peers_) {
      COXSWAIN_RETURN_IF_ERROR(
          peer.from->Receive(SpanOf(received_, 0, count), kTimeout));
      for (int64_t i = 0; i < count; ++i) {
        sums[i] = others[i] + received_[static_cast<size_t>(i)];
      }
      others = sums;
    }
  }
  const auto expected = static_cast<float>(communicator_->size());
  if (sums_.front() == expected && sums_.back() == expected) {
    return absl::OkStatus();
  }
  return absl::InternalError(absl::StrCat("gradients of 1 add up to ",
                                          sums_.back(), " on ",
                                          communicator_->size(), " ranks"));
}

absl::Status GatheredStep::Follow() {
  Ends& leader = peers_.front();
  COXSWAIN_RETURN_IF_ERROR(ReceiveAll(*leader.from, inputs_));
  COXSWAIN_RETURN_IF_ERROR(ReplicateParameters());
  COXSWAIN_RETURN_IF_ERROR(SendAll(*leader.to, outputs_));
  COXSWAIN_RETURN_IF_ERROR(ReceiveAll(*leader.from, outputs_));
  return SendAll(*leader.to, gradients_);
}

int64_t GatheredStep::moved_bytes() const {
  const int64_t of_each =
      sizes_.inputs + 2 * sizes_.outputs + 2 * sizes_.parameters;
  return static_cast<int64_t>(peers_.size()) * of_each *
         static_cast<int64_t>(sizeof(float));
}

}  // namespace coxswain::bench
