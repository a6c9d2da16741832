#include "hooks/kernels/parallel.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <system_error>
#include <thread>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/logging.h"
#include "base/mutex.h"
#include "hwy/highway.h"

namespace coxswain {
namespace {

int Clamped(int threads) { return std::clamp(threads, 1, 256); }

constexpr char kThreadsVariable[] = "COXSWAIN_KERNEL_THREADS";

int ThreadsFromEnvironment() {
  const char* const value = std::getenv(kThreadsVariable);
  if (value == nullptr || *value == '\0') return 1;
  const absl::StatusOr<int> threads = ParseKernelThreads(value);
  if (threads.ok()) return *threads;
  LogWarning("variable_ignored", {{"reason", threads.status().message()},
                                  {"next", "kernels use one thread"}});
  return 1;
}

std::atomic<int>& Threads() {
  static std::atomic<int> threads(ThreadsFromEnvironment());
  return threads;
}

// Returns what this CPU has, whatever is in use; Highway lists the best first.
const std::vector<int64_t>& AllTargets() {
  static const auto* targets =
      new std::vector<int64_t>(hwy::SupportedAndGeneratedTargets());
  return *targets;
}

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
    done_.WaitForWork(&mutex_, [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
      return open_ == 0;
    });
  }

  void Work() {
    MutexLock lock(&mutex_);
    while (!ended_) {
      TakeParts();
      work_.WaitForWork(&mutex_, [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
        return ended_ || next_ < parts_;
      });
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
  int next_ ABSL_GUARDED_BY(mutex_) = 0;  // the first part that is not taken
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

std::atomic<int64_t> regions{0};

// Pieces of work for each thread, so that the wait for the last is short.
constexpr int64_t kPiecesPerThread = 4;

struct Piece {
  size_t of = 0;
  int64_t begin = 0;
  int64_t end = 0;
};

// Large ranges are cut into one piece for each thread, smaller ones into fewer,
// since wide pieces are the fastest.
std::vector<Piece> Cut(const std::vector<WorkRange>& work, int64_t grain,
                       int threads, int64_t bytes) {
  std::vector<Piece> pieces;
  pieces.reserve(work.size());
  const int64_t piece = bytes / (kPiecesPerThread * threads) + 1;
  for (size_t i = 0; i < work.size(); ++i) {
    const int64_t count = work[i].count;
    const int64_t cuts = std::min<int64_t>(threads, work[i].bytes / piece + 1);
    int64_t begin = 0;
    for (int64_t cut = 1; cut <= cuts; ++cut) {
      const int64_t end =
          cut == cuts ? count : count / grain * cut / cuts * grain;
      if (begin < end) pieces.push_back({i, begin, end});
      begin = end;
    }
  }
  return pieces;
}

}  // namespace

std::vector<std::string> KernelTargets() {
  std::vector<std::string> names;
  for (const int64_t target : AllTargets()) {
    names.emplace_back(hwy::TargetName(target));
  }
  return names;
}

std::string KernelTarget() {
  AllTargets();
  return hwy::TargetName(hwy::SupportedAndGeneratedTargets().front());
}

bool UseKernelTarget(const std::string& name) {
  for (const int64_t target : AllTargets()) {
    if (hwy::TargetName(target) != name) continue;
    hwy::SetSupportedTargetsForTest(target);
    return true;
  }
  return false;
}

absl::StatusOr<int> ParseKernelThreads(absl::string_view value) {
  int threads = 0;
  if (absl::SimpleAtoi(value, &threads) && threads >= 1) {
    return Clamped(threads);
  }
  return absl::InvalidArgumentError(absl::StrCat(
      kThreadsVariable, "='", value, "' is not a whole number of at least 1"));
}

void SetKernelThreads(int threads) { Threads() = Clamped(threads); }
int KernelThreads() { return Threads(); }

int KernelParts(int64_t bytes) {
  const int64_t useful = std::max<int64_t>(1, bytes / kBytesPerPart);
  return static_cast<int>(std::min<int64_t>(KernelThreads(), useful));
}

void RunParts(int parts, const std::function<void(int)>& task) {
  if (parts > 1) {
    regions.fetch_add(1, std::memory_order_relaxed);
    if (ThePool().Run(parts, task)) return;
  }
  for (int part = 0; part < parts; ++part) task(part);
}

int64_t ParallelRegions() { return regions.load(std::memory_order_relaxed); }

void RunRanges(const std::vector<WorkRange>& work, int64_t grain,
               const std::function<void(size_t, int64_t, int64_t)>& range) {
  int64_t bytes = 0;
  for (const WorkRange& one : work) bytes += one.bytes;
  const int threads = KernelParts(bytes);
  const std::vector<Piece> pieces = Cut(work, grain, threads, bytes);
  std::atomic<size_t> next{0};
  const auto parts = std::min(static_cast<size_t>(threads), pieces.size());
  RunParts(static_cast<int>(parts), [&](int) {
    for (size_t at = next++; at < pieces.size(); at = next++) {
      range(pieces[at].of, pieces[at].begin, pieces[at].end);
    }
  });
}

void RunRanges(int64_t count, int64_t grain, int64_t bytes,
               const std::function<void(int64_t, int64_t)>& range) {
  RunRanges({WorkRange{count, bytes}}, grain,
            [&](size_t, int64_t begin, int64_t end) { range(begin, end); });
}

}  // namespace coxswain
