#include "server/group/group_records.h"

#include <set>

#include "absl/strings/str_cat.h"
#include "server/options/options.h"
#include "server/state/record_bytes.h"

namespace coxswain::server {
namespace {

constexpr uint64_t kMost = kMaxWorldSize;

absl::Status Damaged(absl::string_view what, absl::string_view bytes) {
  return absl::DataLossError(absl::StrCat(
      "the record of ", what, " cannot be read (", bytes.size(), " bytes)"));
}

}  // namespace

std::string NameRecord(char kind, absl::string_view name) {
  return absl::StrCat(std::string(1, kind), name);
}

std::string BarrierRecord(uint64_t sequence) {
  std::string key(1, kBarrierRecord);
  AppendNumber(sequence, &key);
  return key;
}

std::string EncodeRanks(const std::vector<int>& ranks) {
  std::string bytes;
  for (const int rank : ranks) AppendNumber(rank, &bytes);
  return bytes;
}

std::string EncodeAxes(const std::vector<MeshAxis>& axes) {
  std::string bytes;
  for (const MeshAxis& axis : axes) {
    AppendString(axis.name, &bytes);
    AppendNumber(axis.size, &bytes);
  }
  return bytes;
}

std::string EncodeRequests(const std::vector<BarrierRequest>& requests) {
  std::string bytes;
  for (const auto& [incarnation, request_id] : requests) {
    AppendNumber(incarnation.value(), &bytes);
    AppendNumber(request_id, &bytes);
  }
  return bytes;
}

absl::StatusOr<uint64_t> DecodeBarrierRecord(absl::string_view key) {
  RecordReader reader(key.substr(1));
  const uint64_t sequence = reader.Number();
  if (!reader.complete()) return Damaged("a barrier", key);
  return sequence;
}

absl::StatusOr<std::vector<int>> DecodeRanks(absl::string_view bytes) {
  if (bytes.size() % 8 != 0) return Damaged("a group", bytes);
  RecordReader reader(bytes);
  std::vector<int> ranks;
  std::set<uint64_t> seen;
  while (!reader.empty()) {
    const uint64_t rank = reader.Number();
    if (rank >= kMost || !seen.insert(rank).second) {
      return Damaged("a group", bytes);
    }
    ranks.push_back(static_cast<int>(rank));
  }
  return ranks;
}

absl::StatusOr<std::vector<MeshAxis>> DecodeAxes(absl::string_view bytes) {
  RecordReader reader(bytes);
  std::vector<MeshAxis> axes;
  uint64_t world = 1;
  while (!reader.empty() && reader.ok()) {
    MeshAxis axis;
    axis.name = reader.String();
    const uint64_t size = reader.Number();
    if (size < 1 || size > kMost || world * size > kMost) {
      return Damaged("a mesh", bytes);
    }
    world *= size;
    axis.size = static_cast<int>(size);
    axes.push_back(std::move(axis));
  }
  if (!reader.complete()) return Damaged("a mesh", bytes);
  // Its sizes were checked above, and make this world.
  if (!ValidateMesh(axes, static_cast<int>(world)).ok() ||
      axes.size() * world > kMost) {
    return Damaged("a mesh", bytes);
  }
  return axes;
}

absl::StatusOr<std::vector<BarrierRequest>> DecodeRequests(
    absl::string_view bytes) {
  if (bytes.size() % 16 != 0) return Damaged("a barrier", bytes);
  RecordReader reader(bytes);
  std::vector<BarrierRequest> requests;
  while (!reader.empty()) {
    const Incarnation incarnation(reader.Number());
    requests.emplace_back(incarnation, reader.Number());
  }
  return requests;
}

}  // namespace coxswain::server
