#include "base/reset_watch/reset_judge.h"

#include <algorithm>
#include <utility>

namespace coxswain {
namespace {

// Fewer are no reason to end a connection, whatever others do.
constexpr double kHarmless = 32;

int64_t UnansweredOf(const grpc_counts::Connection& connection) {
  return connection.begun - connection.answered;
}
int64_t HeldOf(const grpc_counts::Connection& connection) {
  return UnansweredOf(connection) - connection.broken;
}

}  // namespace

double ResetJudge::LevelOf(const grpc_counts::Connection& connection,
                           absl::Time now,
                           std::map<int64_t, Known>* next) const {
  Known known;
  const auto found = known_.find(connection.id);
  if (found == known_.end()) {
    // Since when it has been there, nobody knows.
    known.level = static_cast<double>(HeldOf(connection));
  } else {
    known = found->second;
    const double leaked = static_cast<double>(limits_.streams) *
                          absl::ToDoubleSeconds(now - known.seen);
    const auto grown =
        static_cast<double>(UnansweredOf(connection) - known.unanswered);
    known.level = std::max(known.level + grown - leaked, 0.0);
  }
  known.unanswered = UnansweredOf(connection);
  known.seen = now;
  (*next)[connection.id] = known;
  return known.level;
}

std::vector<size_t> ResetJudge::Judge(
    const grpc_counts::Server& server,
    const std::vector<grpc_counts::Connection>& connections, absl::Time now) {
  std::map<int64_t, Known> next;
  std::vector<double> levels;
  int64_t held = 0;
  for (const auto& connection : connections) {
    levels.push_back(LevelOf(connection, now, &next));
    held += HeldOf(connection);
  }
  known_ = std::move(next);
  // What is under way is held as well, and rightly.
  const bool too_many = held - (server.begun - server.ended) > limits_.held;
  std::vector<size_t> guilty;
  for (size_t i = 0; i < connections.size(); ++i) {
    const bool alone = levels[i] > 2.0 * static_cast<double>(limits_.streams);
    const bool with_others =
        too_many && levels[i] > kHarmless &&
        2 * UnansweredOf(connections[i]) > connections[i].begun;
    if (alone || with_others) guilty.push_back(i);
  }
  return guilty;
}

}  // namespace coxswain
