#ifndef COXSWAIN_SERVER_GROUP_BARRIER_H_
#define COXSWAIN_SERVER_GROUP_BARRIER_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/ids.h"

namespace coxswain::server {

// How a barrier call ended. On DEADLINE_EXCEEDED it says who is missing.
struct BarrierAnswer {
  absl::Status status;
  int expected = 0;
  std::vector<int> missing_ranks;
};
using BarrierDone = std::function<void(const BarrierAnswer&)>;

// Callbacks to run once the lock has been let go.
using BarrierCalls = std::vector<std::function<void()>>;

// One rank's arrival at a barrier.
struct BarrierArrival {
  uint64_t call = 0;  // unique
  int rank = 0;
  Incarnation incarnation;
  uint64_t request_id = 0;  // 0: a repeat is not recognised
  absl::Time deadline;
  BarrierDone done;
};

// The barriers of one generation, by (group, tag). A part of GroupRoom, which
// holds its lock around every call: one thread at a time. Answers that a call
// causes are appended to `calls`, never run.
class BarrierTable {
 public:
  // A barrier is complete, and its tag free again, when all of `ranks` have
  // arrived. True if the arrival waits.
  bool Arrive(const std::string& group, const std::string& tag,
              const std::vector<int>& ranks, BarrierArrival arrival,
              BarrierCalls* calls);

  void Cancel(uint64_t call, BarrierCalls* calls);
  void Expire(absl::Time now, BarrierCalls* calls);
  // The rank will come no more: who waits for it in a barrier of its groups
  // is answered with FAILED_PRECONDITION, and so is who comes later.
  void Leave(int rank, BarrierCalls* calls);
  // Answers everyone with `status`.
  void End(const absl::Status& status, BarrierCalls* calls);

  // Whether someone waits under this tag.
  bool Contains(const std::string& group, const std::string& tag) const;
  size_t size() const { return barriers_.size(); }

 private:
  using Key = std::pair<std::string, std::string>;      // group, tag
  using RequestKey = std::pair<Incarnation, uint64_t>;  // and request id
  struct Waiting {
    std::vector<int> ranks;
    std::map<int, BarrierArrival> arrived;  // by rank
  };

  void Remember(const BarrierArrival& arrival);
  // Answers those of one barrier whose deadline has come.
  void ExpireOne(const Key& key, Waiting* waiting, absl::Time now,
                 BarrierCalls* calls);

  std::map<Key, Waiting> barriers_;
  std::set<int> left_;  // at most the world
  // Completed calls, so that a repeat whose answer was lost does not wait for
  // a barrier that nobody else will come to.
  std::set<RequestKey> completed_;
  std::deque<RequestKey> completed_order_;
};

}  // namespace coxswain::server

#endif  // COXSWAIN_SERVER_GROUP_BARRIER_H_
