#include "base/mesh.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <set>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/nearest_word.h"
#include "base/peer_text.h"
#include "base/status_macros.h"

namespace coxswain {
namespace {

// Of a text that is refused, in the error.
constexpr size_t kMaxShownBytes = 64;

std::string Shown(absl::string_view text) {
  return OneLine(Shorten(text, kMaxShownBytes));
}

absl::Status Invalid(absl::string_view mesh, absl::string_view what) {
  return absl::InvalidArgumentError(
      absl::StrCat("the mesh '", Shown(mesh), "' ", what));
}

std::string SizeText(int size) { return size == 0 ? "*" : absl::StrCat(size); }

std::string KnownText(absl::string_view name) {
  return absl::StrCat("the axes are ", absl::StrJoin(Mesh::KnownAxes(), ", "),
                      DidYouMean(name, Mesh::KnownAxes()));
}

absl::StatusOr<MeshAxis> ParseAxis(absl::string_view mesh,
                                   absl::string_view word) {
  const std::pair<absl::string_view, absl::string_view> parts =
      absl::StrSplit(word, absl::MaxSplits('=', 1));
  const auto& [name, value] = parts;
  const std::vector<std::string>& known = Mesh::KnownAxes();
  if (std::find(known.begin(), known.end(), name) == known.end()) {
    return Invalid(mesh, absl::StrCat("has an axis '", Shown(name),
                                      "': ", KnownText(name)));
  }
  MeshAxis axis = {std::string(name), 0};
  if (value == "*") return axis;
  if (!absl::SimpleAtoi(value, &axis.size) || axis.size < 1) {
    return Invalid(mesh,
                   absl::StrCat("has ", name, "='", Shown(value),
                                "': write a number of 1 or more, or * for as "
                                "many as the workers make"));
  }
  return axis;
}

absl::Status CheckOrder(absl::string_view text,
                        const std::vector<MeshAxis>& axes) {
  const std::vector<std::string>& known = Mesh::KnownAxes();
  const auto place = [&](const MeshAxis& axis) {
    return std::find(known.begin(), known.end(), axis.name) - known.begin();
  };
  for (size_t i = 1; i < axes.size(); ++i) {
    if (place(axes[i - 1]) < place(axes[i])) continue;
    if (axes[i - 1].name == axes[i].name) {
      return Invalid(text, absl::StrCat("has ", axes[i].name, " twice"));
    }
    return Invalid(
        text,
        absl::StrCat("has ", axes[i].name, " after ", axes[i - 1].name,
                     ": axes come in the order ", absl::StrJoin(known, ", "),
                     ", and ranks that differ in the last of them are "
                     "next to each other"));
  }
  return absl::OkStatus();
}

}  // namespace

const std::vector<std::string>& Mesh::KnownAxes() {
  static const auto* const names =
      new std::vector<std::string>{"pp", "dp", "shard", "tp"};
  return *names;
}

absl::StatusOr<Mesh> Mesh::Create(std::vector<MeshAxis> axes) {
  if (axes.empty()) return absl::InvalidArgumentError("the mesh has no axes");
  std::set<absl::string_view> names;
  int64_t size = 1;
  int free = 0;
  for (const MeshAxis& axis : axes) {
    if (!names.insert(axis.name).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("the mesh has two axes named '", Shown(axis.name), "'"));
    }
    if (axis.size < 0) {
      return absl::InvalidArgumentError(absl::StrCat("axis '", Shown(axis.name),
                                                     "' has size ", axis.size,
                                                     "; at least 1"));
    }
    if (axis.size == 0) ++free;
    size *= std::max(axis.size, 1);
    if (size > std::numeric_limits<int>::max()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "the mesh has more ranks than any job: its sizes multiply to more "
          "than ",
          std::numeric_limits<int>::max()));
    }
  }
  if (free > 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("the mesh has ", free,
                     " free axes (*): the number of workers makes the size of "
                     "one only, so give the others a number"));
  }
  return Mesh(std::move(axes), static_cast<int>(size));
}

absl::StatusOr<Mesh> Mesh::Parse(absl::string_view text) {
  std::vector<MeshAxis> axes;
  for (const absl::string_view word : absl::StrSplit(text, ',')) {
    COXSWAIN_ASSIGN_OR_RETURN(MeshAxis axis, ParseAxis(text, word));
    axes.push_back(std::move(axis));
    if (axes.size() > KnownAxes().size()) break;  // one of them is there twice
  }
  COXSWAIN_RETURN_IF_ERROR(CheckOrder(text, axes));
  return Create(std::move(axes));
}

bool Mesh::has_free_axis() const {
  return std::any_of(axes_.begin(), axes_.end(),
                     [](const MeshAxis& axis) { return axis.size == 0; });
}

int Mesh::extent(absl::string_view axis) const {
  for (const MeshAxis& one : axes_) {
    if (one.name == axis) return one.size;
  }
  return 1;
}

absl::StatusOr<Mesh> Mesh::Fit(int world_size) const {
  const bool fits = world_size > 0 && (has_free_axis() ? world_size % size_ == 0
                                                       : world_size == size_);
  if (!fits) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the mesh ", ToString(), " does not fit ", world_size,
        " workers: ", has_free_axis() ? "a multiple of " : "", size_,
        has_free_axis() || size_ == 1 ? " is needed" : " are needed"));
  }
  Mesh fitted = *this;
  for (MeshAxis& axis : fitted.axes_) {
    if (axis.size == 0) axis.size = world_size / size_;
  }
  fitted.size_ = world_size;
  return fitted;
}

