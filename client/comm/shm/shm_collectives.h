#ifndef COXSWAIN_CLIENT_COMM_SHM_SHM_COLLECTIVES_H_
#define COXSWAIN_CLIENT_COMM_SHM_SHM_COLLECTIVES_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/comm/back_end.h"
#include "client/comm/collective_header.h"
#include "client/comm/host_communicator.h"
#include "client/comm/memory_runs.h"
#include "client/comm/shm/phases.h"
#include "client/device/tensor.h"

namespace coxswain {

// What a rank announces of its collective: the header, which the ranks compare,
// and where the input is.
struct Post {
  CollectiveHeaderBytes header = {};
  uint64_t segment = 0;  // that the input lies in; 0: in none that is shared
  int64_t offset = 0;    // bytes, in that segment
};

// The layout of a communicator's segment: for each rank its line of phases, two
// posts and two slots, used in turns by successive collectives, and two areas
// through which large data in private memory passes in pieces. A rank writes
// its own part only.
//
// Successive collectives alternate, because a rank may begin one while others
// still read what it posted for the one before; no rank begins the next but one
// before all have ended the first.
class SharedArea {
 public:
  static constexpr int64_t kSlotBytes = 32 << 10;
  static constexpr int64_t kPieceBytes = 1 << 20;
  // Of one rank's part.
  static constexpr int64_t kStride =
      (4 << 10) + 2 * kSlotBytes + 2 * kPieceBytes;

  static int64_t BytesFor(int size) { return kStride * size; }

  // `memory` has BytesFor the number of ranks, zero at first.
  explicit SharedArea(char* memory) : memory_(memory) {}

  char* lines() const { return memory_; }
  Post& post(int rank, uint64_t turn) const {
    return *reinterpret_cast<Post*>(Part(rank) + sizeof(Phases::Line) +
                                    64 * (turn % 2));
  }
  char* slot(int rank, uint64_t turn) const {
    return Part(rank) + (4 << 10) + kSlotBytes * static_cast<int64_t>(turn % 2);
  }
  // Returns what goes in, and what comes out.
  char* input(int rank) const { return Part(rank) + kInput; }
  char* output(int rank) const { return Part(rank) + kInput + kPieceBytes; }

 private:
  static constexpr int64_t kInput = (4 << 10) + 2 * kSlotBytes;
  static_assert(sizeof(Post) <= 64);
  static_assert(sizeof(Phases::Line) + 2 * 64 <= (4 << 10));

  char* Part(int rank) const { return memory_ + kStride * rank; }

  char* const memory_;
};

// The collectives themselves, over the shared area of a communicator:
//
//   small   each rank copies its input to its slot; one phase; each rank reads
//           what it needs from all slots. One meeting.
//   direct  inputs lie in shared segments (memory of AllocateBuffer): each rank
//           reads from the others' inputs, and for an all-reduce writes its
//           slice of the result into all of them. Two passes over the data, no
//           copies, two meetings.
//   pieces  large inputs in private memory, or in several runs of memory, pass
//           through the area a piece at a time; two meetings each.
//
// A mean takes the paths of an all-reduce; elements are divided as they are
// added up.
//
// Sums are formed in the order of ranks wherever they are computed, so all
// ranks get the same bits. The headers of the ranks lie in the shared area
// before the first meeting, which every collective needs anyway, so comparing
// them costs no message. Headers that differ are INVALID_ARGUMENT on all ranks,
// and do not affect later collectives.
//
// Threading: one thread at a time; Stop of the phases is for any thread.
class ShmCollectives {
 public:
  // Returns memory of a peer, which stays mapped as long as the pointer lives;
  // waits until the peer's announcement of the segment has arrived.
  using Resolver = std::function<absl::StatusOr<std::shared_ptr<char>>(
      int peer, uint64_t segment, int64_t offset, int64_t bytes)>;

  struct Operation : HostOperation {
    // Where the input lies, if in memory that is shared.
    uint64_t segment = 0;
    int64_t offset = 0;
  };

  ShmCollectives(const SharedArea& area, Phases* phases, int rank, int size,
                 std::string name, absl::Duration timeout, Resolver resolver,
                 std::shared_ptr<ByteCounter> moved);

  // Returns whether an operation takes the small path.
  bool IsSmall(const Operation& operation) const;

  // Begins a small operation: shows the input to the peers, without waiting ...
  void Begin(const Operation& operation);
  // ... and returns the result, or nullopt if not all peers have arrived by
  // then.
  std::optional<absl::Status> TryFinish(const Operation& operation,
                                        absl::Time until);
  // Runs any operation from beginning to end.
  absl::Status Run(const Operation& operation);

  // Returns the deadline of the operation that was begun.
  absl::Time deadline() const { return deadline_; }

 private:
  absl::Status Meet();
  absl::Status Late() const;
  absl::Status CompareHeaders() const;

  void ReadSlots(const Operation& operation);
  absl::Status RunDirect(const Operation& operation,
                         const std::vector<char*>& inputs);
  absl::Status RunInPieces(const Operation& operation);
  // Returns the ranks' inputs where they lie, by rank; empty if pieces are
  // needed.
  absl::StatusOr<std::vector<std::shared_ptr<char>>> DirectInputs(
      const Operation& operation);
  // Reads `bytes` of the input from byte `at` on, into one run of memory ...
  static void CopyIn(const Operation& operation, int64_t at, int64_t bytes,
                     char* to);
  // ... and writes as many of the output.
  static void CopyOut(const Operation& operation, int64_t at, int64_t bytes,
                      const char* from);
  // What inputs are divided by as they are added up.
  int DivisorOf(const Operation& operation) const {
    return operation.header.kind == CollectiveKind::kMean ? size_ : 1;
  }
  void CopyPieceIn(const Operation& operation, int64_t begin, int64_t count);
  void UsePiece(const Operation& operation, int64_t begin, int64_t count);
  void CopyPieceOut(const Operation& operation, int64_t begin, int64_t count);

  const SharedArea area_;
  Phases& phases_;
  const int rank_;
  const int size_;
  const std::string name_;
  const absl::Duration timeout_;
  const Resolver resolver_;
  uint64_t turn_ = 0;
  bool refused_ = false;  // the header of this turn
  absl::Time deadline_;
  // Read from, or written to, what belongs to other ranks.
  const std::shared_ptr<ByteCounter> moved_;
};

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_COMM_SHM_SHM_COLLECTIVES_H_
