#include "client/comm/gloo/transport.h"

#include <utility>
#include <vector>

#include <gloo/common/error.h>
#include <gloo/common/logging.h>

namespace coxswain {
namespace {

namespace transport = ::gloo::transport;

class WatchedBuffer : public transport::UnboundBuffer {
 public:
  WatchedBuffer(std::unique_ptr<transport::UnboundBuffer> buffer,
                std::shared_ptr<TransportControl> control)
      : UnboundBuffer(buffer->ptr, buffer->size),
        buffer_(std::move(buffer)),
        control_(std::move(control)) {
    control_->Register(buffer_.get());
  }
  ~WatchedBuffer() override { control_->Unregister(buffer_.get()); }

  bool waitRecv(int* rank, std::chrono::milliseconds timeout) override {
    return Await(source_, [&] { return buffer_->waitRecv(rank, timeout); });
  }
  bool waitSend(int* rank, std::chrono::milliseconds timeout) override {
    return Await(target_, [&] { return buffer_->waitSend(rank, timeout); });
  }
  void abortWaitRecv() override { buffer_->abortWaitRecv(); }
  void abortWaitSend() override { buffer_->abortWaitSend(); }

  void send(int target, uint64_t slot, size_t offset, size_t bytes) override {
    target_ = target;
    if (bytes == kUnspecifiedByteCount) bytes = size - offset;
    Guard(target, [&] { buffer_->send(target, slot, offset, bytes); });
    control_->CountSent(static_cast<int64_t>(bytes));
  }
  void recv(int source, uint64_t slot, size_t offset, size_t bytes) override {
    source_ = source;
    Guard(source, [&] { buffer_->recv(source, slot, offset, bytes); });
  }
  void recv(std::vector<int> sources, uint64_t slot, size_t offset,
            size_t bytes) override {
    source_ = sources.size() == 1 ? sources[0] : kAnyPeer;
    Guard(source_, [&] { buffer_->recv(sources, slot, offset, bytes); });
  }

 private:
  static constexpr int kAnyPeer = -1;

  template <typename Function>
  void Guard(int peer, const Function& function) {
    if (control_->interrupted()) throw WaitInterrupted();
    try {
      function();
    } catch (const ::gloo::Exception& error) {
      if (control_->interrupted()) throw WaitInterrupted();
      throw PeerFailure(peer, error.what());
    } catch (const ::gloo::EnforceNotMet& error) {
      if (control_->interrupted()) throw WaitInterrupted();
      throw PeerFailure(peer, error.what());
    }
  }

  // An interruption between the look at the flag and the wait is not lost:
  // the inner buffer remembers it for its next wait.
  template <typename Function>
  bool Await(int peer, const Function& wait) {
    bool ended = false;
    Guard(peer, [&] { ended = wait(); });
    if (!ended) throw WaitInterrupted();
    return true;
  }

  const std::unique_ptr<transport::UnboundBuffer> buffer_;
  const std::shared_ptr<TransportControl> control_;
  int source_ = kAnyPeer;
  int target_ = kAnyPeer;
};

class WatchedContext : public transport::Context {
 public:
  WatchedContext(std::shared_ptr<transport::Context> context,
                 std::shared_ptr<TransportControl> control)
      : Context(context->rank, context->size),
        context_(std::move(context)),
        control_(std::move(control)) {}

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
    return std::make_unique<WatchedBuffer>(
        context_->createUnboundBuffer(data, bytes), control_);
  }

 private:
  const std::shared_ptr<transport::Context> context_;
  const std::shared_ptr<TransportControl> control_;
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

void TransportControl::Interrupt() {
  MutexLock lock(&mutex_);
  interrupted_.store(true);
  for (auto* buffer : buffers_) {
    buffer->abortWaitRecv();
    buffer->abortWaitSend();
  }
}

void TransportControl::Register(transport::UnboundBuffer* buffer) {
  MutexLock lock(&mutex_);
  buffers_.insert(buffer);
}

void TransportControl::Unregister(transport::UnboundBuffer* buffer) {
  MutexLock lock(&mutex_);
  buffers_.erase(buffer);
}

std::shared_ptr<transport::Device> WatchDevice(
    std::shared_ptr<transport::Device> device,
    std::shared_ptr<TransportControl> control) {
  return std::make_shared<WatchedDevice>(std::move(device), std::move(control));
}

}  // namespace coxswain
