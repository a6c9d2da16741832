#include "base/frame_guard/frame_guard.h"

#include <dlfcn.h>
#include <sys/socket.h>

#include <algorithm>
#include <memory>
#include <unordered_map>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/string_view.h"
#include "base/clock.h"
#include "base/frame_guard/guarded_connections.h"
#include "base/logging.h"
#include "base/mutex.h"
#include "base/process_memory.h"
#include "grpc/slice.h"

// gRPC's own, of which nothing but the names is known here.
struct grpc_chttp2_stream_map;
struct grpc_chttp2_transport;
struct grpc_endpoint;
struct grpc_transport;
namespace grpc_core {
class ChannelArgs;
}
absl::string_view grpc_endpoint_get_peer(grpc_endpoint* endpoint);
absl::string_view grpc_endpoint_get_local_address(grpc_endpoint* endpoint);
int grpc_endpoint_get_fd(grpc_endpoint* endpoint);

namespace coxswain {
namespace {

constexpr char kCreate[] =
    "_Z28grpc_create_chttp2_transportRKN9grpc_core11ChannelArgsEP13grpc_"
    "endpointb";
constexpr char kRead[] =
    "_Z24grpc_chttp2_perform_readP21grpc_chttp2_transportRK10grpc_slice";
constexpr char kDestroy[] = "_ZN21grpc_chttp2_transportD1Ev";
constexpr char kMakeMap[] =
    "_Z27grpc_chttp2_stream_map_initP22grpc_chttp2_stream_mapm";
constexpr char kEndStream[] =
    "_Z29grpc_chttp2_stream_map_deleteP22grpc_chttp2_stream_mapj";

using Create = grpc_transport* (*)(const grpc_core::ChannelArgs&,
                                   grpc_endpoint*, bool);
using Read = absl::Status (*)(grpc_chttp2_transport*, const grpc_slice&);
using Destroy = void (*)(void*);
using MakeMap = void (*)(grpc_chttp2_stream_map*, size_t);
using EndStream = void* (*)(grpc_chttp2_stream_map*, uint32_t);

// gRPC's function of this name, behind ours.
template <typename Function>
Function Next(const char* name) {
  return reinterpret_cast<Function>(dlsym(RTLD_NEXT, name));
}

constexpr int64_t kPartOfMemory = 8;

GuardedConnections& Connections() {
  static auto& connections = *[] {
    GuardedConnections::Limits limits;
    limits.held_bytes =
        std::max(limits.held_bytes, ProcessMemory() / kPartOfMemory);
    return new GuardedConnections(limits, Clock::Real());
  }();
  return connections;
}

using ConnectionPtr = std::shared_ptr<GuardedConnections::Connection>;

// What gRPC's objects belong to. Thread-safe.
class Objects {
 public:
  static Objects& Of() {
    static auto& objects = *new Objects;
    return objects;
  }

  // A transport, and its map of streams.
  void Add(const void* transport, const void* map, ConnectionPtr connection) {
    MutexLock lock(&mutex_);
    by_map_[map] = connection;
    by_transport_[transport] = {std::move(connection), map};
  }
  // Null if it is a client's.
  ConnectionPtr Remove(const void* transport) {
    MutexLock lock(&mutex_);
    const auto found = by_transport_.find(transport);
    if (found == by_transport_.end()) return nullptr;
    ConnectionPtr connection = std::move(found->second.connection);
    by_map_.erase(found->second.map);
    by_transport_.erase(found);
    return connection;
  }
  ConnectionPtr OfTransport(const void* transport) {
    MutexLock lock(&mutex_);
    const auto found = by_transport_.find(transport);
    return found == by_transport_.end() ? nullptr : found->second.connection;
  }
  ConnectionPtr OfMap(const void* map) {
    MutexLock lock(&mutex_);
    const auto found = by_map_.find(map);
    return found == by_map_.end() ? nullptr : found->second;
  }

