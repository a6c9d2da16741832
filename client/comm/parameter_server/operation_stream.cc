#include "client/comm/parameter_server/operation_stream.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/crc32c.h"
#include "base/tensor_chunk.h"

namespace coxswain {
namespace {

// Parts up to this size travel in one message with their operation.
constexpr int64_t kSmallPart = 16 << 10;

uint32_t ChecksumOf(const ExchangeEvent& event) {
  uint32_t checksum = 0;
  for (const absl::string_view piece : event.pieces) {
    checksum = Crc32c(piece, checksum);
  }
  return checksum;
}

int64_t SizeOf(const ExchangeEvent& event) {
  int64_t size = 0;
  for (const absl::string_view piece : event.pieces) {
    size += static_cast<int64_t>(piece.size());
  }
  return size;
}

// Where in the output these bytes of the tensor go, or -1.
int64_t PlaceOf(const v1::PullRange& range, int64_t offset, int64_t size) {
  const int64_t within = offset - range.offset();
  if (within < 0) return -1;
  const int64_t run = range.stride() > 0 ? within / range.stride() : 0;
  const int64_t begin = within - run * range.stride();
  if (run >= range.count() || begin + size > range.bytes()) return -1;
  return run * range.bytes() + begin;
}

}  // namespace

// Guarded by the exchange's lock.
class OperationStream::Operation {
 public:
  explicit Operation(const TensorTransfer& transfer_in)
      : transfer(transfer_in) {}

  bool sent_all() const { return begun && sent == transfer.input_bytes(); }
  bool received_all() const {
    return answered && received == transfer.output_bytes();
  }

  TensorTransfer transfer;
  bool begun = false;     // its first message is written
  bool answered = false;  // by a first chunk
  int64_t sent = 0;
  int64_t received = 0;
  std::optional<absl::Status> end;
};

OperationStream::OperationStream(
    std::shared_ptr<ParameterStub> stub, std::shared_ptr<TransferBytes> bytes,
    std::function<void(const absl::Status&)> on_generation_end)
    : stub_(std::move(stub)),
      bytes_(std::move(bytes)),
      on_generation_end_(std::move(on_generation_end)) {}

OperationStream::~OperationStream() {
  Close(absl::AbortedError("the communicator was destroyed"));
  std::unique_ptr<ExchangeStream> stream;
  {
    MutexLock lock(&mutex_);
    stream = std::move(stream_);
  }
}

absl::Status OperationStream::Open(const v1::ExchangeOpen& open,
                                   absl::Duration timeout) {
  ExchangeCallbacks callbacks;
  callbacks.on_event = [this](const ExchangeEvent& event) { OnEvent(event); };
  callbacks.on_written = [this] { OnWritten(); };
  callbacks.on_end = [this](const absl::Status& status) { OnEnd(status); };
  v1::ExchangeRequest request;
  *request.mutable_open() = open;
  MutexLock lock(&mutex_);
  if (!closed_.ok()) return closed_;
  stream_ = stub_->Exchange(std::move(callbacks));
  writing_ = true;
  stream_->Write(request);
  const bool ended = changed_.WaitFor(&mutex_, timeout,
                                      [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
                                        return opened_ || !closed_.ok();
                                      });
  if (ended) return closed_;
  return absl::DeadlineExceededError(
      absl::StrCat("the coordinator at ", stub_->address(),
                   " has not opened the exchange of rank ", open.rank(),
                   " within ", absl::FormatDuration(timeout)));
}

OperationStream::OperationPtr OperationStream::Begin(
    const TensorTransfer& transfer) {
  auto operation = std::make_shared<Operation>(transfer);
  MutexLock lock(&mutex_);
  operation->transfer.operation.set_id(++last_id_);
  if (!closed_.ok()) {
    operation->end = closed_;
    return operation;
  }
  active_[last_id_] = operation;
  to_send_.push_back(operation);
  PumpLocked();
  return operation;
}

std::optional<absl::Status> OperationStream::Wait(const OperationPtr& operation,
                                                  absl::Time until) {
  MutexLock lock(&mutex_);
  changed_.WaitFor(&mutex_, until - Clock::Real()->Now(),
                   [&]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
                     return operation->end.has_value();
                   });
  return operation->end;
}

absl::Status OperationStream::Abandon(const OperationPtr& operation,
                                      const absl::Status& why) {
  MutexLock lock(&mutex_);
  EndLocked(operation.get(), why);
  return *operation->end;
}

void OperationStream::Close(const absl::Status& why) {
  MutexLock lock(&mutex_);
  CloseLocked(why);
  if (stream_ != nullptr) stream_->Cancel();
}

