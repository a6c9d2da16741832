#ifndef COXSWAIN_CLIENT_COMM_TCP_PEER_ENDS_H_
#define COXSWAIN_CLIENT_COMM_TCP_PEER_ENDS_H_

#include <map>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/cancel_signal.h"
#include "base/mutex.h"
#include "client/comm/communicator.h"

namespace coxswain {

// Which peers have ended, and what is known of why. Thread-safe.
class PeerEnds {
 public:
  // Notes the first reason of a peer, which waits see from then on.
  // `announced`: the peer has sent it, which is no loss of a connection. The
  // caller notifies next; between the two it may hold locks.
  void Record(int peer, const absl::Status& why, bool announced) {
    MutexLock lock(&mutex_);
    ends_.emplace(peer, End{why, announced, /*notified=*/false});
    changed_.NotifyAll();
  }

  // Calls back for the end of a peer, once.
  void Notify(int peer) {
    PeerLossSource::OnLost on_lost;
    std::shared_ptr<CancelSignal> guard;
    absl::Status why;
    {
      MutexLock lock(&mutex_);
      const auto found = ends_.find(peer);
      if (found == ends_.end()) return;
      End& end = found->second;
      if (std::exchange(end.notified, true)) return;
      if (!end.announced) on_lost = on_lost_;
      if (guarded_.count(peer) > 0) guard = guard_;
      why = end.why;
    }
    if (guard != nullptr) guard->Raise(why);
    if (on_lost != nullptr) on_lost(peer);
  }

  // Raises `signal` once one of these peers has ended; null: of none.
  void Guard(const std::vector<int>& peers,
             const std::shared_ptr<CancelSignal>& signal) {
    absl::Status why;
    {
      MutexLock lock(&mutex_);
      guarded_ = std::set<int>(peers.begin(), peers.end());
      guard_ = signal;
      for (const auto& [peer, end] : ends_) {
        if (guarded_.count(peer) > 0 && why.ok()) why = end.why;
      }
    }
    if (signal != nullptr && !why.ok()) signal->Raise(why);
  }

  // Waits for a peer's end, of which another connection has shown that it is
  // near; OK where it does not come until then.
  absl::Status Await(int peer, absl::Duration timeout) {
    MutexLock lock(&mutex_);
    const auto known = [&]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
      return ends_.count(peer) > 0 || stopped_;
    };
    changed_.WaitFor(&mutex_, timeout, known);
    const auto end = ends_.find(peer);
    return end == ends_.end() ? absl::OkStatus() : end->second.why;
  }

  // As PeerLossSource::WatchPeerLosses.
  void Watch(const PeerLossSource::OnLost& on_lost) {
    std::vector<int> lost;
    {
      MutexLock lock(&mutex_);
      on_lost_ = on_lost;
      for (const auto& [peer, end] : ends_) {
        if (end.notified && !end.announced) lost.push_back(peer);
      }
    }
    for (const int peer : lost) on_lost(peer);
  }

  // This rank has ended: no callback runs any more.
  void Stop() {
    MutexLock lock(&mutex_);
    stopped_ = true;
    on_lost_ = nullptr;
    changed_.NotifyAll();
  }

 private:
  struct End {
    absl::Status why;
    bool announced = false;
    bool notified = false;
  };

  Mutex mutex_;
  CondVar changed_;
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
  std::map<int, End> ends_ ABSL_GUARDED_BY(mutex_);
  PeerLossSource::OnLost on_lost_ ABSL_GUARDED_BY(mutex_);
  std::set<int> guarded_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<CancelSignal> guard_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_COMM_TCP_PEER_ENDS_H_
