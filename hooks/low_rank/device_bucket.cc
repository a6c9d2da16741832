#include "hooks/low_rank/device_bucket.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/random.h"
#include "base/status_macros.h"
#include "client/device/runtime.h"
#include "hooks/device/device_exchange.h"
#include "hooks/low_rank/low_rank_state.h"
#include "hooks/narrow.h"

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

constexpr absl::Duration kTimeoutAtTheEnd = absl::Seconds(10);
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
  const absl::Status passed = AwaitEvent(&runtime_, done_, kTimeoutAtTheEnd);
  // What a stream may still write to is not used again.
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

// The tables of the steps, and what is enqueued.
namespace {

// Two sides, and gradients in one place or two.
constexpr size_t kMaxSteps = 4;
// The first steps of a communicator may make connections.
constexpr int kUsesBeforeRecording = 1;

template <typename Row>
const Row* RowsAt(const DeviceBuffer& buffer, int64_t at) {
  return reinterpret_cast<const Row*>(buffer.as<char>() + at);
}

// As OrthogonaliseFactors chooses.
template <typename T>
void SetMethod(const LowRankConfig& config, DeviceTallMatrix<T>& matrix) {
  const bool narrow = matrix.r <= 2;
  const double epsilon = config.pytorch && !narrow ? 0 : config.epsilon;
  matrix.epsilon = epsilon;
  switch (config.method) {
    case Orthogonalisation::kCholeskyQr2:
      matrix.cholesky = 1;
      break;
    case Orthogonalisation::kGramSchmidt:
      matrix.cholesky = 0;
      break;
    case Orthogonalisation::kAuto:
      matrix.cholesky = !narrow || epsilon == 0 ? 1 : 0;
      break;
  }
  if (config.pytorch && narrow) matrix.cholesky = 0;
}

}  // namespace

template <typename T>
absl::Status DeviceBucket<T>::UploadPacked(const PackedRows& rows,
                                           DeviceBuffer& to,
                                           DeviceStream stream) {
  COXSWAIN_ASSIGN_OR_RETURN(to, DeviceBuffer::Make(&runtime_, rows.size()));
  if (rows.size() == 0) return absl::OkStatus();
  COXSWAIN_ASSIGN_OR_RETURN(void* const copy, ToCopy(rows.size()));
  std::memcpy(copy, rows.bytes().data(), rows.bytes().size());
  return runtime_.Copy(to.data(), copy, rows.size(), stream);
}

template <typename T>
absl::Status DeviceBucket<T>::UploadCuts(DeviceStream stream) {
  PackedRows cuts;
  tiles_at_ = cuts.Add(plan_.tiles);
  q_strips_at_ = cuts.Add(q_plan_.strips);
  p_strips_at_ = cuts.Add(p_plan_.strips);
  COXSWAIN_RETURN_IF_ERROR(UploadPacked(cuts, memory_->cuts, stream));
  cut_ = true;
  return absl::OkStatus();
}

template <typename T>
absl::StatusOr<typename DeviceBucket<T>::Steps*> DeviceBucket<T>::StepsFor(
    const Bucket& bucket, DeviceQueue& queue) {
  std::deque<Steps>& all = memory_->steps;
  for (Steps& steps : all) {
    if (steps.now == now_ && steps.gradients == bucket.data.data &&
        steps.stream == queue.stream()) {
      return &steps;
    }
  }
  Steps steps;
  steps.now = now_;
  steps.gradients = bucket.data.data;
  steps.stream = queue.stream();
  COXSWAIN_RETURN_IF_ERROR(MakeTables(bucket, queue.stream(), steps));
  if (all.size() == kMaxSteps) all.pop_front();
  all.push_back(std::move(steps));
  return &all.back();
}

