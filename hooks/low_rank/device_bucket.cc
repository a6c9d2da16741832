#include "hooks/low_rank/device_bucket.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/status_macros.h"
#include "client/device/runtime.h"
#include "hooks/device/device_exchange.h"
#include "hooks/low_rank/low_rank_state.h"

namespace coxswain {
namespace {

constexpr int64_t kAlignment = 256;  // bytes

template <typename T>
int64_t Aligned(int64_t count) {
  constexpr int64_t kElements = kAlignment / sizeof(T);
  return (count + kElements - 1) / kElements * kElements;
}

template <typename T>
void CopyTo(const std::vector<T>& from, T* to) {
  std::copy(from.begin(), from.end(), to);
}

constexpr absl::Duration kPatienceAtTheEnd = absl::Seconds(10);
constexpr uint8_t kNanByte = 0xff;  // all bits are a NaN of every type

}  // namespace

template <typename T>
DeviceLayout MakeDeviceLayout(const std::vector<LowRankTensor<T>*>& tensors,
                              const LowRankConfig& config) {
  DeviceLayout layout;
  layout.places.resize(tensors.size());
  for (const bool raw : {true, false}) {
    for (size_t i = 0; i < tensors.size(); ++i) {
      const LowRankTensor<T>& tensor = *tensors[i];
      if (tensor.raw() != raw) continue;
      layout.places[i].first = layout.first_count;
      layout.places[i].second = layout.second_count;
      layout.first_count += raw ? tensor.count : tensor.n * tensor.r;
      layout.second_count += tensor.m * tensor.r;
    }
  }
  int64_t end = 0;
  const auto take = [&end](int64_t count) {
    const int64_t at = end;
    end += Aligned<T>(count);
    return at;
  };
  layout.first = take(layout.first_count);
  layout.second = take(layout.second_count);
  layout.error_q = config.pytorch ? layout.second : take(layout.second_count);
  layout.start = config.warm_start ? layout.second : take(layout.second_count);
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (tensors[i]->keeps_error) layout.places[i].x = take(tensors[i]->count);
  }
  layout.count = end;
  return layout;
}

template <typename T>
void WriteSide(const DeviceLayout& layout,
               const std::vector<LowRankTensor<T>*>& tensors, T* side) {
  for (size_t i = 0; i < tensors.size(); ++i) {
    const LowRankTensor<T>& tensor = *tensors[i];
    const LowRankMemory<T>& error = tensor.error();
    const DeviceLayout::Place& place = layout.places[i];
    CopyTo(tensor.now.q, side + layout.start + place.second);
    if (place.x < 0 || !error.has_error) continue;
    std::copy_n(error.x.data(), tensor.count, side + place.x);
    CopyTo(error.error_p, side + layout.first + place.first);
    CopyTo(error.error_q, side + layout.error_q + place.second);
  }
}

template <typename T>
void ReadSide(const DeviceLayout& layout, const T* side, bool warm_start,
              const std::vector<LowRankTensor<T>*>& tensors) {
  for (size_t i = 0; i < tensors.size(); ++i) {
    LowRankTensor<T>& tensor = *tensors[i];
    LowRankMemory<T>& now = tensor.now;
    const DeviceLayout::Place& place = layout.places[i];
    const int64_t q_count = tensor.m * tensor.r;
    now.q.clear();
    if (warm_start && !tensor.raw()) {
      const T* q = side + layout.second + place.second;
      now.q.assign(q, q + q_count);
    }
    now.has_error = tensor.keeps_error;
    if (place.x < 0) continue;
    now.x.Allocate(tensor.count);
    std::copy_n(side + place.x, tensor.count, now.x.data());
    if (tensor.raw()) continue;
    const T* p = side + layout.first + place.first;
    const T* q = side + layout.error_q + place.second;
    now.error_p.assign(p, p + tensor.n * tensor.r);
    now.error_q.assign(q, q + q_count);
  }
}

