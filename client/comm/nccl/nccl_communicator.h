#ifndef COXSWAIN_CLIENT_COMM_NCCL_NCCL_COMMUNICATOR_H_
#define COXSWAIN_CLIENT_COMM_NCCL_NCCL_COMMUNICATOR_H_

#include <memory>

#include "absl/status/statusor.h"
#include "base/clock.h"
#include "client/comm/communicator.h"
#include "client/comm/nccl/nccl_api.h"
#include "client/device/runtime.h"

namespace coxswain {

// The back end between GPUs: NCCL 2.18 or newer. Has every ability but messages
// (NCCL's have no tags).
//
// Connects all ranks of options.id, each with the GPU options.device.index of
// its process, and blocks until they are connected: they meet in options.store
// (which may be null for one rank), and then in NCCL. All ranks must call it
// with the same id, size and timeout; an id is used once. Fails with
//   INVALID_ARGUMENT    options that are not valid
//   NOT_FOUND           no NCCL, or no such GPU; the message names what was
//                       looked for
//   UNIMPLEMENTED       a build without CUDA or NCCL
//   FAILED_PRECONDITION two ranks on one GPU, or with other versions of NCCL
//   DEADLINE_EXCEEDED   not all arrived in time; the message names one
//   UNAVAILABLE         NCCL could not connect
// and with what the store returns, or options.cancel was raised with.
//
// Collectives run on a stream of the communicator's own (device_queue()). Spans
// of that GPU's memory are used in place; spans of the CPU's are copied through
// pinned memory, which is meant for small amounts: they are read when the
// collective is started, and written just before its Work ends. A thread of the
// communicator's ends Works by polling the device's events; nothing here ever
// waits for a stream or for the device. NCCL connects some peers only when the
// first collective needs them: starting that one blocks until they have started
// it too, up to the timeout.
//
// After Abort, a failure or the coordinator's report of a lost peer (which NCCL
// notices itself only across a network), ncclCommAbort makes the kernels leave
// the stream, and Works end once all of it has, or 10 seconds later regardless.
// Sequences that were recorded end with it. Destruction lets NCCL finalize if
// nothing is in flight, and otherwise aborts; it takes up to about half a
// minute at worst, where the device or NCCL hang. Peers of a rank that aborted
// learn of it from the coordinator, or by their deadline.
//
// Communicators that are split off connect from the start: Split is called by
// members only, and ncclCommSplit would have to be called by all ranks.
//
// Ranks must agree on counts and types, which NCCL does not compare.
// wire_bytes() are those of a ring: NCCL does not report which way it took.
absl::StatusOr<std::unique_ptr<Communicator>> ConnectNccl(
    const CommunicatorOptions& options);

// Returns the same with this library, device and clock, which outlive it.
absl::StatusOr<std::unique_ptr<Communicator>> MakeNcclCommunicator(
    const CommunicatorOptions& options, NcclApi* api, DeviceRuntime* runtime,
    Clock* clock = Clock::Real());

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_COMM_NCCL_NCCL_COMMUNICATOR_H_
