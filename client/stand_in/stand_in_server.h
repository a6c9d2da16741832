#ifndef COXSWAIN_CLIENT_STAND_IN_STAND_IN_SERVER_H_
#define COXSWAIN_CLIENT_STAND_IN_STAND_IN_SERVER_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/tls_files.h"
#include "client/stand_in/stand_in_desk.h"

namespace coxswain {

// Lets the other ranks come to the stand-in's desk: Rendezvous.Attach over
// gRPC, and nothing else. Made by the session of rank 0. Thread-safe.
//
// What peers control is bounded: the size of a message, the streams of one
// connection, the streams that have not said hello (one more ends the oldest),
// and what waits for a rank that does not read (its visit ends).
class StandInServer {
 public:
  // Listens on any free port of this address, for members of this job.
  // UNAVAILABLE if that cannot be, FAILED_PRECONDITION if the coordinator is
  // spoken to in secret and this worker has no certificate.
  static absl::StatusOr<std::unique_ptr<StandInServer>> Start(
      absl::string_view host, std::shared_ptr<StandInDesk> desk,
      const std::string& job = "", const ClientSecurity& security = {});

  // Ends all streams, and waits until none is left.
  ~StandInServer();
  StandInServer(const StandInServer&) = delete;
  StandInServer& operator=(const StandInServer&) = delete;

  const std::string& address() const;  // host:port

 private:
  struct Parts;
  explicit StandInServer(std::unique_ptr<Parts> parts);
  const std::unique_ptr<Parts> parts_;
};

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_STAND_IN_STAND_IN_SERVER_H_
