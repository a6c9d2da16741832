#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/mutex.h"
#include "base/status_macros.h"
#include "client/comm/device_queue.h"
#include "client/device/arithmetic.h"
#include "client/device/buffer.h"
#include "client/device/runtime.h"
#include "client/reduce/bucket.h"
#include "client/reduce/gradient_memory.h"

namespace coxswain {
namespace {

// Gradients on a GPU. The exchange's stream is the communicator's; the caller's
// is asked for by the thread that hands a gradient over, and may be another one
// each time.
//
// A bucket's event is recorded anew with each gradient that comes, by a stream
// that has waited for the gradients before it: so it stands for all of them,
// whichever streams they came on. It is recorded at the beginning of a step,
// too, by which other streams overwrite averages only once they were copied
// out.
//
// Statistics are those of the CPU, bit for bit: two kernels a bucket, and at
// the end of the step one copy of the results to the host, where they are
// added up in the order in which the buckets came.
class DeviceGradientMemory : public GradientMemory {
 public:
  using CallerStream = std::function<absl::StatusOr<DeviceStream>()>;

  DeviceGradientMemory(DeviceQueue* queue, CallerStream caller_stream);
  // After Settle or Quiesce.
  ~DeviceGradientMemory() override;

  absl::StatusOr<Ready> MakeReady() override;
  absl::Status Copy(const Span& to, const Span& from) override;
  absl::Status FollowCaller() override;
  absl::Status Settle(const std::vector<Bucket>& buckets,
                      absl::Duration timeout) override;
  absl::Status Begin(const std::vector<Bucket>& buckets) override;
  absl::Status ClearGradient(const Bucket& bucket, const Span& view) override;
  absl::Status CopyGradient(const Bucket& bucket, const Span& view,
                            const void* gradient) override;
  absl::Status NoteGradient(const Bucket& bucket) override;
  absl::Status Deliver(const Span& average, double factor,
                       void* outside) override;
  absl::Status NoteDelivered() override;
  absl::Status Weigh(const Bucket& bucket, double factor) override;
  absl::Status TakeAverages(const Bucket& bucket,
                            const std::vector<void*>& outside,
                            bool measure) override;
  absl::Status AddAverages(const Bucket& slice, const Span& sum,
                           bool back) override;
  absl::Status AwaitAverages(absl::Duration timeout) override;
  GradientStatistics statistics() const override { return statistics_; }
  void Quiesce(absl::Duration timeout) override;

 private:
  absl::StatusOr<DeviceStream> Caller() const;
  // It comes after what was delivered, maybe on another stream.
  absl::StatusOr<DeviceStream> CallerAfterDelivery() const;
  // It comes after the gradients of all buckets: a hook that leaves them as
  // they are waits for none.
  absl::StatusOr<DeviceStream> CallerAfterGradients();
  absl::Status CopyBytes(void* to, const void* from, int64_t bytes,
                         DeviceStream stream);
  absl::Status Scale(DeviceStream stream, const Span& in, double factor,
                     void* out);
  // The calling thread's stream, which comes after all that other streams did
  // to the bucket in this step.
  absl::StatusOr<DeviceStream> Enter(const Bucket& bucket);
  absl::StatusOr<DeviceStream> EnterLocked(const Bucket& bucket)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Memory for the results of all gradients, or of a slice of each bucket.
  absl::Status Reserve(const std::vector<Bucket>& buckets);
  absl::Status Measure(const Bucket& bucket);
  // The exchange's stream comes after the bucket's gradients.
  absl::Status AwaitGradients(const Bucket& bucket);

  DeviceQueue& queue_;
  DeviceRuntime& runtime_;
  const CallerStream caller_stream_;
  // Made when first needed.
  DeviceEvent caller_event_ = nullptr;
  DeviceEvent delivered_ = nullptr;

  // Of gradient i of bucket b at first_result_[b] + i.
  std::vector<int64_t> first_result_;
  DeviceBuffer scratch_;
  DeviceBuffer results_;
  PinnedBuffer host_results_;

  // The exchange thread's, within a step.
  std::vector<int64_t> measured_;  // places in results_, in order
  bool pending_ = false;           // enqueued, and not awaited
  GradientStatistics statistics_;

