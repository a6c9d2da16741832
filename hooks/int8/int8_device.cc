#include "hooks/int8/int8_device.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "client/device/runtime.h"

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

// So that E2 is aligned as E1 is, whatever is moved at a time.
constexpr int64_t kAlignedElements = 64;

int64_t RoundUp(int64_t count) {
  return (count + kAlignedElements - 1) / kAlignedElements * kAlignedElements;
}

template <typename Entry>
void Append(const std::vector<Entry>& entries, std::vector<char>* bytes) {
  static_assert(sizeof(Entry) % alignof(Entry) == 0 && alignof(Entry) <= 8);
  const char* first = reinterpret_cast<const char*>(entries.data());
  bytes->insert(bytes->end(), first, first + entries.size() * sizeof(Entry));
}

template <typename Entry>
int64_t EntriesOf(const std::vector<Entry>& with_end) {
  return static_cast<int64_t>(with_end.size()) - 1;
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

template <typename T>
Int8DevicePlan<T>::Int8DevicePlan(const Bucket& bucket,
                                  std::vector<Int8Parameter<T>*> state,
                                  int64_t slice, int rank, int ranks)
    : count_(bucket.data.count),
      slice_begin_(std::min(slice * rank, bucket.data.count)),
      ranks_(ranks) {
  const int64_t first = slice * rank;
  for (size_t i = 0; i < state.size(); ++i) {
    const GradientSlot& slot = bucket.gradients[i];
    Part& part = parts_.emplace_back();
    part.state = state[i];
    part.gradient = bucket.Gradient(slot);
    part.offset = slot.offset;
    part.begin = std::clamp<int64_t>(first - slot.offset, 0, slot.count);
    part.end = std::clamp<int64_t>(first + slice - slot.offset, 0, slot.count);
  }
}

template <typename T>
Int8DeviceErrors<T> Int8DevicePlan<T>::ErrorsIn(
    const std::shared_ptr<DeviceBuffer>& memory, const Part& part) const {
  Int8DeviceErrors<T> errors;
  T* const local = memory->template as<T>();
  T* const average = local + RoundUp(count_);
  errors.memory = memory;
  errors.local = part.gradient.count == 0 ? nullptr : local + part.offset;
  errors.begin = part.begin;
  errors.average_count = part.end - part.begin;
  if (errors.average_count > 0) {
    errors.average = average + (part.offset + part.begin - slice_begin_);
  }
  return errors;
}

template <typename T>
std::shared_ptr<DeviceBuffer> Int8DevicePlan<T>::StagedBefore() const {
  const std::shared_ptr<DeviceBuffer> memory =
      parts_.empty() ? nullptr : parts_[0].state->device_staged.memory;
  if (memory == nullptr) return nullptr;
  for (const Part& part : parts_) {
    const Int8DeviceErrors<T>& staged = part.state->device_staged;
    if (staged.memory != memory) return nullptr;
    const Int8DeviceErrors<T> wanted = ErrorsIn(memory, part);
    if (staged.local != wanted.local || staged.begin != wanted.begin ||
        staged.average != wanted.average ||
        staged.average_count != wanted.average_count) {
      return nullptr;
    }
  }
  return memory;
}

template <typename T>
absl::Status Int8DevicePlan<T>::PlaceErrors(Int8Device& device,
                                            DeviceQueue& queue) {
  int64_t owned = 0;
  std::vector<Int8Parameter<T>*> state;
  for (const Part& part : parts_) {
    state.push_back(part.state);
    owned += part.end - part.begin;
  }
  COXSWAIN_ASSIGN_OR_RETURN(uploading_, device.Upload(state, queue));
  std::shared_ptr<DeviceBuffer> memory = StagedBefore();
  if (memory == nullptr) {
    const int64_t elements = RoundUp(count_) + owned;
    COXSWAIN_ASSIGN_OR_RETURN(
        DeviceBuffer made,
        DeviceBuffer::Make(&device.runtime(),
                           elements * static_cast<int64_t>(sizeof(T))));
    memory = std::make_shared<DeviceBuffer>(std::move(made));
  }
  for (const Part& part : parts_) {
    part.state->device_staged = ErrorsIn(memory, part);
  }
  return absl::OkStatus();
}

template <typename T>
void Int8DevicePlan<T>::Uploaded() {
  if (uploading_ != nullptr) uploading_->copying = false;
  uploading_ = nullptr;
}

template <typename T>
std::vector<QuantiseRun<T>> Int8DevicePlan<T>::GradientRuns(
    bool error_feedback) const {
  std::vector<QuantiseRun<T>> runs;
  for (const Part& part : parts_) {
    QuantiseRun<T>& run = runs.emplace_back();
    run.gradient = part.gradient.data;
    run.type = part.gradient.dtype;
    run.count = part.gradient.count;
    if (!error_feedback) continue;
    run.remainder = part.state->device_staged.local;
    run.error = part.Folds() ? run.remainder : part.state->device_current.local;
  }
  return runs;
}

template <typename T>
std::vector<QuantiseRun<T>> Int8DevicePlan<T>::SliceRuns(
    bool error_feedback) const {
  std::vector<QuantiseRun<T>> runs;
  for (const Part& part : parts_) {
    QuantiseRun<T>& run = runs.emplace_back();
    run.count = part.end - part.begin;
    if (!error_feedback) continue;
    run.remainder = part.state->device_staged.average;
    if (part.KeepsSlice()) run.error = part.state->device_current.average;
  }
  return runs;
}

template <typename T>
std::vector<FoldEntry<T>> Int8DevicePlan<T>::Folds(bool error_feedback) const {
  std::vector<FoldEntry<T>> folds;
  int64_t first = 0;
  for (const Part& part : parts_) {
    if (!error_feedback || !part.Folds()) continue;
    const Int8DeviceErrors<T>& from = part.state->device_current;
    folds.push_back({from.local, from.average, part.state->device_staged.local,
                     from.begin, from.begin + from.average_count, first});
    first += part.gradient.count;
  }
  folds.push_back({nullptr, nullptr, nullptr, 0, 0, first});
  return folds;
}

template <typename T>
std::vector<char> Int8DevicePlan<T>::Tables(bool error_feedback) {
  const auto gradients = QuantiseTable(GradientRuns(error_feedback));
  const auto slice = QuantiseTable(SliceRuns(error_feedback));
  const auto folds = Folds(error_feedback);
  gradients_ = EntriesOf(gradients);
  slices_ = EntriesOf(slice);
  folds_ = EntriesOf(folds);
  folded_ = folds.back().first;
  std::vector<char> bytes;
  Append(gradients, &bytes);
  Append(slice, &bytes);
  Append(folds, &bytes);
  return bytes;
}

template <typename T>
QuantiseRuns Int8DevicePlan<T>::Gradients(const char* table) const {
  return {reinterpret_cast<const QuantiseEntry*>(table), gradients_};
}

template <typename T>
QuantiseRuns Int8DevicePlan<T>::Slice(const char* table) const {
  return {Gradients(table).table + gradients_ + 1, slices_};
}

template <typename T>
void Int8DevicePlan<T>::EnqueueFolds(LaunchTarget* target,
                                     const char* table) const {
  const QuantiseEntry* const end = Slice(table).table + slices_ + 1;
  EnqueueFold<T>(target, reinterpret_cast<const FoldEntry<T>*>(end), folds_,
                 folded_, static_cast<T>(ranks_));
}

template <typename T>
std::vector<QuantiseEntry> Int8DevicePlan<T>::EachGradient() const {
  std::vector<QuantiseEntry> entries;
  for (const Part& part : parts_) {
    entries.push_back({part.gradient.data, nullptr, nullptr, part.offset});
  }
  entries.push_back({nullptr, nullptr, nullptr, count_});
  return entries;
}

template <typename T>
void Int8DevicePlan<T>::Stage() {
  for (const Part& part : parts_) {
    part.state->is_staged = true;
    part.state->staged_on_device = true;
  }
}

template class Int8DevicePlan<float>;
template class Int8DevicePlan<double>;

}  // namespace coxswain
