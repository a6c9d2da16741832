#include "hooks/int8/int8_exchange.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "base/status_macros.h"
#include "hooks/device/device_exchange.h"
#include "hooks/int8/int8.h"
#include "hooks/int8/int8_device.h"
#include "hooks/kernels/cuda/elementwise.h"
#include "hooks/kernels/cuda/quantise.h"
#include "hooks/non_finite.h"

namespace coxswain {
namespace {

constexpr int64_t kAlignment = 256;

// Cuts pieces off memory; with null it only measures.
class Cutter {
 public:
  explicit Cutter(void* memory) : memory_(static_cast<char*>(memory)) {}

  template <typename E>
  E* Cut(int64_t count) {
    char* const piece = memory_ == nullptr ? nullptr : memory_ + bytes_;
    const int64_t bytes = count * static_cast<int64_t>(sizeof(E));
    bytes_ += (bytes + kAlignment - 1) / kAlignment * kAlignment;
    return reinterpret_cast<E*>(piece);
  }
  int64_t bytes() const { return bytes_; }

 private:
  char* memory_;
  int64_t bytes_ = 0;
};

template <typename T>
class Int8DeviceExchange : public Exchange {
 public:
  Int8DeviceExchange(const Bucket& bucket, Communicator& communicator,
                     DeviceQueue& queue, std::vector<Int8Parameter<T>*> state,
                     const Int8Context& context, Int8Device& device)
      : bucket_(bucket),
        communicator_(communicator),
        queue_(queue),
        runtime_(queue.runtime()),
        context_(context),
        device_(device),
        size_(context.block),
        blocks_(Int8SliceBlocks(bucket.data.count, communicator.size(), size_)),
        slice_bytes_(QuantisedBytes(blocks_, size_)),
        whole_bytes_(slice_bytes_ * communicator.size()),
        plan_(bucket, std::move(state), blocks_ * size_, communicator.rank(),
              communicator.size()) {}

  absl::StatusOr<WorkPtr> Advance() override {
    switch (phase_++) {
      case 0:
        return Enqueued([this] { return EnqueueAll(); });
      case 1:
        return Finish();
      default:
        Report();
        return WorkPtr();
    }
  }

 private:
  // The pieces of one exchange's memory.
  struct Pieces {
    Pieces(Cutter cut, int64_t whole_bytes, int64_t slice_bytes,
           int64_t table_bytes, int64_t gradients, int64_t ranks)
        : whole(cut.Cut<uint8_t>(whole_bytes)),
          slices(cut.Cut<uint8_t>(whole_bytes)),
          own(cut.Cut<uint8_t>(slice_bytes)),
          table(cut.Cut<char>(table_bytes)),
          flags(cut.Cut<int32_t>(gradients)),
          by_rank(cut.Cut<int32_t>(ranks)),
          bad(cut.Cut<int32_t>(1)),
          bytes(cut.bytes()) {}
    uint8_t* whole;   // first this rank's, then the average
    uint8_t* slices;  // all ranks' gradients in this slice
    uint8_t* own;     // the average of this slice
    char* table;
    int32_t* flags;  // for a search
    int32_t* by_rank;
    int32_t* bad;  // whether a scale of `whole` is NaN
    int64_t bytes;
  };

  // Runs what enqueues; the Work of all of it.
  template <class Enqueue>
  absl::StatusOr<WorkPtr> Enqueued(const Enqueue& enqueue) {
    if (blocks_ == 0) return Work::Ended(absl::OkStatus());
    absl::Status status = device_.Begin(queue_);
    if (status.ok()) status = enqueue();
    // After an error too: something may be on the stream.
    status.Update(device_.End(queue_));
    COXSWAIN_RETURN_IF_ERROR(status);
    return queue_.Mark();
  }