  Mutex mutex_;
  // By which stream a bucket's event was recorded last.
  std::map<DeviceEvent, DeviceStream> recorded_ ABSL_GUARDED_BY(mutex_);
};

// Where each of the bucket's gradients begins, and the last one ends.
std::vector<int64_t> BeginsOf(const Bucket& bucket) {
  std::vector<int64_t> begins;
  for (const GradientSlot& slot : bucket.gradients) {
    begins.push_back(slot.offset);
  }
  begins.push_back(bucket.data.count);
  return begins;
}

int64_t BytesOfStatistics(int64_t count) {
  return count * static_cast<int64_t>(sizeof(DeviceStatistics));
}

DeviceGradientMemory::DeviceGradientMemory(DeviceQueue* queue,
                                           CallerStream caller_stream)
    : queue_(*queue),
      runtime_(queue->runtime()),
      caller_stream_(std::move(caller_stream)) {}

DeviceGradientMemory::~DeviceGradientMemory() {
  if (caller_event_ != nullptr) runtime_.DestroyEvent(caller_event_);
  if (delivered_ != nullptr) runtime_.DestroyEvent(delivered_);
}

absl::StatusOr<DeviceStream> DeviceGradientMemory::Caller() const {
  if (!caller_stream_) return DeviceStream();
  return caller_stream_();
}

absl::StatusOr<DeviceStream> DeviceGradientMemory::CallerAfterDelivery() const {
  COXSWAIN_ASSIGN_OR_RETURN(const DeviceStream stream, Caller());
  if (delivered_ != nullptr) {
    COXSWAIN_RETURN_IF_ERROR(runtime_.StreamWait(stream, delivered_));
  }
  return stream;
}

absl::Status DeviceGradientMemory::CopyBytes(void* to, const void* from,
                                             int64_t bytes,
                                             DeviceStream stream) {
  if (bytes == 0 || to == from) return absl::OkStatus();
  return runtime_.Copy(to, from, bytes, stream);
}

absl::Status DeviceGradientMemory::Scale(DeviceStream stream, const Span& in,
                                         double factor, void* out) {
  LaunchTarget target = runtime_.Target(stream);
  ScaleOnDevice(&target, in.dtype, in.data, out, in.count, factor);
  return runtime_.StatusOf(target);
}

// ---- between steps ----

absl::StatusOr<GradientMemory::Ready> DeviceGradientMemory::MakeReady() {
  COXSWAIN_ASSIGN_OR_RETURN(const DeviceEvent event, runtime_.CreateEvent());
  return Ready(event, [runtime = &runtime_](DeviceEvent made) {
    runtime->DestroyEvent(made);
  });
}

absl::Status DeviceGradientMemory::Copy(const Span& to, const Span& from) {
  COXSWAIN_ASSIGN_OR_RETURN(const DeviceStream stream, CallerAfterDelivery());
  return CopyBytes(to.data, from.data, to.bytes(), stream);
}

absl::Status DeviceGradientMemory::FollowCaller() {
  COXSWAIN_ASSIGN_OR_RETURN(const DeviceStream stream, CallerAfterDelivery());
  if (caller_event_ == nullptr) {
    COXSWAIN_ASSIGN_OR_RETURN(caller_event_, runtime_.CreateEvent());
  }
  COXSWAIN_RETURN_IF_ERROR(runtime_.Record(caller_event_, stream));
  return runtime_.StreamWait(queue_.stream(), caller_event_);
}

absl::Status DeviceGradientMemory::Settle(const std::vector<Bucket>& buckets,
                                          absl::Duration timeout) {
  COXSWAIN_RETURN_IF_ERROR(FollowCaller());
  COXSWAIN_RETURN_IF_ERROR(queue_.Mark()->Wait(timeout));
  return Reserve(buckets);
}

absl::Status DeviceGradientMemory::Reserve(const std::vector<Bucket>& buckets) {
  int64_t results = 0;
  int64_t elements = 0;
  std::vector<int64_t> first_result;
  for (const Bucket& bucket : buckets) {
    first_result.push_back(results);
    results += static_cast<int64_t>(bucket.gradients.size());
    elements = std::max(
        elements, ScratchForMeasure(BeginsOf(bucket).data(),
                                    static_cast<int>(bucket.gradients.size())));
    // A slice has no more runs than the bucket has gradients.
    const int64_t whole[] = {0, bucket.data.count};
    elements =
        std::max(elements, ScratchForMeasure(whole, 1) +
                               static_cast<int64_t>(bucket.gradients.size()));
  }
  COXSWAIN_ASSIGN_OR_RETURN(
      DeviceBuffer scratch,
      DeviceBuffer::Make(&runtime_, BytesOfStatistics(elements)));
  COXSWAIN_ASSIGN_OR_RETURN(
      DeviceBuffer on_device,
      DeviceBuffer::Make(&runtime_, BytesOfStatistics(results)));
  COXSWAIN_ASSIGN_OR_RETURN(
      host_results_, PinnedBuffer::Make(&runtime_, BytesOfStatistics(results)));
  first_result_ = std::move(first_result);
  scratch_ = std::move(scratch);
  results_ = std::move(on_device);
  return absl::OkStatus();
}

// ---- by the caller's threads ----

absl::Status DeviceGradientMemory::Begin(const std::vector<Bucket>& buckets) {
  measured_.clear();
  pending_ = false;
  statistics_ = GradientStatistics();
  COXSWAIN_ASSIGN_OR_RETURN(const DeviceStream stream, CallerAfterDelivery());
  MutexLock lock(&mutex_);
  recorded_.clear();
  for (const Bucket& bucket : buckets) {
    COXSWAIN_RETURN_IF_ERROR(runtime_.Record(bucket.ready, stream));
    recorded_[bucket.ready] = stream;
  }
  return absl::OkStatus();
}

absl::StatusOr<DeviceStream> DeviceGradientMemory::EnterLocked(
    const Bucket& bucket) {
  COXSWAIN_ASSIGN_OR_RETURN(const DeviceStream stream, Caller());
  if (recorded_[bucket.ready] != stream) {
    COXSWAIN_RETURN_IF_ERROR(runtime_.StreamWait(stream, bucket.ready));
  }
  return stream;
}

absl::StatusOr<DeviceStream> DeviceGradientMemory::Enter(const Bucket& bucket) {
  MutexLock lock(&mutex_);
  return EnterLocked(bucket);
}

absl::Status DeviceGradientMemory::ClearGradient(const Bucket& bucket,
                                                 const Span& view) {
  COXSWAIN_ASSIGN_OR_RETURN(const DeviceStream stream, Enter(bucket));
  if (view.count == 0) return absl::OkStatus();
  return runtime_.Fill(view.data, 0, view.bytes(), stream);
}

absl::Status DeviceGradientMemory::CopyGradient(const Bucket& bucket,
                                                const Span& view,
                                                const void* gradient) {
  COXSWAIN_ASSIGN_OR_RETURN(const DeviceStream stream, Enter(bucket));
  return CopyBytes(view.data, gradient, view.bytes(), stream);
}

absl::Status DeviceGradientMemory::NoteGradient(const Bucket& bucket) {
  MutexLock lock(&mutex_);
  COXSWAIN_ASSIGN_OR_RETURN(const DeviceStream stream, EnterLocked(bucket));
  COXSWAIN_RETURN_IF_ERROR(runtime_.Record(bucket.ready, stream));
  recorded_[bucket.ready] = stream;
  return absl::OkStatus();
}

absl::StatusOr<DeviceStream> DeviceGradientMemory::CallerAfterGradients() {
  COXSWAIN_ASSIGN_OR_RETURN(const DeviceStream stream, Caller());
  MutexLock lock(&mutex_);
  for (auto& [ready, recorded] : recorded_) {
    if (recorded == stream) continue;
    COXSWAIN_RETURN_IF_ERROR(runtime_.StreamWait(stream, ready));
    recorded = stream;
  }
  return stream;
}

absl::Status DeviceGradientMemory::Deliver(const Span& average, double factor,
                                           void* outside) {
  if (outside == nullptr && factor == 1) return absl::OkStatus();
  COXSWAIN_ASSIGN_OR_RETURN(const DeviceStream stream, CallerAfterGradients());
  if (factor == 1) {
    return CopyBytes(outside, average.data, average.bytes(), stream);
  }
  return Scale(stream, average, factor,
               outside == nullptr ? average.data : outside);
}

absl::Status DeviceGradientMemory::NoteDelivered() {
  COXSWAIN_ASSIGN_OR_RETURN(const DeviceStream stream, CallerAfterGradients());
  if (delivered_ == nullptr) {
    COXSWAIN_ASSIGN_OR_RETURN(delivered_, runtime_.CreateEvent());
  }
  return runtime_.Record(delivered_, stream);
}

// ---- by the exchange thread ----

absl::Status DeviceGradientMemory::Weigh(const Bucket& bucket, double factor) {
  COXSWAIN_RETURN_IF_ERROR(runtime_.StreamWait(queue_.stream(), bucket.ready));
  if (factor == 0 && bucket.data.count > 0) {
    return runtime_.Fill(bucket.data.data, 0, bucket.data.bytes(),
                         queue_.stream());
  }
  return Scale(queue_.stream(), bucket.data, factor, bucket.data.data);
}

absl::Status DeviceGradientMemory::Measure(const Bucket& bucket) {
  LaunchTarget target = runtime_.Target(queue_.stream());
  const std::vector<int64_t> begins = BeginsOf(bucket);
  int64_t result = first_result_[static_cast<size_t>(bucket.index)];
  MeasureOnDevice(&target, bucket.data.dtype, bucket.data.data, begins.data(),
                  static_cast<int>(bucket.gradients.size()),
                  scratch_.as<DeviceStatistics>(),
                  results_.as<DeviceStatistics>() + result);
  pending_ = true;
  COXSWAIN_RETURN_IF_ERROR(runtime_.StatusOf(target));
  for (const GradientSlot& slot : bucket.gradients) {
    if (slot.measured) measured_.push_back(result);
    ++result;
  }
  return absl::OkStatus();
}

absl::Status DeviceGradientMemory::AwaitGradients(const Bucket& bucket) {
  // A hook that left the gradients as they are did not wait for them.
  if (bucket.ready == nullptr) return absl::OkStatus();
  return runtime_.StreamWait(queue_.stream(), bucket.ready);
}

absl::Status DeviceGradientMemory::TakeAverages(
    const Bucket& bucket, const std::vector<void*>& outside, bool measure) {
  COXSWAIN_RETURN_IF_ERROR(AwaitGradients(bucket));
  for (size_t i = 0; i < bucket.gradients.size(); ++i) {
    if (outside[i] == nullptr) continue;
    const Span average = bucket.Gradient(bucket.gradients[i]);
    pending_ = true;
    COXSWAIN_RETURN_IF_ERROR(
        CopyBytes(outside[i], average.data, average.bytes(), queue_.stream()));
  }
  return measure ? Measure(bucket) : absl::OkStatus();
}

absl::Status DeviceGradientMemory::AddAverages(const Bucket& slice,
                                               const Span& sum, bool back) {
  if (sum.count == 0) return absl::OkStatus();
  COXSWAIN_RETURN_IF_ERROR(AwaitGradients(slice));
  LaunchTarget target = runtime_.Target(queue_.stream());
  AddOnDevice(&target, sum.dtype, slice.data.data, sum.data, sum.count);
  pending_ = true;
  COXSWAIN_RETURN_IF_ERROR(runtime_.StatusOf(target));
  if (!back) return absl::OkStatus();
  return CopyBytes(slice.data.data, sum.data, sum.bytes(), queue_.stream());
}

absl::Status DeviceGradientMemory::AwaitAverages(absl::Duration timeout) {
  if (!std::exchange(pending_, false)) return absl::OkStatus();
  if (!measured_.empty()) {
    COXSWAIN_RETURN_IF_ERROR(CopyBytes(host_results_.data(), results_.data(),
                                       results_.bytes(), queue_.stream()));
  }
  COXSWAIN_RETURN_IF_ERROR(queue_.Mark()->Wait(timeout));
  const DeviceStatistics* const results = host_results_.as<DeviceStatistics>();
  statistics_ = GradientStatistics();
  for (const int64_t result : measured_) {
    const DeviceStatistics& one = results[result];
    statistics_.Add({one.sum_of_squares, one.non_finite});
  }
  if (std::isnan(statistics_.sum_of_squares)) {
    statistics_.sum_of_squares = std::numeric_limits<double>::quiet_NaN();
  }
  return absl::OkStatus();
}

void DeviceGradientMemory::Quiesce(absl::Duration timeout) {
  // Not by a Work, which the end of its communicator ends at once.
  const absl::StatusOr<Ready> idle = MakeReady();
  if (!idle.ok()) return;
  if (!runtime_.Record(idle->get(), queue_.stream()).ok()) return;
  AwaitEvent(&runtime_, idle->get(), timeout).IgnoreError();
}

}  // namespace

std::unique_ptr<GradientMemory> MakeDeviceGradientMemory(
    DeviceQueue* queue,
    std::function<absl::StatusOr<DeviceStream>()> caller_stream) {
  return std::make_unique<DeviceGradientMemory>(queue,
                                                std::move(caller_stream));
}

}  // namespace coxswain
