#include "hooks/device/device_scratch.h"

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "base/logging.h"
#include "base/mutex.h"
#include "base/status_macros.h"
#include "client/device/runtime.h"

namespace coxswain {
namespace {

// Sizes are multiples of it, so that more requests fit an idle block.
constexpr int64_t kSizeStep = 256;

enum class Kind { kDevice, kHost };

struct Block {
  Kind kind;
  void* memory;
  int64_t bytes;
};

}  // namespace

class DeviceScratch::Blocks {
 public:
  absl::StatusOr<Block> Take(DeviceQueue& queue, Kind kind, int64_t bytes) {
    const int64_t size =
        (std::max(bytes, int64_t{1}) + kSizeStep - 1) / kSizeStep * kSizeStep;
    DeviceRuntime& runtime = queue.runtime();
    MutexLock lock(&mutex_);
    Stream& stream = StreamAt(queue.stream(), runtime);
    // Before anything uses the memory, so that Seal does not fail for it.
    COXSWAIN_RETURN_IF_ERROR(MakeEvent(stream));
    auto& idle = stream.idle[kind];
    const auto found = idle.lower_bound(size);
    if (found != idle.end() && found->first <= 2 * size) {
      const Block block{kind, found->second, found->first};
      idle.erase(found);
      return block;
    }
    COXSWAIN_ASSIGN_OR_RETURN(
        void* const memory, kind == Kind::kDevice ? runtime.Allocate(size)
                                                  : runtime.AllocateHost(size));
    return Block{kind, memory, size};
  }

  // `usable`: by the next use on the stream.
  void Return(DeviceStream on, DeviceRuntime& runtime, const Block& block,
              bool usable) {
    MutexLock lock(&mutex_);
    Stream& stream = StreamAt(on, runtime);
    if (usable) {
      stream.idle[block.kind].emplace(block.bytes, block.memory);
    } else {
      stream.retired.push_back(block);
    }
    if (closed_) FreePassed();
  }

  absl::Status Seal(DeviceQueue& queue) {
    MutexLock lock(&mutex_);
    Stream& stream = StreamAt(queue.stream(), queue.runtime());
    COXSWAIN_RETURN_IF_ERROR(MakeEvent(stream));
    return stream.runtime->Record(stream.sealed, queue.stream());
  }

  void Clear() {
    MutexLock lock(&mutex_);
    FreePassed();
  }

  void Close() {
    MutexLock lock(&mutex_);
    closed_ = true;
    FreePassed();
    for (const auto& [handle, stream] : streams_) {
      LogWarning("device_memory_left",
                 {{"device", stream.runtime->device().index},
                  {"reason", "its last work has not ended"}});
    }
  }

 private:
  struct Stream {
    DeviceRuntime* runtime = nullptr;
    DeviceEvent sealed = nullptr;
    std::map<Kind, std::multimap<int64_t, void*>> idle;
    std::vector<Block> retired;
  };

  Stream& StreamAt(DeviceStream handle, DeviceRuntime& runtime)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    Stream& stream = streams_[handle];
    stream.runtime = &runtime;
    return stream;
  }

  static absl::Status MakeEvent(Stream& stream) {
    if (stream.sealed != nullptr) return absl::OkStatus();
    COXSWAIN_ASSIGN_OR_RETURN(stream.sealed, stream.runtime->CreateEvent());
    return absl::OkStatus();
  }

  // A device that has failed works on nothing any more.
  static bool IsThrough(const Stream& stream) {
    if (stream.sealed == nullptr) return true;
    const auto passed = stream.runtime->HasPassed(stream.sealed);
    return !passed.ok() || *passed;
  }

  static void Free(Stream& stream) {
    DeviceRuntime& runtime = *stream.runtime;
    for (const auto& [bytes, memory] : stream.idle[Kind::kDevice]) {
      runtime.Free(memory);
    }
    for (const auto& [bytes, memory] : stream.idle[Kind::kHost]) {
      runtime.FreeHost(memory);
    }
    for (const Block& block : stream.retired) {
      block.kind == Kind::kDevice ? runtime.Free(block.memory)
                                  : runtime.FreeHost(block.memory);
    }
    if (stream.sealed != nullptr) runtime.DestroyEvent(stream.sealed);
  }