void OperationStream::CloseLocked(const absl::Status& why) {
  if (!closed_.ok()) return;
  closed_ = why;
  to_send_.clear();
  const auto active = std::move(active_);
  active_.clear();
  for (const auto& [id, operation] : active) EndLocked(operation.get(), why);
  changed_.NotifyAll();
}

void OperationStream::EndLocked(Operation* operation,
                                const absl::Status& status) {
  if (operation->end.has_value()) return;
  operation->end = status;
  active_.erase(operation->transfer.operation.id());
  to_send_.erase(std::remove_if(to_send_.begin(), to_send_.end(),
                                [&](const OperationPtr& queued) {
                                  return queued.get() == operation;
                                }),
                 to_send_.end());
  changed_.NotifyAll();
}

void OperationStream::PumpLocked() {
  if (writing_ || !closed_.ok() || to_send_.empty()) return;
  writing_ = true;
  const OperationPtr first = to_send_.front();
  SendLocked(first.get());
  if (!first->sent_all()) return;
  to_send_.pop_front();
  if (first->received_all()) EndLocked(first.get(), absl::OkStatus());
}

void OperationStream::SendLocked(Operation* operation) {
  const TensorTransfer& transfer = operation->transfer;
  const int64_t left = transfer.input_bytes() - operation->sent;
  const int64_t size = std::min(left, kTensorChunkBytes);
  const absl::string_view bytes(transfer.input + operation->sent,
                                static_cast<size_t>(size));
  if (operation->begun) {
    bytes_->AddSent(stream_->WriteChunk(operation->sent, Crc32c(bytes), bytes));
    operation->sent += size;
    return;
  }
  v1::ExchangeRequest request;
  *request.mutable_operation() = transfer.operation;
  if (left > 0 && left <= kSmallPart) {
    request.mutable_chunk()->set_data(bytes.data(), bytes.size());
    request.mutable_chunk()->set_crc32c(Crc32c(bytes));
    operation->sent = left;
  }
  operation->begun = true;
  bytes_->AddSent(stream_->Write(request));
}

void OperationStream::OnWritten() {
  MutexLock lock(&mutex_);
  writing_ = false;
  PumpLocked();
}

void OperationStream::OnEvent(const ExchangeEvent& event) {
  MutexLock lock(&mutex_);
  if (event.head.opened()) {
    opened_ = true;
    changed_.NotifyAll();
  }
  ReceiveLocked(event);
}

void OperationStream::ReceiveLocked(const ExchangeEvent& event) {
  if (event.head.operation_id() != 0) receiving_ = event.head.operation_id();
  const auto it = active_.find(receiving_);
  if (it == active_.end()) return;  // it has ended here
  const OperationPtr operation = it->second;
  const TensorTransfer& transfer = operation->transfer;
  if (event.head.error() != 0) {
    EndLocked(operation.get(),
              absl::Status(static_cast<absl::StatusCode>(event.head.error()),
                           event.head.message()));
    return;
  }
  if (!event.has_chunk) return;
  const int64_t size = SizeOf(event);
  int64_t place = PlaceOf(transfer.operation.range(), event.offset, size);
  if (size == 0) place = 0;
  if (place < 0 || ChecksumOf(event) != event.crc32c) {
    EndLocked(operation.get(),
              absl::DataLossError(absl::StrCat(
                  "a chunk of ", size, " bytes at ", event.offset,
                  " does not match its checksum or was not asked for")));
    return;
  }
  for (const absl::string_view piece : event.pieces) {
    if (piece.empty()) continue;  // the output of no elements may be null
    std::memcpy(transfer.output + place, piece.data(), piece.size());
    place += static_cast<int64_t>(piece.size());
  }
  operation->answered = true;
  operation->received += size;
  if (operation->received_all() && operation->sent_all()) {
    EndLocked(operation.get(), absl::OkStatus());
  }
}

void OperationStream::OnEnd(const absl::Status& status) {
  const bool generation = absl::IsAborted(status);
  absl::Status why = status;
  if (!generation && !absl::IsUnavailable(status)) {
    // A limit is not cured by another attempt, so its code is kept.
    const auto code = absl::IsResourceExhausted(status)
                          ? absl::StatusCode::kResourceExhausted
                          : absl::StatusCode::kUnavailable;
    why = absl::Status(
        code, absl::StrCat(
                  "the exchange through the coordinator at ", stub_->address(),
                  " has ended: ", status.ok() ? "it closed the stream" : "",
                  status.message()));
  }
  {
    MutexLock lock(&mutex_);
    if (!opened_ && !status.ok()) why = status;
    CloseLocked(why);
  }
  if (generation && on_generation_end_ != nullptr) on_generation_end_(why);
}

}  // namespace coxswain
