// Tables of the pieces of sharded state.

#include <cstring>
#include <string>
#include <utility>

#include "base/check.h"
#include "base/crc32c.h"
#include "client/shard/piece_index.h"
#include "client/shard/piece_table.h"
#include "tests/fuzz/decoders.h"

namespace coxswain {
namespace {

// As an attacker would: with a length and a checksum that fit.
std::string TableThatFits(absl::string_view input) {
  std::string bytes(input);
  constexpr size_t kTail = sizeof(uint32_t);
  if (bytes.size() < kPieceHeadBytes + kTail) return bytes;
  const uint64_t length = bytes.size();
  std::memcpy(bytes.data() + 8, &length, sizeof(length));
  const uint32_t crc =
      Crc32c(absl::string_view(bytes).substr(0, bytes.size() - kTail));
  std::memcpy(bytes.data() + bytes.size() - kTail, &crc, kTail);
  return bytes;
}

// Whether the piece is cut in little time.
bool IsSmall(const TensorPiece& piece) {
  return piece.count() < 1 << 16 && piece.box.count() < 1 << 16;
}

}  // namespace

void FuzzPieceTable(absl::string_view input) {
  ParsePieceTable(input).status().IgnoreError();
  const auto table = ParsePieceTable(TableThatFits(input));
  if (!table.ok()) return;
  COXSWAIN_CHECK(table->offsets.size() == table->pieces.size());
  const auto again = SerializePieceTable(table->pieces);
  COXSWAIN_CHECK(again.ok());
  const auto same = ParsePieceTable(*again);
  COXSWAIN_CHECK(same.ok() && same->bytes == table->bytes);
  const auto index = PieceIndex::Create(table->pieces);
  if (!index.ok()) return;
  for (const TensorPiece& piece : index->pieces()) {
    if (!IsSmall(piece)) continue;
    const auto reads = index->Find(piece);
    COXSWAIN_CHECK(reads.ok());
    int64_t count = 0;
    for (const PieceRead& read : *reads) count += read.count;
    COXSWAIN_CHECK(count == piece.count());
  }
}

}  // namespace coxswain
