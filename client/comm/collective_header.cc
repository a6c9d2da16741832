#include "client/comm/collective_header.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "client/comm/wire.h"

namespace coxswain {
namespace {

constexpr char kVersion = 1;
// What a message has room for.
constexpr size_t kShownRanks = 16;
constexpr size_t kShownKinds = 8;

template <typename Integer>
Integer Get(const CollectiveHeaderBytes& bytes, size_t at) {
  Integer value = 0;
  GetLittleEndian(bytes.data() + at, &value);
  return value;
}

absl::string_view NameOf(ElementOp op) {
  switch (op) {
    case ElementOp::kSum:
      return "sum";
    case ElementOp::kMin:
      return "minimum";
    case ElementOp::kMax:
      return "maximum";
  }
  return "unknown reduction";
}

// "rank 3", or "ranks 0, 2".
std::string NameRanks(const std::vector<int>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  const size_t shown = std::min(ranks.size(), kShownRanks);
  for (size_t i = 0; i < shown; ++i) {
    absl::StrAppend(&text, i == 0 ? "" : ", ", ranks[i]);
  }
  if (shown < ranks.size()) {
    absl::StrAppend(&text, " and ", ranks.size() - shown, " more");
  }
  return text;
}

bool Reduces(CollectiveKind kind) {
  return kind == CollectiveKind::kAllReduce ||
         kind == CollectiveKind::kReduceScatter;
}

}  // namespace

absl::string_view NameOf(CollectiveKind kind) {
  switch (kind) {
    case CollectiveKind::kAllReduce:
      return "all-reduce";
    case CollectiveKind::kBroadcast:
      return "broadcast";
    case CollectiveKind::kBarrier:
      return "barrier";
    case CollectiveKind::kAllGather:
      return "all-gather";
    case CollectiveKind::kReduceScatter:
      return "reduce-scatter";
    case CollectiveKind::kAllToAll:
      return "all-to-all";
    case CollectiveKind::kMessage:
      return "message";
    case CollectiveKind::kMean:
      return "mean";
  }
  return "unknown collective";
}

CollectiveHeader HeaderOf(CollectiveKind kind, const Span& input, ElementOp op,
                          int root) {
  CollectiveHeader header;
  header.kind = kind;
  header.dtype = input.dtype;
  header.op = op;
  header.root = root;
  header.count = input.count;
  return header;
}

CollectiveHeaderBytes Encode(const CollectiveHeader& header) {
  CollectiveHeaderBytes bytes = {};
  bytes[0] = kVersion;
  bytes[1] = static_cast<char>(header.kind);
  bytes[2] = header.refused ? 1 : 0;
  bytes[3] = static_cast<char>(header.dtype);
  bytes[4] = static_cast<char>(header.op);
  PutLittleEndian(header.root, bytes.data() + 8);
  PutLittleEndian(header.count, bytes.data() + 16);
  PutLittleEndian(header.sequence, bytes.data() + 24);
  return bytes;
}

std::optional<CollectiveHeader> DecodeCollectiveHeader(
    const CollectiveHeaderBytes& bytes) {
  CollectiveHeader header;
  header.kind = static_cast<CollectiveKind>(Get<uint8_t>(bytes, 1));
  header.refused = bytes[2] != 0;
  header.dtype = static_cast<DType>(Get<uint8_t>(bytes, 3));
  header.op = static_cast<ElementOp>(Get<uint8_t>(bytes, 4));
  header.root = Get<int32_t>(bytes, 8);
  header.count = Get<int64_t>(bytes, 16);
  header.sequence = Get<uint64_t>(bytes, 24);
  const bool known = header.kind <= CollectiveKind::kMean &&
                     header.dtype <= DType::kUInt8 &&
                     header.op <= ElementOp::kMax;
  // Whatever has other bytes than Encode would write is of another version.
  if (!known || header.count < 0 || Encode(header) != bytes) {
    return std::nullopt;
  }
  return header;
}

std::string Describe(const CollectiveHeader& header) {
  std::string text(NameOf(header.kind));
  if (header.refused) {
    return absl::StrCat("a refused call of ", text, " (see its own error)");
  }
  if (header.kind == CollectiveKind::kBarrier) return text;
  if (Reduces(header.kind)) {
    absl::StrAppend(&text, " (", NameOf(header.op), ")");
  }
  absl::StrAppend(&text, " of ", header.count, " x ", NameOf(header.dtype));
  if (header.kind == CollectiveKind::kBroadcast) {
    absl::StrAppend(&text, " from rank ", header.root);
  }
  return text;
}

absl::Status CompareHeaders(absl::string_view where,
                            const std::vector<RankHeader>& headers) {
  const bool equal =
      std::all_of(headers.begin(), headers.end(), [&](const RankHeader& one) {
        return !one.header.refused && one.header == headers.front().header;
      });
  if (equal) return absl::OkStatus();
  struct Variant {
    CollectiveHeader header;
    std::vector<int> ranks;
  };
  std::vector<Variant> variants;
  bool in_step = true;
  for (const RankHeader& one : headers) {
    in_step = in_step && one.header.sequence == headers[0].header.sequence;
    const auto known =
        std::find_if(variants.begin(), variants.end(),
                     [&](const Variant& v) { return v.header == one.header; });
    if (known == variants.end()) {
      variants.push_back({one.header, {one.rank}});
    } else {
      known->ranks.push_back(one.rank);
    }
  }
  const bool messages = headers[0].header.kind == CollectiveKind::kMessage;
  std::string text = absl::StrCat("the ranks of ", where,
                                  messages ? " announce different messages"
                                           : " begin different collectives");
  const size_t shown = std::min(variants.size(), kShownKinds);
  for (size_t i = 0; i < shown; ++i) {
    absl::StrAppend(&text, i == 0 ? ": " : "; ", NameRanks(variants[i].ranks),
                    " ", Describe(variants[i].header));
    if (!in_step) {
      absl::StrAppend(&text, " after ", variants[i].header.sequence, " others");
    }
  }
  if (shown < variants.size()) {
    absl::StrAppend(&text, "; and ", variants.size() - shown,
                    " other variants");
  }
  return absl::InvalidArgumentError(text);
}

}  // namespace coxswain
