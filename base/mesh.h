#ifndef COXSWAIN_BASE_MESH_H_
#define COXSWAIN_BASE_MESH_H_

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace coxswain {

// One dimension of a mesh, such as {"dp", 4}.
struct MeshAxis {
  std::string name;
  int size = 0;  // 0: free ("*"), as many as the workers make

  friend bool operator==(const MeshAxis& a, const MeshAxis& b) {
    return a.name == b.name && a.size == b.size;
  }
};

// Axes of a mesh by their positions, ascending.
using MeshAxes = std::vector<int>;

// How the ranks of a job are divided: each rank has a coordinate along each
// axis. Ranks are numbered row-major, so that the last axis varies fastest.
//
//   COXSWAIN_ASSIGN_OR_RETURN(const Mesh text, Mesh::Parse("dp=*,tp=2"));
//   COXSWAIN_ASSIGN_OR_RETURN(const Mesh mesh, text.Fit(8));
//   mesh.Describe(5);                // "dp 2, tp 1"
//   mesh.GroupOf(5, {0});            // along dp: 1, 3, 5, 7
//
// Immutable, hence thread-safe. What has a rank or a group in it is for a mesh
// without a free axis, and for ranks below size().
class Mesh {
 public:
  // The axes that a job's mesh may have, in their order: pipeline stages,
  // replicas, ranks that share the state of one replica, and ranks that share
  // each layer.
  static const std::vector<std::string>& KnownAxes();

  // No mesh: it has no axes, and one rank.
  Mesh() = default;

  // Of any axes. INVALID_ARGUMENT: there are none, two have one name, a size is
  // negative, more than one is free, or there are more ranks than an int has.
  static absl::StatusOr<Mesh> Create(std::vector<MeshAxis> axes);

  // Of a job's mesh, "pp=2,dp=*,tp=2": known axes in their order, each once; of
  // those that are left out it has 1. INVALID_ARGUMENT names the axis.
  static absl::StatusOr<Mesh> Parse(absl::string_view text);

  bool empty() const { return axes_.empty(); }
  const std::vector<MeshAxis>& axes() const { return axes_; }
  bool has_free_axis() const;
  // Returns how many ranks it has, or those that it has for each coordinate of
  // its free axis.
  int size() const { return size_; }
  // Returns the size of an axis; 1 where there is none of this name.
  int extent(absl::string_view axis) const;

  // Returns this mesh with so many ranks. INVALID_ARGUMENT where they do not
  // fit, with what would.
  absl::StatusOr<Mesh> Fit(int world_size) const;

  // Returns a rank's coordinate along each axis, and the rank that has them.
  std::vector<int> CoordinatesOf(int rank) const;
  int RankOf(absl::Span<const int> coordinates) const;
  // Returns the coordinate along one axis; 0 where there is none of this name.
  int CoordinateOf(int rank, absl::string_view axis) const;

  // Returns the axes of these names that it has.
  MeshAxes AxesOf(absl::Span<const absl::string_view> names) const;

  // The group of a rank along axes: those that differ from it in these alone,
  // ascending. Its index counts the groups along the same axes from 0, by the
  // coordinates that its ranks have in common.
  std::vector<int> GroupOf(int rank, const MeshAxes& axes) const;
  int GroupIndexOf(int rank, const MeshAxes& axes) const;
  // Returns all groups along axes, by index.
  std::vector<std::vector<int>> GroupsAlong(const MeshAxes& axes) const;
  int GroupSize(const MeshAxes& axes) const;

  // Returns "pp 1, dp 0, tp 1".
  std::string Describe(int rank) const;
  // Returns "pp=2,dp=*,tp=2": of the known axes what Parse reads.
  std::string ToString() const;
  // Returns the names of axes as "dp+shard".
  std::string NameOf(const MeshAxes& axes) const;

  friend bool operator==(const Mesh& a, const Mesh& b) {
    return a.axes_ == b.axes_;
  }
  friend bool operator!=(const Mesh& a, const Mesh& b) { return !(a == b); }

 private:
  Mesh(std::vector<MeshAxis> axes, int size)
      : axes_(std::move(axes)), size_(size) {}

  // How far apart neighbours along an axis are numbered.
  int StrideOf(int axis) const;

  std::vector<MeshAxis> axes_;
  int size_ = 1;
};

// Returns the mesh of a job of `least` to `most` workers, with its free axis,
// from its text. INVALID_ARGUMENT: no mesh, or one that they do not fit: with
// different numbers of workers every number must.
absl::StatusOr<Mesh> ParseJobMesh(absl::string_view text, int least, int most);

// Which part of a job's data a rank reads, of how many. Ranks that differ along
// pp and tp alone compute the same micro-batches together, so they have one
// data index, counted along dp and shard; where a job has no mesh, each rank
// has its own.
struct DataPlace {
  int index = 0;
  int count = 1;
};
DataPlace DataPlaceOf(const Mesh& mesh, int rank, int world_size);

// INVALID_ARGUMENT: its ranks have parts of the model, and the plan of its job
// has no pipeline to run them. One of a single stage runs what tp alone
// divides.
absl::Status CheckTrainable(const Mesh& mesh, bool has_pipeline);

// Returns "pp 1, dp 0; host-b/1" for a rank's place, or the place alone where
// its job has no mesh.
std::string WithCoordinates(absl::string_view coordinates,
                            absl::string_view place);

// Returns " (pp 1, dp 0)", or nothing where the job has no mesh.
std::string InParentheses(absl::string_view coordinates);

// Returns the groups along axes whose ranks are on several hosts. `hosts` has
// that of each rank.
std::vector<std::vector<int>> GroupsApart(
    const Mesh& mesh, const MeshAxes& axes,
    const std::vector<std::string>& hosts);

// Returns a part of a sentence about them, "tp=2 spans hosts: 1 of 4 groups,
// the first of ranks 2, 3 on host-a, host-b"; empty: there are none.
std::string DescribeApart(const Mesh& mesh, const MeshAxes& axes,
                          const std::vector<std::string>& hosts);

// Returns a sentence where groups along axes are on several hosts, which could
// each be on one if the workers were started otherwise; else nothing. Without
// axes, of those along tp, or else of those along shard.
std::string PlacementHint(const Mesh& mesh, const MeshAxes& axes,
                          const std::vector<std::string>& hosts);
std::string PlacementHint(const Mesh& mesh,
                          const std::vector<std::string>& hosts);

}  // namespace coxswain

#endif  // COXSWAIN_BASE_MESH_H_
