// GroupsApart(), DescribeApart() and PlacementHint() of mesh.h.

#include <algorithm>
#include <cstddef>
#include <map>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/mesh.h"

namespace coxswain {
namespace {

// Those of an error.
constexpr size_t kMaxNamed = 4;

std::string FirstFew(const std::vector<std::string>& words) {
  const size_t named = std::min(words.size(), kMaxNamed);
  std::string text = absl::StrJoin(words.begin(), words.begin() + named, ", ");
  if (named < words.size()) {
    absl::StrAppend(&text, " and ", words.size() - named, " more");
  }
  return text;
}

std::vector<std::string> HostsOf(const std::vector<int>& ranks,
                                 const std::vector<std::string>& hosts) {
  std::vector<std::string> found;
  for (const int rank : ranks) {
    if (std::find(found.begin(), found.end(), hosts[rank]) == found.end()) {
      found.push_back(hosts[rank]);
    }
  }
  return found;
}

}  // namespace

std::vector<std::vector<int>> GroupsApart(
    const Mesh& mesh, const MeshAxes& axes,
    const std::vector<std::string>& hosts) {
  std::vector<std::vector<int>> apart;
  if (mesh.GroupSize(axes) == 1) return apart;
  for (const std::vector<int>& group : mesh.GroupsAlong(axes)) {
    const bool together = std::all_of(
        group.begin(), group.end(),
        [&](int rank) { return hosts[rank] == hosts[group.front()]; });
    if (!together) apart.push_back(group);
  }
  return apart;
}

std::string DescribeApart(const Mesh& mesh, const MeshAxes& axes,
                          const std::vector<std::string>& hosts) {
  const std::vector<std::vector<int>> apart = GroupsApart(mesh, axes, hosts);
  if (apart.empty()) return "";
  std::vector<std::string> ranks;
  for (const int rank : apart.front()) ranks.push_back(absl::StrCat(rank));
  const int size = mesh.GroupSize(axes);
  return absl::StrCat(
      mesh.NameOf(axes), "=", size, " spans hosts: ", apart.size(), " of ",
      mesh.size() / size, " groups, the first of ranks ", FirstFew(ranks),
      " on ", FirstFew(HostsOf(apart.front(), hosts)));
}

std::string PlacementHint(const Mesh& mesh, const MeshAxes& axes,
                          const std::vector<std::string>& hosts) {
  if (axes.empty() || hosts.size() != static_cast<size_t>(mesh.size())) {
    return "";
  }
  std::map<std::string, int> workers;
  int largest = 0;
  for (const std::string& host : hosts) {
    largest = std::max(largest, ++workers[host]);
  }
  // Ranks of one group are apart by what the axes behind it have: so many
  // workers in a row hold whole groups.
  int block = 1;
  for (size_t i = axes.front(); i < mesh.axes().size(); ++i) {
    block *= mesh.axes()[i].size;
  }
  if (block > largest) return "";
  const std::string apart = DescribeApart(mesh, axes, hosts);
  if (apart.empty()) return "";
  return absl::StrCat(apart, "; start a multiple of ", block,
                      " workers on each host, so that ", mesh.NameOf(axes),
                      " stays within one");
}

std::string PlacementHint(const Mesh& mesh,
                          const std::vector<std::string>& hosts) {
  for (const absl::string_view axis : {"tp", "shard"}) {
    std::string hint = PlacementHint(mesh, mesh.AxesOf({axis}), hosts);
    if (!hint.empty()) return hint;
  }
  return "";
}

}  // namespace coxswain
