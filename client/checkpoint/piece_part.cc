#include "client/checkpoint/piece_part.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/crc32c.h"
#include "base/status_macros.h"

namespace coxswain {
namespace {

constexpr int64_t kSumBytes = sizeof(uint32_t);

int64_t Size(absl::string_view bytes) {
  return static_cast<int64_t>(bytes.size());
}

void PutSum(absl::string_view bytes, std::string* out) {
  const uint32_t sum = Crc32c(bytes);
  out->append(reinterpret_cast<const char*>(&sum), sizeof(sum));
}

uint32_t SumAt(absl::string_view sums, int64_t index) {
  uint32_t sum = 0;
  std::memcpy(&sum, sums.data() + index * kSumBytes, sizeof(sum));
  return sum;
}

}  // namespace

absl::StatusOr<std::string> SerializePiecePart(
    const std::vector<PieceMemory>& pieces, absl::string_view state) {
  std::vector<TensorPiece> described;
  described.reserve(pieces.size());
  for (const PieceMemory& memory : pieces) {
    COXSWAIN_RETURN_IF_ERROR(CheckMemory(memory));
    described.push_back(memory.piece);
  }
  COXSWAIN_ASSIGN_OR_RETURN(std::string part, SerializePieceTable(described));
  COXSWAIN_ASSIGN_OR_RETURN(const PieceTable table, ParsePieceTable(part));
  const int64_t bytes = table.bytes + Size(state);
  part.reserve(
      static_cast<size_t>(bytes + kSumBytes * (bytes / kPieceBlockBytes + 2)));
  for (size_t i = 0; i < pieces.size(); ++i) {
    part.resize(static_cast<size_t>(table.offsets[i]), '\0');
    if (pieces[i].data == nullptr) continue;
    part.append(pieces[i].data, static_cast<size_t>(pieces[i].piece.bytes()));
  }
  part.append(state.data(), state.size());
  std::string sums;
  for (int64_t at = 0; at < bytes; at += kPieceBlockBytes) {
    PutSum(absl::string_view(part).substr(static_cast<size_t>(at),
                                          kPieceBlockBytes),
           &sums);
  }
  PutSum(sums, &sums);
  return part += sums;
}

int64_t PieceSumBytes(int64_t part_bytes) {
  if (part_bytes < static_cast<int64_t>(kPieceHeadBytes) + 2 * kSumBytes) {
    return 0;
  }
  // Blocks of kPieceBlockBytes, each with its sum, and the sum of the sums.
  constexpr int64_t kStride = kPieceBlockBytes + kSumBytes;
  return kSumBytes * ((part_bytes - kSumBytes + kStride - 1) / kStride + 1);
}

PiecePart::PiecePart(CheckpointClient* checkpoints, std::string id, int number,
                     int64_t bytes)
    : checkpoints_(checkpoints),
      id_(std::move(id)),
      number_(number),
      bytes_(bytes - PieceSumBytes(bytes)) {}

absl::Status PiecePart::Named(const absl::Status& status) const {
  return {status.code(),
          absl::StrCat(
              "shard ", number_, " of checkpoint ", id_, ": ", status.message(),
              absl::IsDataLoss(status) ? "; use an older checkpoint" : "")};
}

absl::Status PiecePart::Damaged(absl::string_view what) const {
  return Named(absl::DataLossError(what));
}

absl::StatusOr<PiecePart> PiecePart::Open(CheckpointClient* checkpoints,
                                          std::string id, int number,
                                          int64_t bytes) {
  PiecePart part(checkpoints, std::move(id), number, bytes);
  if (PieceSumBytes(bytes) == 0) {
    return part.Damaged(absl::StrCat("its ", bytes, " bytes hold no pieces"));
  }
  COXSWAIN_RETURN_IF_ERROR(part.ReadHead());
  return part;
}

absl::Status PiecePart::ReadHead() {
  const int64_t first = BlockBytes(0);
  const int64_t sums =
      kSumBytes * ((bytes_ + kPieceBlockBytes - 1) / kPieceBlockBytes + 1);
  std::string read;
  read.reserve(static_cast<size_t>(first + sums));
  COXSWAIN_RETURN_IF_ERROR(checkpoints_->LoadRanges(
      id_, number_, {{0, first}, {bytes_, sums}}, [&](absl::string_view bytes) {
        read.append(bytes.data(), bytes.size());
        return absl::OkStatus();
      }));
  bytes_read_ += first + sums;
  first_ = read.substr(0, static_cast<size_t>(first));
  sums_ = read.substr(static_cast<size_t>(first));
  // Before the checksums, which a later version may have elsewhere.
  const absl::StatusOr<int64_t> table = PieceTableBytes(first_);
  if (!table.ok()) return Named(table.status());
  table_bytes_ = *table;
  const int64_t last = Size(sums_) / kSumBytes - 1;
  if (Crc32c(absl::string_view(sums_).substr(
          0, static_cast<size_t>(last * kSumBytes))) != SumAt(sums_, last)) {
    return Damaged("its checksums are damaged");
  }
  COXSWAIN_RETURN_IF_ERROR(CheckBlock(0, first_));
  if (table_bytes_ <= bytes_) return absl::OkStatus();
  return Damaged("it ends within the table of its pieces");
}

int64_t PiecePart::BlockBytes(int64_t block) const {
  return std::min(kPieceBlockBytes, bytes_ - block * kPieceBlockBytes);
}

absl::Status PiecePart::CheckBlock(int64_t block,
                                   absl::string_view bytes) const {
  if (Crc32c(bytes) == SumAt(sums_, block)) return absl::OkStatus();
  return Damaged(absl::StrCat("the ", bytes.size(), " bytes from byte ",
                              block * kPieceBlockBytes,
                              " on are not those that were saved"));
}

absl::Status PiecePart::ReadBlocks(const std::vector<ShardRange>& ranges,
                                   const TakeBlock& take) {
  // Whole blocks, neighbours in one range.
  std::vector<ShardRange> blocks;
  for (const ShardRange& range : ranges) {
    if (range.bytes == 0) continue;
    const int64_t begin = range.offset / kPieceBlockBytes * kPieceBlockBytes;
    const int64_t last = (range.offset + range.bytes - 1) / kPieceBlockBytes;
    const int64_t end = last * kPieceBlockBytes + BlockBytes(last);
    if (blocks.empty() || begin > blocks.back().offset + blocks.back().bytes) {
      blocks.push_back({begin, end - begin});
    } else {
      ShardRange& before = blocks.back();
      before.bytes = std::max(before.bytes, end - before.offset);
    }
  }
  size_t range = 0;
  int64_t taken = 0;  // of that range
  std::string block;  // as far as it has come
  return checkpoints_->LoadRanges(
      id_, number_, blocks, [&](absl::string_view bytes) {
        bytes_read_ += Size(bytes);
        while (!bytes.empty()) {
          const int64_t offset = blocks[range].offset + taken;
          const int64_t number = offset / kPieceBlockBytes;
          const size_t wanted = static_cast<size_t>(BlockBytes(number));
          const absl::string_view more = bytes.substr(0, wanted - block.size());
          bytes.remove_prefix(more.size());
          absl::string_view whole = more;
          if (more.size() < wanted) {
            block.append(more.data(), more.size());
            if (block.size() < wanted) break;
            whole = block;
          }
          COXSWAIN_RETURN_IF_ERROR(CheckBlock(number, whole));
          take(offset, whole);
          block.clear();
          taken += static_cast<int64_t>(wanted);
          if (taken == blocks[range].bytes) {
            ++range;
            taken = 0;
          }
        }
        return absl::OkStatus();
      });
}

absl::StatusOr<std::string> PiecePart::Read(int64_t offset, int64_t bytes) {
  std::string result;
  result.reserve(static_cast<size_t>(bytes));
  COXSWAIN_RETURN_IF_ERROR(
      ReadBlocks({{offset, bytes}}, [&](int64_t at, absl::string_view block) {
        const int64_t begin = std::max<int64_t>(offset - at, 0);
        const int64_t end = std::min(Size(block), offset + bytes - at);
        result.append(block.data() + begin, static_cast<size_t>(end - begin));
      }));
  return result;
}

absl::StatusOr<PieceTable> PiecePart::LoadTable() {
  std::string bytes = first_;
  if (table_bytes_ > Size(bytes)) {
    COXSWAIN_ASSIGN_OR_RETURN(bytes, Read(0, table_bytes_));
  }
  absl::StatusOr<PieceTable> table = ParsePieceTable(bytes);
  if (!table.ok()) return Named(table.status());
  if (table->bytes > bytes_) return Damaged("it ends within its elements");
  state_begin_ = table->bytes;
  return table;
}

absl::StatusOr<std::string> PiecePart::ReadState() {
  if (state_begin_ < 0) COXSWAIN_RETURN_IF_ERROR(LoadTable().status());
  return Read(state_begin_, bytes_ - state_begin_);
}

}  // namespace coxswain
