#ifndef COXSWAIN_HOOKS_INT8_INT8_DEVICE_H_
#define COXSWAIN_HOOKS_INT8_INT8_DEVICE_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/comm/device_queue.h"
#include "client/device/launch.h"
#include "client/device/runtime.h"
#include "client/reduce/bucket.h"
#include "hooks/device/device_scratch.h"
#include "hooks/int8/int8_errors.h"
#include "hooks/kernels/cuda/quantise.h"

namespace coxswain {

// The int8 hook's work on one GPU: in what order its streams do it, and how
// errors come there and back.
//
// Errors stay on the GPU from step to step. The stream of a new communicator
// first waits for all that an older one has been given, so memory is used again
// without a wait of the host; before it is freed, Await.
// Life-cycle: a member of the hook, made with its first bucket on a GPU, and
// destroyed, after a last Await of the hook, before the errors. The runtime
// outlives it.
// Threading: as the hook's. Errors: those of the runtime; DEADLINE_EXCEEDED
// when the GPU is not through after a minute.
class Int8Device {
 public:
  static absl::StatusOr<std::unique_ptr<Int8Device>> Make(
      DeviceRuntime& runtime);
  ~Int8Device();
  Int8Device(const Int8Device&) = delete;
  Int8Device& operator=(const Int8Device&) = delete;

  DeviceRuntime& runtime() { return runtime_; }
  DeviceScratch& scratch() { return scratch_; }

  // Before and after what an exchange enqueues on the queue's stream.
  absl::Status Begin(DeviceQueue& queue);
  absl::Status End(DeviceQueue& queue);
  // Waits until the GPU is through with all of it.
  absl::Status Await();

  // Between Begin and End: enqueues copies to the device of those errors that
  // are in the host's memory, by way of memory from which the GPU copies in the
  // background. Returns that, `copying`; null if there is nothing to copy.
  template <typename T>
  absl::StatusOr<std::shared_ptr<DeviceScratch::HostBlock>> Upload(
      const std::vector<Int8Parameter<T>*>& parameters, DeviceQueue& queue);

  // Brings a parameter's current errors back to the host's memory. Waits.
  template <typename T>
  absl::Status FetchOne(Int8Parameter<T>* parameter);
  // These parameters with all current errors in the host's memory. Waits.
  absl::StatusOr<AllInt8Parameters> Fetch(const AllInt8Parameters& parameters);

 private:
  // The same of one parameter, by way of `*staging`, which it moves on.
  template <typename T>
  absl::Status UploadOne(Int8Parameter<T>& parameter, T** staging,
                         DeviceQueue& queue);

  explicit Int8Device(DeviceRuntime& runtime) : runtime_(runtime) {}

  DeviceRuntime& runtime_;
  DeviceScratch scratch_;
  DeviceEvent last_ = nullptr;  // behind all that was enqueued
  std::unique_ptr<DeviceTransfer> transfer_;
};

// Where the gradients and errors of one bucket lie in a GPU's memory, for the
// kernels of its exchange.
//
// The staged errors of a bucket share one piece of memory, E1 in front and
// this rank's E2 behind it, each in the order of the gradients. Two such pieces
// take turns from step to step, so that the tables have one line each.
// Made and used by one exchange, on its thread.
template <typename T>
class Int8DevicePlan {
 public:
  // `slice`: elements that each of `ranks` owns, the zeros at the end included.
  Int8DevicePlan(const Bucket& bucket, std::vector<Int8Parameter<T>*> state,
                 int64_t slice, int rank, int ranks);

  // Brings the current errors to the device, and makes room for the staged
  // ones. Not without error feedback.
  absl::Status PlaceErrors(Int8Device& device, DeviceQueue& queue);
  // What that enqueued has run.
  void Uploaded();

  // Returns what the following need, to be copied to the device's memory at
  // `table`.
  std::vector<char> Tables(bool error_feedback);
  // E1 + W E2 for those whose E2 was of elements that another rank owns now.
  void EnqueueFolds(LaunchTarget* target, const char* table) const;
  QuantiseRuns Gradients(const char* table) const;
  QuantiseRuns Slice(const char* table) const;

  // Returns an entry for each gradient of the bucket, the empty ones too, and
  // the end.
  std::vector<QuantiseEntry> EachGradient() const;

  // The errors are those of a step that has been exchanged.
  void Stage();

 private:
  // One gradient. Its elements [begin, end) are in this rank's slice.
  struct Part {
    Int8Parameter<T>* state = nullptr;
    Span gradient;
    int64_t offset = 0;  // in the bucket
    int64_t begin = 0;
    int64_t end = 0;

    // This rank quantised the average of these elements the last time too.
    bool KeepsSlice() const {
      const Int8DeviceErrors<T>& errors = state->device_current;
      return errors.begin == begin && errors.average_count == end - begin;
    }
    bool Folds() const {
      return state->device_current.average_count > 0 && !KeepsSlice();
    }
  };

  // The errors of a part in such a piece of memory.
  Int8DeviceErrors<T> ErrorsIn(const std::shared_ptr<DeviceBuffer>& memory,
                               const Part& part) const;
  // Returns the memory that this bucket's errors were staged in two steps ago;
  // null if it lay otherwise.
  std::shared_ptr<DeviceBuffer> StagedBefore() const;

  std::vector<QuantiseRun<T>> GradientRuns(bool error_feedback) const;
  std::vector<QuantiseRun<T>> SliceRuns(bool error_feedback) const;
  std::vector<FoldEntry<T>> Folds(bool error_feedback) const;

  const int64_t count_;  // of the bucket
  const int64_t slice_begin_;
  const int ranks_;
  std::vector<Part> parts_;
  // Entries of the tables, without their ends.
  int64_t gradients_ = 0;
  int64_t slices_ = 0;
  int64_t folds_ = 0;
  int64_t folded_ = 0;                                   // elements
  std::shared_ptr<DeviceScratch::HostBlock> uploading_;  // or null
};

}  // namespace coxswain

#endif  // COXSWAIN_HOOKS_INT8_INT8_DEVICE_H_
