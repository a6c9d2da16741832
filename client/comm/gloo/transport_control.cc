#include "client/comm/gloo/transport_control.h"

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"

namespace coxswain {

std::string MessageOf(const std::exception& error) { return error.what(); }

bool IsTimeout(absl::string_view message) {
  const std::string lower = absl::AsciiStrToLower(message);
  return absl::StrContains(lower, "timed out") ||
         absl::StrContains(lower, "timeout");
}

void TransportControl::Interrupt() {
  MutexLock lock(&mutex_);
  interrupted_ = true;
  InterruptWaits();
}

void TransportControl::Fail(const PeerFailure& failure) {
  MutexLock lock(&mutex_);
  if (failure_.has_value()) return;
  failure_.emplace(failure);
  InterruptWaits();
}

void TransportControl::Lose(const PeerFailure& loss) {
  std::function<void(int)> tell;
  {
    MutexLock lock(&mutex_);
    if (!interrupted_ && !failure_.has_value()) tell = on_loss_;
    losses_.emplace(loss.peer(), loss);
    InterruptWaits();
  }
  if (tell != nullptr) tell(loss.peer());
}

void TransportControl::WatchLosses(std::function<void(int peer)> on_loss) {
  std::vector<int> lost;
  {
    MutexLock lock(&mutex_);
    on_loss_ = on_loss;
    for (const auto& [peer, loss] : losses_) lost.push_back(peer);
  }
  for (const int peer : lost) on_loss(peer);
}

void TransportControl::InterruptWaits() {
  disturbed_.store(true);
  for (auto* buffer : buffers_) InterruptWait(buffer);
  ended_.NotifyAll();
}

void TransportControl::InterruptWait(::gloo::transport::UnboundBuffer* buffer) {
  buffer->abortWaitRecv();
  buffer->abortWaitSend();
}

void TransportControl::ThrowIfEnded() const {
  if (!disturbed_.load()) return;
  MutexLock lock(&mutex_);
  if (interrupted_) throw WaitInterrupted();
  if (failure_.has_value()) throw PeerFailure(*failure_);
}

bool TransportControl::AwaitEnd(absl::Duration duration) {
  MutexLock lock(&mutex_);
  return ended_.WaitFor(&mutex_, duration,
                        [&]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
                          return interrupted_ || failure_.has_value();
                        });
}

std::optional<PeerFailure> TransportControl::LossAmong(
    const std::vector<int>& peers) const {
  if (!disturbed_.load()) return std::nullopt;
  MutexLock lock(&mutex_);
  for (const int peer : peers) {
    const auto found = losses_.find(peer);
    if (found != losses_.end()) return found->second;
  }
  return std::nullopt;
}

void TransportControl::Register(::gloo::transport::UnboundBuffer* buffer) {
  MutexLock lock(&mutex_);
  buffers_.insert(buffer);
  if (disturbed_.load()) InterruptWait(buffer);
}

void TransportControl::Unregister(::gloo::transport::UnboundBuffer* buffer) {
  MutexLock lock(&mutex_);
  buffers_.erase(buffer);
}

}  // namespace coxswain
