#ifndef COXSWAIN_CLIENT_COMM_TWO_LEVEL_SLICES_H_
#define COXSWAIN_CLIENT_COMM_TWO_LEVEL_SLICES_H_

#include <array>
#include <cstdint>
#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/comm/communicator.h"
#include "client/comm/two_level/levels.h"

namespace coxswain {

// Reduce-scatters and all-gathers, which have a slice for each rank. Where
// hosts have equally many ranks, each byte crosses to another host once: the
// ranks in one place on all hosts exchange what is for their places, or what
// they have, over their bridge, and the ranks of a host the rest of it within.
// Pieces of all slices are on their way at the same time, as in Pieces.
//
// Sums of half floats are formed in 32 bits, and rounded once.
//
// Threading: one thread at a time.
class Slices {
 public:
  // `levels` outlives it.
  explicit Slices(const Levels* levels) : levels_(*levels) {}

  // Returns whether bytes are saved so.
  bool bridged() const {
    return levels_.even() && levels_.local->size() > 1 &&
           levels_.hosts.count() > 1;
  }

  // What all ranks have agreed to do, if bridged(); nothing is in flight when
  // these return.
  absl::Status ReduceScatter(const Span& input, const Span& output,
                             ReduceOp op);
  absl::Status AllGather(const Span& input, const Span& output);

 private:
  // A piece of each slice: some elements from `begin` on.
  struct Part {
    size_t turn = 0;
    int64_t begin = 0;
    int64_t count = 0;
    Span memory;  // that crosses, or has
    WorkPtr work;
  };
  using Step = std::function<absl::Status(Part*)>;

  // Starts each part, and finishes it once the next has been started. A part
  // is as many elements of slices of `count` as fill a piece.
  absl::Status Run(int64_t count, int64_t width, const Step& start,
                   const Step& finish);
  absl::Status RunParts(int64_t count, int64_t width, const Step& start,
                        const Step& finish);

  Communicator& bridge() const {
    return *levels_.bridges[static_cast<size_t>(levels_.place())];
  }
  // Calls `function` with each rank, and with its number in the order of
  // places, and of hosts among those in one place.
  template <typename Function>
  void ForEachRank(const Function& function) const;
  // Returns memory of this many elements, one of three.
  absl::StatusOr<Span> Memory(size_t index, int64_t count, DType dtype);

  const Levels& levels_;
  std::array<Part, 2> parts_;
  std::array<std::unique_ptr<BufferOwner>, 3> memory_;
};

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_COMM_TWO_LEVEL_SLICES_H_
