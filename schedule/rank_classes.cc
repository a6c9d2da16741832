#include "schedule/rank_classes.h"

#include <cstddef>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/check.h"
#include "schedule/schedule_errors.h"

namespace coxswain::schedule {
namespace {

// Ranks that one list has with their coordinates.
constexpr size_t kMaxPlaces = 4;

MeshAxes DataAxes(const Mesh& mesh) { return mesh.AxesOf({"dp", "shard"}); }
MeshAxes ModelAxes(const Mesh& mesh) { return mesh.AxesOf({"pp", "tp"}); }
MeshAxes WithinStage(const Mesh& mesh) {
  return mesh.AxesOf({"dp", "shard", "tp"});
}

// Returns what the ranks of a class have in common.
MeshAxes CommonAxes(const Mesh& mesh, Scope scope) {
  switch (scope) {
    case Scope::kData:
      return DataAxes(mesh);
    case Scope::kPart:
      return ModelAxes(mesh);
    case Scope::kStage:
      return mesh.AxesOf({"pp"});
    case Scope::kAll:
      break;
  }
  return {};
}

}  // namespace

RankClasses::RankClasses(const Mesh& mesh, int world_size)
    : mesh_(mesh),
      world_size_(world_size),
      data_ranks_(DataPlaceOf(mesh, 0, world_size).count) {
  COXSWAIN_CHECK(mesh.empty() || mesh.size() == world_size);
  if (!divided()) return;
  for (int rank = 0; rank < world_size; ++rank) {
    data_of_.push_back(mesh.GroupIndexOf(rank, ModelAxes(mesh)));
    part_of_.push_back(mesh.GroupIndexOf(rank, DataAxes(mesh)));
    stage_of_.push_back(mesh.GroupIndexOf(rank, WithinStage(mesh)));
  }
}

int RankClasses::ClassOf(Scope scope, int rank) const {
  const auto at = static_cast<size_t>(rank);
  switch (scope) {
    case Scope::kData:
      return divided() ? data_of_[at] : rank;
    case Scope::kPart:
      return divided() ? part_of_[at] : 0;
    case Scope::kStage:
      return divided() ? stage_of_[at] : 0;
    case Scope::kAll:
      break;
  }
  return 0;
}

int RankClasses::SizeOf(Scope scope) const {
  switch (scope) {
    case Scope::kData:
      return world_size_ / data_ranks_;
    case Scope::kPart:
      return data_ranks_;
    case Scope::kStage:
      return divided() ? mesh_.GroupSize(WithinStage(mesh_)) : world_size_;
    case Scope::kAll:
      break;
  }
  return world_size_;
}

std::string RankClasses::NameOf(Scope scope, int number) const {
  std::string text;
  if (divided()) {
    int rank = 0;
    while (ClassOf(scope, rank) != number) ++rank;
    const std::vector<int> coordinates = mesh_.CoordinatesOf(rank);
    for (const int axis : CommonAxes(mesh_, scope)) {
      const MeshAxis& known = mesh_.axes()[static_cast<size_t>(axis)];
      if (known.size == 1) continue;
      absl::StrAppend(&text, text.empty() ? "the ranks of " : ", ", known.name,
                      " ", coordinates[static_cast<size_t>(axis)]);
    }
  }
  return text.empty() ? "all ranks" : text;
}

bool RankClasses::ListsPlaces(const std::vector<int>& ranks) const {
  return divided() && !ranks.empty() && ranks.size() <= kMaxPlaces;
}

std::string RankClasses::List(const std::vector<int>& ranks) const {
  if (!ListsPlaces(ranks)) return RankList(ranks);
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  absl::string_view joint;
  for (const int rank : ranks) {
    absl::StrAppend(&text, joint, rank, " (", mesh_.Describe(rank), ")");
    joint = ", ";
  }
  return text;
}

}  // namespace coxswain::schedule
