#include "base/frame_guard/guarded_connections.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/frame_guard/frame_scanner.h"

namespace coxswain {
namespace {

// How much more is held before all connections are looked at again, as a part
// of what may be.
constexpr int64_t kMoreHeld = 64;

// A bucket that leaks.
struct Level {
  double level = 0;
  absl::Time seen;

  double Add(int64_t count, int64_t leak_per_second, absl::Time now) {
    const double leaked = static_cast<double>(leak_per_second) *
                          absl::ToDoubleSeconds(now - seen);
    level = std::max(level - leaked, 0.0) + static_cast<double>(count);
    seen = now;
    return level;
  }
};

}  // namespace

// gRPC reads it on one thread at a time.
class GuardedConnections::Connection {
 public:
  Connection(absl::string_view peer, std::function<void()> end)
      : peer(peer), end(std::move(end)) {}

  const std::string peer;
  const std::function<void()> end;
  std::atomic<bool> stranger{false};
  std::atomic<int64_t> held{0};
  Mutex mutex;
  bool over ABSL_GUARDED_BY(mutex) = false;
  FrameScanner scanner ABSL_GUARDED_BY(mutex);
  // As a stranger: bytes that have come, and of these, what all share.
  int64_t bytes ABSL_GUARDED_BY(mutex) = 0;
  int64_t shared ABSL_GUARDED_BY(mutex) = 0;
  Level resets ABSL_GUARDED_BY(mutex);
};

struct GuardedConnections::Resets {
  Mutex mutex;
  Level level ABSL_GUARDED_BY(mutex);
};

GuardedConnections::GuardedConnections(const Limits& limits, const Clock* clock)
    : limits_(limits),
      clock_(clock),
      ended_log_("connection_ended", clock),
      resets_(std::make_unique<Resets>()),
      max_held_(limits.held_bytes) {}

GuardedConnections::~GuardedConnections() = default;

void GuardedConnections::Guard(int port) {
  MutexLock lock(&mutex_);
  ports_.insert(port);
}
void GuardedConnections::Release(int port) {
  MutexLock lock(&mutex_);
  ports_.erase(ports_.find(port));
}

std::shared_ptr<GuardedConnections::Connection> GuardedConnections::Add(
    absl::string_view peer, int local_port, std::function<void()> end) {
  auto connection = std::make_shared<Connection>(peer, std::move(end));
  MutexLock lock(&mutex_);
  connection->stranger = ports_.count(local_port) > 0;
  if (connection->stranger) strangers_[connection->peer] = connection;
  all_.insert(connection);
  return connection;
}

void GuardedConnections::Remove(const std::shared_ptr<Connection>& connection) {
  {
    MutexLock lock(&mutex_);
    all_.erase(connection);
    const auto stranger = strangers_.find(connection->peer);
    if (stranger != strangers_.end() && stranger->second == connection) {
      strangers_.erase(stranger);
    }
  }
  MutexLock lock(&connection->mutex);
  Forget(connection.get());
}

absl::Status GuardedConnections::Scan(Connection* connection,
                                      absl::string_view bytes) {
  const absl::Status status = Look(connection, bytes);
  // Only this takes the lock of all, and only when much is held.
  if (held_ > max_held_) EndHeaviest();
  return status;
}

absl::Status GuardedConnections::Look(Connection* connection,
                                      absl::string_view bytes) {
  MutexLock lock(&connection->mutex);
  if (connection->over) return absl::UnavailableError("it was ended");
  FrameScanner& scanner = connection->scanner;
  const int64_t resets = scanner.resets();
  absl::Status status = scanner.Scan(bytes);
  if (status.ok() && connection->stranger) {
    status = CountStranger(connection, bytes.size());
  } else if (connection->shared > 0) {
    strangers_bytes_ -= std::exchange(connection->shared, 0);
  }
  if (status.ok() && scanner.resets() > resets) {
    status = CountResets(connection, scanner.resets() - resets);
  }
  CountHeld(connection);
  if (!status.ok()) {
    Forget(connection);
    SayEnded(*connection, status.message());
  }
  return status;
}

void GuardedConnections::Forget(Connection* connection) {
  connection->over = true;
  strangers_bytes_ -= std::exchange(connection->shared, 0);
  held_ -= connection->held.exchange(0);
}

void GuardedConnections::EndCall(Connection* connection, uint32_t stream) {
  MutexLock lock(&connection->mutex);
  connection->scanner.EndCall(stream);
  CountHeld(connection);
}

// UNAVAILABLE, for which clients try again: it need not be their fault.
absl::Status GuardedConnections::CountStranger(Connection* connection,
                                               size_t size) {
  connection->bytes += static_cast<int64_t>(size);
  if (connection->scanner.calls() > limits_.stranger_calls) {
    return absl::UnavailableError(
        absl::StrCat("more than ", limits_.stranger_calls,
                     " calls without having shown who it is"));
  }
  if (connection->bytes > limits_.stranger_bytes) {
    return absl::UnavailableError(
        absl::StrCat("more than ", limits_.stranger_bytes,
                     " bytes without having shown who it is"));
  }
  if (connection->bytes <= limits_.stranger_free_bytes) return absl::OkStatus();
  connection->shared += static_cast<int64_t>(size);
  strangers_bytes_ += static_cast<int64_t>(size);
  if (strangers_bytes_ <= limits_.strangers_bytes) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat(
      "connections that have not shown who they are have sent more than ",
      limits_.strangers_bytes, " bytes together"));
}

