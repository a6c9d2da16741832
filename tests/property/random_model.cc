#include "tests/property/random_model.h"

#include <torch/types.h>
#include <torch/utils.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "base/random.h"

namespace coxswain::property {
namespace {

using ::torch::Tensor;

::torch::ScalarType TypeOf(DType dtype) {
  switch (dtype) {
    case DType::kFloat64:
      return ::torch::kFloat64;
    case DType::kFloat16:
      return ::torch::kFloat16;
    case DType::kBFloat16:
      return ::torch::kBFloat16;
    default:
      return ::torch::kFloat32;
  }
}

// Mixes what a number belongs to into the number of its stream.
uint64_t StreamOf(uint64_t a, uint64_t b, uint64_t c = 0, uint64_t d = 0) {
  return Mix64(Mix64(Mix64(Mix64(a) + b) + c) + d);
}

// Returns the same values in another layout.
Tensor LaidOut(const Tensor& dense, Memory memory) {
  switch (memory) {
    case Memory::kDense:
      return dense;
    case Memory::kTransposed:
      return dense.transpose(0, -1).contiguous().transpose(0, -1);
    case Memory::kGaps: {
      std::vector<int64_t> wide = dense.sizes().vec();
      wide.back() = 2 * wide.back() + 1;
      Tensor gaps = ::torch::zeros(wide, dense.options());
      gaps = gaps.slice(-1, 1, 1 + dense.size(-1));
      gaps.copy_(dense);
      return gaps;
    }
    case Memory::kChannelsLast:
      return dense.contiguous(::torch::MemoryFormat::ChannelsLast);
  }
  return dense;
}

// libtorch computes little in 16 bits on a CPU; the cast has a gradient too.
Tensor Computable(const Tensor& a) {
  const bool narrow = a.scalar_type() == ::torch::kFloat16 ||
                      a.scalar_type() == ::torch::kBFloat16;
  return narrow ? a.to(::torch::kFloat32) : a;
}

bool IsMatrix(const Tensor& a) { return a.dim() >= 1 && a.numel() > 0; }

Tensor Flat(const Tensor& a) { return a.reshape({a.size(0), -1}); }

Tensor Total(const Tensor& a) { return a.sum().to(::torch::kFloat64); }

}  // namespace

RandomModel::RandomModel(const Case& one, int rank) : case_(one), rank_(rank) {
  for (const ParameterCase& parameter : one.parameters) {
    const Tensor dense =
        Numbers(parameter.shape, TypeOf(parameter.dtype),
                StreamOf(1, static_cast<uint64_t>(parameter.id), rank));
    const std::string name = absl::StrCat("p", parameter.id);
    values_.push_back(register_parameter(name, LaidOut(dense, parameter.memory),
                                         IsTrainable(parameter, 0)));
    if (!parameter.shared) continue;
    register_parameter(name + "_again", values_.back(),
                       IsTrainable(parameter, 0));
  }
  if (one.buffers) {
    buffer_ = register_buffer("buffer", ::torch::full({3}, rank));
  }
}

Tensor RandomModel::Numbers(::torch::IntArrayRef shape,
                            ::torch::ScalarType type, uint64_t stream) const {
  const CounterRandom random(case_.seed, stream);
  Tensor numbers = ::torch::empty(shape, ::torch::kFloat64);
  auto* data = numbers.data_ptr<double>();
  for (int64_t i = 0; i < numbers.numel(); ++i) {
    data[i] = 2 * random.Uniform(static_cast<uint64_t>(i)) - 1;
  }
  return numbers.to(type);
}

bool RandomModel::SetTrainable(int step) {
  ::torch::NoGradGuard no_grad;
  bool changed = false;
  for (size_t i = 0; i < values_.size(); ++i) {
    const bool trainable = IsTrainable(case_.parameters[i], step);
    if (values_[i].requires_grad() == trainable) continue;
    changed = true;
    values_[i].set_requires_grad(trainable);
    if (trainable) values_[i].add_(rank_);
  }
  return changed;
}

void RandomModel::FillBuffer(int step) {
  if (buffer_.defined()) buffer_.fill_(10 * step + rank_);
}

bool RandomModel::Reaches(int parameter, int step, int rank) const {
  const auto& micros =
      case_.steps[static_cast<size_t>(step)].uses[static_cast<size_t>(rank)];
  for (const uint32_t uses : micros) {
    for (size_t i = 0; i < case_.terms.size(); ++i) {
      const Term& term = case_.terms[i];
      const bool pair =
          term.kind == TermKind::kProduct || term.kind == TermKind::kChain;
      const bool in = term.a == parameter || (pair && term.b == parameter);
      if (in && (uses >> i & 1) != 0) return true;
    }
  }
  return false;
}

Tensor RandomModel::Loss(int step, int micro) const {
  const uint32_t uses =
      case_.steps[static_cast<size_t>(step)]
          .uses[static_cast<size_t>(rank_)][static_cast<size_t>(micro)];
  Tensor loss = ::torch::zeros({}, ::torch::kFloat64).requires_grad_() * 2;
  for (size_t i = 0; i < case_.terms.size(); ++i) {
    if ((uses >> i & 1) == 0) continue;
    const Term& term = case_.terms[i];
    const uint64_t id =
        StreamOf(static_cast<uint64_t>(case_.parameters[term.a].id),
                 static_cast<uint64_t>(case_.parameters[term.b].id), i);
    loss = loss + TermOf(term, StreamOf(id, rank_, step, micro));
  }
  return loss;
}

Tensor RandomModel::TermOf(const Term& term, uint64_t stream) const {
  const Tensor& a = values_[static_cast<size_t>(term.a)];
  const Tensor& b = values_[static_cast<size_t>(term.b)];
  switch (term.kind) {
    case TermKind::kSquare:
      return Total(Numbers(a.sizes(), a.scalar_type(), stream) * a * a);
    case TermKind::kTwice:
      return Linear(a, stream) +
             Linear(::torch::sin(Computable(a)), stream + 1);
    case TermKind::kSum:
      // The sum of one element hands down the gradient that it gets, so that
      // libtorch gives several such parameters .grads in the same memory, and
      // adds to both what is meant for one.
      return Total(a.numel() == 1 ? a * 1 : Computable(a));
    case TermKind::kSlice:
      return IsMatrix(a) ? Linear(a[0], stream) : Linear(a, stream);
    case TermKind::kTransposed:
      return a.dim() < 2 ? Linear(a, stream)
                         : Linear(a.transpose(0, -1), stream);
    case TermKind::kProduct:
      return ::torch::tanh(Total(Computable(a))) * Linear(b, stream);
    case TermKind::kMatmul:
    case TermKind::kChain:
      return Matrix(term, stream);
    case TermKind::kConvolution:
      return Convolution(a, stream);
    default:
      return Linear(a, stream);
  }
}

Tensor RandomModel::Linear(const Tensor& a, uint64_t stream) const {
  return Total(Numbers(a.sizes(), a.scalar_type(), stream) * a);
}

// tanh(rows X a), X being random with as many rows as `rows` has columns.
Tensor RandomModel::Rows(const Tensor& rows, const Tensor& a,
                         uint64_t stream) const {
  const Tensor matrix = Flat(Computable(a));
  const Tensor between =
      Numbers({rows.size(1), matrix.size(0)}, matrix.scalar_type(), stream);
  return ::torch::tanh(
      rows.to(matrix.scalar_type()).matmul(between).matmul(matrix));
}

Tensor RandomModel::Matrix(const Term& term, uint64_t stream) const {
  const Tensor& a = values_[static_cast<size_t>(term.a)];
  const Tensor& b = values_[static_cast<size_t>(term.b)];
  const bool both = IsMatrix(a) && IsMatrix(b);
  if (!IsMatrix(a) || (term.kind == TermKind::kChain && !both)) {
    return Linear(a, stream) + (term.kind == TermKind::kChain
                                    ? Linear(b, stream + 1)
                                    : ::torch::zeros({}, ::torch::kFloat64));
  }
  Tensor rows = Rows(Numbers({2, 3}, ::torch::kFloat64, stream), a, stream + 1);
  if (term.kind == TermKind::kChain) rows = Rows(rows, b, stream + 2);
  return Total(rows * Numbers(rows.sizes(), rows.scalar_type(), stream + 3));
}

Tensor RandomModel::Convolution(const Tensor& a, uint64_t stream) const {
  if (a.dim() != 4 || a.numel() == 0) return Linear(a, stream);
  const Tensor weights = Computable(a);
  const Tensor image = Numbers({2, a.size(1), a.size(2) + 1, a.size(3) + 2},
                               weights.scalar_type(), stream);
  const Tensor out = ::torch::tanh(::torch::conv2d(image, weights));
  return Total(out * Numbers(out.sizes(), out.scalar_type(), stream + 1));
}

void RandomModel::CopyFrom(RandomModel& other, bool gradients) {
  ::torch::NoGradGuard no_grad;
  for (size_t i = 0; i < values_.size(); ++i) {
    values_[i].copy_(other.values_[i]);
    if (!gradients) continue;
    const Tensor gradient = other.values_[i].grad();
    values_[i].mutable_grad() =
        gradient.defined() ? gradient.clone() : Tensor();
  }
}

void RandomModel::ZeroGradients(ZeroGrad how) {
  if (how == ZeroGrad::kKeep) return;
  ::torch::NoGradGuard no_grad;
  for (Tensor& value : values_) {
    // As optimizers do, which know nothing of frozen parameters.
    Tensor& gradient = value.mutable_grad();
    if (how == ZeroGrad::kNone) gradient = Tensor();
    if (!gradient.defined()) continue;
    if (how == ZeroGrad::kZero) gradient.zero_();
    if (how == ZeroGrad::kShift) gradient.add_(rank_ + 1);
  }
}

void RandomModel::Descend(int step) {
  ::torch::NoGradGuard no_grad;
  for (size_t i = 0; i < values_.size(); ++i) {
    Tensor& value = values_[i];
    bool used = false;
    for (int rank = 0; rank < case_.world; ++rank) {
      used = used || Reaches(static_cast<int>(i), step, rank);
    }
    if (!used || !value.requires_grad() || !value.grad().defined()) continue;
    value.sub_(value.grad(), kRate);
  }
}

}  // namespace coxswain::property
