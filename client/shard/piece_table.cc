#include "client/shard/piece_table.h"

#include <cstring>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/crc32c.h"
#include "base/element_names.h"
#include "base/status_macros.h"

// The byte format: docs/piece-format.md. A change of it needs a new version
// number there and here.

namespace coxswain {
namespace {

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
              "the format is little-endian and written by copying");

constexpr absl::string_view kMagic = "CXPT";
constexpr uint32_t kVersion = 1;
constexpr int64_t kChecksumBytes = sizeof(uint32_t);

template <typename T>
void Put(T value, std::string& out) {
  out.append(reinterpret_cast<const char*>(&value), sizeof(value));
}

void PutText(absl::string_view text, std::string& out) {
  Put(static_cast<uint32_t>(text.size()), out);
  out.append(text.data(), text.size());
}

void PutPiece(const TensorPiece& piece, std::string& out) {
  PutText(piece.parameter, out);
  PutText(piece.kind, out);
  PutText(NameOf(piece.dtype), out);
  Put(static_cast<uint32_t>(piece.shape.size()), out);
  for (size_t d = 0; d < piece.shape.size(); ++d) {
    Put(piece.shape[d], out);
    Put(piece.box.begin[d], out);
    Put(piece.box.end[d], out);
  }
  Put(piece.begin, out);
  Put(piece.end, out);
  Put(piece.step, out);
}

absl::Status Damaged(absl::string_view what) {
  return absl::DataLossError(
      absl::StrCat("these bytes are not a whole table of pieces: ", what));
}

// Takes fields off the front of bytes that are not trusted.
class Reader {
 public:
  explicit Reader(absl::string_view bytes) : rest_(bytes) {}

  template <typename T>
  absl::Status Number(T& value) {
    if (rest_.size() < sizeof(T)) return Damaged("it ends too early");
    std::memcpy(&value, rest_.data(), sizeof(T));
    rest_.remove_prefix(sizeof(T));
    return absl::OkStatus();
  }

  absl::Status Text(std::string& text) {
    uint32_t size = 0;
    COXSWAIN_RETURN_IF_ERROR(Number(size));
    if (size > rest_.size()) return Damaged("it ends too early");
    text.assign(rest_.data(), size);
    rest_.remove_prefix(size);
    return absl::OkStatus();
  }

  absl::Status OnePiece(TensorPiece& piece) {
    std::string dtype;
    COXSWAIN_RETURN_IF_ERROR(Text(piece.parameter));
    COXSWAIN_RETURN_IF_ERROR(Text(piece.kind));
    COXSWAIN_RETURN_IF_ERROR(Text(dtype));
    const auto known = ElementTypeFromName(dtype);
    if (!known.has_value()) return Damaged("a piece's type is unknown");
    piece.dtype = *known;
    uint32_t dimensions = 0;
    COXSWAIN_RETURN_IF_ERROR(Number(dimensions));
    if (dimensions > kMaxPieceDimensions) {
      return Damaged("a piece has too many dimensions");
    }
    for (uint32_t d = 0; d < dimensions; ++d) {
      COXSWAIN_RETURN_IF_ERROR(Number(piece.shape.emplace_back()));
      COXSWAIN_RETURN_IF_ERROR(Number(piece.box.begin.emplace_back()));
      COXSWAIN_RETURN_IF_ERROR(Number(piece.box.end.emplace_back()));
    }
    COXSWAIN_RETURN_IF_ERROR(Number(piece.begin));
    COXSWAIN_RETURN_IF_ERROR(Number(piece.end));
    COXSWAIN_RETURN_IF_ERROR(Number(piece.step));
    const absl::Status status = CheckPiece(piece);
    return status.ok() ? status : Damaged(status.message());
  }

  bool empty() const { return rest_.empty(); }

 private:
  absl::string_view rest_;
};

// Fills in where the elements are, behind a table of `begin` bytes. False if
// that is beyond what 63 bits can say.
bool Place(int64_t begin, PieceTable& table) {
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  int64_t at = begin;
  for (const TensorPiece& piece : table.pieces) {
    if (at > kMost - kPieceAlignment) return false;
    at = (at + kPieceAlignment - 1) / kPieceAlignment * kPieceAlignment;
    table.offsets.push_back(at);
    if (piece.bytes() > kMost - at) return false;
    at += piece.bytes();
  }
  table.bytes = at;
  return true;
}

}  // namespace

absl::StatusOr<std::string> SerializePieceTable(
    const std::vector<TensorPiece>& pieces) {
  std::string body;
  Put(static_cast<uint32_t>(pieces.size()), body);
  for (const TensorPiece& piece : pieces) {
    PutPiece(piece, body);
    if (static_cast<int64_t>(body.size()) < kMaxPieceTableBytes - 1024)
      continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "the table of ", pieces.size(), " pieces would be longer than ",
        kMaxPieceTableBytes - 1024, " bytes; save fewer and larger ones"));
  }
  std::string out(kMagic);
  Put(kVersion, out);
  Put(static_cast<uint64_t>(kPieceHeadBytes + body.size() + kChecksumBytes),
      out);
  out += body;
  Put(Crc32c(out), out);
  PieceTable table;
  table.pieces = pieces;
  if (Place(static_cast<int64_t>(out.size()), table)) return out;
  return absl::InvalidArgumentError(
      absl::StrCat(pieces.size(), " pieces have more bytes than there can be"));
}

absl::StatusOr<int64_t> PieceTableBytes(absl::string_view head) {
  if (head.size() < kPieceHeadBytes ||
      head.substr(0, kMagic.size()) != kMagic) {
    return Damaged("they do not begin like one");
  }
  Reader reader(head.substr(kMagic.size()));
  uint32_t version = 0;
  uint64_t bytes = 0;
  COXSWAIN_RETURN_IF_ERROR(reader.Number(version));
  COXSWAIN_RETURN_IF_ERROR(reader.Number(bytes));
  if (version != kVersion) {
    return absl::FailedPreconditionError(absl::StrCat(
        "this checkpoint's pieces are in version ", version,
        " of their format, and this program knows version ", kVersion,
        "; go on with the version of the library that saved it, or a later "
        "one"));
  }
  if (bytes < kPieceHeadBytes + kChecksumBytes ||
      bytes > static_cast<uint64_t>(kMaxPieceTableBytes)) {
    return Damaged(absl::StrCat("it claims to have ", bytes, " bytes"));
  }
  return static_cast<int64_t>(bytes);
}

absl::StatusOr<PieceTable> ParsePieceTable(absl::string_view bytes) {
  COXSWAIN_ASSIGN_OR_RETURN(const int64_t length, PieceTableBytes(bytes));
  if (static_cast<int64_t>(bytes.size()) < length) {
    return Damaged("it ends too early");
  }
  bytes = bytes.substr(0, static_cast<size_t>(length - kChecksumBytes));
  uint32_t checksum = 0;
  std::memcpy(&checksum, bytes.data() + bytes.size(), sizeof(checksum));
  if (checksum != Crc32c(bytes)) return Damaged("its checksum is wrong");
  Reader reader(bytes.substr(kPieceHeadBytes));
  uint32_t count = 0;
  COXSWAIN_RETURN_IF_ERROR(reader.Number(count));
  PieceTable table;
  for (uint32_t i = 0; i < count; ++i) {
    COXSWAIN_RETURN_IF_ERROR(reader.OnePiece(table.pieces.emplace_back()));
  }
  if (!reader.empty()) return Damaged("there are bytes after its end");
  if (!Place(length, table)) {
    return Damaged("its pieces have more bytes than there can be");
  }
  return table;
}

}  // namespace coxswain
