#ifndef COXSWAIN_SERVER_CHECKPOINT_READERS_H_
#define COXSWAIN_SERVER_CHECKPOINT_READERS_H_

#include <map>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace coxswain::server {

// Which checkpoints are being read, so that retention leaves them alone. Who
// reads shard after shard has none open in between, so one counts as being read
// for a while after its last reader. A part of CheckpointStore:
// thread-compatible.
class Readers {
 public:
  explicit Readers(absl::Duration grace) : grace_(grace) {}

  void Begin(const std::string& id) { ++reads_[id].open; }

  // Forgets those whose time is over: no more are known than are read.
  void End(const std::string& id, absl::Time now) {
    Read& read = reads_[id];
    --read.open;
    read.until = now + grace_;
    for (auto it = reads_.begin(); it != reads_.end();) {
      it = it->second.IsOn(now) ? std::next(it) : reads_.erase(it);
    }
  }

  bool IsRead(absl::string_view id, absl::Time now) const {
    const auto found = reads_.find(id);
    return found != reads_.end() && found->second.IsOn(now);
  }

 private:
  struct Read {
    int open = 0;
    absl::Time until = absl::InfinitePast();

    bool IsOn(absl::Time now) const { return open > 0 || now < until; }
  };

  const absl::Duration grace_;
  std::map<std::string, Read, std::less<>> reads_;
};

}  // namespace coxswain::server

#endif  // COXSWAIN_SERVER_CHECKPOINT_READERS_H_
