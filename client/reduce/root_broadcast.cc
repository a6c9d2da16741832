#include "client/reduce/root_broadcast.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/status_prefix.h"
#include "client/comm/device_queue.h"
#include "client/comm/work.h"
#include "client/device/runtime.h"
#include "client/device/tensor.h"

namespace coxswain {
namespace {

// Spans below this size travel together, at most so many bytes at once.
constexpr int64_t kPackBytes = 25 << 20;

absl::Status CheckDevice(const std::vector<Span>& spans,
                         Communicator& communicator) {
  DeviceQueue* const queue = communicator.device_queue();
  const Device moved = queue == nullptr ? Device() : queue->runtime().device();
  for (const Span& span : spans) {
    if (span.device == Device() || span.device == moved) continue;
    return absl::UnimplementedError(absl::StrCat(
        "broadcast: a span is on GPU ", span.device.index,
        ", whose memory this communicator (", communicator.backend(),
        ") does not move; copy it to the CPU's memory first"));
  }
  return absl::OkStatus();
}

Span AsBytes(const Span& span) {
  Span bytes = span;
  bytes.count = span.bytes();
  bytes.dtype = DType::kUInt8;
  return bytes;
}

// A pack on a GPU. Of the runtime, which keeps what it is given back for the
// next time, where the communicator's memory is made, and registered, to last.
class DevicePack : public BufferOwner {
 public:
  static absl::StatusOr<std::unique_ptr<DevicePack>> Make(
      DeviceRuntime& runtime, int64_t bytes) {
    COXSWAIN_ASSIGN_OR_RETURN(void* const data, runtime.Allocate(bytes));
    return std::unique_ptr<DevicePack>(new DevicePack(runtime, data, bytes));
  }
  // After an error the stream may work on it for an unknown time: then it is
  // not used again.
  ~DevicePack() override {
    if (idle_) runtime_.Free(span_.data);
  }
  Span span() const override { return span_; }
  // The stream is through with it.
  void set_idle() { idle_ = true; }

 private:
  DevicePack(DeviceRuntime& runtime, void* data, int64_t bytes)
      : runtime_(runtime) {
    span_.data = data;
    span_.count = bytes;
    span_.dtype = DType::kUInt8;
    span_.device = runtime.device();
  }

  DeviceRuntime& runtime_;
  Span span_;
  bool idle_ = false;
};

class RootBroadcast {
 public:
  RootBroadcast(Communicator* communicator, int root, absl::Duration timeout)
      : communicator_(communicator),
        queue_(communicator->device_queue()),
        root_(root),
        timeout_(timeout) {}

  absl::Status Run(const std::vector<Span>& spans);

 private:
  absl::Status Allocate(const std::vector<Span>& spans);
  // At once, or on the communicator's stream.
  absl::Status Copy(void* to, const void* from, int64_t bytes);
  // Copies between the pack and its spans.
  absl::Status MovePack(const std::vector<Span>& pack, bool in);
  // Waits for what has been enqueued.
  absl::Status Await();
  // Sends what has been packed, and unpacks it.
  absl::Status SendPack();
  absl::Status Send(Span span, std::shared_ptr<BufferOwner> memory);
  // Peers wait for collectives that this rank will not start.
  absl::Status Fail(const absl::Status& status);

