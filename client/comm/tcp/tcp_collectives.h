#ifndef COXSWAIN_CLIENT_COMM_TCP_TCP_COLLECTIVES_H_
#define COXSWAIN_CLIENT_COMM_TCP_TCP_COLLECTIVES_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "client/comm/collective_header.h"
#include "client/comm/direct_limits.h"
#include "client/comm/host_communicator.h"
#include "client/comm/tcp/chunks.h"
#include "client/comm/tcp/data_paths.h"
#include "client/comm/tcp/direct.h"
#include "client/comm/tcp/opening.h"
#include "client/comm/tcp/ring.h"
#include "client/comm/tcp/runs.h"
#include "client/device/tensor.h"

namespace coxswain {

// Which way a collective takes. All ranks of a group must have the same.
struct TcpTuning {
  // Of data that travels with the opening: to each peer, and to all of them.
  int64_t small_bytes = 256 << 10;
  int64_t small_total = 384 << 10;
  // Long enough for few calls of the system and few waits; short enough that
  // what has arrived is still in a cache when it is added.
  int64_t chunk_bytes = 1 << 20;
  // While it moves more, a rank leaves the processor to others at once.
  int64_t spin_bytes = 4 << 20;
  int direct_ranks = kDirectRanks;
  int64_t direct_bytes = kDirectBytes;
  // Data connections of a pair; 0: as many as pay (connections.h).
  int stripes = 0;
  // Each rank once, in the order of the ring; empty: it is chosen. Not for
  // communicators that are split off.
  std::vector<int> ring;
  // Where this rank is; 0: on this machine. Need not be the same for all.
  uint64_t host_id = 0;
};

// The collectives themselves, over the data paths of a communicator:
//
//   small   what each rank needs travels with the opening, from each rank to
//           each other one; each computes the result. One wait for the peers.
//   direct  after the opening, each rank with each other one (direct.h).
//   ring    after the opening, in a ring or a chain (ring.h): with many ranks,
//           but for 16-bit floats, which it would have to send as 32 bits or
//           round at each hop.
//
// Whatever computes a sum does so once for all ranks, or in the order of ranks
// on each: so all get the same bits.
//
// Threading: one thread at a time.
class TcpCollectives {
 public:
  using Operation = HostOperation;

  // `name` is of the communicator, for errors.
  TcpCollectives(DataPaths* paths, RingRanks ring, int rank, std::string name,
                 absl::Duration timeout, const TcpTuning& tuning);

  // Returns whether an operation takes the small path.
  bool IsSmall(const Operation& operation) const;

  // For small operations: sends what there is to send, without waiting ...
  void Begin(const Operation& operation);
  // ... and gets the result: nullopt if not all peers have come until then.
  std::optional<absl::Status> TryFinish(const Operation& operation,
                                        absl::Time until);
  // Any operation, from beginning to end.
  absl::Status Run(const Operation& operation);

 private:
  // What rank `from` sends with the opening to each rank, if all of them begin
  // this operation and it is small.
  int64_t BytesWithOpening(const Operation& operation, int from) const;
  std::optional<absl::Status> TryOpen(const Operation& operation,
                                      absl::Time until);
  // Forms the result of a small operation.
  void Finish(const Operation& operation);
  // Returns the input of a small operation, without gaps, or null if there is
  // no memory for it ...
  char* Pack(const Operation& operation);
  // ... and puts the result back where the input had any.
  void Unpack(const Operation& operation) const;
  void ReduceArrived(const Operation& operation, const char* own);
  absl::Status RunLarge(const Operation& operation);
  absl::Status Reduce(const Operation& operation,
                      const std::vector<Chunked>& slices, bool gathers);
  absl::Status Gather(const Operation& operation);
  absl::Status Transpose(const Operation& operation);
  // Of so many bytes of all ranks together, or of the sum.
  bool UsesRing(DType dtype, int64_t bytes) const;
  // What each rank's elements are divided by before they are added.
  int DivisorOf(const Operation& operation) const {
    return operation.header.kind == CollectiveKind::kMean ? size_ : 1;
  }
  // Returns a span's slices: as many as ranks, in whole cache lines, or of
  // equal size. `runs` may be null.
  std::vector<Chunked> Shares(const Span& span, const Runs* runs) const;
  std::vector<Chunked> EqualSlices(const Span& span) const;
  // Chunks of whole elements; at least two of a slice, so that one can be added
  // while the other travels.
  int64_t ChunkBytes(int64_t slice_bytes) const;
  // An error with what was begun and where.
  absl::Status Named(const Operation& operation,
                     const absl::Status& status) const;

  DataPaths& paths_;
  const RingRanks ring_;
  const int rank_;
  const int size_;
  const std::string name_;
  const absl::Duration timeout_;
  const TcpTuning tuning_;
  const int64_t small_bytes_;
  char* small_ = nullptr;   // the input of the small operation begun last
  bool has_memory_ = true;  // for it
  Opening opening_;
  Scratch scratch_;
  Scratch packed_;  // a small operation's input that has gaps, without them
  uint64_t turn_ = 0;
  absl::Time deadline_;
};

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_COMM_TCP_TCP_COLLECTIVES_H_