 private:
  struct Transport {
    ConnectionPtr connection;
    const void* map;
  };
  Mutex mutex_;
  std::unordered_map<const void*, Transport> by_transport_
      ABSL_GUARDED_BY(mutex_);
  std::unordered_map<const void*, ConnectionPtr> by_map_
      ABSL_GUARDED_BY(mutex_);
};

// The map of streams that was made last on this thread: a transport makes one
// while it is made itself.
thread_local const void* newest_map = nullptr;

// Whether calls to these names, gRPC's own as well, come here.
bool IsInFront() {
  Dl_info ours = {};
  if (dladdr(reinterpret_cast<void*>(&Connections), &ours) == 0) return false;
  for (const char* const name :
       {kCreate, kRead, kDestroy, kMakeMap, kEndStream}) {
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
  if (Works()) Connections().Guard(port_);
}
FrameGuard::~FrameGuard() {
  if (Works()) Connections().Release(port_);
}

bool FrameGuard::IsStranger(const std::string& peer) {
  return Connections().IsStranger(peer);
}
void FrameGuard::Know(const std::string& peer) { Connections().Know(peer); }
void FrameGuard::SetMaxHeld(int64_t bytes) { Connections().SetMaxHeld(bytes); }
int64_t FrameGuard::ended() { return Connections().ended(); }
int64_t FrameGuard::held() { return Connections().held(); }

}  // namespace coxswain

grpc_transport* grpc_create_chttp2_transport(
    const grpc_core::ChannelArgs& arguments, grpc_endpoint* endpoint,
    bool is_client) {
  static const auto next = coxswain::Next<coxswain::Create>(coxswain::kCreate);
  // Of a connection that breaks at once nothing can be asked any more later.
  const std::string peer(grpc_endpoint_get_peer(endpoint));
  const absl::string_view local = grpc_endpoint_get_local_address(endpoint);
  int port = 0;
  if (!absl::SimpleAtoi(local.substr(local.rfind(':') + 1), &port)) port = 0;
  // Open until the transport is destroyed, whose endpoint it is.
  const int fd = grpc_endpoint_get_fd(endpoint);
  grpc_transport* const transport = next(arguments, endpoint, is_client);
  if (!is_client) {
    coxswain::Objects::Of().Add(transport, coxswain::newest_map,
                                coxswain::Connections().Add(peer, port, [fd] {
                                  shutdown(fd, SHUT_RDWR);
                                }));
  }
  return transport;
}

absl::Status grpc_chttp2_perform_read(grpc_chttp2_transport* transport,
                                      const grpc_slice& slice) {
  static const auto next = coxswain::Next<coxswain::Read>(coxswain::kRead);
  const auto connection = coxswain::Objects::Of().OfTransport(transport);
  if (connection != nullptr) {
    const absl::string_view bytes(
        reinterpret_cast<const char*>(GRPC_SLICE_START_PTR(slice)),
        GRPC_SLICE_LENGTH(slice));
    const absl::Status status =
        coxswain::Connections().Scan(connection.get(), bytes);
    if (!status.ok()) return status;
  }
  return next(transport, slice);
}

void grpc_chttp2_stream_map_init(grpc_chttp2_stream_map* map, size_t size) {
  static const auto next =
      coxswain::Next<coxswain::MakeMap>(coxswain::kMakeMap);
  coxswain::newest_map = map;
  next(map, size);
}

void* grpc_chttp2_stream_map_delete(grpc_chttp2_stream_map* map,
                                    uint32_t stream) {
  static const auto next =
      coxswain::Next<coxswain::EndStream>(coxswain::kEndStream);
  const auto connection = coxswain::Objects::Of().OfMap(map);
  if (connection != nullptr) {
    coxswain::Connections().EndCall(connection.get(), stream);
  }
  return next(map, stream);
}

// grpc_chttp2_transport::~grpc_chttp2_transport()
extern "C" void CoxswainTransportEnds(void* transport) asm(
    "_ZN21grpc_chttp2_transportD1Ev");
extern "C" void CoxswainTransportEnds(void* transport) {
  static const auto next =
      coxswain::Next<coxswain::Destroy>(coxswain::kDestroy);
  const auto connection = coxswain::Objects::Of().Remove(transport);
  if (connection != nullptr) coxswain::Connections().Remove(connection);
  next(transport);
}
