#include "server/checkpoint/retention.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace coxswain::server {

absl::Status RetentionRules::Validate() const {
  if (keep_last < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("keep_last must be 0 (no rule) or more, not ", keep_last));
  }
  if (keep_every < 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "keep_every must be 0 (no rule) or more, not ", keep_every));
  }
  return absl::OkStatus();
}

std::set<std::string> Retained(const std::vector<CheckpointRecord>& checkpoints,
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
