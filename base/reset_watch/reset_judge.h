#ifndef COXSWAIN_BASE_RESET_WATCH_RESET_JUDGE_H_
#define COXSWAIN_BASE_RESET_WATCH_RESET_JUDGE_H_

#include <cstdint>
#include <map>
#include <vector>

#include "absl/time/time.h"
#include "base/reset_watch/channelz.h"

namespace coxswain {

// Says which connections of one server are to be ended, from what gRPC counts
// of them: those on which more calls end without an answer than on those of a
// client that keeps to the limit of calls under way; and, while gRPC holds too
// many calls that are over, all on which most calls end so. Owned by the watch,
// which asks again and again. Thread-compatible.
class ResetJudge {
 public:
  struct Limits {
    // Calls that a connection may have under way at once. As many may end
    // without an answer in a second, and twice as many at any moment.
    int64_t streams = 1024;
    // Calls that are over and that gRPC still holds, in all connections. Each
    // has some 20 KiB.
    int64_t held = 4096;
  };
  explicit ResetJudge(const Limits& limits) : limits_(limits) {}

  // Indices of those to be ended. `now` never goes back.
  std::vector<size_t> Judge(
      const grpc_counts::Server& server,
      const std::vector<grpc_counts::Connection>& connections, absl::Time now);

 private:
  struct Known {
    int64_t unanswered = 0;
    // A bucket that leaks: what was left unanswered lately.
    double level = 0;
    absl::Time seen;
  };
  double LevelOf(const grpc_counts::Connection& connection, absl::Time now,
                 std::map<int64_t, Known>* next) const;

  const Limits limits_;
  std::map<int64_t, Known> known_;  // by the connection's id
};

}  // namespace coxswain

#endif  // COXSWAIN_BASE_RESET_WATCH_RESET_JUDGE_H_
