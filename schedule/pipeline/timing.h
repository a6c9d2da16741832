#ifndef COXSWAIN_SCHEDULE_PIPELINE_TIMING_H_
#define COXSWAIN_SCHEDULE_PIPELINE_TIMING_H_

#include <vector>

#include "absl/status/statusor.h"
#include "schedule/pipeline/schedule.h"

namespace coxswain::pipeline {

// How long the passes of one micro-batch through one stage take, in any unit;
// a B takes both backward times.
struct StageCosts {
  double forward = 1;
  double backward_input = 1;
  double backward_weight = 1;
};

struct TimingOptions {
  // By stage; empty: all as StageCosts().
  std::vector<StageCosts> stages;
  // From the end of a send to when its message can be received.
  double transfer = 0;
  // Of each channel: see Prove.
  int capacity = 1;
};

struct Interval {
  double begin = 0;
  double end = 0;
};

struct Timing {
  // When each action of each rank runs, from 0 on. A send ends when the message
  // is in the channel; a receive lasts until the message is there, and the rank
  // goes on meanwhile, up to the pass that needs it.
  std::vector<std::vector<Interval>> of_rank;
  double makespan = 0;       // when the last rank ends
  std::vector<double> busy;  // by rank: the time of its passes

  // Returns the share of the makespan in which a rank computes nothing: the
  // bubble; of all ranks, the mean.
  double Bubble(int rank) const;
  double Bubble() const;

  // By rank: the most passes whose activations it holds at once, from F to B or
  // W, each for one stage and micro-batch.
  std::vector<int> peak_activations;
  // The most messages that are in one channel at once, of those that wait: a
  // message that is received when it is sent counts as one.
  int peak_messages = 0;
};

// Returns the execution in which each action begins as soon as it can, of a
// schedule with transfers. The error is that of Prove; INVALID_ARGUMENT too:
// costs are negative, or not of as many stages.
absl::StatusOr<Timing> Time(const Schedule& schedule,
                            const TimingOptions& options);

}  // namespace coxswain::pipeline

#endif  // COXSWAIN_SCHEDULE_PIPELINE_TIMING_H_
