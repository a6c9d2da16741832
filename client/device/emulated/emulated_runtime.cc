#include "client/device/emulated/emulated_runtime.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/check.h"
#include "base/logging.h"
#include "base/status_macros.h"
#include "client/device/cuda/cuda_status.h"
#include "client/device/runtime.h"

namespace coxswain {
namespace {

// What an event stands for: null, or advanced once it has passed.
struct EmulatedEvent {
  Mutex mutex;
  OneWay* passed ABSL_GUARDED_BY(mutex) = nullptr;

  const OneWay* Get() {
    const MutexLock lock(&mutex);
    return passed;
  }
};

// They are 4 bytes each and are kept to the process's end: streams that wait
// for one may be other runtimes', and counting them would put all in an order.
OneWay* NewOneWay() {
  static Mutex* const mutex = new Mutex;
  static std::deque<OneWay>* const all = new std::deque<OneWay>;
  const MutexLock lock(mutex);
  return &all->emplace_back();
}

EmulatedEvent* EventOf(DeviceEvent event) {
  COXSWAIN_CHECK(event != nullptr);
  return reinterpret_cast<EmulatedEvent*>(event);
}

using Sequence = EmulatedStream::Sequence;
Sequence* SequenceOf(DeviceGraph graph) {
  COXSWAIN_CHECK(graph != nullptr);
  return reinterpret_cast<Sequence*>(graph);
}

DeviceProperties MakeProperties(int index) {
  DeviceProperties properties;
  properties.name = "emulated GPU";
  properties.pci_bus_id = absl::StrFormat("0000:%02x:00.0", index);
  properties.uuid = absl::StrFormat("%032x", index);
  properties.compute_major = 8;
  properties.memory = int64_t{1} << 34;
  properties.multiprocessors = 4;
  return properties;
}

}  // namespace

EmulatedRuntime::EmulatedRuntime(int index)
    : index_(index),
      properties_(MakeProperties(index)),
      default_stream_(std::make_unique<EmulatedStream>(&failed_)) {}

EmulatedRuntime::~EmulatedRuntime() {
  const int64_t count = leaked();
  if (count > 0) {
    LogWarning("emulated_device_leaked",
               {{"device", index_}, {"pieces", count}});
  }
  // All first, as they may wait for each other.
  default_stream_->Release();
  for (const auto& stream : streams_) stream->Release();
  streams_.clear();
  default_stream_.reset();
  for (const auto& [memory, bytes] : memory_) std::free(memory);
  for (const auto& [memory, bytes] : host_memory_) std::free(memory);
  for (void* const memory : unreclaimed_) std::free(memory);
}

HostStream* EmulatedRuntime::HostStreamOf(DeviceStream stream) {
  COXSWAIN_CHECK(stream != nullptr);
  return reinterpret_cast<EmulatedStream*>(stream);
}

void EmulatedRuntime::Fail(absl::string_view why) {
  const MutexLock lock(&mutex_);
  if (!failed_.load()) why_failed_ = std::string(why);
  failed_.store(true);
  default_stream_->Release();
  for (const auto& stream : streams_) stream->Release();
}

absl::Status EmulatedRuntime::Alive() const {
  if (!failed_.load()) return absl::OkStatus();
  const MutexLock lock(&mutex_);
  return absl::UnavailableError(
      absl::StrCat("GPU ", index_, " has failed: ", why_failed_));
}

void EmulatedRuntime::FailAllocation(int before) {
  const MutexLock lock(&mutex_);
  failing_allocation_ = allocations_ + before;
}

void EmulatedRuntime::HoldStream(DeviceStream stream) {
  StreamAt(stream)->Hold();
}

void EmulatedRuntime::ReleaseStream(DeviceStream stream) {
  StreamAt(stream)->Release();
}

int64_t EmulatedRuntime::leaked() const {
  const MutexLock lock(&mutex_);
  int64_t open = 0;
  for (const auto& stream : streams_) open += stream->closed() ? 0 : 1;
  return open + static_cast<int64_t>(memory_.size() + host_memory_.size()) +
         events_.load() + graphs_.load();
}

int64_t EmulatedRuntime::launches() const {
  const MutexLock lock(&mutex_);
  int64_t sum = default_stream_->launches();
  for (const auto& stream : streams_) sum += stream->launches();
  return sum;
}

Device EmulatedRuntime::device() const {
  return Device{Device::Kind::kCuda, index_};
}

absl::StatusOr<void*> EmulatedRuntime::Allocate(int64_t bytes) {
  return AllocateIn(&memory_, bytes);
}

void EmulatedRuntime::Free(void* memory) { FreeIn(&memory_, memory); }

absl::StatusOr<void*> EmulatedRuntime::AllocateHost(int64_t bytes) {
  return AllocateIn(&host_memory_, bytes);
}

void EmulatedRuntime::FreeHost(void* memory) { FreeIn(&host_memory_, memory); }

absl::StatusOr<void*> EmulatedRuntime::AllocateIn(Pieces* pieces,
                                                  int64_t bytes) {
  constexpr size_t kAlignment = 256;
  COXSWAIN_RETURN_IF_ERROR(Alive());
  if (bytes < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("asked for ", bytes, " bytes of memory"));
  }
  if (bytes == 0) return nullptr;
  const MutexLock lock(&mutex_);
  void* memory = nullptr;
  // No more than asked for, so that AddressSanitizer sees what is past it.
  if (allocations_++ == failing_allocation_ || bytes > properties_.memory ||
      posix_memalign(&memory, kAlignment, static_cast<size_t>(bytes)) != 0) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "GPU ", index_, " is out of memory: asked for ", bytes, " bytes"));
  }
  constexpr int kNotANumber = 0xff;  // in all floating-point types
  std::memset(memory, kNotANumber, static_cast<size_t>(bytes));
  pieces->emplace(memory, bytes);
  return memory;
}

