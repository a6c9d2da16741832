#ifndef COXSWAIN_SCHEDULE_PIPELINE_GENERATE_H_
#define COXSWAIN_SCHEDULE_PIPELINE_GENERATE_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "schedule/pipeline/schedule.h"

namespace coxswain::pipeline {

// Which schedule a pipeline has, for any number of ranks and micro-batches.
//
//   gpipe        All forward passes, then all backward passes, the last
//                micro-batch first; with order=fifo the first one first, as
//                accumulation without a pipeline does (Huang et al.,
//                arXiv:1811.06965).
//   1f1b         Each rank begins backward passes as soon as it can, so that
//                it holds the activations of as many micro-batches as there are
//                stages from it on (Narayanan et al., arXiv:2006.09503).
//   interleaved  1f1b with several stages a rank, `chunks` of them: rank r of p
//                has the stages r, r + p, r + 2p, ... (arXiv:2104.04473). The
//                micro-batches go in groups of at least p, as many and as even
//                as can be, through one chunk after the other; where p divides
//                their number, the groups are p.
//   zb_h1        1f1b with backward passes in two halves, of which those of
//                weights fill the bubble (Qi et al., arXiv:2401.10241).
struct ScheduleSpec {
  enum class Kind { kGpipe, k1f1b, kInterleaved, kZbH1 };
  Kind kind = Kind::k1f1b;
  int chunks = 1;     // of interleaved: 2 to kMaxChunks; else 1
  bool fifo = false;  // of gpipe

  // Reads "1f1b", "gpipe(order=fifo)", "interleaved(chunks=4)"; interleaved
  // alone has two chunks. INVALID_ARGUMENT names what may be written.
  static absl::StatusOr<ScheduleSpec> Parse(absl::string_view text);
  // Returns it in its one form.
  std::string ToString() const;
};
inline constexpr int kMaxChunks = 64;

// Returns the schedule, of compute actions. INVALID_ARGUMENT: it would be
// larger than action.h allows.
absl::StatusOr<Schedule> Generate(const ScheduleSpec& spec, int ranks,
                                  int micro_batches);

// Returns the schedule of a spec's text, with its transfers: what a pipeline
// runs. The errors are those of Parse, Generate and WithTransfers.
absl::StatusOr<Schedule> MakeSchedule(absl::string_view spec, int ranks,
                                      int micro_batches);

}  // namespace coxswain::pipeline

#endif  // COXSWAIN_SCHEDULE_PIPELINE_GENERATE_H_
