#include "client/comm/tcp/direct.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/comm/shm/reduce_many.h"
#include "client/comm/tcp/transfer.h"

namespace coxswain {
namespace {

// The state of one exchange.
class DirectExchange {
 public:
  DirectExchange(DataPaths* paths, const DirectPlan& plan)
      : paths_(*paths),
        plan_(plan),
        size_(paths->size()),
        arrived_(static_cast<size_t>(plan.result.chunks())),
        reduced_(static_cast<size_t>(plan.result.chunks())) {
    int stripes = 1;
    for (int peer = 0; peer < size_; ++peer) {
      if (peer != plan_.rank) stripes = std::max(stripes, paths_.stripes(peer));
    }
    slots_ = 2 * stripes;
  }

  int64_t scratch_bytes() const {
    return reduced_.empty()
               ? 0
               : int64_t{size_} * slots_ * plan_.result.chunk_bytes;
  }
  absl::Status Run(char* scratch, absl::Time deadline) {
    scratch_ = scratch;
    std::vector<Flow> flows;
    for (int distance = 1; distance < size_; ++distance) {
      // Not all ranks begin with the same one.
      flows.push_back(Outgoing((plan_.rank + distance) % size_));
      flows.push_back(Incoming((plan_.rank + size_ - distance) % size_));
    }
    return FlowTransfer(&paths_, std::move(flows)).Run(deadline);
  }

 private:
  const Chunked* Part(const std::vector<Chunked>& runs, int rank) const {
    return runs.empty() ? &none_ : &runs[static_cast<size_t>(rank)];
  }
  char* Slot(int peer, int64_t chunk) const {
    return scratch_ +
           (int64_t{peer} * slots_ + chunk % slots_) * plan_.result.chunk_bytes;
  }
  bool IsReduced(int64_t chunk) const {
    return reduced_.empty() || reduced_[static_cast<size_t>(chunk)] != 0;
  }

  Flow Outgoing(int peer) {
    const Chunked* const first = Part(plan_.to, peer);
    const Chunked* const second = Part(plan_.gathered, plan_.rank);
    Flow flow;
    flow.peer = peer;
    flow.outgoing = true;
    flow.chunks = first->chunks() + second->chunks();
    flow.piece = [this, first, second](int64_t i) -> Piece {
      const int64_t gathered = i - first->chunks();
      if (gathered < 0) return first->chunk(i);
      return IsReduced(gathered) ? second->chunk(gathered) : Piece();
    };
    return flow;
  }

  Flow Incoming(int peer) {
    const int64_t reduces = plan_.result.chunks();
    const Chunked* const first =
        reduces > 0 ? &plan_.result : Part(plan_.from, peer);
    const Chunked* const second = Part(plan_.gathered, peer);
    Flow flow;
    flow.peer = peer;
    flow.chunks = first->chunks() + second->chunks();
    flow.piece = [=](int64_t i) -> Piece {
      const int64_t gathered = i - first->chunks();
      if (gathered >= 0) return second->chunk(gathered);
      if (reduces == 0) return first->chunk(i);
      if (i >= slots_ && !IsReduced(i - slots_)) return Piece();
      return {Slot(peer, i), first->chunk(i).bytes};
    };
    flow.done = [this, reduces](int64_t i) {
      if (i < reduces) OnArrived(i);
    };
    return flow;
  }

  void OnArrived(int64_t chunk) {
    if (++arrived_[static_cast<size_t>(chunk)] < size_ - 1) return;
    const auto width = static_cast<int64_t>(SizeOf(plan_.dtype));
    std::vector<const char*> inputs(static_cast<size_t>(size_));
    ForEachRun(Part(plan_.to, plan_.rank)->chunk(chunk),
               plan_.result.chunk(chunk),
               [&](int64_t at, const char* own, char* result, int64_t bytes) {
                 for (int rank = 0; rank < size_; ++rank) {
                   inputs[static_cast<size_t>(rank)] =
                       rank == plan_.rank ? own : Slot(rank, chunk) + at;
                 }
                 ReduceMany(plan_.dtype, plan_.op, inputs, {result},
                            bytes / width, plan_.divisor);
               });
    reduced_[static_cast<size_t>(chunk)] = 1;
  }

  DataPaths& paths_;
  const DirectPlan& plan_;
  const int size_;
  const Chunked none_;
  int slots_ = 0;  // of each peer
  char* scratch_ = nullptr;
  std::vector<int> arrived_;   // from how many peers, by chunk
  std::vector<char> reduced_;  // by chunk
};

}  // namespace

absl::Status RunDirectPlan(DataPaths* paths, const DirectPlan& plan,
                           Scratch* scratch, absl::Time deadline) {
  DirectExchange exchange(paths, plan);
  char* const memory = scratch->Get(exchange.scratch_bytes());
  if (memory == nullptr && exchange.scratch_bytes() > 0) {
    return absl::ResourceExhaustedError(
        absl::StrCat("no memory for ", exchange.scratch_bytes(),
                     " bytes that arrive to be reduced"));
  }
  return exchange.Run(memory, deadline);
}

}  // namespace coxswain