template <typename T>
void DeviceBucket<T>::AddMatrix(const Bucket& bucket, size_t number,
                                Tables& tables) const {
  const LowRankTensor<T>& tensor = *tensors_[number];
  const DeviceLayout::Place& place = layout_.places[number];
  T* const now = side(now_);
  T* const next = side(1 - now_);
  DeviceLowRankMatrix<T> matrix;
  matrix.n = tensor.n;
  matrix.m = tensor.m;
  matrix.r = tensor.r;
  matrix.gradient = bucket.Gradient(bucket.gradients[number]).data;
  matrix.p = next + layout_.first + place.first;
  matrix.q = next + layout_.second + place.second;
  matrix.first_q = matrix.q;
  if (place.x >= 0) {
    matrix.previous = now + place.x;
    matrix.previous_p = now + layout_.first + place.first;
    matrix.previous_q = now + layout_.error_q + place.second;
    matrix.x = next + place.x;
    if (!config_.pytorch) {
      matrix.own_q = next + layout_.error_q + place.second;
    }
  }
  tables.matrices.push_back(matrix);
  AddFactors(matrix, now + layout_.start + place.second, tensor.name, tables);
}

template <typename T>
void DeviceBucket<T>::AddFactors(const DeviceLowRankMatrix<T>& matrix,
                                 const T* start, const std::string& name,
                                 Tables& tables) const {
  DeviceTallMatrix<T> q;
  q.from = start;
  q.to = matrix.q;
  q.n = matrix.m;
  q.r = matrix.r;
  q.stream = StableHash(name);
  q.redraw = 1;
  SetMethod(config_, q);
  tables.qs.push_back(q);
  DeviceTallMatrix<T> p;
  p.from = p.to = matrix.p;
  p.n = matrix.n;
  p.r = matrix.r;
  SetMethod(config_, p);
  tables.ps.push_back(p);
}

template <typename T>
void DeviceBucket<T>::AddRaw(const Bucket& bucket, size_t number,
                             Tables& tables) const {
  const DeviceLayout::Place& place = layout_.places[number];
  DeviceRawTensor<T> raw;
  raw.count = tensors_[number]->count;
  raw.gradient = bucket.Gradient(bucket.gradients[number]).data;
  raw.sent = side(1 - now_) + layout_.first + place.first;
  if (place.x >= 0) {
    raw.error = side(now_) + place.x;
    raw.x = side(1 - now_) + place.x;
  }
  tables.raws.push_back(raw);
}

template <typename T>
absl::Status DeviceBucket<T>::MakeTables(const Bucket& bucket,
                                         DeviceStream stream, Steps& steps) {
  Tables tables;
  for (size_t i = 0; i < tensors_.size(); ++i) {
    if (tensors_[i]->raw()) {
      AddRaw(bucket, i, tables);
    } else {
      AddMatrix(bucket, i, tables);
    }
  }
  PackedRows rows;
  const int64_t matrices = rows.Add(tables.matrices);
  const int64_t raws = rows.Add(tables.raws);
  const int64_t qs = rows.Add(tables.qs);
  const int64_t ps = rows.Add(tables.ps);
  COXSWAIN_RETURN_IF_ERROR(UploadPacked(rows, steps.tables, stream));
  DeviceLowRank<T>& kernels = steps.kernels;
  kernels.plan = &plan_;
  kernels.tiles = RowsAt<LowRankTile>(memory_->cuts, tiles_at_);
  kernels.matrices = RowsAt<DeviceLowRankMatrix<T>>(steps.tables, matrices);
  kernels.raws = RowsAt<DeviceRawTensor<T>>(steps.tables, raws);
  kernels.partials = memory_->partials.template as<T>();
  kernels.poisoned = poisoned();
  kernels.gradient_type = bucket.data.dtype;
  SetTall(q_plan_, q_strips_at_, qs, steps, steps.qs);
  SetTall(p_plan_, p_strips_at_, ps, steps, steps.ps);
  steps.qs.redraws = true;
  steps.ps.poisoned = poisoned();
  return absl::OkStatus();
}

template <typename T>
void DeviceBucket<T>::SetTall(const TallPlan& plan, int64_t strips,
                              int64_t matrices, const Steps& steps,
                              DeviceTall<T>& tall) const {
  tall.plan = &plan;
  tall.strips = RowsAt<TallStrip>(memory_->cuts, strips);
  tall.matrices = RowsAt<DeviceTallMatrix<T>>(steps.tables, matrices);
  tall.partials = memory_->partials.template as<double>();
  tall.seed = config_.seed;
  tall.step = reinterpret_cast<const uint64_t*>(
      memory_->words.template as<char>() + DeviceWords::kStep);
}

