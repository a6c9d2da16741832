#include "hooks/low_rank/low_rank_state.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <utility>
#include <variant>

#include "absl/time/time.h"
#include "base/logging.h"
#include "base/status_macros.h"
#include "hooks/kernels/elementwise.h"
#include "hooks/parameter_state.h"

namespace coxswain {
namespace {

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
              "StateTensor holds little-endian bytes");

// Errors are computed and averaged piece by piece, to bound the memory.
constexpr int64_t kPieceOfState = 1 << 20;
// The same for the norm, which takes no collective.
constexpr int64_t kNormPiece = 1 << 16;
// Gradients that are too large, if only just, may come once or twice.
constexpr int kMaxOverflows = 3;
// The back end's own timeout comes first.
constexpr absl::Duration kCollectiveTimeout = absl::Minutes(30);

// A block of x - product, which is consecutive in x: whole rows, or a part of
// one.
template <typename T>
void ReadBlock(const ErrorView<T>& error, int64_t row, int64_t rows,
               int64_t column, int64_t columns, double* out) {
  const int64_t r = error.product.r;
  const std::vector<T> p = RowsOf(error.product.p, error.n, r, row, rows);
  const std::vector<T> q = RowsOf(error.product.q, error.m, r, column, columns);
  std::vector<T> values(AsSize(rows * columns));
  LowRankPass<T> pass;
  pass.gradient = error.x + row * error.m + column;
  pass.product = {p.data(), q.data(), r};
  pass.out = values.data();
  pass.n = rows;
  pass.m = columns;
  PassOverRows<T>({pass});
  std::copy(values.begin(), values.end(), out);
}

// Sums in place over the ranks. The memory is kept until the back end is done
// with it, whatever this wait comes to.
absl::Status Sum(const std::shared_ptr<std::vector<double>>& values,
                 Communicator& communicator) {
  if (values->empty()) return absl::OkStatus();
  const Span span{values->data(), static_cast<int64_t>(values->size()),
                  DType::kFloat64, Device()};
  return WaitHolding(communicator.AllReduce(span), values, kCollectiveTimeout);
}

template <typename T>
void AppendValues(const std::vector<double>& values, std::string& bytes) {
  for (const double value : values) {
    const T narrow = static_cast<T>(value);
    bytes.append(reinterpret_cast<const char*>(&narrow), sizeof(narrow));
  }
}

template <typename T>
void DropError(LowRankTensor<T>& tensor) {
  LogWarning("error_dropped",
             {{"tensor", tensor.name}, {"overflows_on_end", tensor.overflows}});
  tensor.mended.emplace();
  tensor.overflows = 0;
}

template <typename T>
ErrorView<T> ViewOf(const LowRankMemory<T>& memory,
                    const LowRankTensor<T>& tensor) {
  if (!memory.has_error) return {};
  return {memory.x.data(), ErrorProduct(memory, tensor.r), tensor.n, tensor.m,
          0};
}

// Collective. The bytes of the mean error; empty if this rank is not to keep
// it.
template <typename T>
absl::StatusOr<std::string> MeanError(const ErrorView<T>& error, int64_t count,
                                      bool keep, Communicator& communicator) {
  std::string bytes;
  for (int64_t begin = 0; begin < count; begin += kPieceOfState) {
    const int64_t length = std::min(kPieceOfState, count - begin);
    auto piece = std::make_shared<std::vector<double>>(AsSize(length), 0.0);
    ReadError(error, begin, length, piece->data());
    COXSWAIN_RETURN_IF_ERROR(Sum(piece, communicator));
    if (!keep) continue;
    Divide(piece->data(), length, communicator.size());
    AppendValues<T>(*piece, bytes);
  }
  return bytes;
}

// Collective. Which of them have an error on any rank.
absl::StatusOr<std::vector<bool>> AnyError(
    const std::vector<ErrorSource>& sources, Communicator& communicator) {
  auto flags = std::make_shared<std::vector<double>>();
  for (const ErrorSource& source : sources) {
    const bool has = std::visit(
        [](const auto& error) { return error.x != nullptr; }, source.error);
    flags->push_back(has ? 1 : 0);
  }
  COXSWAIN_RETURN_IF_ERROR(Sum(flags, communicator));
  std::vector<bool> any;
  for (const double flag : *flags) any.push_back(flag != 0);
  return any;
}

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
  std::vector<double> piece(AsSize(std::min(kNormPiece, count)));
  double sum = 0;
  for (int64_t begin = 0; begin < count; begin += kNormPiece) {
    const int64_t length = std::min(kNormPiece, count - begin);
    ReadError(error, begin, length, piece.data());
    for (int64_t i = 0; i < length; ++i)
      sum += piece[AsSize(i)] * piece[AsSize(i)];
  }
  return sum;
}

}  // namespace

template <typename T>
void ReadError(const ErrorView<T>& error, int64_t begin, int64_t length,
               double* out) {
  if (length == 0) return;
  if (error.x == nullptr) {
    std::fill_n(out, length, 0.0);
    return;
  }
  int64_t from = error.offset + begin;
  const int64_t end = from + length;
  if (error.product.r == 0) {
    std::copy_n(error.x + from, length, out);
    return;
  }
  while (from < end) {
    const int64_t row = from / error.m;
    const int64_t column = from % error.m;
    const bool whole_rows = column == 0 && end - from >= error.m;
    const int64_t rows = whole_rows ? (end - from) / error.m : 1;
    const int64_t columns =
        whole_rows ? error.m : std::min(end - from, error.m - column);
    ReadBlock(error, row, rows, column, columns, out);
    from += rows * columns;
    out += rows * columns;
  }
}