  absl::Status EnqueueAll() {
    COXSWAIN_RETURN_IF_ERROR(AwaitGradients(bucket_, queue_));
    if (context_.error_feedback) {
      COXSWAIN_RETURN_IF_ERROR(plan_.PlaceErrors(device_, queue_));
    }
    const std::vector<char> table = plan_.Tables(context_.error_feedback);
    COXSWAIN_RETURN_IF_ERROR(TakeMemory(static_cast<int64_t>(table.size())));
    COXSWAIN_RETURN_IF_ERROR(SendTable(table));
    LaunchTarget target = runtime_.Target(queue_.stream());
    plan_.EnqueueFolds(&target, pieces_->table);
    EnqueueQuantise<T>(&target, plan_.Gradients(pieces_->table),
                       bucket_.data.dtype, size_, whole_blocks(),
                       pieces_->whole, pieces_->bad);
    COXSWAIN_RETURN_IF_ERROR(runtime_.StatusOf(target));
    COXSWAIN_RETURN_IF_ERROR(
        Begun(communicator_.AllToAll(Bytes(pieces_->whole, whole_bytes_),
                                     Bytes(pieces_->slices, whole_bytes_))));
    EnqueueQuantiseMean<T>(&target, pieces_->slices, slice_bytes_,
                           communicator_.size(), plan_.Slice(pieces_->table),
                           size_, blocks_, pieces_->own);
    COXSWAIN_RETURN_IF_ERROR(runtime_.StatusOf(target));
    COXSWAIN_RETURN_IF_ERROR(
        Begun(communicator_.AllGather(Bytes(pieces_->own, slice_bytes_),
                                      Bytes(pieces_->whole, whole_bytes_))));
    return EnqueueResult(&target);
  }

  // The averages, unless something is not finite, and whether it is.
  absl::Status EnqueueResult(LaunchTarget* target) {
    EnqueueFindBadScale(target, pieces_->whole, size_, whole_blocks(),
                        pieces_->bad);
    EnqueueDequantise(target, pieces_->whole, size_, bucket_.data.count,
                      bucket_.data.data, bucket_.data.dtype, pieces_->bad);
    COXSWAIN_RETURN_IF_ERROR(runtime_.StatusOf(*target));
    return runtime_.Copy(host_->data, pieces_->bad, sizeof(int32_t),
                         queue_.stream());
  }

  absl::Status TakeMemory(int64_t table_bytes) {
    const auto cut = [this, table_bytes](void* memory) {
      return Pieces(Cutter(memory), whole_bytes_, slice_bytes_, table_bytes,
                    static_cast<int64_t>(bucket_.gradients.size()),
                    communicator_.size());
    };
    COXSWAIN_ASSIGN_OR_RETURN(
        memory_, device_.scratch().Take(queue_, cut(nullptr).bytes));
    pieces_ = cut(memory_.get());
    return absl::OkStatus();
  }

  // By way of memory of the host, in front of which there is room for what
  // comes back.
  absl::Status SendTable(const std::vector<char>& table) {
    const auto bytes = static_cast<int64_t>(table.size());
    Cutter sizes(nullptr);
    sizes.Cut<int32_t>(communicator_.size());
    COXSWAIN_ASSIGN_OR_RETURN(
        host_, device_.scratch().TakeHost(queue_, sizes.bytes() + bytes));
    char* const to = static_cast<char*>(host_->data) + sizes.bytes();
    std::memcpy(to, table.data(), table.size());
    host_->copying = true;
    return runtime_.Copy(pieces_->table, to, bytes, queue_.stream());
  }

  // All ranks hold the same bytes, and so come to the same end.
  absl::StatusOr<WorkPtr> Finish() {
    if (blocks_ > 0) {
      host_->copying = false;
      plan_.Uploaded();
      int32_t bad = 0;
      std::memcpy(&bad, host_->data, sizeof(bad));
      if (bad != 0) return Enqueued([this] { return EnqueueSearch(); });
    }
    if (context_.error_feedback) plan_.Stage();
    return WorkPtr();
  }

