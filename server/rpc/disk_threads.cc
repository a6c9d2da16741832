#include "server/rpc/disk_threads.h"

#include <utility>

namespace coxswain::server {

DiskThreads::DiskThreads(int threads) {
  for (int i = 0; i < threads; ++i) {
    threads_.emplace_back([this] { Work(); });
  }
}

DiskThreads::~DiskThreads() {
  {
    MutexLock lock(&mutex_);
    ending_ = true;
    changed_.NotifyAll();
  }
  for (std::thread& thread : threads_) thread.join();
}

void DiskThreads::Run(std::function<void()> work) {
  MutexLock lock(&mutex_);
  queue_.push_back(std::move(work));
  changed_.NotifyOne();
}

void DiskThreads::Work() {
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

}  // namespace coxswain::server
