#ifndef COXSWAIN_SERVER_STATE_GROUP_COMMIT_H_
#define COXSWAIN_SERVER_STATE_GROUP_COMMIT_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "server/state/state_writer.h"

namespace coxswain::server {

// The StateWriter of a coordinator: one thread commits whatever has been
// written meanwhile as one transaction, so that a thousand small writes cost a
// few syncs of the disk, and another one calls back. Both, because a callback
// may wait for a lock whose holder waits in Apply.
//
// Where a transaction of several batches fails, each is tried by itself, so
// that only the one at fault fails. The destructor commits what is queued.
class GroupCommit : public StateWriter {
 public:
  // The store outlives it.
  explicit GroupCommit(StateStore* store);
  ~GroupCommit() override;

  absl::StatusOr<std::string> Get(absl::string_view table,
                                  absl::string_view key) const override;
  absl::StatusOr<std::vector<Record>> List(
      absl::string_view table) const override;
  absl::StatusOr<std::vector<std::string>> Tables(
      absl::string_view prefix) const override;
  absl::StatusOr<std::vector<Damaged>> FindDamaged() const override;
  absl::Status Apply(const StateBatch& batch) override;
  void Write(StateBatch batch, Done done) override;
  void AfterWritten(std::function<void()> done) override;

 private:
  class Queue;
  StateStore* const store_;
  const std::unique_ptr<Queue> queue_;
};

}  // namespace coxswain::server

#endif  // COXSWAIN_SERVER_STATE_GROUP_COMMIT_H_
