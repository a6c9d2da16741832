#ifndef COXSWAIN_EXAMPLES_GPT_RESULT_H_
#define COXSWAIN_EXAMPLES_GPT_RESULT_H_

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "examples/progress/loss_curve.h"

namespace coxswain::examples::gpt {

// A run that has ended well, as rank 0 prints it.
struct Result {
  std::string mesh;
  int world_size = 0;
  int zero = 0;
  std::string hook;
  std::string schedule;  // of the pipeline
  bool sequence = false;
  int64_t steps = 0;
  // Means in nats for each byte: of the last tenth of the steps, and of the
  // held-out text after them.
  double train_loss = 0;
  double held_out_loss = 0;
  double tokens_per_second = 0;  // of all ranks, after the first step
  // What a rank hands to collectives and channels in a step, by axis of the
  // mesh (`dp`: dp and shard), of the bytes that were counted; the mean of the
  // ranks.
  double pp_bytes = 0;
  double dp_bytes = 0;
  double tp_bytes = 0;
  // Of the time that the pipelines' schedules took: how much of it the ranks
  // were in no pass; and what the schedule has of it where all passes take as
  // long, and transfers no time.
  double bubble = 0;
  double planned_bubble = 0;
  double wall_seconds = 0;  // of the training
};

nlohmann::json ToJson(const Result& result);

// A run as its events have it.
struct TrainedRun {
  Result result;
  LossCurve curve;
};
// Reads what `report progress` has written, one run after the other. Fails with
// NOT_FOUND where there are none, and with DATA_LOSS.
absl::StatusOr<std::vector<TrainedRun>> ReadRuns(const std::string& path);

// Returns the table of the runs, a row each.
std::string TableOf(const std::vector<TrainedRun>& runs);

// The runs whose hook changes no gradient have the losses of the first run of
// one rank, to all digits that the table shows: returns the largest difference
// there is, of runs of more ranks. Fails with FAILED_PRECONDITION, naming the
// runs that differ, and with NOT_FOUND if there is no run of one rank.
absl::StatusOr<double> CompareLosses(const std::vector<TrainedRun>& runs);

}  // namespace coxswain::examples::gpt

#endif  // COXSWAIN_EXAMPLES_GPT_RESULT_H_
