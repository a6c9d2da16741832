#ifndef COXSWAIN_HOOKS_LOW_RANK_DEVICE_BUCKET_H_
#define COXSWAIN_HOOKS_LOW_RANK_DEVICE_BUCKET_H_

#include <cstdint>
#include <cstring>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/comm/communicator.h"
#include "client/comm/device_queue.h"
#include "client/device/buffer.h"
#include "client/device/runtime.h"
#include "client/reduce/bucket.h"
#include "hooks/device/device_scratch.h"
#include "hooks/kernels/cuda/low_rank.h"
#include "hooks/kernels/cuda/orthogonalise.h"
#include "hooks/low_rank/low_rank_config.h"
#include "hooks/low_rank/low_rank_tensor.h"

namespace coxswain {

// Where what a bucket's tensors remember stands in one run of a device's
// memory, a "side": two of them take turns as now and next (LowRankMemory).
// All of a side is uploaded by one copy, and fetched by one. Counts and places
// are in elements, places from the start of the side.
//
//   first    raw elements, then each P: what the first collective sends
//   second   each Q: what the second one sends, and so the mean
//   error_q  each rank's own Q, as its error has it; with mode=pytorch that is
//            the mean, and this is `second`
//   start    the factors Q that the next step begins with, where they are not
//            those of this one (`second`): zero, for which they are drawn, or
//            what was loaded
//   X        of each tensor that keeps an error, aligned to 256 bytes
struct DeviceLayout {
  struct Place {
    int64_t first = 0;   // from `first` on: raw elements, or P (n x r)
    int64_t second = 0;  // from `second`, `error_q` and `start` on: Q (m x r)
    int64_t x = -1;      // from the side's start on; -1: keeps no error
  };

  std::vector<Place> places;  // by the bucket's gradients
  int64_t first = 0;
  int64_t second = 0;
  int64_t error_q = 0;
  int64_t start = 0;
  int64_t first_count = 0;
  int64_t second_count = 0;
  int64_t count = 0;  // of a side
};

template <typename T>
DeviceLayout MakeDeviceLayout(const std::vector<LowRankTensor<T>*>& tensors,
                              const LowRankConfig& config);

// Writes what the tensors remember (`now`) to `side`, a whole one, which is
// zero: an error of zero, that is, and factors that are to be drawn.
template <typename T>
void WriteSide(const DeviceLayout& layout,
               const std::vector<LowRankTensor<T>*>& tensors, T* side);

// The reverse, for a side that a step has ended with.
template <typename T>
void ReadSide(const DeviceLayout& layout, const T* side, bool warm_start,
              const std::vector<LowRankTensor<T>*>& tensors);

// What decides whether a bucket of now is one of an earlier step.
struct DeviceBucketKey {
  DeviceRuntime* runtime = nullptr;
  DType dtype = DType::kFloat32;
  std::vector<int> parameters;  // by registration index, in order

  friend bool operator==(const DeviceBucketKey& a, const DeviceBucketKey& b) {
    return a.runtime == b.runtime && a.dtype == b.dtype &&
           a.parameters == b.parameters;
  }
};

// One bucket of `powersgd` in a GPU's memory: what it remembers, and the
// kernels and collectives of a step.
//
// What its tensors remember stands in their `now` on the host, from where it is
// uploaded, until a step has been committed; after that it stands here only,
// and Fetch brings it to the host when it is to be read. So checkpoints
// are written and read by the code of the CPU. Two sides (DeviceLayout) take
// turns, so that a rollback has nothing to undo.
//
// Life-cycle: made with the first step; belongs to a hook, and goes when its
// tensors do, other buckets have some of them, or the host's are other ones.
// The end waits for what still runs. The runtime outlives it.
// Threading: one thread at a time.
class DeviceBucketBase {
 public:
  virtual ~DeviceBucketBase() = default;

