#ifndef COXSWAIN_CLIENT_ELASTIC_REPLAY_H_
#define COXSWAIN_CLIENT_ELASTIC_REPLAY_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/elastic/elastic_state.h"
#include "client/elastic/replay_plan.h"
#include "client/elastic/state_copy.h"
#include "client/reduce/hook_state.h"

namespace coxswain {

// A rank's whole state between two steps.
struct KeptState {
  StateVersion version;
  int64_t step = 0;
  bool confirmed = false;
  StateCopy copy;
  int64_t tensors = 0;  // ChecksumOf the tensors when they were copied
  uint32_t rest = 0;    // checksum of all else of the copy
  std::optional<HookState> hook_state;
  int hook_world = 0;
};

// What a replay has found.
struct ReplayResult {
  int64_t step = 0;  // that was replayed up to
  int64_t from_step = 0;
  std::vector<int> wrong;  // ranks; none: it is unknown
};

// What one rank keeps to take steps again (see replay_plan.h): a copy of the
// state of the last step of which all ranks are known to hold the same bits,
// and one of a step that is being compared; and what is replayed. Lives as long
// as the rank's standing.
//
// A generation begins with bits that recovery has compared, or that all have
// read from one checkpoint. After that, the tickets of every so many-th step
// (checksum_every) are compared, and a decision on such a step confirms the
// state before it.
class Replay {
 public:
  // The generation that begins, with what its ranks have agreed on.
  struct Generation {
    int64_t number = 0;
    int world_size = 0;
    StateVersion version;
    int64_t step = 0;
    bool keep = false;  // copies, if the plan compares steps
  };
  // Returns why what was being replayed is given up, if it is: the members have
  // changed, or another generation has ended before it was found out.
  std::optional<std::string> Begin(const Generation& generation);

  // Before each step, with the plan's checksum_every: copies the state if it is
  // one to go back to. An error of `save_hook` (Hook::SaveOwn), or of the
  // state, or an exception of theirs, is logged, and leaves it without copies.
  void BeforeStep(int64_t every, ElasticState* state,
                  const std::function<absl::StatusOr<HookState>()>& save_hook);
  // After each step. Returns what the replay has found, once, when ranks that
  // had differed are known to hold the same bits.
  std::optional<ReplayResult> AfterStep(int64_t step);

  // When a generation begins and ranks differ. Looks at each bit of the copies.
  ReplayFacts Facts() const;
  // In the generation that begins next, by this rank of it.
  void NoteDispute(ReplayDispute dispute, int rank, int64_t generation);
  // Returns the copy of this state; null: there is none that is intact.
  const KeptState* Find(const StateVersion& version) const;

 private:
  // Returns that of the state in this generation.
  StateVersion VersionAt(int64_t progress) const;
  absl::StatusOr<KeptState> CopyIfItFits(
      ElasticState* state,
      const std::function<absl::StatusOr<HookState>()>& save_hook) const;
  absl::StatusOr<KeptState> Copy(
      ElasticState* state,
      const std::function<absl::StatusOr<HookState>()>& save_hook) const;
  void NoteBits(ElasticState* state);
  void Forget();

  Generation generation_;
  bool first_ = false;  // its first step has not begun
  std::optional<KeptState> known_;
  std::optional<KeptState> waiting_;
  std::optional<ReplayDispute> dispute_;
  int rank_ = 0;
  int64_t replays_ = 0;  // in a row: since they had come to differ here
  int64_t disputed_progress_ = 0;
};

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_ELASTIC_REPLAY_H_
