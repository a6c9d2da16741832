#ifndef COXSWAIN_CLIENT_COMM_COLLECTIVE_HEADER_H_
#define COXSWAIN_CLIENT_COMM_COLLECTIVE_HEADER_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "client/device/tensor.h"

namespace coxswain {

// The values travel between ranks: they are never renumbered.
enum class CollectiveKind : uint8_t {
  kBarrier = 0,
  kAllReduce = 1,
  kBroadcast = 2,
  kAllGather = 3,
  kReduceScatter = 4,
  kAllToAll = 5,
  kMessage = 6,
  kMean = 7,
};
absl::string_view NameOf(CollectiveKind kind);

// What a rank announces of a collective before its data moves. Back ends that
// move data between processes compare the announcements of all ranks first, so
// that ranks which begin different collectives get an error instead of each
// other's bytes. Independent of how it travels.
struct CollectiveHeader {
  CollectiveKind kind = CollectiveKind::kBarrier;
  // The rank's own call was refused, and it takes no part in the collective
  // that its peers may begin here. What else the header has is as it was asked
  // for where that is known.
  bool refused = false;
  DType dtype = DType::kFloat32;
  ElementOp op = ElementOp::kSum;  // of an all-reduce or a reduce-scatter
  int32_t root = 0;                // of a broadcast; of a message its sender
  int64_t count = 0;               // elements of the input
  // How many collectives the rank has begun on this communicator before.
  uint64_t sequence = 0;

  friend bool operator==(const CollectiveHeader& a, const CollectiveHeader& b) {
    return a.kind == b.kind && a.refused == b.refused && a.dtype == b.dtype &&
           a.op == b.op && a.root == b.root && a.count == b.count &&
           a.sequence == b.sequence;
  }
};

// Returns a header of `kind` for `input`, with the sequence number still to be
// set.
CollectiveHeader HeaderOf(CollectiveKind kind, const Span& input,
                          ElementOp op = ElementOp::kSum, int root = 0);

// Encodes a header for other ranks: 32 bytes, integers in little endian. From
// byte 0 on: the version (1), kind, refused (0 or 1), element type, reduction,
// and three zero bytes; root at 8, four zero bytes at 12, count at 16, sequence
// at 24. Types and reductions are numbered as in base/element_type.h.
using CollectiveHeaderBytes = std::array<char, 32>;
CollectiveHeaderBytes Encode(const CollectiveHeader& header);
// Returns nullopt if the bytes are not a header of this version.
std::optional<CollectiveHeader> DecodeCollectiveHeader(
    const CollectiveHeaderBytes& bytes);

// Returns a text for messages: "all-reduce (sum) of 8 x float32".
std::string Describe(const CollectiveHeader& header);

struct RankHeader {
  int rank = 0;
  CollectiveHeader header;
};

// Returns OK if all headers are equal and none is of a refused call. Otherwise
// fails with INVALID_ARGUMENT, with all ranks and what each begins, the same on
// every rank that compares the same. `where` names the communicator. Pure.
absl::Status CompareHeaders(absl::string_view where,
                            const std::vector<RankHeader>& headers);

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_COMM_COLLECTIVE_HEADER_H_