void EmulatedRuntime::FreeIn(Pieces* pieces, void* memory) {
  if (memory == nullptr) return;
  const MutexLock lock(&mutex_);
  const bool was_there = pieces->erase(memory) == 1;
  COXSWAIN_CHECK(was_there && "freed what is not allocated");
  // The work of a device that has failed cannot be waited for.
  if (failed_.load()) {
    unreclaimed_.push_back(memory);
  } else {
    std::free(memory);
  }
}

absl::StatusOr<DeviceStream> EmulatedRuntime::CreateStream() {
  COXSWAIN_RETURN_IF_ERROR(Alive());
  const MutexLock lock(&mutex_);
  streams_.push_back(std::make_unique<EmulatedStream>(&failed_));
  return reinterpret_cast<DeviceStream>(streams_.back().get());
}

void EmulatedRuntime::DestroyStream(DeviceStream stream) {
  COXSWAIN_CHECK(stream != nullptr);
  COXSWAIN_CHECK(!StreamAt(stream)->closed());
  StreamAt(stream)->Close();
}

EmulatedStream* EmulatedRuntime::StreamAt(DeviceStream stream) const {
  if (stream == nullptr) return default_stream_.get();
  return reinterpret_cast<EmulatedStream*>(stream);
}

absl::StatusOr<EmulatedStream*> EmulatedRuntime::Uncaptured(
    DeviceStream stream) const {
  COXSWAIN_RETURN_IF_ERROR(Alive());
  EmulatedStream* const at = StreamAt(stream);
  if (at->capturing()) {
    return absl::FailedPreconditionError(
        "events are not for a stream that is being captured");
  }
  return at;
}

absl::StatusOr<DeviceEvent> EmulatedRuntime::CreateEvent() {
  COXSWAIN_RETURN_IF_ERROR(Alive());
  events_.fetch_add(1);
  return reinterpret_cast<DeviceEvent>(new EmulatedEvent);
}

void EmulatedRuntime::DestroyEvent(DeviceEvent event) {
  delete EventOf(event);
  events_.fetch_sub(1);
}

