#ifndef COXSWAIN_SCHEDULE_PIPELINE_EXPLAIN_H_
#define COXSWAIN_SCHEDULE_PIPELINE_EXPLAIN_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "base/mesh.h"
#include "schedule/pipeline/place.h"
#include "schedule/pipeline/schedules_of_job.h"

namespace coxswain::pipeline {

// What is known of a rank.
struct RankPlace {
  bool live = true;                    // false: it has left
  std::optional<PipelinePlace> place;  // as it is now; nothing: not reported
  absl::Duration silence;              // since its last sign of life
  bool heard = false;                  // has sent heartbeats
};

struct ExplainInput {
  // Without a free axis. A rank's coordinate along pp is the number of its
  // list, and each group along pp has a pipeline of its own.
  Mesh mesh;
  std::vector<RankPlace> ranks;
  // Returns where a rank is, "pp 2, dp 0; host-b/1"; may be null.
  std::function<std::string(int rank)> place_of;
  // How many messages of a channel are sent before one is received, at least.
  int capacity = 1;
  // Ranks without a sign of life for so long may be stopped.
  absl::Duration silent_after = absl::Seconds(3);
};

// A rank that others wait for, and that waits for no rank itself: it computes,
// hangs, or is stopped.
struct Holder {
  int rank = 0;
  int stage = -1;  // -1: it is between steps
  int64_t step = 0;
  std::string action;  // "2F7"; empty: it is between steps, or not known
  // For so long others wait for it, and it for none; a lower bound.
  absl::Duration since;
  absl::Duration median;  // of passes as this one; 0: not known
  int directly = 0;       // how many ranks wait for a message, or a part, of it
  int waiters = 0;        // and in all
  // "stage 2 (rank 5: pp 2, dp 0; host-b/1) has been in 2F7 for 34s (median
  // 210ms); 6 ranks wait for it, 1 of them directly".
  std::string sentence;
};

// What a rank is in that has come to the end of its list.
inline constexpr char kBetweenSteps[] = "between steps";

struct Explanation {
  // The most that are named: of the ranks that one waits for, and of holders,
  // those that are waited for longest.
  static constexpr size_t kMaxWaits = 8;
  static constexpr size_t kMaxHolders = 64;

  // By rank: those that it waits for, ascending; of many the first. A receive
  // waits for the rank of its send, unless that has passed it; a send that is
  // full for its receiver; a rank at the end of its list for the ranks of its
  // stage in the other pipelines, with which it exchanges gradients, and when
  // they have come there too, for those of its own that have not; a rank in a
  // pass for one of those along tp that is not in it yet, or is silent in it.
  // One whose place is of a schedule that is not known waits for none, and none
  // for it.
  std::vector<std::vector<int>> waits_for;
  // By rank: what it is in, "2F7"; "between steps"; empty: not known. Of a rank
  // that is silent this follows from the messages that others have of it.
  std::vector<std::string> in;
  // Those that most ranks wait for first.
  std::vector<Holder> holders;

  // Returns the entry of a rank; null if it is none.
  const Holder* HolderOf(int rank) const;
};

// Explains what the pipelines of a job wait for. A pure function; takes a time
// in proportion to the number of ranks, whatever they report, once their
// schedules are made. Places are of different moments, some seconds apart: for
// so long after a change it may find none, or a wait that has ended.
Explanation ExplainPipeline(const ExplainInput& input,
                            SchedulesOfJob* schedules);

}  // namespace coxswain::pipeline

#endif  // COXSWAIN_SCHEDULE_PIPELINE_EXPLAIN_H_