  virtual const DeviceBucketKey& key() const = 0;
  // Makes the tensors' `now` on the host what it is here. Blocks.
  virtual absl::Status Fetch() = 0;
  // Makes the staged side that of now, or forgets it.
  virtual void EndStep(bool commit) = 0;
};

// Arrays one behind the other, in one piece of memory to be uploaded.
class PackedRows {
 public:
  template <typename Row>
  int64_t Add(const std::vector<Row>& rows) {
    const auto at = static_cast<int64_t>(bytes_.size());
    const char* const first = reinterpret_cast<const char*>(rows.data());
    bytes_.insert(bytes_.end(), first, first + rows.size() * sizeof(Row));
    bytes_.resize((bytes_.size() + kAlignment - 1) / kAlignment * kAlignment);
    return at;
  }
  const std::vector<char>& bytes() const { return bytes_; }
  int64_t size() const { return static_cast<int64_t>(bytes_.size()); }

 private:
  static constexpr size_t kAlignment = 256;

  std::vector<char> bytes_;
};

// Where small numbers stand, in bytes: in pinned memory of the host, to which
// the stream writes the flags, and in the device's.
struct NotedWords {
  static constexpr int64_t kStep = 0;   // uint64_t
  static constexpr int64_t kFlags = 8;  // 2 of uint32_t
  static constexpr int64_t kBytes = 16;
};
struct DeviceWords {
  static constexpr int64_t kStep = 0;      // uint64_t
  static constexpr int64_t kPoisoned = 8;  // uint32_t
  static constexpr int64_t kBytes = 12;
};

// T is the type computed in: double for float64 gradients, otherwise float.
template <typename T>
class DeviceBucket : public DeviceBucketBase {
 public:
  // The tensors are those of the bucket's gradients, and outlive it.
  static absl::StatusOr<std::unique_ptr<DeviceBucket>> Make(
      DeviceBucketKey key, std::vector<LowRankTensor<T>*> tensors,
      const LowRankConfig& config);
  ~DeviceBucket() override;

  const DeviceBucketKey& key() const override { return key_; }
  absl::Status Fetch() override;
  void EndStep(bool commit) override;

  // Enqueues step number `step` on the queue's stream: 11 launches and 2
  // all-reduces by `communicator`, whose queue it is. Once that has run
  // (queue.Mark()), the averages stand in the bucket and the next side is good,
  // unless one of the following fails.
  absl::Status Enqueue(const Bucket& bucket, Communicator& communicator,
                       DeviceQueue& queue, int64_t step);
  // Returns whether what the first collective brought, or the second one, was
  // not finite; on all ranks alike. The gradients are as they were then.
  bool first_poisoned() const { return flags()[0] != 0; }
  bool second_poisoned() const { return flags()[1] != 0; }

  // Takes the next side over if the step is committed.
  void Stage() { staged_ = true; }
  // This rank's gradients, in host memory. Blocks.
  absl::StatusOr<PinnedBuffer> Gradients(const Bucket& bucket);
  // Enqueues that the bucket is filled with NaN.
  absl::Status FillWithNan(const Bucket& bucket, DeviceQueue& queue);
  // DropOverflow of all tensors. Blocks.
  absl::Status DropOverflows();

  int64_t first_count() const { return layout_.first_count; }
  int64_t second_count() const { return layout_.second_count; }

 private:
  // The tables of a step, which are full of pointers, and all that the queue
  // has recorded of it.
  struct Steps {
    int now = 0;
    void* gradients = nullptr;
    DeviceStream stream = nullptr;
    DeviceBuffer tables;
    DeviceLowRank<T> kernels;
    DeviceTall<T> qs;
    DeviceTall<T> ps;
    int uses = 0;
    std::unique_ptr<DeviceSequence> sequence;  // null: not recorded
  };

