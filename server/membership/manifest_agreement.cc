#include "server/membership/manifest_agreement.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "server/membership/manifest_check.h"
#include "server/membership/manifest_diff.h"

namespace coxswain::server {

void ManifestAgreement::Put(const WorkerIdentity& worker, Manifest manifest) {
  Remove(worker);
  auto equal = std::find_if(kept_.begin(), kept_.end(), [&](const auto& entry) {
    return SameManifest(*entry.second.manifest, manifest);
  });
  if (equal == kept_.end()) {
    if (kept_.size() == kMaxKept) {
      ++others_;
      brought_[worker] = std::nullopt;
      return;
    }
    Kept kept;
    kept.manifest = std::make_shared<const Manifest>(std::move(manifest));
    equal = kept_.emplace(next_number_++, std::move(kept)).first;
  }
  ++equal->second.holders;
  brought_[worker] = equal->first;
}

void ManifestAgreement::Remove(const WorkerIdentity& worker) {
  const auto found = brought_.find(worker);
  if (found == brought_.end()) return;
  if (!found->second.has_value()) {
    --others_;
  } else if (const auto kept = kept_.find(*found->second);
             --kept->second.holders == 0) {
    kept_.erase(kept);
  }
  brought_.erase(found);
}

int ManifestAgreement::world_size() const {
  int largest = 0;
  for (const auto& [number, kept] : kept_) {
    largest = std::max(largest, kept.manifest->world_size);
  }
  return largest;
}

std::string ManifestAgreement::mesh() const {
  if (kept_.empty() || others_ > 0) return "";
  const std::string& first = kept_.begin()->second.manifest->mesh;
  const bool same = std::all_of(
      kept_.begin(), kept_.end(),
      [&](const auto& entry) { return entry.second.manifest->mesh == first; });
  return same ? first : "";
}

WorkerIdentity ManifestAgreement::holder() const {
  COXSWAIN_CHECK(!brought_.empty());
  return brought_.begin()->first;
}

const Manifest* ManifestAgreement::Of(const WorkerIdentity& worker) const {
  const auto found = brought_.find(worker);
  if (found == brought_.end() || !found->second.has_value()) return nullptr;
  return kept_.at(*found->second).manifest.get();
}

std::vector<std::string> ManifestAgreement::Differences(
    const std::vector<Member>& members) const {
  std::map<size_t, HeldManifest> held;
  for (const auto& [number, kept] : kept_) {
    held[number].manifest = kept.manifest.get();
  }
  std::vector<std::string> names;
  for (const Member& member : members) {
    const std::string identity = member.identity.ToString();
    const auto number = brought_.find(member.identity);
    if (number != brought_.end() && number->second.has_value()) {
      held[*number->second].holders.push_back(names.size());
    }
    names.push_back(member.rank < 0 ? identity
                                    : absl::StrCat("rank ", member.rank, " (",
                                                   member.Place(), ")"));
  }
  std::vector<HeldManifest> groups;
  for (auto& entry : held) groups.push_back(std::move(entry.second));
  std::vector<std::string> lines;
  if (groups.size() > 1) lines = DiffManifests(groups, names);
  // A setting that was set to the word for one that is not.
  if (lines.empty() && others_ == 0) return {"a setting"};
  if (others_ == 0) return lines;
  if (lines.size() == kMaxDifferences) lines.pop_back();
  lines.push_back(
      absl::StrCat("and ", others_, " more workers with yet other manifests"));
  return lines;
}

}  // namespace coxswain::server
