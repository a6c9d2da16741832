#include "hooks/int8/int8_device.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "client/device/await_event.h"

namespace coxswain {
namespace {

template <typename T>
int64_t BytesOf(size_t count) {
  return static_cast<int64_t>(count * sizeof(T));
}

template <typename T>
size_t CountOf(const Int8Errors<T>& errors) {
  return errors.local.size() + errors.average.size();
}

template <typename T>
absl::Status FetchInto(DeviceTransfer& transfer, const T* from, int64_t count,
                       DeviceEvent after, std::vector<T>* to) {
  to->clear();
  if (from == nullptr || count == 0) return absl::OkStatus();
  COXSWAIN_ASSIGN_OR_RETURN(
      const PinnedBuffer values,
      transfer.Fetch(from, BytesOf<T>(static_cast<size_t>(count)), after));
  to->assign(values.as<T>(), values.as<T>() + count);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<Int8Device>> Int8Device::Make(
    DeviceRuntime& runtime) {
  std::unique_ptr<Int8Device> device(new Int8Device(runtime));
  COXSWAIN_ASSIGN_OR_RETURN(device->last_, runtime.CreateEvent());
  COXSWAIN_ASSIGN_OR_RETURN(device->transfer_, DeviceTransfer::Make(runtime));
  return device;
}

Int8Device::~Int8Device() {
  if (last_ != nullptr) runtime_.DestroyEvent(last_);
}

absl::Status Int8Device::Begin(DeviceQueue& queue) {
  return runtime_.StreamWait(queue.stream(), last_);
}

absl::Status Int8Device::End(DeviceQueue& queue) {
  COXSWAIN_RETURN_IF_ERROR(runtime_.Record(last_, queue.stream()));
  return scratch_.Seal(queue);
}

absl::Status Int8Device::Await() {
  return last_ == nullptr ? absl::OkStatus() : AwaitEvent(&runtime_, last_);
}

template <typename T>
absl::StatusOr<std::shared_ptr<DeviceScratch::HostBlock>> Int8Device::Upload(
    const std::vector<Int8Parameter<T>*>& parameters, DeviceQueue& queue) {
  int64_t bytes = 0;
  for (const Int8Parameter<T>* one : parameters) {
    if (!one->on_device) bytes += BytesOf<T>(CountOf(one->current));
  }
  std::shared_ptr<DeviceScratch::HostBlock> block;
  T* staging = nullptr;
  if (bytes > 0) {
    COXSWAIN_ASSIGN_OR_RETURN(block, scratch_.TakeHost(queue, bytes));
    block->copying = true;
    staging = static_cast<T*>(block->data);
  }
  for (Int8Parameter<T>* one : parameters) {
    if (one->on_device) continue;
    COXSWAIN_RETURN_IF_ERROR(UploadOne(*one, &staging, queue));
  }
  return block;
}

template <typename T>
absl::Status Int8Device::UploadOne(Int8Parameter<T>& parameter, T** staging,
                                   DeviceQueue& queue) {
  const Int8Errors<T>& from = parameter.current;
  Int8DeviceErrors<T> to;
  const int64_t bytes = BytesOf<T>(CountOf(from));
  if (bytes > 0) {
    COXSWAIN_ASSIGN_OR_RETURN(DeviceBuffer memory,
                              DeviceBuffer::Make(&runtime_, bytes));
    to.memory = std::make_shared<DeviceBuffer>(std::move(memory));
    T* const first = to.memory->template as<T>();
    if (!from.local.empty()) to.local = first;
    to.begin = from.begin;
    to.average_count = static_cast<int64_t>(from.average.size());
    if (!from.average.empty()) to.average = first + from.local.size();
    T* const begin = *staging;
    *staging = std::copy(from.local.begin(), from.local.end(), *staging);
    *staging = std::copy(from.average.begin(), from.average.end(), *staging);
    COXSWAIN_RETURN_IF_ERROR(
        runtime_.Copy(first, begin, bytes, queue.stream()));
  }
  parameter.device_current = std::move(to);
  parameter.on_device = true;
  return absl::OkStatus();
}

template <typename T>
absl::Status Int8Device::FetchOne(Int8Parameter<T>* parameter) {
  if (!parameter->on_device) return absl::OkStatus();
  const Int8DeviceErrors<T>& from = parameter->device_current;
  Int8Errors<T> to;
  COXSWAIN_RETURN_IF_ERROR(
      FetchInto(*transfer_, from.local, parameter->count, last_, &to.local));
  COXSWAIN_RETURN_IF_ERROR(FetchInto(*transfer_, from.average,
                                     from.average_count, last_, &to.average));
  to.begin = from.begin;
  parameter->current = std::move(to);
  parameter->device_current = {};
  parameter->on_device = false;
  return absl::OkStatus();
}

absl::StatusOr<AllInt8Parameters> Int8Device::Fetch(
    const AllInt8Parameters& parameters) {
  AllInt8Parameters fetched = parameters;
  for (auto& [name, one] : std::get<0>(fetched)) {
    COXSWAIN_RETURN_IF_ERROR(FetchOne(&one));
  }
  for (auto& [name, one] : std::get<1>(fetched)) {
    COXSWAIN_RETURN_IF_ERROR(FetchOne(&one));
  }
  return fetched;
}

template absl::StatusOr<std::shared_ptr<DeviceScratch::HostBlock>>
Int8Device::Upload<float>(const std::vector<Int8Parameter<float>*>&,
                          DeviceQueue&);
template absl::StatusOr<std::shared_ptr<DeviceScratch::HostBlock>>
Int8Device::Upload<double>(const std::vector<Int8Parameter<double>*>&,
                           DeviceQueue&);

template absl::Status Int8Device::FetchOne<float>(Int8Parameter<float>*);
template absl::Status Int8Device::FetchOne<double>(Int8Parameter<double>*);

}  // namespace coxswain
