#include "hooks/kernels/parallel.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <system_error>
#include <thread>
#include <vector>

#include "base/mutex.h"
#include "hooks/kernels/targets.h"

namespace coxswain {
namespace {

// Some 10 us of work, a few times what it takes to wake a thread.
constexpr int64_t kBytesPerPart = int64_t{1} << 18;

// Threads that take the parts of one task at a time.
class Pool {
 public:
  // Where threads cannot be joined (in the child of a fork they do not
  // exist), the pool stays as it is.
  void End() {
    if (getpid() != owner_) return;
    {
      MutexLock lock(&mutex_);
      ended_ = true;
      work_.NotifyAll();
    }
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
  }

  // False if the pool is taken; the caller then works alone.
  bool Run(int parts, const std::function<void(int)>& task) {
    if (getpid() != owner_ || taken_.exchange(true)) return false;
    const bool runs = Start(parts, task);
    if (runs) Finish();
    taken_ = false;
    return runs;
  }

 private:
  bool Start(int parts, const std::function<void(int)>& task) {
    MutexLock lock(&mutex_);
    if (ended_) return false;
    // Fewer threads than wished for will do: each takes what is left.
    try {
      while (static_cast<int>(threads_.size()) + 1 < parts) {
        threads_.emplace_back([this] { Work(); });
      }
    } catch (const std::system_error&) {
    }
    task_ = &task;
    parts_ = parts;
    next_ = 0;
    open_ = parts;
    work_.NotifyAll();
    return true;
  }

  void Finish() {
    MutexLock lock(&mutex_);
    TakeParts();
    done_.WaitForWork(&mutex_, [this] { return open_ == 0; });
  }

  void Work() {
    MutexLock lock(&mutex_);
    while (!ended_) {
      TakeParts();
      work_.WaitForWork(&mutex_, [this] { return ended_ || next_ < parts_; });
    }
  }

  void TakeParts() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    while (next_ < parts_) {
      const int part = next_++;
      const std::function<void(int)>& task = *task_;
      mutex_.Unlock();
      task(part);
      mutex_.Lock();
      if (--open_ == 0) done_.NotifyAll();
    }
  }

  const pid_t owner_ = getpid();
  std::atomic<bool> taken_{false};
  std::vector<std::thread> threads_;  // changed under mutex_, or by End()

  Mutex mutex_;
  CondVar work_;
  CondVar done_;
  const std::function<void(int)>* task_ ABSL_GUARDED_BY(mutex_) = nullptr;
  int parts_ ABSL_GUARDED_BY(mutex_) = 0;
  int next_ ABSL_GUARDED_BY(mutex_) = 0;  // the first part nobody has taken
  int open_ ABSL_GUARDED_BY(mutex_) = 0;  // parts that are not done
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
};

// Never destroyed: another static object's end may still run a kernel.
Pool& ThePool() {
  static Pool* pool = [] {
    auto* made = new Pool;
    std::atexit([] { ThePool().End(); });
    return made;
  }();
  return *pool;
}

}  // namespace

int KernelParts(int64_t bytes) {
  const int64_t useful = std::max<int64_t>(1, bytes / kBytesPerPart);
  return static_cast<int>(std::min<int64_t>(KernelThreads(), useful));
}

void RunParts(int parts, const std::function<void(int)>& task) {
  if (parts > 1 && ThePool().Run(parts, task)) return;
  for (int part = 0; part < parts; ++part) task(part);
}

void RunRanges(int64_t count, int64_t grain, int64_t bytes,
               const std::function<void(int64_t, int64_t)>& range) {
  const int parts = KernelParts(bytes);
  const auto edge = [&](int part) {
    if (part == parts) return count;
    return std::min(count, (count / grain * part / parts) * grain);
  };
  RunParts(parts, [&](int part) {
    const int64_t begin = edge(part);
    const int64_t end = edge(part + 1);
    if (begin < end) range(begin, end);
  });
}

}  // namespace coxswain
