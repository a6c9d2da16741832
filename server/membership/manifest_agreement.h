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

// Holds the manifests of the workers of one round, equal ones once. Owned by a
// JobMembership. Thread-compatible.
class ManifestAgreement {
 public:
  // Different manifests that are kept in full: one may have megabytes. Of a
  // worker with yet another one only the name is kept.
  static constexpr size_t kMaxKept = 16;

  // A normalised one; takes the place of what this worker brought before.
  void Put(const WorkerIdentity& worker, Manifest manifest);
  void Remove(const WorkerIdentity& worker);
  void Clear() { *this = ManifestAgreement(); }

  // Returns whether all present workers have the same manifest.
  bool agreed() const { return kept_.size() <= 1 && others_ == 0; }
  // Returns the largest that is asked for; 0 if no worker is present.
  int world_size() const;

  // Returns the mesh that all present workers ask for; empty: none, or they ask
  // for different ones.
  std::string mesh() const;

  // Returns the manifest of all. Only if they agree, and a worker is present.
  const Manifest& manifest() const { return *shared(); }
  std::shared_ptr<const Manifest> shared() const {
    return kept_.begin()->second.manifest;
  }
  // Returns a worker that has it.
  WorkerIdentity holder() const;
  // Returns the manifest of this worker; null if it is not kept.
  const Manifest* Of(const WorkerIdentity& worker) const;

  // Returns readable lines, at least one, with the values that differ and the
  // workers that have them; see DiffManifests. `members` are the present
  // workers, in the order in which they are to be named, by rank where it is
  // not negative.
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
