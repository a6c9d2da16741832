// DeviceBucket's steps: their tables, and what is enqueued.

#include <cstring>
#include <utility>

#include "base/random.h"
#include "base/status_macros.h"
#include "hooks/device/device_exchange.h"
#include "hooks/low_rank/device_bucket.h"
#include "hooks/narrow.h"

namespace coxswain {
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
