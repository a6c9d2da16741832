#include "base/frame_guard/frame_guard.h"

#include <dlfcn.h>

#include <atomic>
#include <map>
#include <memory>
#include <set>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/frame_guard/frame_scanner.h"
#include "base/logging.h"
#include "base/mutex.h"
#include "grpc/slice.h"

// gRPC's own, of which nothing but the names is known here.
struct grpc_chttp2_transport;
struct grpc_endpoint;
struct grpc_transport;
namespace grpc_core {
class ChannelArgs;
}
absl::string_view grpc_endpoint_get_peer(grpc_endpoint* endpoint);
absl::string_view grpc_endpoint_get_local_address(grpc_endpoint* endpoint);

namespace coxswain {
namespace {

constexpr char kCreate[] =
    "_Z28grpc_create_chttp2_transportRKN9grpc_core11ChannelArgsEP13grpc_"
    "endpointb";
constexpr char kRead[] =
    "_Z24grpc_chttp2_perform_readP21grpc_chttp2_transportRK10grpc_slice";
constexpr char kDestroy[] = "_ZN21grpc_chttp2_transportD1Ev";

using Create = grpc_transport* (*)(const grpc_core::ChannelArgs&,
                                   grpc_endpoint*, bool);
using Read = absl::Status (*)(grpc_chttp2_transport*, const grpc_slice&);
using Destroy = void (*)(void*);

// gRPC's function of this name, behind ours.
template <typename Function>
Function Next(const char* name) {
  return reinterpret_cast<Function>(dlsym(RTLD_NEXT, name));
}

// A connection that came to a server. gRPC reads it on one thread at a time.
struct Connection {
  std::string peer;
  std::atomic<bool> stranger{false};
  Mutex mutex;
  FrameScanner scanner ABSL_GUARDED_BY(mutex);
  int64_t bytes ABSL_GUARDED_BY(mutex) = 0;
  int64_t shared ABSL_GUARDED_BY(mutex) = 0;  // of what strangers share
};

class Connections {
 public:
  static Connections& All() {
    static auto& all = *new Connections;
    return all;
  }

  void Guard(int port) {
    MutexLock lock(&mutex_);
    ports_.insert(port);
  }
  void Release(int port) {
    MutexLock lock(&mutex_);
    ports_.erase(ports_.find(port));
  }

  void Add(const void* transport, absl::string_view peer,
           absl::string_view local) {
    auto connection = std::make_shared<Connection>();
    connection->peer = std::string(peer);
    int port = 0;
    const bool numbered =
        absl::SimpleAtoi(local.substr(local.rfind(':') + 1), &port);
    MutexLock lock(&mutex_);
    connection->stranger = numbered && ports_.count(port) > 0;
    if (connection->stranger) strangers_[connection->peer] = connection;
    by_transport_[transport] = std::move(connection);
  }

  void Remove(const void* transport) {
    std::shared_ptr<Connection> connection;
    {
      MutexLock lock(&mutex_);
      const auto found = by_transport_.find(transport);
      if (found == by_transport_.end()) return;
      connection = std::move(found->second);
      by_transport_.erase(found);
      const auto stranger = strangers_.find(connection->peer);
      if (stranger != strangers_.end() && stranger->second == connection) {
        strangers_.erase(stranger);
      }
    }
    MutexLock lock(&connection->mutex);
    shared_ -= std::exchange(connection->shared, 0);
  }

  std::shared_ptr<Connection> Find(const void* transport) {
    MutexLock lock(&mutex_);
    const auto found = by_transport_.find(transport);
    return found == by_transport_.end() ? nullptr : found->second;
  }

  bool IsStranger(const std::string& peer) {
    MutexLock lock(&mutex_);
    return strangers_.contains(peer);
  }
  void Know(const std::string& peer) {
    MutexLock lock(&mutex_);
    const auto found = strangers_.find(peer);
    if (found == strangers_.end()) return;
    found->second->stranger = false;
    strangers_.erase(found);
  }

  absl::Status Scan(Connection* connection, absl::string_view bytes) {
    MutexLock lock(&connection->mutex);
    const absl::Status status = connection->scanner.Scan(bytes);
    if (!status.ok()) return status;
    if (connection->stranger) return Count(connection, bytes.size());
    if (connection->shared > 0) {
      shared_ -= std::exchange(connection->shared, 0);
    }
    return absl::OkStatus();
  }

