#ifndef COXSWAIN_CLIENT_COMM_SHM_PHASES_H_
#define COXSWAIN_CLIENT_COMM_SHM_PHASES_H_

#include <atomic>
#include <cstdint>

#include "absl/time/time.h"
#include "client/comm/shm/doorbell.h"

namespace coxswain {

// Synchronises the ranks of one host through shared memory. A rank's work is a
// sequence of phases; what it wrote before it arrives at the end of one is
// visible to the others once they have arrived there.
//
// Waiting: a short spin, for peers that are about to arrive on processors of
// their own (none if the ranks together may run on fewer processors than there
// are ranks), then sleep at a doorbell. tests/simulation has the protocol as a
// model that is checked exhaustively.
//
// Threading: one thread of the process arrives and waits at a time; Stop is for
// any thread.
class Phases {
 public:
  static constexpr int kProcessorWords = 16;
  // A rank's words, zero at first, in cache lines of their own.
  struct Line {
    alignas(64) std::atomic<uint32_t> arrived;  // phases ended; wraps around
    alignas(64) Doorbell door;
    // The processors on which the rank may run, a bit for each; set before it
    // arrives anywhere.
    alignas(64) std::atomic<uint64_t> processors[kProcessorWords];
  };

  enum class Outcome { kMet, kLate, kStopped };

  // Rank r's line is `lines` + r * stride bytes; in shared memory.
  Phases(char* lines, int64_t stride, int rank, int size);

  // Ends this rank's phase.
  void Arrive();
  // Waits until all have arrived where this rank has. Returns kLate at the
  // deadline, after which the caller may wait again. The deadline is by
  // Clock::Real()->Now().
  Outcome Await(absl::Time deadline);
  // Returns a rank that has not arrived there yet; -1 if there is none.
  int Missing() const;

  // Ends every wait of this process, now and later.
  void Stop();

 private:
  Line& line(int rank) const;
  bool Met() const;
  bool Spin(absl::Time deadline) const;
  void DecideOnSpinning();
  Outcome Sleep(absl::Time deadline);

  char* const lines_;
  const int64_t stride_;
  const int rank_;
  const int size_;
  // How long to spin; decided when all ranks have met once.
  absl::Duration spin_;
  bool decided_ = false;
  uint32_t phase_ = 0;
  std::atomic<bool> stopped_{false};
};

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_COMM_SHM_PHASES_H_