  // Whose gradient it was; then the bucket is NaN.
  absl::Status EnqueueSearch() {
    const std::vector<QuantiseEntry> entries = plan_.EachGradient();
    const auto* first = reinterpret_cast<const char*>(entries.data());
    const std::vector<char> table(
        first, first + entries.size() * sizeof(QuantiseEntry));
    COXSWAIN_RETURN_IF_ERROR(TakeMemory(static_cast<int64_t>(table.size())));
    COXSWAIN_RETURN_IF_ERROR(SendTable(table));
    LaunchTarget target = runtime_.Target(queue_.stream());
    const QuantiseRuns runs{
        reinterpret_cast<const QuantiseEntry*>(pieces_->table),
        static_cast<int64_t>(entries.size()) - 1};
    EnqueueFindNonFinite(&target, runs, bucket_.data.dtype,
                         communicator_.rank(), communicator_.size(),
                         pieces_->flags, pieces_->by_rank);
    EnqueueFillNan(&target, bucket_.data.dtype, bucket_.data.data,
                   bucket_.data.count);
    COXSWAIN_RETURN_IF_ERROR(runtime_.StatusOf(target));
    const int64_t ranks = communicator_.size();
    COXSWAIN_RETURN_IF_ERROR(Begun(communicator_.AllReduce(
        Span{pieces_->by_rank, ranks, DType::kInt32, bucket_.data.device})));
    return runtime_.Copy(host_->data, pieces_->by_rank,
                         ranks * static_cast<int64_t>(sizeof(int32_t)),
                         queue_.stream());
  }

  void Report() {
    host_->copying = false;
    const auto* by_rank = static_cast<const int32_t*>(host_->data);
    std::vector<NonFiniteGradient> found;
    for (int rank = 0; rank < communicator_.size(); ++rank) {
      const int64_t number = by_rank[rank];
      // Numbers come from peers.
      if (number < 1 ||
          number > static_cast<int64_t>(bucket_.gradients.size())) {
        continue;
      }
      const auto parameter = static_cast<size_t>(
          bucket_.gradients[static_cast<size_t>(number - 1)].parameter);
      found.push_back({rank, context_.parameters[parameter].name});
    }
    context_.non_finite.insert(context_.non_finite.end(), found.begin(),
                               found.end());
    if (communicator_.rank() == 0) {
      WarnNonFinite(context_.spec, context_.step, bucket_, found);
    }
  }

  int64_t whole_blocks() const { return blocks_ * communicator_.size(); }
  Span Bytes(uint8_t* memory, int64_t count) const {
    return Span{memory, count, DType::kUInt8, bucket_.data.device};
  }

  const Bucket bucket_;
  Communicator& communicator_;
  DeviceQueue& queue_;
  DeviceRuntime& runtime_;
  const Int8Context context_;
  Int8Device& device_;
  const int64_t size_;         // of a block
  const int64_t blocks_;       // of a slice
  const int64_t slice_bytes_;  // on the wire
  const int64_t whole_bytes_;
  Int8DevicePlan<T> plan_;

  int phase_ = 0;
  std::shared_ptr<void> memory_;
  std::optional<Pieces> pieces_;
  std::shared_ptr<DeviceScratch::HostBlock> host_;
};

}  // namespace

template <typename T>
std::unique_ptr<Exchange> MakeInt8DeviceExchange(
    const Bucket& bucket, Communicator& communicator, DeviceQueue& queue,
    std::vector<Int8Parameter<T>*> state, const Int8Context& context,
    Int8Device& device) {
  return std::make_unique<Int8DeviceExchange<T>>(
      bucket, communicator, queue, std::move(state), context, device);
}

template std::unique_ptr<Exchange> MakeInt8DeviceExchange<float>(
    const Bucket&, Communicator&, DeviceQueue&,
    std::vector<Int8Parameter<float>*>, const Int8Context&, Int8Device&);
template std::unique_ptr<Exchange> MakeInt8DeviceExchange<double>(
    const Bucket&, Communicator&, DeviceQueue&,
    std::vector<Int8Parameter<double>*>, const Int8Context&, Int8Device&);

}  // namespace coxswain
