#include "client/comm/gloo/peer_watch.h"

#include <chrono>
#include <utility>

#include <gloo/types.h>

namespace coxswain {
namespace {

// Of no collective and no message.
constexpr uint8_t kSlotPrefix = 0x42;
// Its end is always an error or an interruption. When a wait of gloo is over,
// gloo closes all connections.
constexpr auto kForever = std::chrono::hours(24 * 365);
constexpr absl::Duration kPeriod = absl::Milliseconds(100);

}  // namespace

PeerWatch::PeerWatch(::gloo::transport::Context* context,
                     std::shared_ptr<TransportControl> control)
    : control_(std::move(control)),
      bell_(context->createUnboundBuffer(nullptr, 0)),
      questions_(static_cast<size_t>(context->size)) {
  for (int peer = 0; peer < context->size; ++peer) {
    if (peer != context->rank) Ask(peer, context);
  }
  thread_ = std::thread([this] { Run(); });
  control_->Register(bell_.get());
}

PeerWatch::~PeerWatch() {
  thread_.join();
  control_->Unregister(bell_.get());
}

void PeerWatch::Ask(int peer, ::gloo::transport::Context* context) {
  auto question = context->createUnboundBuffer(nullptr, 0);
  const uint64_t slot = ::gloo::Slot::build(kSlotPrefix, 0);
  const auto error = ErrorOf([&] {
    question->recv(peer, slot);
    bell_->recv(peer, slot);
  });
  if (error.has_value()) return control_->Lose(PeerFailure(peer, *error));
  questions_[static_cast<size_t>(peer)] = std::move(question);
}

void PeerWatch::Run() {
  (void)ErrorOf([&] { bell_->waitRecv(nullptr, kForever); });
  do {
    for (size_t peer = 0; peer < questions_.size(); ++peer) {
      LookAt(static_cast<int>(peer));
    }
  } while (!control_->AwaitEnd(kPeriod));
}

void PeerWatch::LookAt(int peer) {
  auto& question = questions_[static_cast<size_t>(peer)];
  if (question == nullptr) return;
  // A wait that is over when it begins: it throws or it does not.
  TransportControl::InterruptWait(question.get());
  const auto error = ErrorOf([&] { question->waitRecv(nullptr, kForever); });
  if (!error.has_value()) return;
  question.reset();
  control_->Lose(PeerFailure(peer, *error));
}

}  // namespace coxswain
