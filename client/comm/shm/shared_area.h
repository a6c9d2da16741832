#ifndef COXSWAIN_CLIENT_COMM_SHM_SHARED_AREA_H_
#define COXSWAIN_CLIENT_COMM_SHM_SHARED_AREA_H_

#include <cstdint>

#include "client/comm/collective_header.h"
#include "client/comm/shm/phases.h"

namespace coxswain {

// What a rank announces of the collective that it begins: the header, which the
// ranks compare, and where the input is.
struct Post {
  CollectiveHeaderBytes header = {};
  uint64_t segment = 0;  // that the input lies in; 0: in none that is shared
  int64_t offset = 0;    // bytes, in that segment
};

// How a communicator's segment is divided: for each rank its line of phases,
// two posts and two slots, used in turns by successive collectives, and two
// areas through which large data in private memory passes in pieces. A rank
// writes its own part only.
//
// Successive collectives alternate, because a rank may begin one while others
// still read what it posted for the one before; nobody begins the next but one
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
  // What goes in, and what comes out.
  char* input(int rank) const { return Part(rank) + kInput; }
  char* output(int rank) const { return Part(rank) + kInput + kPieceBytes; }

 private:
  static constexpr int64_t kInput = (4 << 10) + 2 * kSlotBytes;
  static_assert(sizeof(Post) <= 64);
  static_assert(sizeof(Phases::Line) + 2 * 64 <= (4 << 10));

  char* Part(int rank) const { return memory_ + kStride * rank; }

  char* const memory_;
};

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_COMM_SHM_SHARED_AREA_H_
