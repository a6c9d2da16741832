#include "hooks/low_rank/powersgd_exchange.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <optional>
#include <utility>

#include "base/random.h"
#include "hooks/kernels/kernels.h"
#include "hooks/narrow.h"
#include "hooks/narrow_communicator.h"

namespace coxswain {
namespace {

size_t Size(int64_t count) { return static_cast<size_t>(count); }

// out = gradient, widened if need be.
template <typename T>
void Load(const Span& gradient, T* out) {
  if (gradient.count == 0) return;
  if (IsWide(gradient.dtype)) {
    std::memcpy(out, gradient.data, Size(gradient.bytes()));
  } else {
    WidenSpan(static_cast<const uint16_t*>(gradient.data), gradient.dtype,
              Span{out, gradient.count, kDTypeOf<T>, gradient.device});
  }
}

// gradient = values, narrowed if need be.
template <typename T>
void Store(const T* values, const Span& gradient) {
  if (gradient.count == 0) return;
  if (IsWide(gradient.dtype)) {
    std::memcpy(gradient.data, values, Size(gradient.bytes()));
  } else {
    T* source = const_cast<T*>(values);  // a Span has no read-only form
    NarrowSpan(Span{source, gradient.count, kDTypeOf<T>, gradient.device},
               gradient.dtype, static_cast<uint16_t*>(gradient.data));
  }
}

void FillWithNan(const Span& span) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  if (span.dtype == DType::kFloat64) {
    std::fill_n(static_cast<double*>(span.data), span.count, double{nan});
  } else if (span.dtype == DType::kFloat32) {
    std::fill_n(static_cast<float*>(span.data), span.count, nan);
  } else {
    // All exponent bits and the highest mantissa bit of either 16-bit type.
    std::fill_n(static_cast<uint16_t*>(span.data), span.count,
                uint16_t{0x7fc0});
  }
}

template <typename T>
class PowerSgdExchange : public Exchange {
 public:
  PowerSgdExchange(std::vector<PowerSgdPart<T>> parts,
                   Communicator& communicator, const PowerSgdConfig& config,
                   int64_t step, ScratchPool& scratch)
      : parts_(std::move(parts)),
        communicator_(&communicator),
        config_(config),
        step_(step),
        scratch_(scratch) {
    for (const PowerSgdPart<T>& part : parts_) {
      const LowRankMatrix<T>* matrix = part.matrix;
      first_count_ += matrix ? matrix->n * matrix->r : part.gradient.count;
      second_count_ += matrix ? matrix->m * matrix->r : 0;
      if (!IsWide(part.gradient.dtype) && !narrow_.has_value()) {
        narrow_.emplace(communicator, part.gradient.dtype, scratch);
        communicator_ = &*narrow_;
      }
    }
  }

  absl::StatusOr<WorkPtr> Advance() override {
    switch (phase_++) {
      case 0:
        return SendFirst();
      case 1:
        return SendSecond();
      default:
        Finish();
        return WorkPtr();
    }
  }

 private:
  // Sends the raw elements, X Q of each matrix, and the flag.
  WorkPtr SendFirst() {
    first_ = scratch_.template Take<T>(Size(first_count_ + 1));
    int64_t not_finite = 0;
    T* next = first_.get();
    for (const PowerSgdPart<T>& part : parts_) {
      if (part.matrix == nullptr) {
        Load(part.gradient, next);
        not_finite += CountNonFinite(next, part.gradient.count);
        next += part.gradient.count;
        continue;
      }
      LowRankMatrix<T>& matrix = *part.matrix;
      const T* x = LoadX(part);
      not_finite += CountNonFinite(x, matrix.n * matrix.m);
      ReadyQ(matrix);
      Project(x, matrix.staged_q.data(), next, matrix.n, matrix.m, matrix.r);
      next += matrix.n * matrix.r;
    }
    Divide(first_.get(), first_count_, static_cast<T>(communicator_->size()));
    *next = not_finite == 0 ? T{0} : T{1};
    return Send(first_, first_count_ + 1);
  }

  // Sends each matrix's transpose(X) P, and meanwhile computes the error.
  WorkPtr SendSecond() {
    const T flag = first_.get()[first_count_];
    poisoned_ = flag != T{0} || CountNonFinite(first_.get(), first_count_) != 0;
    second_ = scratch_.template Take<T>(Size(second_count_));
    T* in = first_.get();
    T* out = second_.get();
    size_t index = 0;
    for (const PowerSgdPart<T>& part : parts_) {
      if (part.matrix == nullptr) {
        Store(in, part.gradient);
        in += part.gradient.count;
        continue;
      }
      const LowRankMatrix<T>& matrix = *part.matrix;
      Orthogonalise(in, matrix.n, matrix.r, config_.epsilon);
      ProjectTransposed(x_[index++], in, out, matrix.n, matrix.m, matrix.r);
      in += matrix.n * matrix.r;
      out += matrix.m * matrix.r;
    }
    if (poisoned_) std::fill_n(second_.get(), second_count_, T{0});
    if (second_count_ == 0) return Work::Ended(absl::OkStatus());
    std::vector<T> own(second_.get(), second_.get() + second_count_);
    Divide(second_.get(), second_count_, static_cast<T>(communicator_->size()));
    WorkPtr work = Send(second_, second_count_);
    if (config_.error_feedback && !poisoned_) StageErrors(own.data());
    return work;
  }

  // X -= P transpose(q), with this rank's own q.
  void StageErrors(const T* q) {
    const T* p = first_.get();
    size_t index = 0;
    for (const PowerSgdPart<T>& part : parts_) {
      if (part.matrix == nullptr) {
        p += part.gradient.count;
        continue;
      }
      const LowRankMatrix<T>& matrix = *part.matrix;
      SubtractProduct(x_[index++], p, q, matrix.n, matrix.m, matrix.r);
      p += matrix.n * matrix.r;
      q += matrix.m * matrix.r;
    }
  }

