#include "server/membership/rank_assignment.h"

#include <algorithm>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/ascii.h"
#include "absl/strings/string_view.h"
#include "base/mesh.h"

namespace coxswain::server {
namespace {

// Takes a run of digits, or a run of anything else, from the front.
absl::string_view TakeRun(absl::string_view* text) {
  const bool digits = absl::ascii_isdigit(text->front());
  size_t end = 1;
  while (end < text->size() &&
         (absl::ascii_isdigit((*text)[end]) != 0) == digits) {
    ++end;
  }
  const absl::string_view run = text->substr(0, end);
  text->remove_prefix(end);
  return run;
}

// Numbers of any length: without leading zeros the longer one is greater.
int CompareNumbers(absl::string_view a, absl::string_view b) {
  while (!a.empty() && a.front() == '0') a.remove_prefix(1);
  while (!b.empty() && b.front() == '0') b.remove_prefix(1);
  if (a.size() != b.size()) return a.size() < b.size() ? -1 : 1;
  return a.compare(b);
}

int CompareNatural(absl::string_view a, absl::string_view b) {
  const absl::string_view whole_a = a;
  const absl::string_view whole_b = b;
  while (!a.empty() && !b.empty()) {
    const bool numbers =
        absl::ascii_isdigit(a.front()) && absl::ascii_isdigit(b.front());
    const absl::string_view run_a = TakeRun(&a);
    const absl::string_view run_b = TakeRun(&b);
    const int order =
        numbers ? CompareNumbers(run_a, run_b) : run_a.compare(run_b);
    if (order != 0) return order;
  }
  if (a.empty() != b.empty()) return a.empty() ? -1 : 1;
  return whole_a.compare(whole_b);  // "01" and "1" are two names.
}

int CompareTopology(const std::vector<std::string>& a,
                    const std::vector<std::string>& b) {
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    const int order = CompareNatural(a[i], b[i]);
    if (order != 0) return order;
  }
  if (a.size() == b.size()) return 0;
  return a.size() < b.size() ? -1 : 1;
}

}  // namespace

bool TopologyLess(const Member& a, const Member& b) {
  int order = CompareTopology(a.topology, b.topology);
  if (order == 0) order = CompareNatural(a.identity.node, b.identity.node);
  if (order != 0) return order < 0;
  return a.identity.slot < b.identity.slot;
}

void AssignRanks(const std::map<WorkerIdentity, int>& held,
                 std::vector<Member>* members) {
  const int world = static_cast<int>(members->size());
  std::sort(members->begin(), members->end(), TopologyLess);
  std::vector<bool> taken(world, false);
  std::vector<Member*> newcomers;
  for (Member& member : *members) {
    const auto found = held.find(member.identity);
    if (found != held.end() && found->second >= 0 && found->second < world &&
        !taken[found->second]) {
      member.rank = found->second;
      taken[member.rank] = true;
    } else {
      newcomers.push_back(&member);
    }
  }
  int rank = 0;
  for (Member* member : newcomers) {
    while (taken[rank]) ++rank;
    member->rank = rank++;
  }
  std::sort(members->begin(), members->end(),
            [](const Member& a, const Member& b) { return a.rank < b.rank; });
  std::map<std::string, int> on_node;
  for (Member& member : *members) {
    member.local_rank = on_node[member.identity.node]++;
  }
}

void AssignCoordinates(absl::string_view mesh, std::vector<Member>* members) {
  absl::StatusOr<Mesh> fitted = Mesh();
  if (!mesh.empty()) fitted = Mesh::Parse(mesh);
  if (fitted.ok() && !fitted->empty()) {
    fitted = fitted->Fit(static_cast<int>(members->size()));
  }
  for (Member& member : *members) {
    member.coordinates = fitted.ok() ? fitted->Describe(member.rank) : "";
  }
}

}  // namespace coxswain::server