template <typename T>
absl::Status DeviceBucket<T>::Run(Steps& steps, Communicator& communicator,
                                  DeviceQueue& queue) {
  const auto run = [&] { return RunKernels(steps, communicator, queue); };
  const bool first = steps.uses++ < kUsesBeforeRecording;
  if (steps.sequence == nullptr && records_ && !first) {
    auto sequence = queue.Record(run);
    if (sequence.ok()) {
      steps.sequence = *std::move(sequence);
    } else if (absl::IsUnimplemented(sequence.status())) {
      records_ = false;
    } else {
      return sequence.status();
    }
  }
  return steps.sequence == nullptr ? run() : queue.Replay(*steps.sequence);
}

template <typename T>
absl::Status DeviceBucket<T>::RunKernels(const Steps& steps,
                                         Communicator& communicator,
                                         DeviceQueue& queue) {
  const DeviceStream stream = queue.stream();
  const T ranks = static_cast<T>(communicator.size());
  const T before = config_.pytorch ? 1 : ranks;  // divided by before the sums
  const T after = config_.pytorch ? ranks : 1;
  T* const next = side(1 - now_);
  T* const first = next + layout_.first;
  T* const second = next + layout_.second;
  LaunchTarget target = runtime_.Target(stream);
  COXSWAIN_RETURN_IF_ERROR(CopyWords(stream));
  OrthogonaliseOnDevice(&target, steps.qs);
  TakeOnDevice(&target, steps.kernels, before);
  COXSWAIN_RETURN_IF_ERROR(runtime_.StatusOf(target));
  COXSWAIN_RETURN_IF_ERROR(Send(first, layout_.first_count, communicator));
  CheckOnDevice(&target, first, layout_.first_count, T{1}, poisoned());
  COXSWAIN_RETURN_IF_ERROR(NoteFlag(0, stream));
  OrthogonaliseOnDevice(&target, steps.ps);
  ProjectOnDevice(&target, steps.kernels, before);
  COXSWAIN_RETURN_IF_ERROR(runtime_.StatusOf(target));
  COXSWAIN_RETURN_IF_ERROR(Send(second, layout_.second_count, communicator));
  CheckOnDevice(&target, second, layout_.second_count, after, poisoned());
  FinishOnDevice(&target, steps.kernels, after, PoisonedGradients::kLeave);
  COXSWAIN_RETURN_IF_ERROR(runtime_.StatusOf(target));
  return NoteFlag(1, stream);
}

// The step's number, and zeros where the next step is to draw its factors.
template <typename T>
absl::Status DeviceBucket<T>::CopyWords(DeviceStream stream) {
  char* const words = memory_->words.template as<char>();
  const char* const noted = memory_->noted.template as<char>();
  COXSWAIN_RETURN_IF_ERROR(runtime_.Copy(words + DeviceWords::kStep,
                                         noted + NotedWords::kStep,
                                         sizeof(uint64_t), stream));
  if (layout_.start == layout_.second) return absl::OkStatus();
  return runtime_.Fill(side(1 - now_) + layout_.start, 0,
                       layout_.second_count * static_cast<int64_t>(sizeof(T)),
                       stream);
}

template <typename T>
absl::Status DeviceBucket<T>::Send(T* values, int64_t count,
                                   Communicator& communicator) {
  if (count == 0) return absl::OkStatus();
  return Begun(communicator.AllReduce(
      Span{values, count, kDTypeOf<T>, runtime_.device()}));
}

template <typename T>
absl::Status DeviceBucket<T>::NoteFlag(int which, DeviceStream stream) {
  char* const to = memory_->noted.template as<char>() + NotedWords::kFlags;
  return runtime_.Copy(to + which * static_cast<int>(sizeof(uint32_t)),
                       poisoned(), sizeof(uint32_t), stream);
}

template class DeviceBucket<float>;
template class DeviceBucket<double>;

}  // namespace coxswain
