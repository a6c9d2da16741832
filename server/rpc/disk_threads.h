#ifndef COXSWAIN_SERVER_RPC_DISK_THREADS_H_
#define COXSWAIN_SERVER_RPC_DISK_THREADS_H_

#include <deque>
#include <functional>
#include <thread>
#include <utility>
#include <vector>

#include "base/mutex.h"

namespace coxswain::server {

// A few threads for what waits for a disk, so that gRPC's own, which are no
// more than two on a small machine, go on with heartbeats and decisions while
// a disk syncs a shard. Work is begun in the order of the calls.
//
// The queue has no limit of its own: every call and every stream has one piece
// of work in it at most. Thread-safe.
class DiskThreads {
 public:
  explicit DiskThreads(int threads) {
    for (int i = 0; i < threads; ++i) {
      threads_.emplace_back([this] { Work(); });
    }
  }
  // Does all that was asked for before. Run must not be called any more, but
  // for that work itself.
  ~DiskThreads() {
    {
      MutexLock lock(&mutex_);
      ending_ = true;
      changed_.NotifyAll();
    }
    for (std::thread& thread : threads_) thread.join();
  }
  DiskThreads(const DiskThreads&) = delete;
  DiskThreads& operator=(const DiskThreads&) = delete;

  void Run(std::function<void()> work) {
    MutexLock lock(&mutex_);
    queue_.push_back(std::move(work));
    changed_.NotifyOne();
  }

 private:
  void Work() {
    while (true) {
      std::function<void()> work;
      {
        MutexLock lock(&mutex_);
        changed_.WaitForWork(&mutex_, [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
          return ending_ || !queue_.empty();
        });
        if (queue_.empty()) return;
        work = std::move(queue_.front());
        queue_.pop_front();
      }
      work();
    }
  }

  Mutex mutex_;
  CondVar changed_;
  std::deque<std::function<void()>> queue_ ABSL_GUARDED_BY(mutex_);
  bool ending_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_;
};

}  // namespace coxswain::server

#endif  // COXSWAIN_SERVER_RPC_DISK_THREADS_H_
