#include "transport/accepted_connections.h"

#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <algorithm>

namespace coxswain {
namespace {

// For shards that come and go, the state's files, and gRPC itself.
constexpr rlim_t kReserve = 2048;

}  // namespace

bool AcceptedConnections::IsOpen(const Connection& connection) {
  struct stat status = {};
  return fstat(connection.fd, &status) == 0 &&
         status.st_dev == connection.device &&
         status.st_ino == connection.inode;
}

bool AcceptedConnections::Add(int fd) {
  MutexLock lock(&mutex_);
  if (cut_) return false;
  // Looked through only where there may be no room.
  if (connections_.size() >= limit_) {
    connections_.erase(
        std::remove_if(connections_.begin(), connections_.end(),
                       [](const auto& known) { return !IsOpen(known); }),
        connections_.end());
  }
  if (connections_.size() >= limit_) return false;
  struct stat status = {};
  fstat(fd, &status);
  connections_.push_back({fd, status.st_dev, status.st_ino});
  return true;
}

bool AcceptedConnections::cut() const {
  MutexLock lock(&mutex_);
  return cut_;
}

void AcceptedConnections::Cut() {
  MutexLock lock(&mutex_);
  cut_ = true;
  for (const Connection& connection : connections_) {
    if (IsOpen(connection)) shutdown(connection.fd, SHUT_RDWR);
  }
  connections_.clear();
}

int ConnectionLimit(int wanted, unsigned long descriptors) {
  const rlim_t left = descriptors - std::min(kReserve, descriptors / 4);
  return static_cast<int>(std::min<rlim_t>(left, static_cast<rlim_t>(wanted)));
}

int ConnectionLimit(int wanted) {
  rlimit limit = {};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return wanted;
  return ConnectionLimit(wanted, limit.rlim_cur);
}

}  // namespace coxswain
