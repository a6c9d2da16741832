#include "hooks/int8/int8_exchange.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "hooks/int8/int8.h"
#include "hooks/kernels/quantise.h"
#include "hooks/non_finite.h"

namespace coxswain {
namespace {

size_t Size(int64_t count) { return static_cast<size_t>(count); }

template <typename T>
class Int8Exchange : public Exchange {
 public:
  Int8Exchange(const Bucket& bucket, Communicator& communicator,
               std::vector<Int8Parameter<T>*> state, const Int8Context& context)
      : bucket_(bucket),
        communicator_(communicator),
        context_(context),
        blocks_(Int8SliceBlocks(bucket.data.count, communicator.size(),
                                context.block)),
        slice_bytes_(QuantisedBytes(blocks_, context.block)) {
    const int64_t slice = blocks_ * context.block;
    const int64_t first = slice * communicator.rank();
    for (size_t i = 0; i < state.size(); ++i) {
      const GradientSlot& slot = bucket.gradients[i];
      Part& part = parts_.emplace_back();
      part.state = state[i];
      part.gradient = bucket.Gradient(slot);
      part.begin = std::clamp<int64_t>(first - slot.offset, 0, slot.count);
      part.end =
          std::clamp<int64_t>(first + slice - slot.offset, 0, slot.count);
    }
  }

  absl::StatusOr<WorkPtr> Advance() override {
    switch (phase_++) {
      case 0:
        return SendSlices();
      case 1:
        return SendAverage();
      case 2:
        return Finish();
      default:
        Report();
        return WorkPtr();
    }
  }

 private:
  // One gradient. Its elements [begin, end) are in this rank's slice.
  struct Part {
    Int8Parameter<T>* state = nullptr;
    Span gradient;
    int64_t begin = 0;
    int64_t end = 0;

    // This rank quantised the average of these elements the last time too.
    bool KeepsSlice() const {
      const Int8Errors<T>& errors = state->current;
      return errors.begin == begin &&
             errors.average.size() == Size(end - begin);
    }
  };

  // Quantises gradients and errors; each rank gets its slice of them.
  WorkPtr SendSlices() {
    if (blocks_ == 0) return Work::Ended(absl::OkStatus());
    std::vector<QuantiseRun<T>> runs;
    std::vector<std::vector<T>> folded(parts_.size());
    for (size_t i = 0; i < parts_.size(); ++i) {
      const Part& part = parts_[i];
      QuantiseRun<T>& run = runs.emplace_back();
      run.gradient = part.gradient.data;
      run.type = part.gradient.dtype;
      run.count = part.gradient.count;
      if (!context_.error_feedback || run.count == 0) continue;
      run.error = LocalError(part, folded[i]);
      part.state->staged.local.resize(Size(run.count));
      run.remainder = part.state->staged.local.data();
    }
    whole_ = context_.scratch.Take<uint8_t>(Size(WholeBytes()));
    slices_ = context_.scratch.Take<uint8_t>(Size(WholeBytes()));
    Quantise(runs, context_.block, blocks_ * communicator_.size(),
             whole_.get());
    WorkPtr work = communicator_.AllToAll(Bytes(whole_, WholeBytes()),
                                          Bytes(slices_, WholeBytes()));
    work->OnDone([a = whole_, b = slices_](const absl::Status&) {});
    return work;
  }

  // E1; with E2 folded into it where another rank now has the average.
  const T* LocalError(const Part& part, std::vector<T>& folded) {
    const Int8Errors<T>& errors = part.state->current;
    if (part.KeepsSlice()) {
      return errors.local.empty() ? nullptr : errors.local.data();
    }
    folded = Folded(errors, part.gradient.count, communicator_.size());
    return folded.empty() ? nullptr : folded.data();
  }

  // Averages this rank's slice, and sends it to all.
  WorkPtr SendAverage() {
    if (blocks_ == 0) return Work::Ended(absl::OkStatus());
    std::vector<QuantiseRun<T>> runs;
    for (const Part& part : parts_) {
      const int64_t count = part.end - part.begin;
      if (count == 0) continue;
      QuantiseRun<T>& run = runs.emplace_back();
      run.count = count;
      if (!context_.error_feedback) continue;
      Int8Errors<T>& staged = part.state->staged;
      if (part.KeepsSlice()) run.error = part.state->current.average.data();
      staged.average.resize(Size(count));
      run.remainder = staged.average.data();
    }
    const auto own = context_.scratch.Take<uint8_t>(Size(slice_bytes_));
    QuantiseMean(slices_.get(), slice_bytes_, communicator_.size(), runs,
                 context_.block, blocks_, own.get());
    slices_ = nullptr;
    WorkPtr work = communicator_.AllGather(Bytes(own, slice_bytes_),
                                           Bytes(whole_, WholeBytes()));
    work->OnDone([own, whole = whole_](const absl::Status&) {});
    return work;
  }

  // All ranks hold the same bytes, and so come to the same end.
  WorkPtr Finish() {
    if (!QuantisedIsFinite(whole_.get(), context_.block,
                           blocks_ * communicator_.size())) {
      search_.emplace(bucket_, context_.parameters);
      FillWithNan(bucket_.data);
      return search_->Start(communicator_);
    }
    Dequantise(whole_.get(), context_.block, bucket_.data.count,
               bucket_.data.data, bucket_.data.dtype);
    for (const Part& part : parts_) {
      if (!context_.error_feedback) break;
      Int8Parameter<T>& state = *part.state;
      state.staged.begin = part.begin;
      state.staged.average.resize(Size(part.end - part.begin));
      state.is_staged = true;
    }
    return nullptr;
  }

  void Report() {
    const std::vector<NonFiniteGradient> found = search_->Found();
    context_.non_finite.insert(context_.non_finite.end(), found.begin(),
                               found.end());
    if (communicator_.rank() == 0) {
      WarnNonFinite(context_.spec, context_.step, bucket_, found);
    }
  }

  int64_t WholeBytes() const { return slice_bytes_ * communicator_.size(); }

  static Span Bytes(const std::shared_ptr<uint8_t>& memory, int64_t count) {
    return Span{memory.get(), count, DType::kUInt8, Device()};
  }

  const Bucket bucket_;
  Communicator& communicator_;
  const Int8Context context_;
  const int64_t blocks_;       // of a slice
  const int64_t slice_bytes_;  // on the wire
  std::vector<Part> parts_;

  int phase_ = 0;
  std::shared_ptr<uint8_t> whole_;   // first this rank's, then the average
  std::shared_ptr<uint8_t> slices_;  // all ranks' gradients in this slice
  std::optional<NonFiniteSearch> search_;
};

}  // namespace

template <typename T>
std::unique_ptr<Exchange> MakeInt8Exchange(const Bucket& bucket,
                                           Communicator& communicator,
                                           std::vector<Int8Parameter<T>*> state,
                                           const Int8Context& context) {
  return std::make_unique<Int8Exchange<T>>(bucket, communicator,
                                           std::move(state), context);
}

template std::unique_ptr<Exchange> MakeInt8Exchange<float>(
    const Bucket&, Communicator&, std::vector<Int8Parameter<float>*>,
    const Int8Context&);
template std::unique_ptr<Exchange> MakeInt8Exchange<double>(
    const Bucket&, Communicator&, std::vector<Int8Parameter<double>*>,
    const Int8Context&);

}  // namespace coxswain
