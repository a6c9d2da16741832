#ifndef COXSWAIN_CLIENT_CHECKPOINT_CONNECTION_NUMBER_H_
#define COXSWAIN_CLIENT_CHECKPOINT_CONNECTION_NUMBER_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/store/store_client.h"

namespace coxswain {

// Which of a checkpoint's connections the ranks of a generation make next.
// Errors may come to one rank alone, so ranks that each counted their own
// attempts would wait for each other under different numbers for good. Rank 0
// counts, and says the number through the store; the others wait for one that
// they have not tried yet.
//
// For AsyncCheckpoint::Options::connect. Life-cycle: one generation, as the
// store. Thread-compatible.
class ConnectionNumber {
 public:
  // `timeout`: how long the others wait for rank 0.
  ConnectionNumber(int rank, StoreClient* store, absl::Duration timeout)
      : rank_(rank), store_(*store), timeout_(timeout) {}

  // The number of the next attempt, from 1. Blocks. DEADLINE_EXCEEDED: rank 0
  // has come to no new attempt; errors of the store.
  absl::StatusOr<int64_t> Next();
  // The attempt under the last number has failed: on rank 0, nobody who comes
  // later is to try it.
  void GiveUp();

 private:
  absl::StatusOr<int64_t> Await();

  const int rank_;
  StoreClient& store_;
  const absl::Duration timeout_;
  int64_t last_ = 0;
};

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_CHECKPOINT_CONNECTION_NUMBER_H_
