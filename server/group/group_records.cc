#include "server/group/group_records.h"

#include <optional>
#include <set>

#include "absl/strings/str_cat.h"
#include "proto/state.pb.h"
#include "server/options/options.h"
#include "server/state/record.h"

namespace coxswain::server {
namespace {

constexpr int64_t kMost = kMaxWorldSize;

absl::Status Damaged(absl::string_view what, absl::string_view bytes) {
  return absl::DataLossError(absl::StrCat(
      "the record of ", what, " cannot be read (", bytes.size(), " bytes)"));
}

}  // namespace

std::string NameRecord(char kind, absl::string_view name) {
  return absl::StrCat(std::string(1, kind), name);
}

std::string BarrierRecord(uint64_t sequence) {
  return NumberedKey(kBarrierRecord, sequence);
}

std::string EncodeRanks(const std::vector<int>& ranks) {
  state::v1::GroupRanks proto;
  for (const int rank : ranks) proto.add_ranks(rank);
  return SerializeRecord(proto);
}

std::string EncodeMesh(const DeclaredMesh& mesh) {
  state::v1::Mesh proto;
  for (const MeshAxis& axis : mesh.mesh.axes()) {
    auto* const kept = proto.add_axes();
    kept->set_name(axis.name);
    kept->set_size(axis.size);
  }
  for (const MeshAxes& axes : mesh.joined) {
    proto.add_joined()->mutable_axes()->Assign(axes.begin(), axes.end());
  }
  return SerializeRecord(proto);
}

std::string EncodeRequests(const std::vector<BarrierRequest>& requests) {
  state::v1::Barrier proto;
  for (const auto& [incarnation, request_id] : requests) {
    proto.add_incarnations(incarnation.value());
    proto.add_request_ids(request_id);
  }
  return SerializeRecord(proto);
}

absl::StatusOr<uint64_t> DecodeBarrierRecord(absl::string_view key) {
  const std::optional<uint64_t> sequence = NumberOfKey(key);
  if (!sequence.has_value()) return Damaged("a barrier", key);
  return *sequence;
}

absl::StatusOr<std::vector<int>> DecodeRanks(absl::string_view bytes) {
  state::v1::GroupRanks proto;
  if (!ParseRecord(bytes, &proto)) return Damaged("a group", bytes);
  std::vector<int> ranks;
  std::set<int64_t> seen;
  for (const int64_t rank : proto.ranks()) {
    if (rank < 0 || rank >= kMost || !seen.insert(rank).second) {
      return Damaged("a group", bytes);
    }
    ranks.push_back(static_cast<int>(rank));
  }
  return ranks;
}

absl::StatusOr<DeclaredMesh> DecodeMesh(absl::string_view bytes) {
  state::v1::Mesh proto;
  if (!ParseRecord(bytes, &proto)) return Damaged("a mesh", bytes);
  MeshRequest request;
  int64_t world = 1;
  for (const auto& axis : proto.axes()) {
    const int64_t size = axis.size();
    if (size < 1 || size > kMost || world * size > kMost) {
      return Damaged("a mesh", bytes);
    }
    world *= size;
    request.axes.push_back({axis.name(), static_cast<int>(size)});
  }
  const int64_t sets = int64_t{proto.axes_size()} + proto.joined_size();
  if (sets * world > kMost) return Damaged("a mesh", bytes);
  for (const auto& joined : proto.joined()) {
    std::vector<std::string>& names = request.joined.emplace_back();
    for (const int32_t axis : joined.axes()) {
      if (axis < 0 || axis >= proto.axes_size()) {
        return Damaged("a mesh", bytes);
      }
      names.push_back(request.axes[axis].name);
    }
  }
  // Its sizes were checked above, and make this world.
  auto mesh = DeclaredMesh::Create(std::move(request), static_cast<int>(world));
  if (!mesh.ok()) return Damaged("a mesh", bytes);
  return mesh;
}

absl::StatusOr<std::vector<BarrierRequest>> DecodeRequests(
    absl::string_view bytes) {
  state::v1::Barrier proto;
  if (!ParseRecord(bytes, &proto) ||
      proto.incarnations_size() != proto.request_ids_size()) {
    return Damaged("a barrier", bytes);
  }
  std::vector<BarrierRequest> requests;
  requests.reserve(proto.request_ids_size());
  for (int i = 0; i < proto.request_ids_size(); ++i) {
    requests.emplace_back(proto.incarnations(i), proto.request_ids(i));
  }
  return requests;
}

}  // namespace coxswain::server
