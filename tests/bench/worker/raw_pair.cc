#include "tests/bench/worker/raw_pair.h"

#include <poll.h>

#include <algorithm>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/clock.h"
#include "base/status_macros.h"
#include "client/comm/tcp/tcp_socket.h"

namespace coxswain::bench {
namespace {

constexpr char kKey[] = "raw-pair";
// As the back end's chunks.
constexpr int64_t kMost = 256 << 10;

absl::Status AwaitSocket(const UniqueFd& socket, int events, absl::Time end) {
  std::vector<pollfd> entries = {{socket.get(), static_cast<short>(events), 0}};
  if (PollUntil(&entries, end) > 0 || Clock::Real()->Now() < end) {
    return absl::OkStatus();
  }
  return absl::DeadlineExceededError("the other rank did not come");
}

absl::StatusOr<UniqueFd> AcceptPeer(const CommunicatorOptions& options,
                                    absl::Time end) {
  COXSWAIN_ASSIGN_OR_RETURN(const TcpListener listener,
                            ListenTcp(options.address));
  COXSWAIN_RETURN_IF_ERROR(options.store->Set(
      kKey, absl::StrCat(listener.address.host, " ", listener.address.port)));
  while (true) {
    COXSWAIN_RETURN_IF_ERROR(AwaitSocket(listener.socket, POLLIN, end));
    COXSWAIN_ASSIGN_OR_RETURN(UniqueFd socket, AcceptTcp(listener.socket));
    if (socket.valid()) return socket;
  }
}

absl::StatusOr<UniqueFd> CallPeer(const CommunicatorOptions& options,
                                  absl::Time end) {
  COXSWAIN_ASSIGN_OR_RETURN(const std::string where,
                            options.store->Get(kKey, options.timeout));
  const std::vector<std::string> parts = absl::StrSplit(where, ' ');
  TcpAddress address = {parts.front(), 0};
  if (parts.size() != 2 || !absl::SimpleAtoi(parts.back(), &address.port)) {
    return absl::InternalError(absl::StrCat("no address and port: ", where));
  }
  COXSWAIN_ASSIGN_OR_RETURN(UniqueFd socket, BeginConnectTcp(address));
  COXSWAIN_RETURN_IF_ERROR(AwaitSocket(socket, POLLOUT, end));
  COXSWAIN_RETURN_IF_ERROR(ConnectResult(socket));
  return socket;
}

}  // namespace

absl::StatusOr<RawPair> RawPair::Connect(const CommunicatorOptions& options) {
  if (options.size != 2) {
    return absl::InvalidArgumentError("a raw pair has two ranks");
  }
  const absl::Time end = Clock::Real()->Now() + options.timeout;
  RawPair pair;
  COXSWAIN_ASSIGN_OR_RETURN(pair.socket_, options.rank == 0
                                              ? AcceptPeer(options, end)
                                              : CallPeer(options, end));
  return pair;
}

absl::Status RawPair::Exchange(int64_t bytes) {
  out_.resize(static_cast<size_t>(bytes), 1);
  in_.resize(static_cast<size_t>(bytes), 2);
  int64_t sent = 0;
  int64_t received = 0;
  while (sent < bytes || received < bytes) {
    int64_t moved = 0;
    if (sent < bytes) {
      const iovec part = {out_.data() + sent,
                          static_cast<size_t>(std::min(bytes - sent, kMost))};
      COXSWAIN_ASSIGN_OR_RETURN(const int64_t now, SendSome(socket_, &part, 1));
      sent += now;
      moved += now;
    }
    if (received < bytes) {
      COXSWAIN_ASSIGN_OR_RETURN(const int64_t now,
                                ReceiveSome(socket_, in_.data() + received,
                                            std::min(bytes - received, kMost)));
      received += now;
      moved += now;
    }
    if (moved > 0) continue;
    const int events =
        (sent < bytes ? POLLOUT : 0) | (received < bytes ? POLLIN : 0);
    COXSWAIN_RETURN_IF_ERROR(
        AwaitSocket(socket_, events, Clock::Real()->Now() + absl::Minutes(2)));
  }
  return absl::OkStatus();
}

}  // namespace coxswain::bench