  // Another stream may come to have this one's handle.
  static void Retire(Stream& stream) {
    for (auto& [kind, idle] : stream.idle) {
      for (const auto& [bytes, memory] : idle) {
        stream.retired.push_back({kind, memory, bytes});
      }
      idle.clear();
    }
  }

  void FreePassed() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    for (auto one = streams_.begin(); one != streams_.end();) {
      if (IsThrough(one->second)) {
        Free(one->second);
        one = streams_.erase(one);
      } else {
        Retire(one->second);
        ++one;
      }
    }
  }

  Mutex mutex_;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  std::map<DeviceStream, Stream> streams_ ABSL_GUARDED_BY(mutex_);
};

DeviceScratch::DeviceScratch() : blocks_(std::make_shared<Blocks>()) {}

DeviceScratch::~DeviceScratch() { blocks_->Close(); }

absl::StatusOr<std::shared_ptr<void>> DeviceScratch::Take(DeviceQueue& queue,
                                                          int64_t bytes) {
  COXSWAIN_ASSIGN_OR_RETURN(const Block block,
                            blocks_->Take(queue, Kind::kDevice, bytes));
  return std::shared_ptr<void>(
      block.memory, [blocks = blocks_, block, stream = queue.stream(),
                     runtime = &queue.runtime()](void*) {
        blocks->Return(stream, *runtime, block, true);
      });
}

absl::StatusOr<std::shared_ptr<DeviceScratch::HostBlock>>
DeviceScratch::TakeHost(DeviceQueue& queue, int64_t bytes) {
  COXSWAIN_ASSIGN_OR_RETURN(const Block block,
                            blocks_->Take(queue, Kind::kHost, bytes));
  return std::shared_ptr<HostBlock>(
      new HostBlock{block.memory, false},
      [blocks = blocks_, block, stream = queue.stream(),
       runtime = &queue.runtime()](HostBlock* host) {
        const bool usable = !host->copying;
        delete host;
        blocks->Return(stream, *runtime, block, usable);
      });
}

absl::Status DeviceScratch::Seal(DeviceQueue& queue) {
  return blocks_->Seal(queue);
}

void DeviceScratch::Clear() { blocks_->Clear(); }

absl::StatusOr<std::unique_ptr<DeviceTransfer>> DeviceTransfer::Make(
    DeviceRuntime& runtime) {
  std::unique_ptr<DeviceTransfer> transfer(new DeviceTransfer(runtime));
  COXSWAIN_ASSIGN_OR_RETURN(transfer->stream_, runtime.CreateStream());
  COXSWAIN_ASSIGN_OR_RETURN(transfer->copied_, runtime.CreateEvent());
  return transfer;
}

DeviceTransfer::~DeviceTransfer() {
  if (copied_ != nullptr) runtime_.DestroyEvent(copied_);
  if (stream_ != nullptr) runtime_.DestroyStream(stream_);
}

absl::StatusOr<PinnedBuffer> DeviceTransfer::Fetch(const void* from,
                                                   int64_t bytes,
                                                   DeviceEvent after) {
  // Before a copy that may take for ever if it is given up.
  COXSWAIN_RETURN_IF_ERROR(AwaitEvent(&runtime_, after));
  COXSWAIN_ASSIGN_OR_RETURN(PinnedBuffer to,
                            PinnedBuffer::Make(&runtime_, bytes));
  COXSWAIN_RETURN_IF_ERROR(runtime_.StreamWait(stream_, after));
  absl::Status copied = runtime_.Copy(to.data(), from, bytes, stream_);
  copied.Update(runtime_.Record(copied_, stream_));
  if (copied.ok()) copied = AwaitEvent(&runtime_, copied_);
  // A copy that may still be on its way has its memory for ever.
  if (!copied.ok()) static_cast<void>(new PinnedBuffer(std::move(to)));
  COXSWAIN_RETURN_IF_ERROR(copied);
  return to;
}

}  // namespace coxswain
