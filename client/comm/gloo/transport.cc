#include "client/comm/gloo/transport.h"

#include <chrono>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gloo/common/error.h>
#include <gloo/common/logging.h>
#include <gloo/transport/context.h>
#include <gloo/transport/unbound_buffer.h>
#include <gloo/types.h>

#include "base/check.h"

namespace coxswain {
namespace {

namespace transport = ::gloo::transport;

// Of no collective and no message.
constexpr uint8_t kSlotPrefix = 0x42;
// Its end is always an error or an interruption. When a wait of gloo is over,
// gloo closes all connections.
constexpr auto kForever = std::chrono::hours(24 * 365);
constexpr absl::Duration kPeriod = absl::Milliseconds(100);

// Returns the message of what gloo's `function` throws, if it throws.
template <typename Function>
std::optional<std::string> ErrorOf(const Function& function) {
  try {
    function();
    return std::nullopt;
  } catch (const ::gloo::Exception& error) {
    return MessageOf(error);
  } catch (const ::gloo::EnforceNotMet& error) {
    return MessageOf(error);
  }
}

// Notifies `control` of each peer whose connection breaks.
//
// Gloo reports that only to those that wait for a message of which nothing has
// arrived. So each peer is asked, once, for messages that never come; a thread
// waits for the first of these to fail, and from then on looks at the others
// several times a second.
//
// All peers are connected when it is made, and nothing has been received yet
// over `context`: who asks before it receives can rely on it that a peer that
// has sent something has read the question, and so can close softly. `control`
// was interrupted or has failed when it goes.
class PeerWatch {
 public:
  // `context` outlives it.
  PeerWatch(::gloo::transport::Context* context,
            std::shared_ptr<TransportControl> control);
  ~PeerWatch();
  PeerWatch(const PeerWatch&) = delete;
  PeerWatch& operator=(const PeerWatch&) = delete;

 private:
  using UnboundBuffer = ::gloo::transport::UnboundBuffer;

  void Ask(int peer, ::gloo::transport::Context* context);
  void Run();
  // Whether it is broken.
  void LookAt(int peer);

  const std::shared_ptr<TransportControl> control_;
  // Waits for a message of any peer.
  std::unique_ptr<UnboundBuffer> bell_;
  // Each waits for one of one peer; null: lost already, or this rank.
  std::vector<std::unique_ptr<UnboundBuffer>> questions_;
  std::thread thread_;
};

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

// Has a buffer of gloo's for each peer: of one that all share, gloo does not
// know whose operations have ended, and a peer may leave once its own have. So
// a wait is for the operation that was begun first. Throws only WaitInterrupted
// and PeerFailure.
class WatchedBuffer : public transport::UnboundBuffer {
 public:
  // `context` outlives it.
  WatchedBuffer(void* data, size_t bytes, transport::Context* context,
                std::shared_ptr<TransportControl> control)
      : UnboundBuffer(data, bytes),
        context_(context),
        control_(std::move(control)) {}
  ~WatchedBuffer() override {
    for (const auto& buffer : buffers_) {
      control_->Unregister(buffer.second.get());
    }
  }

  bool waitRecv(int* rank, std::chrono::milliseconds timeout) override {
    return Await(&receives_, [&](UnboundBuffer& buffer, Bound bound) {
      return buffer.waitRecv(rank, bound.value_or(timeout));
    });
  }
  bool waitSend(int* rank, std::chrono::milliseconds timeout) override {
    return Await(&sends_, [&](UnboundBuffer& buffer, Bound bound) {
      return buffer.waitSend(rank, bound.value_or(timeout));
    });
  }
  void abortWaitRecv() override {
    for (const auto& buffer : buffers_) buffer.second->abortWaitRecv();
  }
  void abortWaitSend() override {
    for (const auto& buffer : buffers_) buffer.second->abortWaitSend();
  }

  void send(int target, uint64_t slot, size_t offset, size_t bytes) override {
    if (bytes == kUnspecifiedByteCount) bytes = size - offset;
    Post(&sends_, {target}, [&](UnboundBuffer& buffer) {
      buffer.send(target, slot, offset, bytes);
    });
    control_->CountSent(static_cast<int64_t>(bytes));
  }
  void recv(int source, uint64_t slot, size_t offset, size_t bytes) override {
    Post(&receives_, {source}, [&](UnboundBuffer& buffer) {
      buffer.recv(source, slot, offset, bytes);
    });
  }
  void recv(std::vector<int> sources, uint64_t slot, size_t offset,
            size_t bytes) override {
    Post(&receives_, sources, [&](UnboundBuffer& buffer) {
      buffer.recv(sources, slot, offset, bytes);
    });
  }

 private:
  static constexpr int kSomePeer = -1;
  using Bound = std::optional<std::chrono::milliseconds>;
  // The operations of one direction whose ends have not been waited for, by
  // the peers that each is with.
  using Posted = std::deque<std::vector<int>>;

