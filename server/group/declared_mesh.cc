#include "server/group/declared_mesh.h"

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/peer_text.h"
#include "base/status_macros.h"

namespace coxswain::server {
namespace {

// Of names that are refused, in the error.
constexpr size_t kMaxShownBytes = 64;

absl::Status CheckSizes(const std::vector<MeshAxis>& axes) {
  for (const MeshAxis& axis : axes) {
    if (axis.size >= 1) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("axis \"", OneLine(Shorten(axis.name, kMaxShownBytes)),
                     "\" has size ", axis.size, "; at least 1"));
  }
  return absl::OkStatus();
}

absl::StatusOr<MeshAxes> Joined(const Mesh& mesh,
                                const std::vector<std::string>& names) {
  const std::vector<absl::string_view> views(names.begin(), names.end());
  const MeshAxes axes = mesh.AxesOf(views);
  if (axes.size() >= 2 && axes.size() == names.size()) return axes;
  return absl::InvalidArgumentError(
      absl::StrCat("the joined axes [",
                   OneLine(Shorten(absl::StrJoin(names, ", "), kMaxShownBytes)),
                   "] are not two or more different ones of the mesh ",
                   Shorten(mesh.ToString(), kMaxShownBytes)));
}

}  // namespace

absl::StatusOr<DeclaredMesh> DeclaredMesh::Create(MeshRequest request,
                                                  int world_size) {
  COXSWAIN_RETURN_IF_ERROR(CheckSizes(request.axes));
  DeclaredMesh declared;
  COXSWAIN_ASSIGN_OR_RETURN(declared.mesh,
                            Mesh::Create(std::move(request.axes)));
  COXSWAIN_RETURN_IF_ERROR(declared.mesh.Fit(world_size).status());
  for (const std::vector<std::string>& names : request.joined) {
    COXSWAIN_ASSIGN_OR_RETURN(MeshAxes axes, Joined(declared.mesh, names));
    if (std::find(declared.joined.begin(), declared.joined.end(), axes) !=
        declared.joined.end()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "the axes ", declared.mesh.NameOf(axes), " are joined twice"));
    }
    declared.joined.push_back(std::move(axes));
  }
  return declared;
}

std::vector<MeshAxes> DeclaredMesh::Along() const {
  std::vector<MeshAxes> along;
  for (size_t i = 0; i < mesh.axes().size(); ++i) {
    along.push_back({static_cast<int>(i)});
  }
  along.insert(along.end(), joined.begin(), joined.end());
  return along;
}

std::string DeclaredMesh::ToString() const {
  std::string text = mesh.ToString();
  for (size_t i = 0; i < joined.size(); ++i) {
    absl::StrAppend(&text, i == 0 ? " with " : ", ", mesh.NameOf(joined[i]));
  }
  return text;
}

}  // namespace coxswain::server
