#ifndef COXSWAIN_SCHEDULE_PIPELINE_SCHEDULE_H_
#define COXSWAIN_SCHEDULE_PIPELINE_SCHEDULE_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "schedule/pipeline/action.h"

namespace coxswain::pipeline {

// A schedule of a pipeline: for each rank the list of its actions, in the order
// in which it takes them, of one step. The model is cut into stages, numbered
// from the inputs on; a rank has one or more of them. Every micro-batch passes
// through all stages, and its gradients back.
//
// A schedule of compute actions alone has no messages yet; see
// WithTransfers. Neighbouring stages on one rank hand over in memory.
//
// Immutable, hence thread-safe. What there is, is well-formed: every stage is
// on one rank; every micro-batch has its F once in each stage, and its B, or I
// and W, after it; an action of a list comes after those of the same list that
// it needs, its receive included; every message is sent once, received once,
// and between different ranks; REDUCE_GRAD follows the stage's last backward
// pass. Whether the ranks' lists fit each other is for Prove.
class Schedule {
 public:
  using Actions = std::vector<Action>;

  // INVALID_ARGUMENT: the lists are no schedule, with the rank and the action;
  // or they are larger than action.h allows.
  static absl::StatusOr<Schedule> Create(std::vector<Actions> of_rank);

  // Reads torch's CSV: a line for each rank, an action in each cell; cells may
  // be empty. INVALID_ARGUMENT names the line and the cell, or is Create's.
  static absl::StatusOr<Schedule> FromCsv(absl::string_view text);
  // Returns the same, without empty cells.
  std::string ToCsv() const;

  int ranks() const { return static_cast<int>(of_rank_.size()); }
  int stages() const { return static_cast<int>(rank_of_stage_.size()); }
  int micro_batches() const { return micro_batches_; }
  int rank_of_stage(int stage) const { return rank_of_stage_[stage]; }
  std::vector<int> StagesOf(int rank) const;
  const std::vector<Actions>& of_rank() const { return of_rank_; }

  // Whether it has all sends and receives, if there are any to have.
  bool has_transfers() const { return has_transfers_; }

  // Returns a number that is the same for equal schedules, on every machine and
  // in every version.
  uint64_t Hash() const;

  friend bool operator==(const Schedule& a, const Schedule& b) {
    return a.of_rank_ == b.of_rank_;
  }
  friend bool operator!=(const Schedule& a, const Schedule& b) {
    return !(a == b);
  }

 private:
  Schedule(std::vector<Actions> of_rank, std::vector<int> rank_of_stage,
           int micro_batches, bool has_transfers)
      : of_rank_(std::move(of_rank)),
        rank_of_stage_(std::move(rank_of_stage)),
        micro_batches_(micro_batches),
        has_transfers_(has_transfers) {}

  std::vector<Actions> of_rank_;
  std::vector<int> rank_of_stage_;
  int micro_batches_;
  bool has_transfers_;
};

// Returns a schedule of compute actions with its transfers: a message is sent
// at once, and received right before it is needed. A schedule that has them
// already stays as it is. INVALID_ARGUMENT: it would have too many actions.
absl::StatusOr<Schedule> WithTransfers(const Schedule& schedule);

}  // namespace coxswain::pipeline

#endif  // COXSWAIN_SCHEDULE_PIPELINE_SCHEDULE_H_
