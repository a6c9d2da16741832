#ifndef COXSWAIN_CLIENT_RPC_PARAMETER_STUB_H_
#define COXSWAIN_CLIENT_RPC_PARAMETER_STUB_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/cancel_signal.h"
#include "base/element_type.h"
#include "base/tls_files.h"
#include "proto/parameter.pb.h"

namespace coxswain {

// An event of an Exchange stream. `pieces` lie in the library's buffers, for
// the time of the callback.
struct ExchangeEvent {
  v1::ExchangeResponse head;  // without a chunk
  bool has_chunk = false;
  int64_t offset = 0;
  uint32_t crc32c = 0;
  std::vector<absl::string_view> pieces;
};

// The Exchange stream of one rank of one group. One message is written at a
// time: after each, on_written is called before the next may be written.
// Destroying it ends it; no callback is called after that, so it must not be
// destroyed from within one.
class ExchangeStream {
 public:
  virtual ~ExchangeStream() = default;
  // Both copy their argument, return at once, and do nothing once the stream
  // has ended. They return the size of the message.
  virtual int64_t Write(const v1::ExchangeRequest& request) = 0;
  virtual int64_t WriteChunk(int64_t offset, uint32_t crc32c,
                             absl::string_view bytes) = 0;
  // Ends the stream soon, from any thread.
  virtual void Cancel() = 0;
};

// Called one at a time, except that on_written may overlap with the others; on
// threads of the library, without a lock.
struct ExchangeCallbacks {
  std::function<void(const ExchangeEvent&)> on_event;
  std::function<void()> on_written;
  std::function<void(const absl::Status&)> on_end;  // the last one
};

// coxswain.v1.Parameter on a connection of its own: a member's heartbeats and
// tickets do not queue behind its gradients. Statuses are those of
// proto/parameter.proto, and UNAVAILABLE when the connection is lost.
// Thread-safe.
class ParameterStub {
 public:
  virtual ~ParameterStub() = default;

  virtual std::unique_ptr<ExchangeStream> Exchange(
      ExchangeCallbacks callbacks) = 0;
  virtual std::string address() const = 0;
};

// Connects to the coordinator at HOST:PORT, or to the leader of several with
// commas between: the others do not listen. Blocks until connected. Fails with
// UNAVAILABLE if none is found in time, and with the status of `cancel` (may be
// null) when that is raised.
absl::StatusOr<std::shared_ptr<ParameterStub>> ConnectParameterStub(
    const std::string& addresses, const ClientSecurity& security,
    absl::Duration timeout, CancelSignal* cancel);

// Returns a reduction in the parameter service's enum.
inline v1::Reduction ToWire(ElementOp op) {
  switch (op) {
    case ElementOp::kMin:
      return v1::REDUCTION_MIN;
    case ElementOp::kMax:
      return v1::REDUCTION_MAX;
    case ElementOp::kSum:
      break;
  }
  return v1::REDUCTION_SUM;
}

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_RPC_PARAMETER_STUB_H_
