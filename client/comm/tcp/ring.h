#ifndef COXSWAIN_CLIENT_COMM_TCP_RING_H_
#define COXSWAIN_CLIENT_COMM_TCP_RING_H_

#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "client/comm/tcp/chunks.h"
#include "client/comm/tcp/data_paths.h"
#include "client/device/tensor.h"

namespace coxswain {

// The ranks of a group in the order in which they pass data on, the last one to
// the first. All ranks must have the same.
class RingRanks {
 public:
  // `ranks` has each rank once.
  explicit RingRanks(std::vector<int> ranks)
      : ranks_(std::move(ranks)), places_(ranks_.size()) {
    for (int place = 0; place < size(); ++place) {
      places_[static_cast<size_t>(rank(place))] = place;
    }
  }

  int size() const { return static_cast<int>(ranks_.size()); }
  // Places count from 0, and round and round, also backwards by up to a round.
  int rank(int place) const {
    return ranks_[static_cast<size_t>((place + size()) % size())];
  }
  int place(int rank) const { return places_[static_cast<size_t>(rank)]; }
  int next(int one) const { return rank(place(one) + 1); }
  int previous(int one) const { return rank(place(one) - 1); }
  const std::vector<int>& ranks() const { return ranks_; }

 private:
  std::vector<int> ranks_;
  std::vector<int> places_;
};

// Each rank receives from the one before it in the ring and sends to the one
// after it, so a link carries no more than one rank's traffic. The partial sum
// of a rank's slice begins at the next rank, gains a rank's part at each step,
// and is complete at the rank itself; a gathered slice goes the same way round.
// A chunk goes on as soon as it has arrived, while the rest of its slice still
// comes. The order of a sum is that of the ring, the same for all ranks, as one
// of them completes it.
struct RingPlan {
  const RingRanks* ring = nullptr;
  int rank = 0;
  DType dtype = DType::kFloat32;
  ElementOp op = ElementOp::kSum;
  // Of what each rank contributes to a sum, before it is added.
  int divisor = 1;
  // By rank: what this rank contributes to each slice; empty where nothing is
  // reduced.
  std::vector<Chunked> input;
  // By rank: where each slice ends; empty where nothing is gathered.
  std::vector<Chunked> gathered;
  // Where the sum of this rank's slice ends.
  Chunked result;
  // Whether `input` may be overwritten by partial sums.
  bool in_place = false;
};

// Errors as FlowTransfer's; RESOURCE_EXHAUSTED if there is no memory.
absl::Status RunRingPlan(DataPaths* paths, const RingPlan& plan,
                         Scratch* scratch, absl::Time deadline);

// Copies the root's data to all ranks, each of which passes it on.
absl::Status RunChain(DataPaths* paths, const RingRanks& ring, int rank,
                      int root, const Chunked& data, absl::Time deadline);

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_COMM_TCP_RING_H_
