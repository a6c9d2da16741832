#include "client/reduce/root_broadcast.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>

#include "base/status_macros.h"
#include "base/status_prefix.h"
#include "client/comm/tensor.h"
#include "client/comm/wait_holding.h"
#include "client/comm/work.h"

namespace coxswain {
namespace {

// Spans below this size travel together, at most so many bytes at once.
constexpr int64_t kPackBytes = 25 << 20;

absl::Status CheckOnHost(const std::vector<Span>& spans) {
  for (const Span& span : spans) {
    if (span.device.kind == Device::Kind::kCpu) continue;
    return absl::UnimplementedError(
        "broadcast: a span is not in host memory; copy it there first");
  }
  return absl::OkStatus();
}

Span AsBytes(const Span& span) {
  Span bytes = span;
  bytes.count = span.bytes();
  bytes.dtype = DType::kUInt8;
  return bytes;
}

// memcpy wants valid pointers even for nothing.
void CopyBytes(void* to, const void* from, int64_t bytes) {
  if (bytes > 0) std::memcpy(to, from, static_cast<size_t>(bytes));
}

class RootBroadcast {
 public:
  RootBroadcast(Communicator* communicator, int root, absl::Duration timeout)
      : communicator_(communicator), root_(root), timeout_(timeout) {}

  absl::Status Run(const std::vector<Span>& spans);

 private:
  absl::Status Allocate(const std::vector<Span>& spans);
  // Sends what has been packed, and unpacks it.
  absl::Status SendPack();
  absl::Status Send(Span span, std::shared_ptr<BufferOwner> memory);
  // Peers wait for collectives that this rank will not start.
  absl::Status Fail(const absl::Status& status);

  Communicator* const communicator_;
  const int root_;
  const absl::Duration timeout_;
  // Shared with what is in flight, which may outlive this object.
  std::shared_ptr<BufferOwner> buffer_;
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
  return SendPack();
}

absl::Status RootBroadcast::Allocate(const std::vector<Span>& spans) {
  int64_t packed = 0;
  for (const Span& span : spans) {
    if (span.bytes() < kPackBytes) packed += span.bytes();
  }
  auto buffer = communicator_->AllocateBuffer(std::min(packed, kPackBytes),
                                              DType::kUInt8);
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
  char* at = static_cast<char*>(packed.data);
  for (const Span& span : pack) {
    if (is_root) CopyBytes(at, span.data, span.bytes());
    at += span.bytes();
  }
  COXSWAIN_RETURN_IF_ERROR(Send(packed, buffer_));
  at = static_cast<char*>(packed.data);
  for (const Span& span : pack) {
    if (!is_root) CopyBytes(span.data, at, span.bytes());
    at += span.bytes();
  }
  return absl::OkStatus();
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
  COXSWAIN_RETURN_IF_ERROR(CheckOnHost(spans));
  return RootBroadcast(&communicator, root, timeout).Run(spans);
}

}  // namespace coxswain
