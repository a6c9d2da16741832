#ifndef COXSWAIN_CLIENT_SESSION_NCCL_RAS_H_
#define COXSWAIN_CLIENT_SESSION_NCCL_RAS_H_

#include <cstddef>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace coxswain {

// Where an NCCL from 2.24 on tells of itself, unless NCCL_RAS_ADDR says
// otherwise.
inline constexpr char kNcclRasAddress[] = "localhost:28028";
// No more is read of what a local process says, nor for longer.
inline constexpr size_t kMostRasBytes = 64 * 1024;
inline constexpr absl::Duration kRasTimeout = absl::Seconds(2);

// What NCCL knows of the communicators of all ranks and of how far each is
// (its RAS, which runs on threads of its own, also while collectives hang): the
// text of its verbose status, for display. One process of the job on this host
// answers for all of them, or, where several jobs share the host, of another
// job, which the text says. Asked by Session when its job stands still.
//
// Blocks, `timeout` at most. `address` is HOST:PORT, where the host is
// "localhost" or an IP address; empty for the default.
//   INVALID_ARGUMENT    no such HOST:PORT
//   UNAVAILABLE         nobody listens there, or does not speak RAS
//   DEADLINE_EXCEEDED   no answer within `timeout`
// An answer that is too long, or does not end in time, is cut, and says so.
absl::StatusOr<std::string> ReadNcclRas(const std::string& address,
                                        absl::Duration timeout = kRasTimeout);

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_SESSION_NCCL_RAS_H_