absl::Status GuardedConnections::CountResets(Connection* connection,
                                             int64_t count) {
  const absl::Time now = clock_->Now();
  const double own =
      connection->resets.Add(count, limits_.own_resets_per_second, now);
  MutexLock lock(&resets_->mutex);
  const double all = resets_->level.Add(count, limits_.resets_per_second, now);
  if (all <= static_cast<double>(limits_.resets) ||
      own <= static_cast<double>(limits_.own_resets)) {
    return absl::OkStatus();
  }
  // gRPC never sees them.
  resets_->level.level -= static_cast<double>(count);
  return absl::UnavailableError(absl::StrCat(
      "it begins calls and resets them: ", connection->scanner.resets(),
      " of its ", connection->scanner.calls(),
      ", while clients together reset more than ", limits_.resets_per_second,
      " in a second"));
}

void GuardedConnections::CountHeld(Connection* connection) {
  if (connection->over) return;
  const FrameScanner& scanner = connection->scanner;
  const int64_t held =
      scanner.held_bytes() +
      limits_.bytes_of_a_call *
          std::max<int64_t>(scanner.open_calls() - limits_.own_calls, 0);
  held_ += held - connection->held.exchange(held);
}

void GuardedConnections::EndHeaviest() {
  MutexLock lock(&mutex_);
  const int64_t held = held_;
  const int64_t most_held = max_held_;
  if (held <= most_held) {
    none_heavy_at_ = 0;
    return;
  }
  if (none_heavy_at_ > 0 && held < none_heavy_at_ + most_held / kMoreHeld)
    return;
  Connection* heaviest = nullptr;
  int64_t most = limits_.own_held_bytes;
  for (const auto& connection : all_) {
    if (connection->held <= most) continue;
    most = connection->held;
    heaviest = connection.get();
  }
  none_heavy_at_ = heaviest == nullptr ? held : 0;
  if (heaviest == nullptr) return;
  {
    MutexLock its_lock(&heaviest->mutex);
    Forget(heaviest);
  }
  SayEnded(*heaviest,
           absl::StrCat("it had this process hold ", most,
                        " bytes for calls and unfinished messages, more than "
                        "any other, and all together ",
                        held, "; there may be ", most_held));
  heaviest->end();
}

bool GuardedConnections::IsStranger(const std::string& peer) const {
  MutexLock lock(&mutex_);
  return strangers_.count(peer) > 0;
}
void GuardedConnections::Know(const std::string& peer) {
  MutexLock lock(&mutex_);
  const auto found = strangers_.find(peer);
  if (found == strangers_.end()) return;
  found->second->stranger = false;
  strangers_.erase(found);
}

void GuardedConnections::SayEnded(const Connection& connection,
                                  absl::string_view reason) {
  ++ended_;
  ended_log_.Line(HostOfPeer(connection.peer),
                  {{"peer", connection.peer}, {"reason", reason}});
}

}  // namespace coxswain
