#include "client/checkpoint/piece_checkpoint.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <tuple>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/element_names.h"
#include "base/status_macros.h"

namespace coxswain {
namespace {

// Copies that are made together: some megabytes of memory.
constexpr size_t kCopiesAtOnce = size_t{1} << 16;

absl::Status Prefixed(const std::string& id, const absl::Status& status) {
  return {status.code(),
          absl::StrCat("checkpoint ", id, ": ", status.message())};
}

// Returns the tables of all parts, once it is known that they are not too long.
absl::StatusOr<std::vector<PieceTable>> LoadTables(
    const std::string& id, const PieceLimits& limits,
    std::vector<PiecePart>* parts) {
  int64_t bytes = 0;
  for (const PiecePart& part : *parts) bytes += part.table_bytes();
  if (bytes > limits.index_bytes) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "the tables of the ", parts->size(), " parts of checkpoint ", id,
        " have ", bytes, " bytes, more than the ", limits.index_bytes,
        " that one reader takes; save fewer and larger pieces"));
  }
  std::vector<PieceTable> tables;
  for (PiecePart& part : *parts) {
    COXSWAIN_ASSIGN_OR_RETURN(tables.emplace_back(), part.LoadTable());
  }
  return tables;
}

absl::Status CheckLimits(const CheckpointDescription& checkpoint,
                         const std::vector<int64_t>& sizes,
                         const PieceLimits& limits) {
  if (checkpoint.shards > limits.parts) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "checkpoint ", checkpoint.id, " has ", checkpoint.shards,
        " parts, more than the ", limits.parts, " that one reader takes"));
  }
  if (static_cast<int>(sizes.size()) != checkpoint.shards) {
    return absl::DataLossError(absl::StrCat(
        "checkpoint ", checkpoint.id, " has ", sizes.size(), " of ",
        checkpoint.shards, " parts; use an older checkpoint"));
  }
  int64_t sums = 0;
  for (const int64_t size : sizes) sums += PieceSumBytes(size);
  if (sums <= limits.index_bytes) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(
      "the checksums of checkpoint ", checkpoint.id, " have ", sums,
      " bytes, more than the ", limits.index_bytes, " that one reader takes"));
}

// Returns the first part whose pieces do not fit those of the parts before.
int OddPart(const std::vector<PieceTable>& tables) {
  std::map<std::pair<absl::string_view, absl::string_view>, const TensorPiece*>
      known;
  for (size_t part = 0; part < tables.size(); ++part) {
    for (const TensorPiece& piece : tables[part].pieces) {
      const TensorPiece& first =
          *known.try_emplace({piece.parameter, piece.kind}, &piece)
               .first->second;
      if (std::tie(piece.dtype, piece.shape, piece.step) !=
          std::tie(first.dtype, first.shape, first.step)) {
        return static_cast<int>(part);
      }
    }
  }
  return 0;
}

}  // namespace

absl::StatusOr<std::vector<PieceMemory>> ShareOfPieces(
    Communicator& communicator, const std::vector<PieceMemory>& pieces,
    CheckpointLabel* label, absl::Duration timeout) {
  std::vector<TensorPiece> described;
  absl::Status status;
  for (const PieceMemory& memory : pieces) {
    described.push_back(memory.piece);
    if (status.ok()) status = CheckMemory(memory);
  }
  COXSWAIN_ASSIGN_OR_RETURN(
      const PieceShare share,
      SharePieces(communicator, described, status, timeout));
  std::vector<PieceMemory> own;
  for (const size_t i : share.own) own.push_back(pieces[i]);
  label->metadata[kPiecesLabel] = absl::StrCat(share.total);
  return own;
}

absl::StatusOr<std::string> SavePieces(CheckpointClient& checkpoints,
                                       Communicator& communicator,
                                       CheckpointLabel label,
                                       const std::vector<PieceMemory>& pieces,
                                       absl::string_view state,
                                       absl::Duration timeout) {
  COXSWAIN_ASSIGN_OR_RETURN(
      const std::vector<PieceMemory> own,
      ShareOfPieces(communicator, pieces, &label, timeout));
  label.metadata["world_size"] = absl::StrCat(communicator.size());
  return SaveTogether(checkpoints, communicator, label,
                      SerializePiecePart(own, state), timeout);
}

