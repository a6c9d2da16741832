#include <cstring>

#include "base/reduce_elements.h"
#include "client/reduce/gradient_memory.h"

namespace coxswain {
namespace {

// memcpy wants valid pointers even for nothing.
void CopyBytes(void* to, const void* from, int64_t bytes) {
  if (bytes > 0) std::memcpy(to, from, static_cast<size_t>(bytes));
}

void ClearBytes(const Span& span) {
  if (span.count > 0) {
    std::memset(span.data, 0, static_cast<size_t>(span.bytes()));
  }
}

class HostGradientMemory : public GradientMemory {
 public:
  absl::StatusOr<Ready> MakeReady() override { return Ready(); }

  absl::Status Copy(const Span& to, const Span& from) override {
    CopyBytes(to.data, from.data, to.bytes());
    return absl::OkStatus();
  }

  absl::Status FollowCaller() override { return absl::OkStatus(); }

  absl::Status Settle(const std::vector<Bucket>&, absl::Duration) override {
    return absl::OkStatus();
  }

  absl::Status Begin(const std::vector<Bucket>&) override {
    statistics_ = GradientStatistics();
    return absl::OkStatus();
  }

  absl::Status ClearGradient(const Bucket&, const Span& view) override {
    ClearBytes(view);
    return absl::OkStatus();
  }

  absl::Status CopyGradient(const Bucket&, const Span& view,
                            const void* gradient) override {
    CopyBytes(view.data, gradient, view.bytes());
    return absl::OkStatus();
  }

  absl::Status NoteGradient(const Bucket&) override { return absl::OkStatus(); }

  absl::Status Deliver(const Span& average, double factor,
                       void* outside) override {
    if (outside != nullptr) {
      CopyScaled(average, factor, outside);
    } else if (factor != 1) {
      Scale(average, factor);
    }
    return absl::OkStatus();
  }

  absl::Status NoteDelivered() override { return absl::OkStatus(); }

  absl::Status Weigh(const Bucket& bucket, double factor) override {
    if (factor == 0) {
      ClearBytes(bucket.data);
    } else {
      Scale(bucket.data, factor);
    }
    return absl::OkStatus();
  }

  absl::Status TakeAverages(const Bucket& bucket,
                            const std::vector<void*>& outside,
                            bool measure) override {
    for (size_t i = 0; i < bucket.gradients.size(); ++i) {
      const Span average = bucket.Gradient(bucket.gradients[i]);
      if (measure && bucket.gradients[i].measured) {
        statistics_.Add(outside[i] == nullptr
                            ? Measure(average)
                            : CopyAndMeasure(average, outside[i]));
      } else if (outside[i] != nullptr) {
        CopyBytes(outside[i], average.data, average.bytes());
      }
    }
    return absl::OkStatus();
  }

  absl::Status AddAverages(const Bucket& slice, const Span& sum,
                           bool back) override {
    ReduceElements(sum.dtype, ElementOp::kSum, sum.data, sum.data,
                   slice.data.data, static_cast<size_t>(sum.count));
    if (back) CopyBytes(slice.data.data, sum.data, sum.bytes());
    return absl::OkStatus();
  }

  absl::Status AwaitAverages(absl::Duration) override {
    return absl::OkStatus();
  }
  GradientStatistics statistics() const override { return statistics_; }
  void Quiesce(absl::Duration) override {}

 private:
  GradientStatistics statistics_;
};

}  // namespace

std::unique_ptr<GradientMemory> MakeHostGradientMemory() {
  return std::make_unique<HostGradientMemory>();
}

}  // namespace coxswain
