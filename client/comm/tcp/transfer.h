#ifndef COXSWAIN_CLIENT_COMM_TCP_TRANSFER_H_
#define COXSWAIN_CLIENT_COMM_TCP_TRANSFER_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/comm/tcp/data_paths.h"
#include "client/comm/tcp/runs.h"

namespace coxswain {

// What goes to a peer, or comes from it, in one collective: chunks, of which
// both ends know the number and the sizes. Chunk i goes by stripe i modulo the
// number of stripes, so chunks of different stripes may end in another order.
struct Flow {
  int peer = 0;
  bool outgoing = false;
  int64_t chunks = 0;
  // Returns a chunk's memory, once it may be sent, or received into; the same
  // from then on until it is done. At least one byte.
  std::function<Piece(int64_t chunk)> piece;
  // Called when it has been sent, or received; it may make others ready. May be
  // null.
  std::function<void(int64_t chunk)> done;
};

// Moves all flows of a collective at the same time, on the calling thread, so
// that what `done` computes happens while the connections are busy. ABORTED
// where the paths were stopped; DEADLINE_EXCEEDED names the peers that were
// waited for; the paths' error of a peer that is gone.
class FlowTransfer {
 public:
  FlowTransfer(DataPaths* paths, std::vector<Flow> flows);

  absl::Status Run(absl::Time deadline);

 private:
  // One stripe of a flow.
  struct Lane {
    const Flow* flow = nullptr;
    int stripe = 0;
    int step = 1;
    int64_t chunk = 0;
    int64_t offset = 0;
    bool blocked = false;  // the system would have had to wait

    bool ended() const { return chunk >= flow->chunks; }
  };

  // Returns whether anything moved.
  absl::StatusOr<bool> Advance(Lane* lane);
  // Move some of the piece's bytes from the lane's offset on.
  absl::StatusOr<int64_t> Send(const Lane& lane, const Piece& piece);
  absl::StatusOr<int64_t> Receive(const Lane& lane, const Piece& piece);
  absl::Status Await(absl::Time deadline);
  absl::Status Late() const;

  DataPaths& paths_;
  const std::vector<Flow> flows_;
  std::vector<Lane> lanes_;
};

// Returns "rank 1 did not come", or "ranks 1, 2 did not come".
std::string DidNotCome(const std::vector<int>& ranks);

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_COMM_TCP_TRANSFER_H_
