#ifndef COXSWAIN_CLIENT_SHARD_PIECE_EXCHANGE_H_
#define COXSWAIN_CLIENT_SHARD_PIECE_EXCHANGE_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "client/comm/communicator.h"
#include "client/shard/piece.h"

namespace coxswain {

struct PieceExchangeOptions {
  // Of the tables of pieces of all ranks together.
  int64_t max_table_bytes = int64_t{1} << 30;
  // For each collective and message.
  absl::Duration timeout = absl::Minutes(5);
};

// Gives each rank the elements of the pieces it wants, from what the ranks
// have: as when a generation has other ranks than the one before, and each is
// to keep other elements of an optimizer's state. Elements keep their bits. A
// rank's own ones are copied first; of other ranks that have an element, the
// next one after this gives it. Each rank passes its own lists; what it wants
// may not overlap what it has. A step of a wanted piece does not matter.
//
// Collective: all ranks of `communicator`, which moves memory of the CPU, call
// it. Uses messages of 4 MiB, of which a rank holds two at a time.
//
// Fails on all ranks alike, and before any element has moved:
//   INVALID_ARGUMENT     a rank's lists are not valid; names it
//   RESOURCE_EXHAUSTED   the tables are longer than the limit
//   NOT_FOUND            no rank has an element that one wants; names both
//   FAILED_PRECONDITION  pieces of different shapes, types or steps
// With the communicator's errors the contents of wanted pieces are undefined.
absl::Status ExchangePieces(const std::vector<PieceMemory>& have,
                            const std::vector<PieceMemory>& want,
                            const PieceExchangeOptions& options,
                            Communicator& communicator);

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_SHARD_PIECE_EXCHANGE_H_
