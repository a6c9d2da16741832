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
  }
}

int RankClasses::ClassOf(Scope scope, int rank) const {
  if (scope == Scope::kAll) return 0;
  const bool data = scope == Scope::kData;
  if (!divided()) return data ? rank : 0;
  return (data ? data_of_ : part_of_)[static_cast<size_t>(rank)];
}

int RankClasses::SizeOf(Scope scope) const {
  switch (scope) {
    case Scope::kData:
      return world_size_ / data_ranks_;
    case Scope::kPart:
      return data_ranks_;
    case Scope::kAll:
      break;
  }
  return world_size_;
}

std::string RankClasses::NameOf(Scope scope, int number) const {
  std::string text;
  if (divided() && scope != Scope::kAll) {
    int rank = 0;
    while (ClassOf(scope, rank) != number) ++rank;
    const std::vector<int> coordinates = mesh_.CoordinatesOf(rank);
    for (const int axis :
         scope == Scope::kData ? DataAxes(mesh_) : ModelAxes(mesh_)) {
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
