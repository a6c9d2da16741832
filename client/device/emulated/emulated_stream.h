#ifndef COXSWAIN_CLIENT_DEVICE_EMULATED_EMULATED_STREAM_H_
#define COXSWAIN_CLIENT_DEVICE_EMULATED_EMULATED_STREAM_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/mutex.h"
#include "client/device/launch.h"

namespace coxswain {

// A number that grows, and threads that wait for it to. For emulated streams.
//
// Who waits sees all that was done before the number grew, but who makes it
// grow sees nothing of those who wait: with a mutex both would, and
// ThreadSanitizer would take an order for given that a GPU does not give.
// Hence Linux's futex, which ThreadSanitizer does not look at, and one atomic,
// which it does.
// Thread-safe.
class OneWay {
 public:
  void Advance();
  uint32_t value() const { return value_.load(std::memory_order_acquire); }

  // Returns once value() is not `seen`; false if `timeout` passes before.
  bool AwaitBeyond(uint32_t seen,
                   absl::Duration timeout = absl::InfiniteDuration()) const;

 private:
  std::atomic<uint32_t> value_{0};
};

// A stream of an EmulatedRuntime: a thread that runs what is enqueued, in
// order. What it does happens after what its enqueuer did before, and nothing
// else happens after it but what waited for one of its events.
//
// Life-cycle: made and kept by its runtime, to the runtime's end. Closed, it
// runs what it has and takes no more.
// Threading: all methods from any thread. Work may block, as a collective does
// that waits for its peers; its caller must be able to end it.
class EmulatedStream : public HostStream {
 public:
  // Once `*device_failed`, work that has not begun is dropped.
  explicit EmulatedStream(const std::atomic<bool>* device_failed);
  // Releases and closes it, and waits for what is on it; the process ends if
  // that takes more than a minute.
  ~EmulatedStream() override;

  // Kernels and collectives; counted by launches().
  void Enqueue(std::function<void()> work) override;
  // Copies.
  void EnqueueCopy(std::function<void()> work);
  // Advances `passed` when the stream gets there, and even if the device has
  // failed. Not noted by captures, nor are waits. No shared_ptr: who lets go of
  // one sees what the other owners did before.
  void EnqueueMark(OneWay* passed);
  // The stream goes on when `passed` has been advanced.
  void EnqueueWait(const OneWay* passed);

  using Sequence = std::vector<std::function<void()>>;
  absl::Status BeginCapture();
  absl::StatusOr<Sequence> EndCapture();
  bool capturing() const;

  // Held, it begins nothing more. What runs already runs on.
  void Hold();
  void Release();
  void Close();
  bool closed() const;
  // How often Enqueue was called, those that captures noted included.
  int64_t launches() const { return launches_.load(std::memory_order_relaxed); }

 private:
  struct Item {
    std::function<void()> work;  // none: the end
    bool even_if_failed = false;
    Item* next = nullptr;
  };

  void Add(std::function<void()> work, bool even_if_failed)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void AddOrNote(std::function<void()> work);
  void Loop();
  void AwaitRelease() const;

  const std::atomic<bool>* const device_failed_;
  std::atomic<int64_t> launches_{0};

  // The thread does not take this lock, so that it orders nothing else.
  mutable Mutex mutex_;
  Item* last_ ABSL_GUARDED_BY(mutex_);
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  bool capturing_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread::id capturer_ ABSL_GUARDED_BY(mutex_);
  Sequence noted_ ABSL_GUARDED_BY(mutex_);

  OneWay enqueued_;
  OneWay hold_;  // odd: held
  OneWay ended_;
  Item* first_;  // the thread's: the last item it has taken
  std::thread thread_;
};

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_DEVICE_EMULATED_EMULATED_STREAM_H_
