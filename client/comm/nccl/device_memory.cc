#include "client/comm/nccl/device_memory.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/logging.h"
#include "base/status_macros.h"
#include "client/comm/nccl/nccl_status.h"
#include "client/device/runtime.h"

namespace coxswain {
namespace {

constexpr absl::Duration kZeroTimeout = absl::Seconds(30);

class DeviceMemory : public BufferOwner {
 public:
  DeviceMemory(NcclApi* api, DeviceRuntime* runtime,
               std::shared_ptr<NcclLink> link)
      : api_(api), runtime_(runtime), link_(std::move(link)) {}
  ~DeviceMemory() override {
    if (registration_ != nullptr) Deregister();
    if (span_.data == nullptr) return;
    if (nccls_own_) {
      api_->MemFree(runtime_->device().index, span_.data);
    } else {
      runtime_->Free(span_.data);
    }
  }

  Span span() const override { return span_; }

  absl::Status Allocate(int64_t count, DType dtype);
  absl::Status Zero();
  // Where that does not work the memory is moved as any other is.
  void Register(const NcclTimeout& timeout);

 private:
  // With a communicator that is gone, its registrations are.
  void Deregister() {
    NcclTimeout timeout;
    timeout.clock = Clock::Real();
    timeout.end = timeout.clock->Now() + kZeroTimeout;
    link_
        ->Run(
            "deregistering a buffer",
            [this](NcclComm comm) {
              return api_->Deregister(comm, registration_);
            },
            timeout)
        .IgnoreError();
  }

  NcclApi* const api_;
  DeviceRuntime* const runtime_;
  const std::shared_ptr<NcclLink> link_;
  Span span_;
  bool nccls_own_ = false;
  void* registration_ = nullptr;
};

absl::Status DeviceMemory::Allocate(int64_t count, DType dtype) {
  span_.count = count;
  span_.dtype = dtype;
  span_.device = runtime_->device();
  if (count == 0) return absl::OkStatus();
  const auto size = static_cast<int64_t>(SizeOf(dtype));
  if (count > std::numeric_limits<int64_t>::max() / size) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "no device has memory for ", count, " elements of ", size, " bytes"));
  }
  const auto bytes = static_cast<size_t>(span_.bytes());
  if (api_->has(NcclFeature::kMemAlloc)) {
    nccls_own_ = api_->MemAlloc(span_.device.index, &span_.data, bytes) ==
                 NcclResult::kSuccess;
    if (nccls_own_) return absl::OkStatus();
    span_.data = nullptr;
  }
  COXSWAIN_ASSIGN_OR_RETURN(span_.data, runtime_->Allocate(span_.bytes()));
  return absl::OkStatus();
}

absl::Status DeviceMemory::Zero() {
  if (span_.count == 0) return absl::OkStatus();
  // Not behind what the communicator's stream has to do.
  COXSWAIN_ASSIGN_OR_RETURN(DeviceStream const stream,
                            runtime_->CreateStream());
  absl::StatusOr<DeviceEvent> event = runtime_->CreateEvent();
  absl::Status status = event.status();
  if (status.ok()) {
    status = runtime_->Fill(span_.data, 0, span_.bytes(), stream);
  }
  if (status.ok()) status = runtime_->Record(*event, stream);
  if (status.ok()) status = AwaitEvent(runtime_, *event, kZeroTimeout);
  if (event.ok()) runtime_->DestroyEvent(*event);
  runtime_->DestroyStream(stream);
  return status;
}

void DeviceMemory::Register(const NcclTimeout& timeout) {
  if (span_.count == 0 || !api_->has(NcclFeature::kRegister)) return;
  const absl::Status status = link_->Run(
      "registering a buffer",
      [this](NcclComm comm) {
        return api_->Register(comm, span_.data,
                              static_cast<size_t>(span_.bytes()),
                              &registration_);
      },
      timeout);
  if (status.ok()) return;
  registration_ = nullptr;
  LogWarningOnce("nccl_register", "nccl_buffer_not_registered",
                 {{"status", status.message()}});
}

constexpr int64_t kLeast = 4096;

int64_t RoundUp(int64_t bytes) {
  int64_t size = kLeast;
  while (size < bytes) size *= 2;
  return size;
}

}  // namespace

absl::StatusOr<std::unique_ptr<BufferOwner>> AllocateDeviceMemory(
    NcclApi* api, DeviceRuntime* runtime, std::shared_ptr<NcclLink> link,
    int64_t count, DType dtype, const NcclTimeout& timeout) {
  auto memory = std::make_unique<DeviceMemory>(api, runtime, std::move(link));
  COXSWAIN_RETURN_IF_ERROR(memory->Allocate(count, dtype));
  COXSWAIN_RETURN_IF_ERROR(memory->Zero());
  memory->Register(timeout);
  return memory;
}

absl::StatusOr<Staging::Piece*> Staging::Take(int64_t bytes) {
  const int64_t size = RoundUp(bytes);
  {
    MutexLock lock(&mutex_);
    const auto fits = [size](const Piece* piece) {
      return piece->host.bytes() == size;
    };
    const auto found = std::find_if(free_.begin(), free_.end(), fits);
    if (found != free_.end()) {
      Piece* const piece = *found;
      free_.erase(found);
      return piece;
    }
  }
  auto piece = std::make_unique<Piece>();
  COXSWAIN_ASSIGN_OR_RETURN(piece->host, PinnedBuffer::Make(runtime_, size));
  COXSWAIN_ASSIGN_OR_RETURN(piece->device, DeviceBuffer::Make(runtime_, size));
  MutexLock lock(&mutex_);
  all_.push_back(std::move(piece));
  return all_.back().get();
}

void Staging::Return(Piece* piece) {
  MutexLock lock(&mutex_);
  free_.push_back(piece);
}

}  // namespace coxswain
