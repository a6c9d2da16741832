#include "server/rpc/exchange_call.h"

#include <cstddef>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/crc32c.h"
#include "base/grpc_status.h"
#include "base/status_macros.h"
#include "server/rpc/proto_conversion.h"
#include "transport/chunk_codec.h"

namespace coxswain::server {
namespace {

// Pieces up to this size travel in one message with their operation's id, which
// costs a copy and spares a message.
constexpr size_t kSmallPiece = 16 << 10;

std::string Joined(const bulk::Payload& payload) {
  std::string bytes;
  bytes.reserve(payload.size());
  for (const absl::string_view piece : payload.pieces()) {
    bytes.append(piece.data(), piece.size());
  }
  return bytes;
}

// Of the bytes of a delivery; that of the whole chunk is known.
uint32_t PieceChecksum(const Delivery& delivery) {
  if (delivery.chunk == nullptr) return Crc32c("");
  const bool whole = delivery.size == delivery.chunk->bytes.size();
  return whole ? delivery.chunk->crc32c : Crc32c(delivery.bytes());
}

grpc::ByteBuffer Small(const Delivery& delivery) {
  v1::ExchangeResponse response;
  response.set_operation_id(delivery.operation);
  if (!delivery.status.ok()) {
    response.set_error(static_cast<int>(delivery.status.code()));
    response.set_message(std::string(delivery.status.message()));
    return bulk::Encode(response);
  }
  const absl::string_view bytes = delivery.bytes();
  response.mutable_chunk()->set_offset(delivery.offset);
  response.mutable_chunk()->set_data(bytes.data(), bytes.size());
  response.mutable_chunk()->set_crc32c(PieceChecksum(delivery));
  return bulk::Encode(response);
}

grpc::ByteBuffer Large(const Delivery& delivery) {
  return bulk::EncodeChunk(v1::ExchangeResponse::kChunkFieldNumber,
                           delivery.offset, PieceChecksum(delivery),
                           bulk::Lend(delivery.bytes(), delivery.chunk));
}

absl::StatusOr<Reduction> TakeReduction(v1::Reduction reduction) {
  switch (reduction) {
    case v1::REDUCTION_SET:
      return Reduction::kSet;
    case v1::REDUCTION_SUM:
      return Reduction::kSum;
    case v1::REDUCTION_MIN:
      return Reduction::kMin;
    case v1::REDUCTION_MAX:
      return Reduction::kMax;
    case v1::REDUCTION_CONCAT:
      return Reduction::kConcat;
    default:
      return absl::InvalidArgumentError(
          absl::StrCat("there is no reduction ", static_cast<int>(reduction)));
  }
}

absl::StatusOr<CollectiveOperation> CollectiveOperationOf(
    const v1::ExchangeOperation& message) {
  CollectiveOperation operation;
  operation.id = message.id();
  operation.name = message.name();
  operation.version = message.version();
  COXSWAIN_ASSIGN_OR_RETURN(operation.reduction,
                            TakeReduction(message.reduction()));
  operation.dtype = message.dtype();
  operation.bytes = message.bytes();
  operation.root = message.root();
  operation.peer = message.peer();
  operation.what = message.what();
  operation.range.offset = message.range().offset();
  operation.range.bytes = message.range().bytes();
  operation.range.stride = message.range().stride();
  operation.range.count = message.range().count();
  operation.timeout = absl::Milliseconds(message.timeout_ms());
  return operation;
}

}  // namespace

ExchangeCall* ExchangeCall::Start(const RpcOptions& options,
                                  ParameterStore* parameters,
                                  const FenceValidator* validator,
                                  grpc::CallbackServerContext* context) {
  std::shared_ptr<ExchangeCall> call(
      new ExchangeCall(parameters, validator, context));
  call->self_ = call;
  call->outbox_ = std::make_shared<Outbox>(
      [weak = std::weak_ptr<ExchangeCall>(call)] {
        const auto strong = weak.lock();
        if (strong != nullptr) strong->Advance();
      },
      parameters->limits().max_outbox_bytes);
  call->open_deadline_.emplace(context, options.first_message_timeout,
                               "the stream's first message did not come");
  call->StartRead(&call->request_);
  return call.get();
}

void ExchangeCall::OnReadDone(bool ok) {
  absl::Status status =
      ok ? Take() : absl::CancelledError("the worker closed the stream");
  request_.Clear();
  // A worker that does not read may go on writing.
  if (status.ok()) status = outbox_->ended().value_or(absl::OkStatus());
  if (status.ok()) {
    StartRead(&request_);
    return;
  }
  open_deadline_.reset();
  // Now, and not once the stream has ended: others wait for it.
  participant_.reset();
  End(ok ? status : absl::OkStatus());
}

absl::Status ExchangeCall::Take() {
  v1::ExchangeRequest message;
  COXSWAIN_ASSIGN_OR_RETURN(const std::optional<bulk::Chunk> chunk,
                            bulk::Decode(request_, &message));
  if (message.has_open()) return TakeOpen(message.open());
  if (participant_ == nullptr) {
    return absl::InvalidArgumentError("an Exchange stream begins with open");
  }
  if (message.has_operation()) {
    COXSWAIN_RETURN_IF_ERROR(TakeOperation(message.operation()));
  }
  if (!chunk.has_value()) return absl::OkStatus();
  return participant_->Append(reading_operation_, chunk->offset,
                              Joined(chunk->data), chunk->crc32c);
}

absl::Status ExchangeCall::TakeOpen(const v1::ExchangeOpen& open) {
  if (participant_ != nullptr) {
    return absl::InvalidArgumentError("an Exchange stream is opened once");
  }
  const Fence fence = FromProto(open.fence());
  COXSWAIN_ASSIGN_OR_RETURN(const Caller caller, validator_->Admit(fence));
  if (open.size() > caller.world_size) {
    return absl::InvalidArgumentError(absl::StrCat("a group of ", open.size(),
                                                   " ranks in a world of ",
                                                   caller.world_size));
  }
  COXSWAIN_ASSIGN_OR_RETURN(
      participant_, parameters_->JoinGroup(fence, open.group(), open.rank(),
                                           open.size(), outbox_));
  open_deadline_.reset();
  {
    MutexLock lock(&mutex_);
    opened_ = true;
  }
  Advance();
  return absl::OkStatus();
}

absl::Status ExchangeCall::TakeOperation(
    const v1::ExchangeOperation& operation) {
  COXSWAIN_ASSIGN_OR_RETURN(const CollectiveOperation taken,
                            CollectiveOperationOf(operation));
  reading_operation_ = taken.id;
  return participant_->Begin(taken);
}

void ExchangeCall::OnWriteDone(bool ok) {
  {
    MutexLock lock(&mutex_);
    writing_ = false;
    write_deadline_.reset();
    response_.Clear();  // it may hold a chunk
  }
  if (!ok) End(absl::CancelledError("the connection was lost"));
  Advance();
}

void ExchangeCall::End(const absl::Status& status) {
  {
    MutexLock lock(&mutex_);
    if (!end_.has_value()) end_ = status;
  }
  outbox_->End(status);
  Advance();
}

bool ExchangeCall::NextLocked() {
  if (opened_) {
    opened_ = false;
    v1::ExchangeResponse opened;
    opened.set_opened(true);
    response_ = bulk::Encode(opened);
    return true;
  }
  if (!next_.has_value()) next_ = outbox_->Take();
  if (!next_.has_value()) return false;
  if (!next_->status.ok() || next_->size <= kSmallPiece) {
    writing_operation_ = next_->operation;
    response_ = Small(*next_);
  } else if (writing_operation_ != next_->operation) {
    writing_operation_ = next_->operation;
    v1::ExchangeResponse turn;
    turn.set_operation_id(writing_operation_);
    response_ = bulk::Encode(turn);
    return true;  // and the piece after it
  } else {
    response_ = Large(*next_);
  }
  next_.reset();
  return true;
}

void ExchangeCall::HastenLocked() {
  if (hastened_) return;
  hastened_ = true;
  write_deadline_.emplace(context_, parameters_->limits().end_grace,
                          "the stream has ended, and the worker did not read "
                          "what it was sent before");
}

void ExchangeCall::Advance() {
  std::optional<absl::Status> end = outbox_->ended();
  {
    MutexLock lock(&mutex_);
    if (finished_) return;
    if (end_.has_value()) end = end_;
    if (writing_) {
      if (end.has_value()) HastenLocked();
      return;
    }
    if (!end.has_value()) {
      writing_ = NextLocked();
      if (!writing_) return;
      write_deadline_.emplace(context_, parameters_->limits().max_write_time,
                              "the worker did not read what it was sent");
      // gRPC never calls back from within StartWrite.
      StartWrite(&response_);
      return;
    }
    finished_ = true;
  }
  Finish(ToGrpcStatus(*end));
}

void ExchangeCall::OnDone() {
  const std::shared_ptr<ExchangeCall> self = std::move(self_);
  participant_.reset();
}

}  // namespace coxswain::server
