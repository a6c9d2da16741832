#include <algorithm>
#include <cstring>
#include <limits>
#include <optional>
#include <utility>

#include "hooks/int8/int8_exchange.h"
#include "hooks/kernels/elementwise.h"
#include "hooks/kernels/quantise.h"
#include "hooks/narrow.h"
#include "hooks/non_finite.h"

namespace coxswain {
namespace {

constexpr int64_t kFlagBytes = sizeof(uint32_t);

template <typename T>
class Int8SliceExchange : public Exchange {
 public:
  Int8SliceExchange(const Bucket& bucket, const BucketSlices& slices,
                    Communicator& communicator,
                    std::vector<Int8Parameter<T>*> state,
                    const Int8Context& context)
      : bucket_(bucket),
        slices_(slices),
        communicator_(communicator),
        state_(std::move(state)),
        context_(context),
        blocks_((slices.each + context.block - 1) / context.block),
        slice_bytes_(QuantisedBytes(blocks_, context.block) + kFlagBytes) {}

  absl::StatusOr<WorkPtr> Advance() override {
    switch (phase_++) {
      case 0:
        return SendSlices();
      case 1:
        return Finish();
      default:
        Report();
        return WorkPtr();
    }
  }

 private:
  // Quantises gradients and errors; each rank gets its slice of them.
  WorkPtr SendSlices() {
    if (blocks_ == 0) return Work::Ended(absl::OkStatus());
    const int64_t bytes = slice_bytes_ * slices_.ranks;
    const auto sent = context_.scratch.Take<uint8_t>(Size(bytes));
    received_ = context_.scratch.Take<uint8_t>(Size(bytes));
    const std::vector<const T*> errors = LocalErrors();
    bool sound = true;
    for (int rank = 0; rank < slices_.ranks; ++rank) {
      uint8_t* const slice = sent.get() + rank * slice_bytes_;
      QuantiseSlice(rank, errors, slice);
      sound = sound && IsSound(slice);
    }
    const uint32_t flag = sound ? 0 : 1;
    for (int rank = 0; rank < slices_.ranks; ++rank) {
      std::memcpy(FlagOf(sent.get(), rank), &flag, sizeof(flag));
    }
    WorkPtr work = communicator_.AllToAll(
        Span{sent.get(), bytes, DType::kUInt8, Device()},
        Span{received_.get(), bytes, DType::kUInt8, Device()});
    work->OnDone([a = sent, b = received_](const absl::Status&) {});
    return work;
  }

  // Returns what each gradient has left unsent, null for nothing; makes room
  // for what it will have.
  std::vector<const T*> LocalErrors() {
    std::vector<const T*> errors(state_.size(), nullptr);
    folded_.resize(state_.size());
    for (size_t i = 0; i < state_.size() && context_.error_feedback; ++i) {
      const Int8Errors<T>& current = state_[i]->current;
      const int64_t count = bucket_.gradients[i].count;
      state_[i]->staged.local.resize(Size(count));
      if (!current.average.empty()) {
        folded_[i] = Folded(current, count, communicator_.size());
        errors[i] = folded_[i].data();
      } else if (!current.local.empty()) {
        errors[i] = current.local.data();
      }
    }
    return errors;
  }

  void QuantiseSlice(int rank, const std::vector<const T*>& errors,
                     uint8_t* out) {
    const int64_t begin = slices_.begin(bucket_.data.count, rank);
    const int64_t end = begin + slices_.count(bucket_.data.count, rank);
    std::vector<QuantiseRun<T>> runs;
    for (size_t i = 0; i < state_.size(); ++i) {
      const GradientSlot& slot = bucket_.gradients[i];
      const int64_t first =
          std::clamp<int64_t>(begin - slot.offset, 0, slot.count);
      const int64_t last =
          std::clamp<int64_t>(end - slot.offset, 0, slot.count);
      if (first >= last) continue;
      const Span gradient = bucket_.Gradient(slot).Slice(first, last - first);
      QuantiseRun<T>& run = runs.emplace_back();
      run.gradient = gradient.data;
      run.type = gradient.dtype;
      run.count = gradient.count;
      if (!context_.error_feedback) continue;
      if (errors[i] != nullptr) run.error = errors[i] + first;
      run.remainder = state_[i]->staged.local.data() + first;
    }
    if (runs.empty()) {
      std::fill_n(out, slice_bytes_, uint8_t{0});
    } else {
      Quantise(runs, context_.block, blocks_, out);
    }
  }