int Mesh::StrideOf(int axis) const {
  int stride = 1;
  for (size_t i = axis + 1; i < axes_.size(); ++i) stride *= axes_[i].size;
  return stride;
}

std::vector<int> Mesh::CoordinatesOf(int rank) const {
  std::vector<int> coordinates(axes_.size());
  for (size_t i = axes_.size(); i-- > 0;) {
    coordinates[i] = rank % axes_[i].size;
    rank /= axes_[i].size;
  }
  return coordinates;
}

int Mesh::RankOf(absl::Span<const int> coordinates) const {
  int rank = 0;
  for (size_t i = 0; i < axes_.size(); ++i) {
    rank = rank * axes_[i].size + coordinates[i];
  }
  return rank;
}

int Mesh::CoordinateOf(int rank, absl::string_view axis) const {
  const MeshAxes found = AxesOf({axis});
  if (found.empty()) return 0;
  const int number = found.front();
  return rank / StrideOf(number) % axes_[number].size;
}

MeshAxes Mesh::AxesOf(absl::Span<const absl::string_view> names) const {
  MeshAxes found;
  for (size_t i = 0; i < axes_.size(); ++i) {
    if (std::find(names.begin(), names.end(), axes_[i].name) != names.end()) {
      found.push_back(static_cast<int>(i));
    }
  }
  return found;
}

std::vector<int> Mesh::GroupOf(int rank, const MeshAxes& axes) const {
  std::vector<int> coordinates = CoordinatesOf(rank);
  for (const int axis : axes) coordinates[axis] = 0;
  std::vector<int> ranks = {RankOf(coordinates)};
  for (const int axis : axes) {
    const int stride = StrideOf(axis);
    std::vector<int> wider;
    wider.reserve(ranks.size() * axes_[axis].size);
    for (const int first : ranks) {
      for (int i = 0; i < axes_[axis].size; ++i) {
        wider.push_back(first + i * stride);
      }
    }
    ranks = std::move(wider);
  }
  return ranks;
}

int Mesh::GroupIndexOf(int rank, const MeshAxes& axes) const {
  const std::vector<int> coordinates = CoordinatesOf(rank);
  int index = 0;
  auto joined = axes.begin();
  for (size_t i = 0; i < axes_.size(); ++i) {
    if (joined != axes.end() && *joined == static_cast<int>(i)) {
      ++joined;
    } else {
      index = index * axes_[i].size + coordinates[i];
    }
  }
  return index;
}

int Mesh::GroupSize(const MeshAxes& axes) const {
  int size = 1;
  for (const int axis : axes) size *= axes_[axis].size;
  return size;
}

std::vector<std::vector<int>> Mesh::GroupsAlong(const MeshAxes& axes) const {
  std::vector<std::vector<int>> groups(size_ / GroupSize(axes));
  for (int rank = 0; rank < size_; ++rank) {
    groups[GroupIndexOf(rank, axes)].push_back(rank);
  }
  return groups;
}

std::string Mesh::Describe(int rank) const {
  const std::vector<int> coordinates = CoordinatesOf(rank);
  std::string text;
  for (size_t i = 0; i < axes_.size(); ++i) {
    absl::StrAppend(&text, i == 0 ? "" : ", ", axes_[i].name, " ",
                    coordinates[i]);
  }
  return text;
}

std::string Mesh::ToString() const {
  return absl::StrJoin(axes_, ",", [](std::string* out, const MeshAxis& axis) {
    absl::StrAppend(out, axis.name, "=", SizeText(axis.size));
  });
}

std::string Mesh::NameOf(const MeshAxes& axes) const {
  return absl::StrJoin(axes, "+", [this](std::string* out, int axis) {
    absl::StrAppend(out, axes_[axis].name);
  });
}

absl::StatusOr<Mesh> ParseJobMesh(absl::string_view text, int least, int most) {
  COXSWAIN_ASSIGN_OR_RETURN(Mesh mesh, Mesh::Parse(text));
  COXSWAIN_RETURN_IF_ERROR(mesh.Fit(most).status());
  if (least == most || (mesh.has_free_axis() && mesh.size() == 1)) return mesh;
  return absl::InvalidArgumentError(absl::StrCat(
      "the mesh ", mesh.ToString(), " fits ",
      mesh.has_free_axis() ? "only multiples of " : "only ", mesh.size(),
      " workers, and the job may run with ", least, " to ", most,
      ": let it need all ", most,
      " workers, or give a mesh whose only size is free, such as dp=*"));
}

DataPlace DataPlaceOf(const Mesh& mesh, int rank, int world_size) {
  if (mesh.empty()) return {rank, world_size};
  const MeshAxes model = mesh.AxesOf({"pp", "tp"});
  return {mesh.GroupIndexOf(rank, model), mesh.size() / mesh.GroupSize(model)};
}

absl::Status CheckTrainable(const Mesh& mesh, bool has_pipeline) {
  if (has_pipeline) return absl::OkStatus();
  for (const char* axis : {"pp", "tp"}) {
    const int size = mesh.extent(axis);
    if (size == 1) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "the mesh ", mesh.ToString(), " has ", axis, "=", SizeText(size),
        ", and the plan has no pipeline to run the ranks' parts of the model: "
        "set the plan's pipeline, as in pipeline=1f1b, or leave ",
        axis, " out"));
  }
  return absl::OkStatus();
}

std::string InParentheses(absl::string_view coordinates) {
  return coordinates.empty() ? "" : absl::StrCat(" (", coordinates, ")");
}

std::string WithCoordinates(absl::string_view coordinates,
                            absl::string_view place) {
  return coordinates.empty() ? std::string(place)
                             : absl::StrCat(coordinates, "; ", place);
}

}  // namespace coxswain