absl::Status EmulatedRuntime::Record(DeviceEvent event, DeviceStream stream) {
  COXSWAIN_ASSIGN_OR_RETURN(EmulatedStream* const at, Uncaptured(stream));
  EmulatedEvent* const record = EventOf(event);
  OneWay* const passed = NewOneWay();
  const MutexLock lock(&record->mutex);
  record->passed = passed;
  at->EnqueueMark(passed);
  return absl::OkStatus();
}

absl::Status EmulatedRuntime::StreamWait(DeviceStream stream,
                                         DeviceEvent event) {
  COXSWAIN_ASSIGN_OR_RETURN(EmulatedStream* const at, Uncaptured(stream));
  const OneWay* const passed = EventOf(event)->Get();
  if (passed != nullptr) at->EnqueueWait(passed);
  return absl::OkStatus();
}

absl::StatusOr<bool> EmulatedRuntime::HasPassed(DeviceEvent event) {
  COXSWAIN_RETURN_IF_ERROR(Alive());
  const OneWay* const passed = EventOf(event)->Get();
  const bool has = passed == nullptr || passed->value() > 0;
  // A failing device lets streams run dry, which is not to have passed.
  COXSWAIN_RETURN_IF_ERROR(Alive());
  return has;
}

absl::Status EmulatedRuntime::Copy(void* to, const void* from, int64_t bytes,
                                   DeviceStream stream) {
  COXSWAIN_RETURN_IF_ERROR(Alive());
  COXSWAIN_RETURN_IF_ERROR(CheckCopy(to, from, bytes));
  if (bytes == 0) return absl::OkStatus();
  copies_.fetch_add(1);
  StreamAt(stream)->EnqueueCopy(
      [to, from, bytes] { std::memcpy(to, from, static_cast<size_t>(bytes)); });
  return absl::OkStatus();
}

absl::Status EmulatedRuntime::Fill(void* to, uint8_t value, int64_t bytes,
                                   DeviceStream stream) {
  COXSWAIN_RETURN_IF_ERROR(Alive());
  COXSWAIN_RETURN_IF_ERROR(CheckCopy(to, to, bytes));
  if (bytes == 0) return absl::OkStatus();
  copies_.fetch_add(1);
  StreamAt(stream)->EnqueueCopy([to, value, bytes] {
    std::memset(to, value, static_cast<size_t>(bytes));
  });
  return absl::OkStatus();
}

LaunchTarget EmulatedRuntime::Target(DeviceStream stream) {
  LaunchTarget target;
  target.stream = stream;
  target.host = StreamAt(stream);
  return target;
}

absl::Status EmulatedRuntime::StatusOf(const LaunchTarget& target) {
  COXSWAIN_RETURN_IF_ERROR(
      CudaStatus(target.error, absl::StrCat("a launch on GPU ", index_)));
  return Alive();
}

absl::Status EmulatedRuntime::BeginCapture(DeviceStream stream) {
  COXSWAIN_RETURN_IF_ERROR(Alive());
  if (stream == nullptr) {
    return absl::InvalidArgumentError("the default stream cannot be captured");
  }
  return StreamAt(stream)->BeginCapture();
}

absl::StatusOr<DeviceGraph> EmulatedRuntime::EndCapture(DeviceStream stream) {
  COXSWAIN_ASSIGN_OR_RETURN(Sequence sequence, StreamAt(stream)->EndCapture());
  COXSWAIN_RETURN_IF_ERROR(Alive());
  graphs_.fetch_add(1);
  return reinterpret_cast<DeviceGraph>(new Sequence(std::move(sequence)));
}

absl::Status EmulatedRuntime::LaunchGraph(DeviceGraph graph,
                                          DeviceStream stream) {
  COXSWAIN_RETURN_IF_ERROR(Alive());
  graph_launches_.fetch_add(1);
  for (const std::function<void()>& work : *SequenceOf(graph)) {
    StreamAt(stream)->EnqueueCopy(work);
  }
  return absl::OkStatus();
}

void EmulatedRuntime::DestroyGraph(DeviceGraph graph) {
  delete SequenceOf(graph);
  graphs_.fetch_sub(1);
}

}  // namespace coxswain