  // The same on the host, while they are made.
  struct Tables {
    std::vector<DeviceLowRankMatrix<T>> matrices;
    std::vector<DeviceRawTensor<T>> raws;
    std::vector<DeviceTallMatrix<T>> qs;
    std::vector<DeviceTallMatrix<T>> ps;
  };

  // What a stream may still be working on when this ends.
  struct Memory {
    DeviceBuffer sides;
    DeviceBuffer cuts;      // tiles and strips
    DeviceBuffer partials;  // of one kernel at a time
    DeviceBuffer words;
    PinnedBuffer noted;                // the step's number, and flags
    std::vector<PinnedBuffer> copied;  // until it has been
    std::deque<Steps> steps;           // the latest last
  };

  DeviceBucket(DeviceBucketKey key, std::vector<LowRankTensor<T>*> tensors,
               const LowRankConfig& config);

  absl::Status Allocate();
  // What a step needs first. Nothing of an earlier one still runs.
  absl::Status Ready(const Bucket& bucket, DeviceQueue& queue, int64_t step);
  absl::Status UploadCuts(DeviceStream stream);
  absl::Status UploadSide(DeviceStream stream);
  absl::Status UploadPacked(const PackedRows& rows, DeviceBuffer& to,
                            DeviceStream stream);
  // Host memory to copy from, which is kept until all has been copied.
  absl::StatusOr<void*> ToCopy(int64_t bytes);
  absl::StatusOr<Steps*> StepsFor(const Bucket& bucket, DeviceQueue& queue);
  absl::Status MakeTables(const Bucket& bucket, DeviceStream stream,
                          Steps& steps);
  void AddMatrix(const Bucket& bucket, size_t number, Tables& tables) const;
  void AddFactors(const DeviceLowRankMatrix<T>& matrix, const T* start,
                  const std::string& name, Tables& tables) const;
  void AddRaw(const Bucket& bucket, size_t number, Tables& tables) const;
  void SetTall(const TallPlan& plan, int64_t strips, int64_t matrices,
               const Steps& steps, DeviceTall<T>& tall) const;
  absl::Status Run(Steps& steps, Communicator& communicator,
                   DeviceQueue& queue);
  absl::Status CopyWords(DeviceStream stream);
  absl::Status RunKernels(const Steps& steps, Communicator& communicator,
                          DeviceQueue& queue);
  // Sums values of this side over the ranks, in the order of the stream.
  absl::Status Send(T* values, int64_t count, Communicator& communicator);
  // Copies the flag to the host.
  absl::Status NoteFlag(int which, DeviceStream stream);
  uint32_t* poisoned() const {
    return reinterpret_cast<uint32_t*>(memory_->words.template as<char>() +
                                       DeviceWords::kPoisoned);
  }

  T* side(int which) const {
    return memory_->sides.template as<T>() + which * layout_.count;
  }
  const uint32_t* flags() const;

  DeviceRuntime& runtime_;
  const DeviceBucketKey key_;
  const std::vector<LowRankTensor<T>*> tensors_;
  const LowRankConfig& config_;
  const DeviceLayout layout_;
  LowRankPlan plan_;
  TallPlan q_plan_;
  TallPlan p_plan_;
  int64_t tiles_at_ = 0;  // in the cuts, in bytes
  int64_t q_strips_at_ = 0;
  int64_t p_strips_at_ = 0;

  std::unique_ptr<DeviceTransfer> transfer_;
  DeviceEvent done_ = nullptr;  // all that was enqueued
  std::unique_ptr<Memory> memory_ = std::make_unique<Memory>();
  bool records_ = true;

  int now_ = 0;
  bool cut_ = false;        // the cuts have been uploaded
  bool host_ahead_ = true;  // now_'s side is to be uploaded
  bool ahead_ = false;      // the tensors' `now` is older than that side
  bool staged_ = false;
};

}  // namespace coxswain

#endif  // COXSWAIN_HOOKS_LOW_RANK_DEVICE_BUCKET_H_
