#ifndef COXSWAIN_CLIENT_COMM_TWO_LEVEL_PIECES_H_
#define COXSWAIN_CLIENT_COMM_TWO_LEVEL_PIECES_H_

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/comm/communicator.h"
#include "client/comm/memory_runs.h"
#include "client/comm/two_level/levels.h"

namespace coxswain {

// Moves data within a host and between hosts, a piece at a time, so that the
// hosts' memory and the network work at the same time: while one piece is
// between the hosts, the next is formed within them, and the one before is
// spread. Each piece is cut into as many slices as bridges are used, and each
// bridge carries its slice.
//
// Within a host that has as many ranks as bridges are used, the ranks reduce
// and share a slice each; elsewhere all ranks get the whole piece's sum first,
// and each slice from the end of its bridge last.
//
// Sums of half floats are formed in 32 bits, within hosts and between them, and
// rounded once, by the rank that has the sum of all: so between hosts 4 bytes
// an element travel to be summed, and 2 as the result.
//
// Means are all-reduces of pieces that have been divided. What lies in several
// runs is divided into memory of this class's own, which the host shares, and
// its mean copied back from there.
//
// Threading: one thread at a time.
class Pieces {
 public:
  // `levels` outlives it.
  explicit Pieces(const Levels* levels) : levels_(*levels) {}

  // What all ranks have agreed to do; nothing is in flight when these return.
  absl::Status AllReduce(const Span& span, ReduceOp op);
  // `all` has the first of `parts`, and the type and count of all of them.
  absl::Status AllReduceMean(const std::vector<Span>& parts, const Span& all);
  absl::Status Broadcast(const Span& span, int root);

 private:
  struct Piece {
    Span span;
    int64_t begin = 0;  // element of the collective's first one
    Span sum;           // `span`, or where its sums are formed in 32 bits
    int bridges = 1;    // in use
    bool wide = false;
    bool returns = false;        // crosses again, as the result
    std::vector<WorkPtr> works;  // on its way
  };
  // What is done with the pieces of a collective.
  struct Task {
    bool reduces = false;
    ReduceOp op = ReduceOp::kSum;
    int root = 0;
    int divisor = 1;             // of a mean
    const Runs* runs = nullptr;  // of a mean, if it has several
  };

  absl::Status Run(const Span& span, const Task& task);
  absl::Status RunPieces(const Span& span, const Task& task);
  // Cuts the piece that begins with this element.
  absl::StatusOr<Piece> Cut(const Span& span, const Task& task, int64_t begin,
                            int64_t number);
  int BridgesFor(const Span& span) const;

  // Divides a piece, into its own memory ...
  static void Collect(const Task& task, const Piece& piece);
  // ... and copies its mean back from there.
  static void Scatter(const Task& task, const Piece& piece);
  // Forms a host's part of a piece, where its ends of the bridges need it.
  absl::Status Form(const Task& task, const Piece& piece);
  void Cross(const Task& task, Piece* piece);
  // Rounds the sums that have crossed, and starts their way back.
  void Return(Piece* piece);
  absl::Status Await(Piece* piece);
  // Spreads a piece within the host once it has come.
  absl::Status Finish(const Task& task, Piece* piece);
  absl::Status Spread(const Task& task, const Piece& done);

  int ranks_here() const { return levels_.local->size(); }
  bool IsEnd(int bridge) const {
    return levels_.bridges[static_cast<size_t>(bridge)] != nullptr;
  }
  static Span SliceOf(const Span& span, const Piece& piece, int bridge) {
    const int64_t each = span.count / piece.bridges;
    return span.Slice(bridge * each, each);
  }
  // Returns what this host sums of a slice.
  Span ShareOf(const Span& slice) const {
    const int64_t each = slice.count / levels_.hosts.count();
    return slice.Slice(levels_.host() * each, each);
  }
  // Returns this much memory of the host, of one of these buffers in turns.
  template <size_t kTurns>
  absl::StatusOr<Span> Memory(
      std::array<std::unique_ptr<BufferOwner>, kTurns>* buffers, int64_t number,
      int64_t count, DType dtype) const;

  const Levels& levels_;
  Piece forming_;
  Piece crossing_;
  Piece returning_;
  // Sums of two pieces in turns, made when they are first needed.
  std::array<std::unique_ptr<BufferOwner>, 2> wide_;
  // Pieces that lie in several runs: three are on their way at a time.
  std::array<std::unique_ptr<BufferOwner>, 3> collected_;
};

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_COMM_TWO_LEVEL_PIECES_H_
