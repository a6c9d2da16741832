#ifndef COXSWAIN_SERVER_MEMBERSHIP_MEMBER_TABLE_H_
#define COXSWAIN_SERVER_MEMBERSHIP_MEMBER_TABLE_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "base/ids.h"
#include "server/membership/liveness.h"
#include "server/membership/member.h"
#include "server/membership/membership_types.h"

namespace coxswain::server {

struct MemberRecord {
  Member member;
  uint64_t launcher_id = 0;
  LivenessState liveness;
  Progress progress;
  // When it changed; at first, when the worker attached.
  std::optional<absl::Time> progressed;
  // When its last heartbeat came.
  absl::Time reported = absl::InfinitePast();
  // Since when it is in the action of its pipeline, by this clock.
  absl::Time in_action_since;
  // An earlier coordinator has left it, and no heartbeat came since: of its
  // progress only what was kept of its departure is known.
  bool restored = false;
  uint64_t attachment = 0;  // 0: none
  EventSink sink;
  // How it ended, once it has left or is lost.
  bool rejoins = false;  // as its Leave announced
  bool failed = false;   // likewise: it failed
  std::string departure;
};

// Holds the members of one generation by rank, by process and by identity.
// Thread-compatible.
class MemberTable {
 public:
  MemberTable() = default;
  // By rank.
  explicit MemberTable(std::vector<MemberRecord> records);

  size_t size() const { return records_.size(); }
  bool empty() const { return records_.empty(); }
  MemberRecord& operator[](size_t rank) { return records_[rank]; }
  const MemberRecord& operator[](size_t rank) const { return records_[rank]; }
  std::vector<MemberRecord>::iterator begin() { return records_.begin(); }
  std::vector<MemberRecord>::iterator end() { return records_.end(); }
  std::vector<MemberRecord>::const_iterator begin() const {
    return records_.begin();
  }
  std::vector<MemberRecord>::const_iterator end() const {
    return records_.end();
  }

  // Null if there is none.
  MemberRecord* Find(Incarnation incarnation);
  const MemberRecord* Find(Incarnation incarnation) const;
  MemberRecord* Find(const WorkerIdentity& identity);
  const MemberRecord* Find(const WorkerIdentity& identity) const;

  // The only way in which a member stops being live.
  void SetState(MemberRecord* record, MemberState state);
  int live() const { return live_; }

  // For the answers to all of them. Null: there are no members.
  const std::shared_ptr<const std::vector<Member>>& list() const {
    return list_;
  }
  // Returns the first rank whose address only processes on its own host can
  // reach, while there are members on others; -1: none.
  int unreachable() const { return unreachable_; }

 private:
  std::vector<MemberRecord> records_;
  std::map<Incarnation, size_t> by_incarnation_;
  std::map<WorkerIdentity, size_t> by_identity_;
  int live_ = 0;
  std::shared_ptr<const std::vector<Member>> list_;
  int unreachable_ = -1;
};

}  // namespace coxswain::server

#endif  // COXSWAIN_SERVER_MEMBERSHIP_MEMBER_TABLE_H_