absl::StatusOr<PieceCheckpoint> PieceCheckpoint::Open(
    CheckpointClient& checkpoints, absl::string_view id,
    const PieceLimits& limits) {
  COXSWAIN_ASSIGN_OR_RETURN(CheckpointDescription found,
                            FindCheckpoint(checkpoints, id));
  const auto label = found.metadata.find(kPiecesLabel);
  if (label == found.metadata.end()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "checkpoint ", found.id,
        " has no pieces: a program without sharded state has saved it; resume "
        "from it as such a program does"));
  }
  COXSWAIN_ASSIGN_OR_RETURN(const std::vector<int64_t> sizes,
                            checkpoints.ShardSizes(found.id));
  COXSWAIN_RETURN_IF_ERROR(CheckLimits(found, sizes, limits));
  std::vector<PiecePart> parts;
  for (int i = 0; i < found.shards; ++i) {
    COXSWAIN_ASSIGN_OR_RETURN(PiecePart part,
                              PiecePart::Open(&checkpoints, found.id, i,
                                              sizes[static_cast<size_t>(i)]));
    parts.push_back(std::move(part));
  }
  COXSWAIN_ASSIGN_OR_RETURN(std::vector<PieceTable> tables,
                            LoadTables(found.id, limits, &parts));
  std::vector<Place> places;
  std::vector<TensorPiece> pieces;
  for (size_t part = 0; part < tables.size(); ++part) {
    const PieceTable& table = tables[part];
    for (const int64_t offset : table.offsets) {
      places.push_back({static_cast<int>(part), offset});
    }
    pieces.insert(pieces.end(), table.pieces.begin(), table.pieces.end());
  }
  if (label->second != absl::StrCat(pieces.size())) {
    return absl::DataLossError(
        absl::StrCat("checkpoint ", found.id, " says that it has ",
                     label->second, " pieces, and its parts have ",
                     pieces.size(), "; use an older checkpoint"));
  }
  absl::StatusOr<PieceIndex> index = PieceIndex::Create(std::move(pieces));
  if (!index.ok()) {
    return Prefixed(absl::StrCat(found.id, ", shard ", OddPart(tables)),
                    index.status());
  }
  return PieceCheckpoint(std::move(found), *std::move(index), std::move(places),
                         std::move(parts));
}

// Bytes of a part that go to the memory of one who wants them.
struct PieceCheckpoint::Copy {
  int part = 0;
  int64_t from = 0;
  int64_t bytes = 0;
  char* to = nullptr;
};

absl::StatusOr<std::vector<PieceRead>> PieceCheckpoint::Find(
    const PieceMemory& wanted) const {
  COXSWAIN_RETURN_IF_ERROR(CheckMemory(wanted));
  auto reads = index_.Find(wanted.piece);
  if (!reads.ok()) return Prefixed(description_.id, reads.status());
  return reads;
}

absl::Status PieceCheckpoint::Load(const std::vector<PieceMemory>& wanted) {
  for (const PieceMemory& memory : wanted) {
    COXSWAIN_RETURN_IF_ERROR(Find(memory).status());
  }
  std::vector<Copy> copies;
  for (const PieceMemory& memory : wanted) {
    COXSWAIN_ASSIGN_OR_RETURN(const std::vector<PieceRead> reads, Find(memory));
    const auto element = static_cast<int64_t>(SizeOf(memory.piece.dtype));
    for (const PieceRead& read : reads) {
      const Place& place = places_[read.piece];
      copies.push_back({place.part, place.offset + read.from * element,
                        read.count * element, memory.data + read.to * element});
      if (copies.size() == kCopiesAtOnce) {
        COXSWAIN_RETURN_IF_ERROR(Make(&copies));
      }
    }
  }
  return Make(&copies);
}

// Makes the copies of one part after the other, each in the order of its bytes;
// leaves none.
absl::Status PieceCheckpoint::Make(std::vector<Copy>* copies) {
  std::sort(copies->begin(), copies->end(), [](const Copy& a, const Copy& b) {
    return std::tie(a.part, a.from) < std::tie(b.part, b.from);
  });
  for (auto begin = copies->begin(); begin != copies->end();) {
    const int part = begin->part;
    const auto end =
        std::find_if(begin, copies->end(),
                     [part](const Copy& copy) { return copy.part != part; });
    std::vector<ShardRange> ranges;
    for (auto copy = begin; copy != end; ++copy) {
      ranges.push_back({copy->from, copy->bytes});
    }
    COXSWAIN_RETURN_IF_ERROR(parts_[static_cast<size_t>(part)].ReadBlocks(
        ranges, [&](int64_t offset, absl::string_view block) {
          const int64_t block_end = offset + static_cast<int64_t>(block.size());
          for (auto copy = begin; copy != end && copy->from < block_end;
               ++copy) {
            const int64_t first = std::max(copy->from, offset);
            const int64_t last = std::min(copy->from + copy->bytes, block_end);
            if (first >= last) continue;
            std::memcpy(copy->to + (first - copy->from),
                        block.data() + (first - offset),
                        static_cast<size_t>(last - first));
          }
          while (begin != end && begin->from + begin->bytes <= block_end) {
            ++begin;
          }
        }));
    begin = end;
  }
  copies->clear();
  return absl::OkStatus();
}

absl::StatusOr<std::string> PieceCheckpoint::LoadState(int rank) {
  if (rank >= 0 && rank < static_cast<int>(parts_.size())) {
    return parts_[static_cast<size_t>(rank)].ReadState();
  }
  return absl::InvalidArgumentError(absl::StrCat("checkpoint ", description_.id,
                                                 " has the parts of ranks 0 "
                                                 "to ",
                                                 parts_.size() - 1,
                                                 ", not of rank ", rank));
}

int64_t PieceCheckpoint::bytes_read() const {
  int64_t bytes = 0;
  for (const PiecePart& part : parts_) bytes += part.bytes_read();
  return bytes;
}

}  // namespace coxswain
