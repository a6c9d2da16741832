#ifndef COXSWAIN_SERVER_MEMBERSHIP_MANIFEST_AGREEMENT_H_
#define COXSWAIN_SERVER_MEMBERSHIP_MANIFEST_AGREEMENT_H_

#include <cstddef>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/ids.h"
#include "server/membership/member.h"

namespace coxswain::server {

// The manifests of the workers of one round, equal ones kept once. Owned by
// a JobMembership. Thread-compatible.
class ManifestAgreement {
 public:
  // Different manifests kept in full: one may have megabytes. Of whoever
  // brings yet another one only the name is kept.
  static constexpr size_t kMaxKept = 16;

  // A normalised one; takes the place of what this worker brought before.
  void Put(const WorkerIdentity& worker, Manifest manifest);
  void Remove(const WorkerIdentity& worker);
  void Clear() { *this = ManifestAgreement(); }

  // Whether all that are here are known to be equal.
  bool agreed() const { return kept_.size() <= 1 && others_ == 0; }
  // The largest that is asked for; 0 if nobody is here.
  int world_size() const;

  // What all have in common. Only if they agree, and somebody is here.
  const Manifest& manifest() const { return *shared(); }
  std::shared_ptr<const Manifest> shared() const {
    return kept_.begin()->second.manifest;
  }
  // One who brought it.
  WorkerIdentity holder() const;
  // What this worker brought; null if it is not kept.
  const Manifest* Of(const WorkerIdentity& worker) const;

  // Readable lines, at least one, that say who has what where they do not
  // agree; see DiffManifests. `members` are
  // those who are here, in the order in which they are to be named, by rank
  // where it is not negative.
  std::vector<std::string> Differences(
      const std::vector<Member>& members) const;

 private:
  struct Kept {
    std::shared_ptr<const Manifest> manifest;
    size_t holders = 0;
  };

  std::map<size_t, Kept> kept_;  // by number, in the order of arrival
  size_t next_number_ = 0;
  size_t others_ = 0;  // workers whose manifest is not kept
  // The number of what each worker brought; nothing: it is not kept.
  std::map<WorkerIdentity, std::optional<size_t>> brought_;
};

}  // namespace coxswain::server

#endif  // COXSWAIN_SERVER_MEMBERSHIP_MANIFEST_AGREEMENT_H_
