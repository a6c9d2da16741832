#include "hooks/low_rank/own_state.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <variant>

#include "base/status_macros.h"
#include "hooks/parameter_state.h"

namespace coxswain {
namespace {

constexpr int64_t kPiece = 1 << 16;  // bounds the memory

size_t Size(int64_t count) { return static_cast<size_t>(count); }

template <typename T>
void Append(const T* values, size_t count, std::string& bytes) {
  bytes.append(reinterpret_cast<const char*>(values), count * sizeof(T));
}

// Multiplying by 1 changes no bit.
template <typename T>
void Scale(T* values, int64_t count, double scale) {
  std::transform(values, values + count, values, [scale](T value) {
    return static_cast<T>(scale * static_cast<double>(value));
  });
}

template <typename T>
double SquaresOf(const ErrorView<T>& error, int64_t count) {
  if (error.x == nullptr) return 0;
  std::vector<double> piece(Size(std::min(kPiece, count)));
  double sum = 0;
  for (int64_t begin = 0; begin < count; begin += kPiece) {
    const int64_t length = std::min(kPiece, count - begin);
    ReadError(error, begin, length, piece.data());
    for (int64_t i = 0; i < length; ++i) sum += piece[Size(i)] * piece[Size(i)];
  }
  return sum;
}

}  // namespace

template <typename T>
StateTensor MakeOwnError(const char* kind, const LowRankTensor<T>& tensor) {
  const LowRankMemory<T>& now = tensor.now;
  StateTensor saved;
  saved.kind = kind;
  saved.parameter = tensor.name;
  saved.dtype = kDTypeOf<T>;
  saved.shape = {tensor.count +
                 static_cast<int64_t>(now.error_p.size() + now.error_q.size())};
  Append(now.x.data(), Size(tensor.count), saved.data);
  Append(now.error_p.data(), now.error_p.size(), saved.data);
  Append(now.error_q.data(), now.error_q.size(), saved.data);
  return saved;
}

template <typename T>
absl::Status TakeOwnError(const std::string& hook, const StateTensor& saved,
                          double scale, LowRankTensor<T>& into) {
  if (!into.keeps_error) {
    return UnfitTensor(hook, saved, "belongs to what keeps no error");
  }
  const int64_t count = into.count;
  const int64_t whole = count + into.r * (into.n + into.m);
  const bool alone = saved.shape == std::vector<int64_t>{count};
  COXSWAIN_ASSIGN_OR_RETURN(
      const std::vector<T> values,
      ReadTensor<T>(hook, saved, {alone ? count : whole}));
  if (scale == 0) return absl::OkStatus();
  LowRankMemory<T>& now = into.now;
  now.has_error = true;
  now.x.Allocate(count);
  const auto x = values.begin();
  const auto p = x + count;
  const auto q = p + (alone ? 0 : into.r * into.n);
  std::copy(x, p, now.x.data());
  now.error_p.assign(p, q);
  now.error_q.assign(q, values.end());
  Scale(now.x.data(), count, scale);
  Scale(now.error_p.data(), q - p, scale);  // and so the product
  return absl::OkStatus();
}

double NormOf(const std::vector<ErrorSource>& sources) {
  double sum = 0;
  for (const ErrorSource& source : sources) {
    const int64_t count = source.parameter->count();
    sum += std::visit(
        [count](const auto& error) { return SquaresOf(error, count); },
        source.error);
  }
  return std::sqrt(sum);
}

template StateTensor MakeOwnError<float>(const char*,
                                         const LowRankTensor<float>&);
template StateTensor MakeOwnError<double>(const char*,
                                          const LowRankTensor<double>&);
template absl::Status TakeOwnError<float>(const std::string&,
                                          const StateTensor&, double,
                                          LowRankTensor<float>&);
template absl::Status TakeOwnError<double>(const std::string&,
                                           const StateTensor&, double,
                                           LowRankTensor<double>&);

}  // namespace coxswain
