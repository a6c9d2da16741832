#ifndef COXSWAIN_CLIENT_COMM_TWO_LEVEL_SLICES_H_
#define COXSWAIN_CLIENT_COMM_TWO_LEVEL_SLICES_H_

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/comm/collective_header.h"
#include "client/comm/communicator.h"
#include "client/comm/two_level/levels.h"

namespace coxswain {

// Reduce-scatters and all-gathers, which have a slice for each rank. Slices are
// sorted by the place that their ranks have on their hosts: a group has one
// slot for each host, which stays empty where a host has no rank in that place.
// The groups share the bridges in turns, and each crosses by itself, so that
// each byte leaves a host once for each other host. Ranks that are the ends of
// their own groups' bridges, as all are where hosts have equally many ranks,
// exchange half as much within the host as others, which all get everything.
// Pieces of all slices are on their way at the same time, as in Pieces.
//
// Sums of half floats are formed in 32 bits, and rounded once.
//
// Threading: one thread at a time.
class Slices {
 public:
  // `levels` outlives it.
  explicit Slices(const Levels* levels);

  // Returns whether the host that sends most sends no more so, empty slots
  // included, than if all ranks exchanged by the flat communicator. Of a
  // reduce-scatter or an all-gather.
  bool Bridges(const CollectiveHeader& header) const;

  // What all ranks have agreed to do, if Bridges; nothing is in flight when
  // these return.
  absl::Status ReduceScatter(const Span& input, const Span& output,
                             ReduceOp op);
  absl::Status AllGather(const Span& input, const Span& output);

 private:
  // A piece of each slice: some elements from `begin` on. `memory` has a slot
  // for it in each group, by host.
  struct Part {
    bool begun = false;
    size_t turn = 0;
    int64_t begin = 0;
    int64_t count = 0;
    Span memory;
    std::vector<WorkPtr> works;
  };
  using Step = std::function<absl::Status(Part*)>;

  // Starts each part, and finishes it once the next has been started. A part
  // is as many elements of slices of `count` as fill a piece of this type.
  absl::Status Run(int64_t count, DType dtype, const Step& start,
                   const Step& finish);
  absl::Status RunParts(int64_t count, DType dtype, const Step& start,
                        const Step& finish);
  absl::Status Await(Part* part);

  int ranks_here() const { return levels_.local->size(); }
  // Returns the place on this host of the rank at the end of a group's bridge.
  int EndOf(int group) const {
    return levels_.hosts.bridge_end(BridgeOf(group), levels_.host());
  }
  bool IsEnd(int group) const { return EndOf(group) == levels_.place(); }
  // Returns whether each rank of this host is the end of its own group, and
  // there are no others.
  bool own_ends() const {
    return ranks_here() == groups_ && BridgeOf(groups_ - 1) == groups_ - 1;
  }
  int BridgeOf(int group) const {
    return group % static_cast<int>(levels_.bridges.size());
  }
  Communicator& Across(int group) const {
    return *levels_.bridges[static_cast<size_t>(BridgeOf(group))];
  }
  Span GroupOf(const Part& part, int group) const {
    const int64_t each = levels_.hosts.count() * part.count;
    return part.memory.Slice(group * each, each);
  }
  Span SlotOf(const Part& part, int group, int host) const {
    return GroupOf(part, group).Slice(host * part.count, part.count);
  }
  // Calls `function` with each rank and its slot.
  template <typename Function>
  void ForEachRank(const Part& part, const Function& function) const;
  absl::StatusOr<Span> Memory(const Part& part, DType dtype);

  const Levels& levels_;
  int groups_ = 0;  // as many as the ranks of the largest host
  std::array<Part, 2> parts_;
  std::array<std::unique_ptr<BufferOwner>, 2> memory_;
};

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_COMM_TWO_LEVEL_SLICES_H_