 private:
  // UNAVAILABLE, for which clients try again: it need not be their fault.
  absl::Status Count(Connection* connection, size_t size)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(connection->mutex) {
    connection->bytes += static_cast<int64_t>(size);
    if (connection->scanner.calls() > FrameGuard::kStrangerCalls) {
      return absl::UnavailableError(
          absl::StrCat("more than ", FrameGuard::kStrangerCalls,
                       " calls without having shown who it is"));
    }
    if (connection->bytes > FrameGuard::kStrangerBytes) {
      return absl::UnavailableError(
          absl::StrCat("more than ", FrameGuard::kStrangerBytes,
                       " bytes without having shown who it is"));
    }
    if (connection->bytes <= FrameGuard::kFreeBytes) return absl::OkStatus();
    connection->shared += static_cast<int64_t>(size);
    shared_ += static_cast<int64_t>(size);
    if (shared_ <= FrameGuard::kSharedBytes) return absl::OkStatus();
    return absl::UnavailableError(absl::StrCat(
        "connections that have not shown who they are have sent more than ",
        FrameGuard::kSharedBytes, " bytes together"));
  }

  Mutex mutex_;
  std::multiset<int> ports_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<const void*, std::shared_ptr<Connection>> by_transport_
      ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<std::string, std::shared_ptr<Connection>> strangers_
      ABSL_GUARDED_BY(mutex_);
  std::atomic<int64_t> shared_{0};
};

std::atomic<int64_t>& Ended() {
  static auto& ended = *new std::atomic<int64_t>{0};
  return ended;
}

absl::string_view HostOf(absl::string_view peer) {
  return peer.substr(0, peer.rfind(':'));
}

}  // namespace

namespace {

// Whether calls to these names, gRPC's own as well, come here.
bool IsInFront() {
  Dl_info ours = {};
  if (dladdr(reinterpret_cast<void*>(&HostOf), &ours) == 0) return false;
  for (const char* const name : {kCreate, kRead, kDestroy}) {
    Dl_info first = {};
    void* const found = dlsym(RTLD_DEFAULT, name);
    if (found == nullptr || dladdr(found, &first) == 0 ||
        first.dli_fbase != ours.dli_fbase ||
        dlsym(RTLD_NEXT, name) == nullptr) {
      return false;
    }
  }
  return true;
}

}  // namespace

bool FrameGuard::Works() {
  static const bool works = [] {
    if (IsInFront()) return true;
    LogWarning("connections_not_guarded",
               {{"reason",
                 "this gRPC, or the way it is linked, is not the one "
                 "that this was built for"},
                {"next", "see Known holes in docs/security.md"}});
    return false;
  }();
  return works;
}

FrameGuard::FrameGuard(int port) : port_(port) {
  if (Works()) Connections::All().Guard(port_);
}
FrameGuard::~FrameGuard() {
  if (Works()) Connections::All().Release(port_);
}

bool FrameGuard::IsStranger(const std::string& peer) {
  return Connections::All().IsStranger(peer);
}
void FrameGuard::Know(const std::string& peer) {
  Connections::All().Know(peer);
}
int64_t FrameGuard::ended() { return Ended(); }

}  // namespace coxswain

grpc_transport* grpc_create_chttp2_transport(
    const grpc_core::ChannelArgs& arguments, grpc_endpoint* endpoint,
    bool is_client) {
  using coxswain::Connections;
  static const auto next = coxswain::Next<coxswain::Create>(coxswain::kCreate);
  // Of a connection that breaks at once nothing can be asked any more later.
  const std::string peer(grpc_endpoint_get_peer(endpoint));
  const std::string local(grpc_endpoint_get_local_address(endpoint));
  grpc_transport* const transport = next(arguments, endpoint, is_client);
  if (!is_client) Connections::All().Add(transport, peer, local);
  return transport;
}

absl::Status grpc_chttp2_perform_read(grpc_chttp2_transport* transport,
                                      const grpc_slice& slice) {
  using coxswain::Connections;
  static const auto next = coxswain::Next<coxswain::Read>(coxswain::kRead);
  const auto connection = Connections::All().Find(transport);
  if (connection != nullptr) {
    const absl::string_view bytes(
        reinterpret_cast<const char*>(GRPC_SLICE_START_PTR(slice)),
        GRPC_SLICE_LENGTH(slice));
    const absl::Status status =
        Connections::All().Scan(connection.get(), bytes);
    if (!status.ok()) {
      ++coxswain::Ended();
      coxswain::LogWarningOnce(
          absl::StrCat("frames/", coxswain::HostOf(connection->peer)),
          "connection_ended",
          {{"peer", connection->peer}, {"reason", status.message()}});
      return status;
    }
  }
  return next(transport, slice);
}

// grpc_chttp2_transport::~grpc_chttp2_transport()
extern "C" void CoxswainTransportEnds(void* transport) asm(
    "_ZN21grpc_chttp2_transportD1Ev");
extern "C" void CoxswainTransportEnds(void* transport) {
  static const auto next =
      coxswain::Next<coxswain::Destroy>(coxswain::kDestroy);
  coxswain::Connections::All().Remove(transport);
  next(transport);
}