template <typename T>
ErrorView<T> ErrorViewOf(const LowRankTensor<T>& tensor) {
  return ViewOf(tensor.now, tensor);
}

template <typename T>
void DropOverflow(LowRankTensor<T>& tensor) {
  const ErrorView<T> view = ViewOf(tensor.error(), tensor);
  if (view.x == nullptr) return;
  if (++tensor.overflows == kMaxOverflows) return DropError(tensor);
  LowRankMemory<T> repaired;
  repaired.has_error = true;
  repaired.x.Allocate(tensor.count);
  std::vector<double> piece(AsSize(std::min(kPieceOfState, tensor.count)));
  int64_t dropped = 0;
  for (int64_t begin = 0; begin < tensor.count; begin += kPieceOfState) {
    const int64_t length = std::min(kPieceOfState, tensor.count - begin);
    ReadError(view, begin, length, piece.data());
    for (int64_t i = 0; i < length; ++i) {
      const double value = piece[AsSize(i)];
      const bool sound = std::isfinite(value);
      repaired.x.data()[begin + i] = sound ? static_cast<T>(value) : T{0};
      dropped += sound ? 0 : 1;
    }
  }
  if (dropped == 0) return;
  LogWarning("error_overflowed",
             {{"tensor", tensor.name}, {"elements_dropped", dropped}});
  tensor.mended = std::move(repaired);
}

absl::Status SaveErrors(const std::vector<ErrorSource>& sources,
                        Communicator& communicator, HookState& state) {
  std::vector<const ParameterSpec*> parameters;
  for (const ErrorSource& source : sources) {
    parameters.push_back(source.parameter);
  }
  const std::vector<int> owners = ShardOwners(parameters, communicator.size());
  COXSWAIN_ASSIGN_OR_RETURN(const std::vector<bool> any,
                            AnyError(sources, communicator));
  for (size_t i = 0; i < sources.size(); ++i) {
    if (!any[i]) continue;
    const ParameterSpec& parameter = *parameters[i];
    const bool keep = owners[i] == communicator.rank();
    COXSWAIN_ASSIGN_OR_RETURN(std::string bytes,
                              std::visit(
                                  [&](const auto& error) {
                                    return MeanError(error, parameter.count(),
                                                     keep, communicator);
                                  },
                                  sources[i].error));
    if (!keep) continue;
    const bool wide = parameter.dtype == DType::kFloat64;
    state.tensors.push_back({kErrorKind, parameter.name, parameter.shape,
                             wide ? DType::kFloat64 : DType::kFloat32,
                             std::move(bytes)});
  }
  return absl::OkStatus();
}

std::vector<int> ShardOwners(
    const std::vector<const ParameterSpec*>& parameters, int world_size) {
  std::vector<double> sizes;
  double total = 0;
  for (const ParameterSpec* parameter : parameters) {
    const bool wide = parameter->dtype == DType::kFloat64;
    sizes.push_back(static_cast<double>(parameter->count()) * (wide ? 8 : 4));
    total += sizes.back();
  }
  std::vector<int> owners;
  double before = 0;
  for (const double bytes : sizes) {
    const double middle = before + bytes / 2;
    const double share = total > 0 ? middle * world_size / total : 0;
    owners.push_back(std::min(static_cast<int>(share), world_size - 1));
    before += bytes;
  }
  return owners;
}

template <typename T>
StateTensor MakeStateTensor(absl::string_view kind, absl::string_view parameter,
                            std::vector<int64_t> shape,
                            const std::vector<T>& values) {
  return {std::string(kind), std::string(parameter), std::move(shape),
          kDTypeOf<T>,
          std::string(reinterpret_cast<const char*>(values.data()),
                      values.size() * sizeof(T))};
}

template ErrorView<float> ErrorViewOf<float>(const LowRankTensor<float>&);
template ErrorView<double> ErrorViewOf<double>(const LowRankTensor<double>&);
template void DropOverflow<float>(LowRankTensor<float>&);
template void DropOverflow<double>(LowRankTensor<double>&);
template void ReadError<float>(const ErrorView<float>&, int64_t, int64_t,
                               double*);
template void ReadError<double>(const ErrorView<double>&, int64_t, int64_t,
                                double*);
template StateTensor MakeStateTensor<float>(absl::string_view,
                                            absl::string_view,
                                            std::vector<int64_t>,
                                            const std::vector<float>&);
template StateTensor MakeStateTensor<double>(absl::string_view,
                                             absl::string_view,
                                             std::vector<int64_t>,
                                             const std::vector<double>&);

template <typename T>
StateTensor MakeOwnError(const char* kind, const LowRankTensor<T>& tensor) {
  const LowRankMemory<T>& now = tensor.now;
  StateTensor saved;
  saved.kind = kind;
  saved.parameter = tensor.name;
  saved.dtype = kDTypeOf<T>;
  saved.shape = {tensor.count +
                 static_cast<int64_t>(now.error_p.size() + now.error_q.size())};
  Append(now.x.data(), AsSize(tensor.count), saved.data);
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