  // Returns whether these blocks' scales are finite, and sums over the ranks of
  // what they stand for will be.
  bool IsSound(const uint8_t* slice) const {
    constexpr float kMost = std::numeric_limits<float>::max();
    const float limit = sizeof(T) == sizeof(double)
                            ? kMost
                            : kMost / 128 / static_cast<float>(slices_.ranks);
    for (int64_t block = 0; block < blocks_; ++block) {
      float scale = 0;
      std::memcpy(&scale, slice + block * (context_.block + 4), sizeof(scale));
      if (!(scale <= limit)) return false;  // NaN too
    }
    return true;
  }

  // All ranks have the same flags, and so come to the same end.
  WorkPtr Finish() {
    if (blocks_ == 0) return nullptr;
    for (int rank = 0; rank < slices_.ranks; ++rank) {
      uint32_t flag = 0;
      std::memcpy(&flag, FlagOf(received_.get(), rank), sizeof(flag));
      if (flag == 0) continue;
      search_.emplace(bucket_, context_.parameters);
      FillWithNan(bucket_.data);
      return search_->Start(communicator_);
    }
    WriteAverages();
    for (Int8Parameter<T>* one : state_) {
      if (!context_.error_feedback) break;
      one->staged.begin = 0;
      one->staged.average.clear();
      one->is_staged = true;
    }
    return nullptr;
  }

  void WriteAverages() {
    const Span own = slices_.Slice(bucket_.data, communicator_.rank());
    if (own.count == 0) return;
    const auto sum = context_.scratch.Take<T>(Size(own.count));
    const auto next = context_.scratch.Take<T>(Size(own.count));
    for (int rank = 0; rank < slices_.ranks; ++rank) {
      T* const values = rank == 0 ? sum.get() : next.get();
      Dequantise(received_.get() + rank * slice_bytes_, context_.block,
                 own.count, values, kDTypeOf<T>);
      if (rank > 0) Add(sum.get(), next.get(), own.count);
    }
    if (slices_.ranks > 1) {
      Divide(sum.get(), own.count, static_cast<T>(slices_.ranks));
    }
    WriteSpan(sum.get(), own);
  }

  void Report() {
    const std::vector<NonFiniteGradient> found = search_->Found();
    context_.non_finite.insert(context_.non_finite.end(), found.begin(),
                               found.end());
    if (communicator_.rank() == 0) {
      WarnNonFinite(context_.spec, context_.step, bucket_, found);
    }
  }

  uint8_t* FlagOf(uint8_t* slices, int rank) const {
    return slices + (rank + 1) * slice_bytes_ - kFlagBytes;
  }
  static size_t Size(int64_t count) { return static_cast<size_t>(count); }

  const Bucket bucket_;
  const BucketSlices slices_;
  Communicator& communicator_;
  const std::vector<Int8Parameter<T>*> state_;
  const Int8Context context_;
  const int64_t blocks_;       // of a slice
  const int64_t slice_bytes_;  // on the wire

  int phase_ = 0;
  std::vector<std::vector<T>> folded_;  // errors with E2, by gradient
  std::shared_ptr<uint8_t> received_;   // all ranks' gradients in this slice
  std::optional<NonFiniteSearch> search_;
};

}  // namespace

template <typename T>
std::unique_ptr<Exchange> MakeInt8SliceExchange(
    const Bucket& bucket, const BucketSlices& slices,
    Communicator& communicator, std::vector<Int8Parameter<T>*> state,
    const Int8Context& context) {
  return std::make_unique<Int8SliceExchange<T>>(bucket, slices, communicator,
                                                std::move(state), context);
}

template std::unique_ptr<Exchange> MakeInt8SliceExchange<float>(
    const Bucket&, const BucketSlices&, Communicator&,
    std::vector<Int8Parameter<float>*>, const Int8Context&);
template std::unique_ptr<Exchange> MakeInt8SliceExchange<double>(
    const Bucket&, const BucketSlices&, Communicator&,
    std::vector<Int8Parameter<double>*>, const Int8Context&);

}  // namespace coxswain
