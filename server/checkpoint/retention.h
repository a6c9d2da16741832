#ifndef COXSWAIN_SERVER_CHECKPOINT_RETENTION_H_
#define COXSWAIN_SERVER_CHECKPOINT_RETENTION_H_

#include <algorithm>
#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "server/checkpoint/manifest.h"

namespace coxswain::server {

// Which complete checkpoints of a job stay. 0: no rule.
struct RetentionRules {
  int keep_last = 0;       // the last so many that were made
  int64_t keep_every = 0;  // those whose step is a multiple of this

  bool empty() const { return keep_last == 0 && keep_every == 0; }
  // Fails with INVALID_ARGUMENT if one is negative.
  absl::Status Validate() const {
    if (keep_last < 0) {
      return absl::InvalidArgumentError(absl::StrCat(
          "keep_last must be 0 (no rule) or more, not ", keep_last));
    }
    if (keep_every < 0) {
      return absl::InvalidArgumentError(absl::StrCat(
          "keep_every must be 0 (no rule) or more, not ", keep_every));
    }
    return absl::OkStatus();
  }
};

// Returns the ids of those that stay, of a job's complete checkpoints with the
// last one made first: those that a rule keeps; the first, by any rules; those
// that were imported (generation 0), which do not count for keep_last either;
// and all of them where there is no rule.
inline std::set<std::string> Retained(
    const std::vector<CheckpointRecord>& checkpoints,
    const RetentionRules& rules) {
  const int last = std::max(rules.keep_last, 1);
  int made = 0;  // by training
  std::set<std::string> kept;
  for (const CheckpointRecord& checkpoint : checkpoints) {
    const bool imported = checkpoint.generation == Generation(0);
    if (!imported) ++made;
    if (imported || rules.empty() || made <= last ||
        (rules.keep_every > 0 && checkpoint.step % rules.keep_every == 0)) {
      kept.insert(checkpoint.id);
    }
  }
  return kept;
}

}  // namespace coxswain::server

#endif  // COXSWAIN_SERVER_CHECKPOINT_RETENTION_H_
