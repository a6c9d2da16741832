#ifndef COXSWAIN_SERVER_GROUP_GROUP_RECORDS_H_
#define COXSWAIN_SERVER_GROUP_GROUP_RECORDS_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/ids.h"
#include "server/group/declared_mesh.h"

namespace coxswain::server {

// The records of a generation's groups (proto/state.proto): one for each group
// that was declared by itself, one for each mesh, and one for each barrier that
// was completed, numbered in their order.
constexpr char kGroupTables[] = "group/";  // before the generation
constexpr char kGroupRecord = 'g';         // begins the key of a record
constexpr char kMeshRecord = 'm';
constexpr char kBarrierRecord = 'b';

// Incarnation and request id of a barrier call.
using BarrierRequest = std::pair<Incarnation, uint64_t>;

std::string NameRecord(char kind, absl::string_view name);
std::string BarrierRecord(uint64_t sequence);

std::string EncodeRanks(const std::vector<int>& ranks);
std::string EncodeMesh(const DeclaredMesh& mesh);
std::string EncodeRequests(const std::vector<BarrierRequest>& requests);

// DATA_LOSS if the bytes are not what was encoded, or name ranks or a mesh that
// cannot be (see kMaxWorldSize): nothing is made of its size before.
absl::StatusOr<uint64_t> DecodeBarrierRecord(absl::string_view key);
absl::StatusOr<std::vector<int>> DecodeRanks(absl::string_view bytes);
absl::StatusOr<DeclaredMesh> DecodeMesh(absl::string_view bytes);
absl::StatusOr<std::vector<BarrierRequest>> DecodeRequests(
    absl::string_view bytes);

}  // namespace coxswain::server

#endif  // COXSWAIN_SERVER_GROUP_GROUP_RECORDS_H_
