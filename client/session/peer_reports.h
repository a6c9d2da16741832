#ifndef COXSWAIN_CLIENT_SESSION_PEER_REPORTS_H_
#define COXSWAIN_CLIENT_SESSION_PEER_REPORTS_H_

#include <functional>
#include <set>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "proto/rendezvous.pb.h"

namespace coxswain {

// Reports to the coordinator which ranks' data connections broke, each once.
// Reports that could not be sent while the stream was lost are sent once it is
// open again, and no others: a report counts for a short time only, and an old
// one would be taken for a new one. A part of Session; the communicators that
// report to it may outlive that. Thread-safe.
class PeerReports {
 public:
  // Hands a request to the Attach stream; returns false if it was not taken.
  using Sender = std::function<bool(const v1::AttachRequest&)>;

  // `rank`: this rank, which is never reported.
  PeerReports(int rank, int world_size, Sender sender)
      : rank_(rank), world_size_(world_size), sender_(std::move(sender)) {}

  void Report(const std::vector<int>& ranks) {
    MutexLock lock(&send_mutex_);
    for (const int rank : ranks) {
      if (rank < 0 || rank >= world_size_ || rank == rank_) continue;
      if (broken_.insert(rank).second) pending_.insert(rank);
    }
    SendPendingLocked();
  }
  // Sends the reports that the stream did not take before; called when it is
  // open again. Not called with a lock that the sender takes.
  void SendPending() {
    MutexLock lock(&send_mutex_);
    SendPendingLocked();
  }
  // Ends the use of the sender: it is not called once this returns.
  void Stop() {
    MutexLock lock(&send_mutex_);
    sender_ = nullptr;
  }

 private:
  void SendPendingLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(send_mutex_) {
    if (pending_.empty() || sender_ == nullptr) return;
    v1::AttachRequest request;
    request.mutable_peers_broken()->mutable_ranks()->Assign(pending_.begin(),
                                                            pending_.end());
    if (sender_(request)) pending_.clear();
  }

  const int rank_;
  const int world_size_;

  // Held while sending, so that Stop waits for it.
  Mutex send_mutex_;
  Sender sender_ ABSL_GUARDED_BY(send_mutex_);
  std::set<int> pending_ ABSL_GUARDED_BY(send_mutex_);
  std::set<int> broken_ ABSL_GUARDED_BY(send_mutex_);
};

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_SESSION_PEER_REPORTS_H_