#define COXSWAIN_DEVICE_LAYOUT_OF(T)                                     \
  template DeviceLayout MakeDeviceLayout<T>(                             \
      const std::vector<LowRankTensor<T>*>&, const LowRankConfig&);      \
  template void WriteSide<T>(const DeviceLayout&,                        \
                             const std::vector<LowRankTensor<T>*>&, T*); \
  template void ReadSide<T>(const DeviceLayout&, const T*, bool,         \
                            const std::vector<LowRankTensor<T>*>&)
COXSWAIN_DEVICE_LAYOUT_OF(float);
COXSWAIN_DEVICE_LAYOUT_OF(double);
#undef COXSWAIN_DEVICE_LAYOUT_OF

template <typename T>
DeviceBucket<T>::DeviceBucket(DeviceBucketKey key,
                              std::vector<LowRankTensor<T>*> tensors,
                              const LowRankConfig& config)
    : runtime_(*key.runtime),
      key_(std::move(key)),
      tensors_(std::move(tensors)),
      config_(config),
      layout_(MakeDeviceLayout(tensors_, config)) {
  std::vector<LowRankShape> matrices;
  std::vector<int64_t> raws;
  std::vector<TallShape> qs, ps;
  for (const LowRankTensor<T>* tensor : tensors_) {
    if (tensor->raw()) {
      raws.push_back(tensor->count);
      continue;
    }
    matrices.push_back({tensor->n, tensor->m, tensor->r});
    qs.push_back({tensor->m, tensor->r});
    ps.push_back({tensor->n, tensor->r});
  }
  plan_ = PlanLowRank(matrices, raws, sizeof(T));
  q_plan_ = PlanOrthogonalise(qs, sizeof(T));
  p_plan_ = PlanOrthogonalise(ps, sizeof(T));
}

template <typename T>
absl::StatusOr<std::unique_ptr<DeviceBucket<T>>> DeviceBucket<T>::Make(
    DeviceBucketKey key, std::vector<LowRankTensor<T>*> tensors,
    const LowRankConfig& config) {
  std::unique_ptr<DeviceBucket> made(
      new DeviceBucket(std::move(key), std::move(tensors), config));
  COXSWAIN_RETURN_IF_ERROR(made->Allocate());
  return made;
}

template <typename T>
absl::Status DeviceBucket<T>::Allocate() {
  COXSWAIN_ASSIGN_OR_RETURN(transfer_, DeviceTransfer::Make(runtime_));
  COXSWAIN_ASSIGN_OR_RETURN(done_, runtime_.CreateEvent());
  const auto size = static_cast<int64_t>(sizeof(T));
  const int64_t doubles = std::max(q_plan_.partials, p_plan_.partials);
  const int64_t partials = std::max(
      plan_.partials * size, doubles * static_cast<int64_t>(sizeof(double)));
  const auto make = [this](int64_t bytes) {
    return DeviceBuffer::Make(&runtime_, bytes);
  };
  COXSWAIN_ASSIGN_OR_RETURN(memory_->sides, make(2 * layout_.count * size));
  COXSWAIN_ASSIGN_OR_RETURN(memory_->partials, make(partials));
  COXSWAIN_ASSIGN_OR_RETURN(memory_->words, make(DeviceWords::kBytes));
  COXSWAIN_ASSIGN_OR_RETURN(memory_->noted,
                            PinnedBuffer::Make(&runtime_, NotedWords::kBytes));
  return absl::OkStatus();
}

template <typename T>
DeviceBucket<T>::~DeviceBucket() {
  if (done_ == nullptr) return;
  const absl::Status passed = AwaitEvent(&runtime_, done_, kPatienceAtTheEnd);
  // What a stream may still write to is nobody else's.
  if (!passed.ok()) static_cast<void>(memory_.release());
  memory_.reset();
  runtime_.DestroyEvent(done_);
}

template <typename T>
const uint32_t* DeviceBucket<T>::flags() const {
  return reinterpret_cast<const uint32_t*>(memory_->noted.template as<char>() +
                                           NotedWords::kFlags);
}

template <typename T>
absl::Status DeviceBucket<T>::Fetch() {
  if (!ahead_) return absl::OkStatus();
  const int64_t bytes = layout_.count * static_cast<int64_t>(sizeof(T));
  COXSWAIN_ASSIGN_OR_RETURN(const PinnedBuffer copy,
                            transfer_->Fetch(side(now_), bytes, done_));
  ReadSide(layout_, copy.as<T>(), config_.warm_start, tensors_);
  ahead_ = false;
  return absl::OkStatus();
}

