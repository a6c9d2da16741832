#ifndef COXSWAIN_CLIENT_DEVICE_BUFFER_H_
#define COXSWAIN_CLIENT_DEVICE_BUFFER_H_

#include <cstdint>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/status_macros.h"
#include "client/device/runtime.h"

namespace coxswain {

// Memory of a runtime, owned: a GPU's (DeviceBuffer), or the host's for copies
// (PinnedBuffer). For hooks and the reducer.
//
// A stream may still be working on it when its owner no longer needs it, and
// the runtime does not wait: destroy, assign to and Resize it only once an
// event has shown that the last such work has passed. Life-cycle: the runtime
// outlives it. Empty (null, 0 bytes) when default constructed and when moved
// from. Threading: one thread at a time. Errors: those of the runtime's
// Allocate.
template <absl::StatusOr<void*> (DeviceRuntime::*allocate)(int64_t),
          void (DeviceRuntime::*free)(void*)>
class RuntimeBuffer {
 public:
  // Returns `bytes` of undefined contents, aligned to 256; null if 0.
  static absl::StatusOr<RuntimeBuffer> Make(DeviceRuntime* runtime,
                                            int64_t bytes) {
    RuntimeBuffer buffer;
    buffer.runtime_ = runtime;
    COXSWAIN_RETURN_IF_ERROR(buffer.Resize(bytes));
    return buffer;
  }

  RuntimeBuffer() = default;
  ~RuntimeBuffer() { Release(); }
  RuntimeBuffer(RuntimeBuffer&& other) noexcept { Take(&other); }
  RuntimeBuffer& operator=(RuntimeBuffer&& other) noexcept {
    if (this != &other) {
      Release();
      Take(&other);
    }
    return *this;
  }

  void* data() const { return data_; }
  int64_t bytes() const { return bytes_; }
  template <class Element>
  Element* as() const {
    return static_cast<Element*>(data_);
  }

  // Makes it `bytes` large. If its memory was ever that large it stays where it
  // is, with its contents; otherwise the contents are undefined. An error
  // changes nothing. Not for a default-constructed one, which has no runtime.
  absl::Status Resize(int64_t bytes) {
    if (bytes <= capacity_ && bytes >= 0) {
      bytes_ = bytes;
      return absl::OkStatus();
    }
    if (runtime_ == nullptr) {
      return absl::FailedPreconditionError(
          "a buffer that Make did not make has no device to get memory from");
    }
    COXSWAIN_ASSIGN_OR_RETURN(void* const data, (runtime_->*allocate)(bytes));
    Release();
    data_ = data;
    bytes_ = bytes;
    capacity_ = bytes;
    return absl::OkStatus();
  }

 private:
  void Release() {
    if (data_ != nullptr) (runtime_->*free)(data_);
    data_ = nullptr;
    bytes_ = 0;
    capacity_ = 0;
  }
  void Take(RuntimeBuffer* other) {
    runtime_ = std::exchange(other->runtime_, nullptr);
    data_ = std::exchange(other->data_, nullptr);
    bytes_ = std::exchange(other->bytes_, 0);
    capacity_ = std::exchange(other->capacity_, 0);
  }

  DeviceRuntime* runtime_ = nullptr;
  void* data_ = nullptr;
  int64_t bytes_ = 0;
  int64_t capacity_ = 0;
};

using DeviceBuffer =
    RuntimeBuffer<&DeviceRuntime::Allocate, &DeviceRuntime::Free>;
using PinnedBuffer =
    RuntimeBuffer<&DeviceRuntime::AllocateHost, &DeviceRuntime::FreeHost>;

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_DEVICE_BUFFER_H_