  Communicator* const communicator_;
  DeviceQueue* const queue_;  // null: the CPU's memory
  const int root_;
  const absl::Duration timeout_;
  // Shared with what is in flight, which may outlive this object.
  std::shared_ptr<BufferOwner> buffer_;
  DevicePack* device_pack_ = nullptr;  // what that is, on a GPU
  std::vector<Span> pack_;
  int64_t pack_bytes_ = 0;
};

absl::Status RootBroadcast::Run(const std::vector<Span>& spans) {
  COXSWAIN_RETURN_IF_ERROR(Allocate(spans));
  for (const Span& span : spans) {
    if (span.bytes() >= kPackBytes) {
      COXSWAIN_RETURN_IF_ERROR(Send(AsBytes(span), nullptr));
      continue;
    }
    if (pack_bytes_ + span.bytes() > kPackBytes) {
      COXSWAIN_RETURN_IF_ERROR(SendPack());
    }
    pack_.push_back(span);
    pack_bytes_ += span.bytes();
  }
  COXSWAIN_RETURN_IF_ERROR(SendPack());
  return Await();
}

absl::Status RootBroadcast::Copy(void* to, const void* from, int64_t bytes) {
  if (bytes == 0) return absl::OkStatus();
  if (queue_ != nullptr) {
    return queue_->runtime().Copy(to, from, bytes, queue_->stream());
  }
  std::memcpy(to, from, static_cast<size_t>(bytes));
  return absl::OkStatus();
}

absl::Status RootBroadcast::Await() {
  if (queue_ == nullptr) return absl::OkStatus();
  // Until then the copies use the spans and the buffer.
  const absl::Status status = WaitHolding(queue_->Mark(), buffer_, timeout_);
  if (!status.ok()) return Fail(status);
  device_pack_->set_idle();
  return status;
}

absl::Status RootBroadcast::MovePack(const std::vector<Span>& pack, bool in) {
  char* at = static_cast<char*>(buffer_->span().data);
  for (const Span& span : pack) {
    const absl::Status copied = in ? Copy(at, span.data, span.bytes())
                                   : Copy(span.data, at, span.bytes());
    if (!copied.ok()) return Fail(copied);
    at += span.bytes();
  }
  return absl::OkStatus();
}

absl::Status RootBroadcast::Allocate(const std::vector<Span>& spans) {
  int64_t packed = 0;
  for (const Span& span : spans) {
    if (span.bytes() < kPackBytes) packed += span.bytes();
  }
  packed = std::min(packed, kPackBytes);
  if (queue_ != nullptr) {
    auto pack = DevicePack::Make(queue_->runtime(), packed);
    if (!pack.ok()) return Fail(pack.status());
    device_pack_ = pack->get();
    buffer_ = std::move(pack).value();
    return absl::OkStatus();
  }
  auto buffer = communicator_->AllocateBuffer(packed, DType::kUInt8);
  if (!buffer.ok()) return Fail(buffer.status());
  buffer_ = std::move(buffer).value();
  return absl::OkStatus();
}

absl::Status RootBroadcast::SendPack() {
  const std::vector<Span> pack = std::exchange(pack_, {});
  const int64_t total = std::exchange(pack_bytes_, 0);
  if (total == 0) return absl::OkStatus();
  const Span packed = buffer_->span().Slice(0, total);
  const bool is_root = communicator_->rank() == root_;
  if (is_root) COXSWAIN_RETURN_IF_ERROR(MovePack(pack, /*in=*/true));
  COXSWAIN_RETURN_IF_ERROR(Send(packed, buffer_));
  return is_root ? absl::OkStatus() : MovePack(pack, /*in=*/false);
}

absl::Status RootBroadcast::Send(Span span,
                                 std::shared_ptr<BufferOwner> memory) {
  const WorkPtr work = communicator_->Broadcast(span, root_);
  const absl::Status status = WaitHolding(work, std::move(memory), timeout_);
  if (status.ok()) return status;
  const absl::Status failed = Fail(status);
  // Aborted, it ends soon; until then it uses the caller's memory.
  (void)work->Wait(timeout_);
  return failed;
}

absl::Status RootBroadcast::Fail(const absl::Status& status) {
  absl::Status failed = WithPrefix("broadcast: ", status);
  communicator_->Abort(failed.message());
  return failed;
}

}  // namespace

absl::Status BroadcastSpans(Communicator& communicator,
                            const std::vector<Span>& spans, int root,
                            absl::Duration timeout) {
  COXSWAIN_RETURN_IF_ERROR(CheckDevice(spans, communicator));
  return RootBroadcast(&communicator, root, timeout).Run(spans);
}

}  // namespace coxswain
