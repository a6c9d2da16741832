#include "client/comm/tcp/connections.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/clock.h"
#include "base/random.h"
#include "base/status_macros.h"
#include "base/status_prefix.h"
#include "client/comm/hosts.h"
#include "client/comm/tcp/hello.h"
#include "client/comm/tcp/lookup.h"
#include "client/comm/tcp/meeting.h"
#include "client/comm/tcp/tcp_socket.h"

namespace coxswain {
namespace {

// One connection is as fast as the processors within a host. Between hosts a
// network may give each of them a share only; a process has descriptors for so
// many.
uint32_t ChooseStripes(int size, bool same_host) {
  constexpr int kBetweenHosts = 4;
  constexpr int kOfAllPeers = 64;
  if (same_host) return 1;
  return static_cast<uint32_t>(
      std::clamp(kOfAllPeers / size, 1, kBetweenHosts));
}

// While it lives, raises a WakeFd when the signal is.
class WakeOnCancel {
 public:
  WakeOnCancel(CancelSignal* cancel, const std::shared_ptr<WakeFd>& wake)
      : cancel_(cancel) {
    if (cancel_ != nullptr) id_ = cancel_->OnRaise([wake] { wake->Raise(); });
  }
  ~WakeOnCancel() {
    if (cancel_ != nullptr) cancel_->Forget(id_);
  }
  WakeOnCancel(const WakeOnCancel&) = delete;
  WakeOnCancel& operator=(const WakeOnCancel&) = delete;

 private:
  CancelSignal* const cancel_;
  uint64_t id_ = 0;
};

absl::Duration TimeToConnect(const CommunicatorOptions& options) {
  return std::min(options.timeout, options.connect_timeout);
}

// One rank's part of the meeting.
class Meeting {
 public:
  Meeting(const CommunicatorOptions& options, int stripes, uint64_t host_id)
      : options_(options),
        stripes_(stripes),
        host_id_(host_id),
        end_(Clock::Real()->Now() + TimeToConnect(options)),
        pairs_(options) {}

  absl::Status Run();
  TcpConnections TakeConnections();

 private:
  absl::Status Publish();
  absl::Status OnlyOneEncrypts(int peer) const;
  absl::Status BeginCalls(PlaceLookup* lookup);
  absl::Status Late() const;

  const CommunicatorOptions& options_;
  const int stripes_;
  const uint64_t host_id_;
  const absl::Time end_;
  const std::shared_ptr<WakeFd> wake_ = std::make_shared<WakeFd>();
  TcpPlace own_;
  TcpPairs pairs_;
  std::optional<Acceptor> acceptor_;
  std::optional<CallerSide> caller_;
};

absl::Status Meeting::Publish() {
  if (!wake_->valid()) {
    return absl::ResourceExhaustedError("no descriptors are left");
  }
  COXSWAIN_ASSIGN_OR_RETURN(TcpListener listener, ListenTcp(options_.address));
  std::shared_ptr<const TlsKeys> keys;
  if (options_.encrypts) {
    COXSWAIN_ASSIGN_OR_RETURN(keys, TlsKeys::Make(options_));
  }
  RandomSource* const random = RandomSource::System();
  own_ = {listener.address, random->Next(), random->Next(), host_id_,
          options_.encrypts};
  acceptor_.emplace(options_, own_, keys, std::move(listener));
  caller_.emplace(options_, own_, keys);
  return options_.store->Set(PlaceLookup::Key(options_, options_.rank),
                             EncodePlace(own_));
}

absl::Status Meeting::OnlyOneEncrypts(int peer) const {
  const int encrypts = own_.encrypts ? options_.rank : peer;
  const int does_not = own_.encrypts ? peer : options_.rank;
  return absl::FailedPreconditionError(absl::StrCat(
      "rank ", encrypts, " encrypts its data connections, and rank ", does_not,
      " does not: let all workers speak TLS with the coordinator, and give "
      "COXSWAIN_PLAIN_DATA to all of them or to none"));
}

absl::Status Meeting::BeginCalls(PlaceLookup* lookup) {
  for (const auto& [peer, place] : lookup->Take()) {
    if (!place.ok()) {
      return WithPrefix(absl::StrCat("rank ", peer, ": "), place.status());
    }
    if (place->encrypts != own_.encrypts) return OnlyOneEncrypts(peer);
    const uint32_t stripes =
        stripes_ > 0 ? static_cast<uint32_t>(std::min(stripes_, kMaxStripes))
                     : ChooseStripes(options_.size, place->host == own_.host);
    COXSWAIN_RETURN_IF_ERROR(caller_->Begin(peer, *place, 1 + stripes));
  }
  return absl::OkStatus();
}

absl::Status Meeting::Late() const {
  return absl::DeadlineExceededError(absl::StrCat(
      "not all ranks came within ",
      absl::FormatDuration(TimeToConnect(options_)), "; missing: rank ",
      absl::StrJoin(pairs_.Missing(), ", rank ")));
}

absl::Status Meeting::Run() {
  COXSWAIN_RETURN_IF_ERROR(Publish());
  const WakeOnCancel wake_on_cancel(options_.cancel, wake_);
  PlaceLookup lookup(options_, end_, wake_);
  while (true) {
    wake_->Clear();
    if (options_.cancel != nullptr) {
      COXSWAIN_RETURN_IF_ERROR(options_.cancel->status());
    }
    const absl::Time now = Clock::Real()->Now();
    COXSWAIN_RETURN_IF_ERROR(BeginCalls(&lookup));
    COXSWAIN_RETURN_IF_ERROR(acceptor_->Advance(now, &pairs_));
    COXSWAIN_RETURN_IF_ERROR(caller_->Advance(&pairs_));
    if (pairs_.Missing().empty()) return absl::OkStatus();
    if (now >= end_) return Late();
    std::vector<pollfd> entries = {{wake_->get(), POLLIN, 0}};
    acceptor_->AddEntries(&entries);
    caller_->AddEntries(&entries);
    PollUntil(&entries, std::min(end_, acceptor_->NextExpiry()));
  }
}

TcpConnections Meeting::TakeConnections() {
  TcpConnections connections;
  for (int peer = 0; peer < options_.size; ++peer) {
    TcpLinks links;
    std::vector<TcpStream> streams = pairs_.Release(peer);
    for (size_t index = 0; index < streams.size(); ++index) {
      if (index == 0) {
        links.control = std::move(streams[index]);
        KeepAlive(links.control.socket());
      } else {
        links.data.push_back(std::move(streams[index]));
      }
    }
    connections.host_ids.push_back(peer == options_.rank ? own_.host
                                                         : pairs_.host(peer));
    connections.links.push_back(std::move(links));
  }
  return connections;
}

}  // namespace

absl::StatusOr<TcpConnections> ConnectRanks(const CommunicatorOptions& options,
                                            int stripes, uint64_t host_id) {
  Meeting meeting(options, stripes,
                  host_id == 0 ? StableHash(HostIdentity()) : host_id);
  const absl::Status status = meeting.Run();
  if (status.ok()) return meeting.TakeConnections();
  // The signal's own status is what its user looks for.
  if (options.cancel != nullptr && !options.cancel->status().ok()) {
    return options.cancel->status();
  }
  return WithPrefix(absl::StrCat("connecting rank ", options.rank, " of ",
                                 options.size, " of communicator '", options.id,
                                 "' at ", options.address, ": "),
                    status);
}

}  // namespace coxswain
