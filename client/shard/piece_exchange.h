#ifndef COXSWAIN_CLIENT_SHARD_PIECE_EXCHANGE_H_
#define COXSWAIN_CLIENT_SHARD_PIECE_EXCHANGE_H_

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/comm/communicator.h"
#include "client/shard/piece.h"
#include "client/shard/piece_index.h"

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
// next one after this gives it.
//
//   auto exchange = PieceExchange::Create(what this rank has, options, world);
//   exchange->Get(what it wants, by what exchange->pieces() has);
//
// Both are collective: all ranks of the communicator, which moves memory of the
// CPU, call them, each with lists of its own. The memory of what a rank has
// stays until Get has returned on all ranks. Uses messages of 4 MiB, of which a
// rank holds two at a time.
//
// Threading: one thread. The communicator outlives it.
class PieceExchange {
 public:
  // Fails on all ranks alike with
  //   INVALID_ARGUMENT     a rank's list is not valid; names it
  //   RESOURCE_EXHAUSTED   the tables are longer than the limit
  //   FAILED_PRECONDITION  pieces of different shapes, types or steps
  // and with the communicator's errors.
  static absl::StatusOr<PieceExchange> Create(
      std::vector<PieceMemory> have, const PieceExchangeOptions& options,
      Communicator& communicator);

  // Returns the pieces of all ranks.
  const PieceIndex& pieces() const { return pieces_; }

  // Fills in the elements of `want`, which may not overlap what this rank has;
  // a wanted piece's step does not matter. Fails likewise, before any element
  // has moved, and with
  //   NOT_FOUND  no rank has an element that one wants; names both
  // With the communicator's errors the contents are undefined.
  absl::Status Get(const std::vector<PieceMemory>& want);

 private:
  // Of each rank.
  using Tables = std::vector<std::vector<TensorPiece>>;

  PieceExchange(std::vector<PieceMemory> have, Tables tables, PieceIndex pieces,
                const PieceExchangeOptions& options, Communicator& communicator)
      : have_(std::move(have)),
        tables_(std::move(tables)),
        pieces_(std::move(pieces)),
        options_(options),
        communicator_(communicator) {}

  static absl::StatusOr<Tables> Gather(const std::vector<PieceMemory>& own,
                                       const PieceExchangeOptions& options,
                                       Communicator& communicator);

  std::vector<PieceMemory> have_;
  Tables tables_;
  PieceIndex pieces_;
  PieceExchangeOptions options_;
  Communicator& communicator_;
};

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_SHARD_PIECE_EXCHANGE_H_
