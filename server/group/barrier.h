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
#include "server/generation/scoped_component.h"
#include "server/group/group_records.h"
#include "server/state/state_store.h"

namespace coxswain::server {

// How a barrier call ended. On DEADLINE_EXCEEDED it names the missing ranks.
struct BarrierAnswer {
  absl::Status status;
  int expected = 0;
  std::vector<int> missing_ranks;
};
using BarrierDone = std::function<void(const BarrierAnswer&)>;

// One rank's arrival at a barrier.
struct BarrierArrival {
  uint64_t call = 0;  // unique
  int rank = 0;
  Incarnation incarnation;
  uint64_t request_id = 0;  // 0: a repeat is not recognised
  absl::Time deadline;
  BarrierDone done;
};

// The barriers of one generation, by (group, tag). A part of GroupScope: one
// thread at a time. Answers that a call causes are appended to `work`, never
// run.
//
// That a barrier was completed is durable before any rank is notified, so that
// a rank whose answer was lost can still get it from the next coordinator, when
// the others have long gone on. Who waited is not: those calls are repeated.
class BarrierTable {
 public:
  explicit BarrierTable(std::string table) : table_(std::move(table)) {}

  // A completed barrier that an earlier term has left, in their order.
  // DATA_LOSS.
  absl::Status Load(const StateStore::Record& record);

  // A barrier is complete, and its tag free again, when all of `ranks` have
  // arrived. True if the arrival waits for others.
  bool Arrive(const std::string& group, const std::string& tag,
              const std::vector<int>& ranks, BarrierArrival arrival,
              ScopeWork* work);

  void Cancel(uint64_t call, ScopeWork* work);
  void Expire(absl::Time now, ScopeWork* work);
  // The rank will come no more: who waits for it in a barrier of its groups
  // is answered with FAILED_PRECONDITION, and so is who comes later.
  void Leave(int rank, ScopeWork* work);
  // Answers all waiting calls with `status`.
  void End(const absl::Status& status, ScopeWork* work);

  // Returns whether someone waits under this tag.
  bool Contains(const std::string& group, const std::string& tag) const;
  size_t size() const { return barriers_.size(); }

 private:
  using Key = std::pair<std::string, std::string>;  // group, tag
  struct Waiting {
    std::vector<int> ranks;
    std::map<int, BarrierArrival> arrived;  // by rank
  };
  // One that is complete.
  struct Completion {
    uint64_t sequence = 0;
    std::vector<BarrierRequest> requests;  // those that can be recognised
    std::vector<BarrierDone> done;         // until it is committed
    std::vector<uint64_t> forgotten;       // deleted in the same commit
  };

  // Returns whether a repeated call was taken care of.
  bool AnswerRepeat(BarrierArrival* arrival, ScopeWork* work);
  void Complete(Waiting* waiting, ScopeWork* work);
  void Committed(uint64_t sequence, const absl::Status& status,
                 ScopeWork* work);
  void Remember(uint64_t sequence, std::vector<BarrierRequest> requests);
  // Answers those of one barrier whose deadline has come.
  void ExpireOne(const Key& key, Waiting* waiting, absl::Time now,
                 ScopeWork* work);

  const std::string table_;
  std::map<Key, Waiting> barriers_;
  std::set<int> left_;  // at most the world
  // Being committed, by sequence.
  std::map<uint64_t, Completion> completing_;
  // The completion of each request that is remembered or being committed, so
  // that a repeat whose answer was lost does not wait for a barrier that no
  // other will come to.
  std::map<BarrierRequest, uint64_t> completion_of_;
  std::deque<std::pair<uint64_t, std::vector<BarrierRequest>>> completed_;
  size_t completed_requests_ = 0;
  uint64_t next_sequence_ = 1;
  std::vector<uint64_t> forgotten_;  // whose records are to be deleted
};

}  // namespace coxswain::server

#endif  // COXSWAIN_SERVER_GROUP_BARRIER_H_
