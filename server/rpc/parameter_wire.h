#ifndef COXSWAIN_SERVER_RPC_PARAMETER_WIRE_H_
#define COXSWAIN_SERVER_RPC_PARAMETER_WIRE_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "proto/parameter.pb.h"
#include "server/parameter/exchange_operation.h"
#include "server/parameter/outbox.h"

namespace coxswain::server {

// Messages of the Parameter service as the room's structs.

absl::StatusOr<Reduction> TakeReduction(v1::Reduction reduction);
absl::StatusOr<ExchangeOperation> TakeExchangeOperation(
    const v1::ExchangeOperation& message);
absl::StatusOr<TensorSpec> TakeSpec(const v1::PushHeader& header);

// Of the bytes of a delivery; that of the whole chunk is known.
uint32_t PieceChecksum(const Delivery& delivery);

}  // namespace coxswain::server

#endif  // COXSWAIN_SERVER_RPC_PARAMETER_WIRE_H_
