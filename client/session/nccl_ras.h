#ifndef COXSWAIN_CLIENT_SESSION_NCCL_RAS_H_
#define COXSWAIN_CLIENT_SESSION_NCCL_RAS_H_

#include <cstddef>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace coxswain {

// Where an NCCL from 2.24 on reports its state, unless NCCL_RAS_ADDR is set.
inline constexpr char kNcclRasAddress[] = "localhost:28028";
// Bounds of what is read from a local process.
inline constexpr size_t kMostRasBytes = size_t{64} * 1024;
inline constexpr absl::Duration kRasTimeout = absl::Seconds(2);

// Returns NCCL's state of the communicators of all ranks (its RAS, which runs
// on threads of its own, also while collectives hang): the text of its verbose
// status, for display. One process of the job on this host answers for all of
// them, or, where several jobs share the host, of another job, which the text
// names. Called by Session when its job stalls.
//
// Blocks, `timeout` at most. `address` is HOST:PORT, where the host is
// "localhost" or an IP address; empty for the default.
//   INVALID_ARGUMENT    no such HOST:PORT
//   UNAVAILABLE         no process listens there, or it is not RAS
//   DEADLINE_EXCEEDED   no answer within `timeout`
// An answer that is too long, or does not end in time, is cut, which its text
// notes.
absl::StatusOr<std::string> ReadNcclRas(const std::string& address,
                                        absl::Duration timeout = kRasTimeout);

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_SESSION_NCCL_RAS_H_