  // Writes P transpose(Q), or NaN, and declares the outcome staged.
  void Finish() {
    poisoned_ |= CountNonFinite(second_.get(), second_count_) != 0;
    const T* p = first_.get();
    const T* q = second_.get();
    for (const PowerSgdPart<T>& part : parts_) {
      if (poisoned_) {
        FillWithNan(part.gradient);
      } else if (part.matrix == nullptr) {
        p += part.gradient.count;
      } else {
        LowRankMatrix<T>& matrix = *part.matrix;
        WriteProduct(p, q, part);
        matrix.staged_q.assign(q, q + matrix.m * matrix.r);
        matrix.staged = true;
        p += matrix.n * matrix.r;
        q += matrix.m * matrix.r;
      }
    }
  }

  void WriteProduct(const T* p, const T* q, const PowerSgdPart<T>& part) {
    const LowRankMatrix<T>& matrix = *part.matrix;
    if (IsWide(part.gradient.dtype)) {
      Product(static_cast<T*>(part.gradient.data), p, q, matrix.n, matrix.m,
              matrix.r);
      return;
    }
    const auto product = scratch_.template Take<T>(Size(part.gradient.count));
    Product(product.get(), p, q, matrix.n, matrix.m, matrix.r);
    Store(product.get(), part.gradient);
  }

  // Gradient plus error, where the new error will stand. Without error
  // feedback nothing is kept, and the gradient itself will do.
  const T* LoadX(const PowerSgdPart<T>& part) {
    LowRankMatrix<T>& matrix = *part.matrix;
    const int64_t count = matrix.n * matrix.m;
    if (config_.error_feedback) {
      matrix.staged_error.resize(Size(count));
      x_.push_back(matrix.staged_error.data());
    } else if (IsWide(part.gradient.dtype)) {
      x_.push_back(static_cast<T*>(part.gradient.data));
      return x_.back();
    } else {
      widened_.push_back(scratch_.template Take<T>(Size(count)));
      x_.push_back(widened_.back().get());
    }
    Load(part.gradient, x_.back());
    if (config_.error_feedback && !matrix.error.empty()) {
      Add(x_.back(), matrix.error.data(), count);
    }
    return x_.back();
  }

  // Puts orth(Q) into staged_q. Columns that are zero, because the gradient
  // once was or had a lower rank, are drawn again: a zero column would stay
  // zero for ever.
  void ReadyQ(LowRankMatrix<T>& matrix) {
    std::vector<T>& q = matrix.staged_q;
    if (config_.warm_start && !matrix.q.empty()) {
      q = matrix.q;
    } else {
      q.assign(Size(matrix.m * matrix.r), T{0});
    }
    if (Orthogonalise(q.data(), matrix.m, matrix.r, config_.epsilon) == 0) {
      return;
    }
    // A pure function of seed, name and step: the same on all ranks, whatever
    // their buckets and histories.
    const CounterRandom random(
        config_.seed,
        StableHash(matrix.name) ^ Mix64(static_cast<uint64_t>(step_)));
    for (int64_t k = 0; k < matrix.r; ++k) {
      T* column = q.data() + k * matrix.m;
      const bool zero = std::all_of(column, column + matrix.m,
                                    [](T value) { return value == T{0}; });
      for (int64_t j = 0; zero && j < matrix.m; ++j) {
        column[j] = static_cast<T>(
            random.Normal(static_cast<uint64_t>(k * matrix.m + j)));
      }
    }
    Orthogonalise(q.data(), matrix.m, matrix.r, config_.epsilon);
  }

  // The memory is kept until the back end is done with it, even if this
  // exchange is given up before.
  WorkPtr Send(const std::shared_ptr<T>& data, int64_t count) {
    WorkPtr work = communicator_->AllReduce(
        Span{data.get(), count, kDTypeOf<T>, Device()});
    work->OnDone([keep = data](const absl::Status&) {});
    return work;
  }

  const std::vector<PowerSgdPart<T>> parts_;
  Communicator* communicator_;  // what was given, or narrow_
  std::optional<NarrowCommunicator> narrow_;
  const PowerSgdConfig& config_;
  const int64_t step_;
  ScratchPool& scratch_;

  int phase_ = 0;
  bool poisoned_ = false;    // something is not finite, on all ranks alike
  int64_t first_count_ = 0;  // without the flag
  int64_t second_count_ = 0;
  std::shared_ptr<T> first_;   // raw elements and P, part by part, and flag
  std::shared_ptr<T> second_;  // Q, matrix by matrix
  std::vector<T*> x_;          // of each matrix
  std::vector<std::shared_ptr<T>> widened_;
};

}  // namespace

template <typename T>
std::unique_ptr<Exchange> MakePowerSgdExchange(
    std::vector<PowerSgdPart<T>> parts, Communicator& communicator,
    const PowerSgdConfig& config, int64_t step, ScratchPool& scratch) {
  return std::make_unique<PowerSgdExchange<T>>(std::move(parts), communicator,
                                               config, step, scratch);
}

template std::unique_ptr<Exchange> MakePowerSgdExchange<float>(
    std::vector<PowerSgdPart<float>>, Communicator&, const PowerSgdConfig&,
    int64_t, ScratchPool&);
template std::unique_ptr<Exchange> MakePowerSgdExchange<double>(
    std::vector<PowerSgdPart<double>>, Communicator&, const PowerSgdConfig&,
    int64_t, ScratchPool&);

}  // namespace coxswain
