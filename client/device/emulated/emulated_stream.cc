#include "client/device/emulated/emulated_stream.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <climits>
#include <ctime>
#include <utility>

#include "base/check.h"

namespace coxswain {
namespace {

static_assert(sizeof(std::atomic<uint32_t>) == sizeof(uint32_t) &&
              std::atomic<uint32_t>::is_always_lock_free);

int64_t Futex(const std::atomic<uint32_t>* word, int operation, uint32_t value,
              const timespec* timeout) {
  return syscall(SYS_futex, word, operation | FUTEX_PRIVATE_FLAG, value,
                 timeout, nullptr, 0);
}

}  // namespace

void OneWay::Advance() {
  value_.fetch_add(1, std::memory_order_release);
  Futex(&value_, FUTEX_WAKE, INT_MAX, nullptr);
}

bool OneWay::AwaitBeyond(uint32_t seen, absl::Duration timeout) const {
  using SteadyClock = std::chrono::steady_clock;
  const auto start = SteadyClock::now();
  while (value() == seen) {
    const absl::Duration left =
        timeout - absl::FromChrono(SteadyClock::now() - start);
    if (left <= absl::ZeroDuration()) return false;
    const timespec slice =
        absl::ToTimespec(std::min(left, absl::Duration(absl::Minutes(1))));
    Futex(&value_, FUTEX_WAIT, seen, &slice);
  }
  return true;
}

EmulatedStream::EmulatedStream(const std::atomic<bool>* device_failed)
    : device_failed_(device_failed),
      last_(new Item),
      first_(last_),
      thread_([this] { Loop(); }) {}

EmulatedStream::~EmulatedStream() {
  Release();
  Close();
  const bool ended = ended_.AwaitBeyond(0, absl::Minutes(1));
  COXSWAIN_CHECK(ended && "what is on an emulated stream does not end");
  thread_.join();
  delete first_;
}

void EmulatedStream::Enqueue(std::function<void()> work) {
  launches_.fetch_add(1, std::memory_order_relaxed);
  AddOrNote(std::move(work));
}

void EmulatedStream::EnqueueCopy(std::function<void()> work) {
  AddOrNote(std::move(work));
}

void EmulatedStream::EnqueueMark(OneWay* passed) {
  const MutexLock lock(&mutex_);
  Add([passed] { passed->Advance(); }, true);
}

void EmulatedStream::EnqueueWait(const OneWay* passed) {
  const MutexLock lock(&mutex_);
  Add([passed] { passed->AwaitBeyond(0); }, false);
}

void EmulatedStream::AddOrNote(std::function<void()> work) {
  COXSWAIN_CHECK(work != nullptr);
  const MutexLock lock(&mutex_);
  if (capturing_) {
    noted_.push_back(std::move(work));
  } else {
    Add(std::move(work), false);
  }
}

void EmulatedStream::Add(std::function<void()> work, bool even_if_failed) {
  COXSWAIN_CHECK(!closed_ && "a destroyed stream gets no more work");
  Item* const item = new Item;
  item->work = std::move(work);
  item->even_if_failed = even_if_failed;
  last_->next = item;
  last_ = item;
  enqueued_.Advance();
}

absl::Status EmulatedStream::BeginCapture() {
  const MutexLock lock(&mutex_);
  if (capturing_) {
    return absl::FailedPreconditionError("this stream is being captured");
  }
  capturing_ = true;
  capturer_ = std::this_thread::get_id();
  return absl::OkStatus();
}

absl::StatusOr<EmulatedStream::Sequence> EmulatedStream::EndCapture() {
  const MutexLock lock(&mutex_);
  if (!capturing_) {
    return absl::FailedPreconditionError(
        "the capture of this stream was not begun");
  }
  if (capturer_ != std::this_thread::get_id()) {
    return absl::FailedPreconditionError(
        "another thread began the capture of this stream");
  }
  capturing_ = false;
  return std::exchange(noted_, Sequence());
}

bool EmulatedStream::capturing() const {
  const MutexLock lock(&mutex_);
  return capturing_;
}

void EmulatedStream::Hold() {
  const MutexLock lock(&mutex_);
  if (hold_.value() % 2 == 0) hold_.Advance();
}

void EmulatedStream::Release() {
  const MutexLock lock(&mutex_);
  if (hold_.value() % 2 == 1) hold_.Advance();
}

void EmulatedStream::Close() {
  const MutexLock lock(&mutex_);
  if (closed_) return;
  Add(nullptr, true);
  closed_ = true;
}

bool EmulatedStream::closed() const {
  const MutexLock lock(&mutex_);
  return closed_;
}

void EmulatedStream::AwaitRelease() const {
  for (uint32_t hold = hold_.value(); hold % 2 == 1; hold = hold_.value()) {
    hold_.AwaitBeyond(hold);
  }
}

void EmulatedStream::Loop() {
  for (uint32_t taken = 0;; ++taken) {
    enqueued_.AwaitBeyond(taken);
    Item* const item = first_->next;
    delete first_;
    first_ = item;
    // What is captured goes when it has run, on this thread.
    const std::function<void()> work = std::move(item->work);
    if (work == nullptr) break;
    AwaitRelease();
    if (item->even_if_failed || !device_failed_->load()) work();
  }
  ended_.Advance();
}

}  // namespace coxswain
