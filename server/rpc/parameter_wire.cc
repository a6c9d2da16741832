#include "server/rpc/parameter_wire.h"

#include "absl/strings/str_cat.h"
#include "base/crc32c.h"
#include "base/status_macros.h"

namespace coxswain::server {

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

absl::StatusOr<ExchangeOperation> TakeExchangeOperation(
    const v1::ExchangeOperation& message) {
  ExchangeOperation operation;
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

absl::StatusOr<TensorSpec> TakeSpec(const v1::PushHeader& header) {
  TensorSpec spec;
  COXSWAIN_ASSIGN_OR_RETURN(spec.reduction, TakeReduction(header.reduction()));
  spec.dtype = header.dtype();
  spec.bytes = header.bytes();
  spec.parts = header.parts();
  return spec;
}

uint32_t PieceChecksum(const Delivery& delivery) {
  if (delivery.chunk == nullptr) return Crc32c("");
  const bool whole = delivery.size == delivery.chunk->bytes.size();
  return whole ? delivery.chunk->crc32c : Crc32c(delivery.bytes());
}

}  // namespace coxswain::server