template <typename T>
void DeviceBucket<T>::EndStep(bool commit) {
  if (staged_ && commit) {
    now_ = 1 - now_;
    ahead_ = true;
    host_ahead_ = false;
    for (LowRankTensor<T>* tensor : tensors_) tensor->overflows = 0;
  }
  staged_ = false;
}

template <typename T>
absl::Status DeviceBucket<T>::Enqueue(const Bucket& bucket,
                                      Communicator& communicator,
                                      DeviceQueue& queue, int64_t step) {
  // It has, unless a step was given up; what it reads may then be changed.
  COXSWAIN_RETURN_IF_ERROR(AwaitEvent(&runtime_, done_));
  const auto run = [&]() -> absl::Status {
    COXSWAIN_RETURN_IF_ERROR(Ready(bucket, queue, step));
    COXSWAIN_ASSIGN_OR_RETURN(Steps* const steps, StepsFor(bucket, queue));
    return Run(*steps, communicator, queue);
  };
  absl::Status status = run();
  // After an error, too: part of it may be on the stream.
  status.Update(runtime_.Record(done_, queue.stream()));
  return status;
}

template <typename T>
absl::Status DeviceBucket<T>::Ready(const Bucket& bucket, DeviceQueue& queue,
                                    int64_t step) {
  memory_->copied.clear();
  char* const noted = memory_->noted.template as<char>();
  const auto number = static_cast<uint64_t>(step);
  std::memcpy(noted, &number, sizeof(number));
  std::memset(noted + NotedWords::kFlags, 0xff, 2 * sizeof(uint32_t));
  COXSWAIN_RETURN_IF_ERROR(AwaitGradients(bucket, queue));
  if (!cut_) COXSWAIN_RETURN_IF_ERROR(UploadCuts(queue.stream()));
  if (host_ahead_) COXSWAIN_RETURN_IF_ERROR(UploadSide(queue.stream()));
  return absl::OkStatus();
}

template <typename T>
absl::StatusOr<void*> DeviceBucket<T>::ToCopy(int64_t bytes) {
  COXSWAIN_ASSIGN_OR_RETURN(PinnedBuffer memory,
                            PinnedBuffer::Make(&runtime_, bytes));
  void* const data = memory.data();
  memory_->copied.push_back(std::move(memory));
  return data;
}

template <typename T>
absl::Status DeviceBucket<T>::UploadSide(DeviceStream stream) {
  const int64_t bytes = layout_.count * static_cast<int64_t>(sizeof(T));
  COXSWAIN_ASSIGN_OR_RETURN(void* const image, ToCopy(bytes));
  if (bytes == 0) return absl::OkStatus();
  std::memset(image, 0, static_cast<size_t>(bytes));
  WriteSide(layout_, tensors_, static_cast<T*>(image));
  COXSWAIN_RETURN_IF_ERROR(runtime_.Copy(side(now_), image, bytes, stream));
  host_ahead_ = false;
  return absl::OkStatus();
}

template <typename T>
absl::StatusOr<PinnedBuffer> DeviceBucket<T>::Gradients(const Bucket& bucket) {
  return transfer_->Fetch(bucket.data.data, bucket.data.bytes(), done_);
}

template <typename T>
absl::Status DeviceBucket<T>::FillWithNan(const Bucket& bucket,
                                          DeviceQueue& queue) {
  absl::Status status = runtime_.Fill(bucket.data.data, kNanByte,
                                      bucket.data.bytes(), queue.stream());
  status.Update(runtime_.Record(done_, queue.stream()));
  return status;
}

template <typename T>
absl::Status DeviceBucket<T>::DropOverflows() {
  COXSWAIN_RETURN_IF_ERROR(Fetch());
  for (LowRankTensor<T>* tensor : tensors_) DropOverflow(*tensor);
  host_ahead_ = true;
  return absl::OkStatus();
}

template class DeviceBucket<float>;
template class DeviceBucket<double>;

}  // namespace coxswain