  UnboundBuffer& BufferOf(const std::vector<int>& peers) {
    auto& buffer = buffers_[peers];
    if (buffer == nullptr) {
      buffer = context_->createUnboundBuffer(ptr, size);
      control_->Register(buffer.get());
    }
    return *buffer;
  }

  template <typename Function>
  void Post(Posted* posted, const std::vector<int>& peers,
            const Function& function) {
    control_->ThrowIfEnded();
    Guard(peers, [&] { function(BufferOf(peers)); });
    posted->push_back(peers);
  }

  // A disturbance between the look at the control and the wait is not lost:
  // the inner buffer remembers it for its next wait, which returns false.
  template <typename Wait>
  bool Await(Posted* posted, const Wait& wait) {
    COXSWAIN_CHECK(!posted->empty());
    const std::vector<int> peers = posted->front();
    UnboundBuffer& buffer = BufferOf(peers);
    bool ended = false;
    while (!ended) {
      control_->ThrowIfEnded();
      if (const auto loss = control_->LossAmong(peers)) {
        ended = Settle(*loss, buffer, wait);
      } else {
        Guard(peers, [&] { ended = wait(buffer, std::nullopt); });
      }
    }
    posted->pop_front();
    return true;
  }

  // A wait for a peer that is lost. What has ended well before that has ended
  // well. If nothing has, the wait's time is up at once, for which gloo closes
  // all connections; they are of no further use.
  template <typename Wait>
  bool Settle(const PeerFailure& loss, UnboundBuffer& buffer,
              const Wait& wait) {
    MutexLock lock(control_->settling());
    control_->ThrowIfEnded();
    bool ended = false;
    if (ErrorOf([&] { ended = wait(buffer, std::chrono::milliseconds(0)); })) {
      control_->Fail(loss);
      control_->ThrowIfEnded();
    }
    return ended;
  }

  template <typename Function>
  void Guard(const std::vector<int>& peers, const Function& function) {
    const auto error = ErrorOf(function);
    if (!error.has_value()) return;
    // It may be reported here before the watch has seen it, which ends once
    // this has failed.
    if (peers.size() == 1 && !IsTimeout(*error)) {
      control_->Lose(PeerFailure(peers[0], *error));
    }
    MutexLock lock(control_->settling());
    control_->Fail(
        PeerFailure(peers.size() == 1 ? peers[0] : kSomePeer, *error));
    control_->ThrowIfEnded();
  }

  transport::Context* const context_;
  const std::shared_ptr<TransportControl> control_;
  std::map<std::vector<int>, std::unique_ptr<UnboundBuffer>> buffers_;
  Posted sends_;
  Posted receives_;
};

class WatchedContext : public transport::Context {
 public:
  WatchedContext(std::shared_ptr<transport::Context> context,
                 std::shared_ptr<TransportControl> control)
      : Context(context->rank, context->size),
        context_(std::move(context)),
        control_(std::move(control)) {}
  // No operation waits any more, but the watch does.
  ~WatchedContext() override { control_->Interrupt(); }

  std::unique_ptr<transport::Pair>& getPair(int peer) override {
    return context_->getPair(peer);
  }
  std::unique_ptr<transport::Pair>& createPair(int peer) override {
    // Set on this object by a method that cannot be overridden.
    context_->setTimeout(getTimeout());
    return context_->createPair(peer);
  }
  std::unique_ptr<transport::UnboundBuffer> createUnboundBuffer(
      void* data, size_t bytes) override {
    // The first buffer is made after connecting and before any message.
    std::call_once(watching_, [this] {
      watch_ = std::make_unique<PeerWatch>(context_.get(), control_);
    });
    return std::make_unique<WatchedBuffer>(data, bytes, context_.get(),
                                           control_);
  }

 private:
  const std::shared_ptr<transport::Context> context_;
  const std::shared_ptr<TransportControl> control_;
  std::once_flag watching_;
  std::unique_ptr<PeerWatch> watch_;  // goes first
};

class WatchedDevice : public transport::Device {
 public:
  WatchedDevice(std::shared_ptr<transport::Device> device,
                std::shared_ptr<TransportControl> control)
      : device_(std::move(device)), control_(std::move(control)) {}

  std::string str() const override { return device_->str(); }
  const std::string& getPCIBusID() const override {
    return device_->getPCIBusID();
  }
  int getInterfaceSpeed() const override {
    return device_->getInterfaceSpeed();
  }
  bool hasGPUDirect() const override { return device_->hasGPUDirect(); }
  std::shared_ptr<transport::Context> createContext(int rank,
                                                    int size) override {
    return std::make_shared<WatchedContext>(device_->createContext(rank, size),
                                            control_);
  }

 private:
  const std::shared_ptr<transport::Device> device_;
  const std::shared_ptr<TransportControl> control_;
};

}  // namespace

std::shared_ptr<transport::Device> WatchDevice(
    std::shared_ptr<transport::Device> device,
    std::shared_ptr<TransportControl> control) {
  return std::make_shared<WatchedDevice>(std::move(device), std::move(control));
}

}  // namespace coxswain
