#include "hooks/low_rank/powersgd_state.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "base/status_macros.h"
#include "hooks/kernels/kernels.h"

namespace coxswain {
namespace {

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
              "StateTensor holds little-endian bytes");

constexpr char kError[] = "error";
constexpr char kQ[] = "q";
constexpr char kParameters[] = "parameters";
// Means are computed piece by piece, to bound the memory.
constexpr int64_t kPiece = 1 << 20;
// The back end's own timeout comes first.
constexpr absl::Duration kCollectiveTimeout = absl::Minutes(30);
constexpr size_t kMaxDifferences = 8;

// Options that may change between saving and loading.
bool MayChange(absl::string_view option) {
  return option == "start_step" || option == "orthogonalization_epsilon";
}

using Lines = std::map<std::string, std::string>;

// Each parameter's type and shape, by name.
Lines Describe(const std::vector<ParameterSpec>& parameters) {
  Lines lines;
  for (const ParameterSpec& parameter : parameters) {
    lines[parameter.name] = absl::StrCat(
        NameOf(parameter.dtype), "[", absl::StrJoin(parameter.shape, ","), "]");
  }
  return lines;
}

std::string JoinLines(const Lines& lines) {
  return absl::StrJoin(lines, "\n", absl::PairFormatter(" "));
}

// The type is what follows the last space: a name may contain spaces.
Lines SplitLines(absl::string_view text) {
  Lines lines;
  for (absl::string_view line : absl::StrSplit(text, '\n', absl::SkipEmpty())) {
    const size_t space = std::min(line.rfind(' '), line.size());
    lines[std::string(line.substr(0, space))] =
        std::string(line.substr(std::min(space + 1, line.size())));
  }
  return lines;
}

void Compare(absl::string_view what, const Lines& saved, const Lines& here,
             std::vector<std::string>& differences) {
  for (const auto& [name, value] : saved) {
    const auto found = here.find(name);
    if (found == here.end()) {
      differences.push_back(
          absl::StrCat(what, " ", name, " (", value, ") only in the state"));
    } else if (found->second != value) {
      differences.push_back(absl::StrCat(what, " ", name, ": saved ", value,
                                         ", here ", found->second));
    }
  }
  for (const auto& [name, value] : here) {
    if (saved.find(name) == saved.end()) {
      differences.push_back(
          absl::StrCat(what, " ", name, " (", value, ") not in the state"));
    }
  }
}

absl::Status Mismatch(std::vector<std::string> differences) {
  const size_t count = differences.size();
  if (count > kMaxDifferences) {
    differences.resize(kMaxDifferences);
    differences.push_back(
        absl::StrCat("and ", count - kMaxDifferences, " more"));
  }
  return absl::FailedPreconditionError(
      absl::StrCat("the saved powersgd state does not fit: ",
                   absl::StrJoin(differences, "; ")));
}

// The rank that keeps each matrix's mean error: runs of parameters in
// registration order, of about equal bytes.
std::map<std::string, int> ShardOwners(
    const std::vector<ParameterSpec>& parameters,
    const AllLowRankMatrices& matrices, int world_size) {
  std::vector<std::pair<const std::string*, double>> sizes;
  double total = 0;
  for (const ParameterSpec& parameter : parameters) {
    if (std::get<0>(matrices).count(parameter.name) == 0 &&
        std::get<1>(matrices).count(parameter.name) == 0) {
      continue;
    }
    const bool wide = parameter.dtype == DType::kFloat64;
    sizes.emplace_back(&parameter.name,
                       static_cast<double>(parameter.count()) * (wide ? 8 : 4));
    total += sizes.back().second;
  }
  std::map<std::string, int> owners;
  double before = 0;
  for (const auto& [name, bytes] : sizes) {
    const double middle = before + bytes / 2;
    owners[*name] =
        std::min(static_cast<int>(middle * world_size / total), world_size - 1);
    before += bytes;
  }
  return owners;
}

// Sums in place over the ranks. The memory is kept until the back end is done
// with it, whatever this wait comes to.
absl::Status Sum(const std::shared_ptr<std::vector<double>>& values,
                 Communicator& communicator) {
  const Span span{values->data(), static_cast<int64_t>(values->size()),
                  DType::kFloat64, Device()};
  const WorkPtr work = communicator.AllReduce(span);
  work->OnDone([values](const absl::Status&) {});
  return work->Wait(kCollectiveTimeout);
}

template <typename T>
void AppendValues(const std::vector<double>& values, std::string& bytes) {
  for (const double value : values) {
    const T narrow = static_cast<T>(value);
    bytes.append(reinterpret_cast<const char*>(&narrow), sizeof(narrow));
  }
}

// Collective. The bytes of the mean error; empty if this rank is not to keep
// it.
template <typename T>
absl::StatusOr<std::string> MeanError(const LowRankMatrix<T>& matrix, bool keep,
                                      Communicator& communicator) {
  std::string bytes;
  const int64_t count = matrix.n * matrix.m;
  for (int64_t offset = 0; offset < count; offset += kPiece) {
    const int64_t length = std::min(kPiece, count - offset);
    auto piece =
        std::make_shared<std::vector<double>>(static_cast<size_t>(length), 0.0);
    if (!matrix.error.empty()) {
      std::copy_n(matrix.error.begin() + offset, length, piece->begin());
    }
    COXSWAIN_RETURN_IF_ERROR(Sum(piece, communicator));
    if (!keep) continue;
    Divide(piece->data(), length, communicator.size());
    AppendValues<T>(*piece, bytes);
  }
  return bytes;
}

template <typename T>
void SaveQ(const LowRankMatrix<T>& matrix, HookState& state) {
  if (matrix.q.empty()) return;
  std::string bytes(reinterpret_cast<const char*>(matrix.q.data()),
                    matrix.q.size() * sizeof(T));
  state.tensors.push_back(
      {kQ, matrix.name, {matrix.r, matrix.m}, kDTypeOf<T>, std::move(bytes)});
}

// Which matrices have an error on any rank, in order of name. Collective.
template <typename T>
absl::StatusOr<std::vector<bool>> AnyError(const LowRankMatrices<T>& matrices,
                                           Communicator& communicator) {
  auto flags = std::make_shared<std::vector<double>>();
  for (const auto& [name, matrix] : matrices) {
    flags->push_back(matrix.error.empty() ? 0 : 1);
  }
  if (!flags->empty()) COXSWAIN_RETURN_IF_ERROR(Sum(flags, communicator));
  std::vector<bool> any;
  for (const double flag : *flags) any.push_back(flag != 0);
  return any;
}

template <typename T>
absl::Status SaveMatrices(const LowRankMatrices<T>& matrices,
                          const std::map<std::string, int>& owners,
                          Communicator& communicator, HookState& state) {
  COXSWAIN_ASSIGN_OR_RETURN(const std::vector<bool> any,
                            AnyError(matrices, communicator));
  size_t index = 0;
  for (const auto& [name, matrix] : matrices) {
    if (communicator.rank() == 0) SaveQ(matrix, state);
    if (!any[index++]) continue;
    const bool keep = owners.at(name) == communicator.rank();
    COXSWAIN_ASSIGN_OR_RETURN(std::string bytes,
                              MeanError(matrix, keep, communicator));
    if (!keep) continue;
    state.tensors.push_back(
        {kError, name, matrix.shape, kDTypeOf<T>, std::move(bytes)});
  }
  return absl::OkStatus();
}

absl::Status CheckFits(const HookState& state, const Lines& parameters,
                       const std::map<std::string, std::string>& options) {
  const auto listed = state.options.find(kParameters);
  if (listed == state.options.end()) {
    return Mismatch(
        {"it does not list its parameters (one rank's shard of a "
         "state has to be merged with the others)"});
  }
  std::vector<std::string> differences;
  Lines saved = state.options;
  saved.erase(kParameters);
  Lines here = options;
  for (const auto& [name, value] : options) {
    if (!MayChange(name)) continue;
    saved.erase(name);
    here.erase(name);
  }
  Compare("option", saved, here, differences);
  Compare("parameter", SplitLines(listed->second), parameters, differences);
  return differences.empty() ? absl::OkStatus()
                             : Mismatch(std::move(differences));
}

absl::Status Unfit(const StateTensor& tensor, absl::string_view why) {
  return Mismatch({absl::StrCat("its tensor '", tensor.kind, "' of ",
                                tensor.parameter, " ", why)});
}

template <typename T>
absl::StatusOr<std::vector<T>> ReadValues(const StateTensor& tensor,
                                          const std::vector<int64_t>& shape,
                                          int64_t count) {
  if (tensor.dtype != kDTypeOf<T> || tensor.shape != shape ||
      tensor.data.size() != static_cast<size_t>(count) * sizeof(T)) {
    return Unfit(tensor, absl::StrCat("is ", tensor.data.size(), " bytes of ",
                                      NameOf(tensor.dtype), "[",
                                      absl::StrJoin(tensor.shape, ","),
                                      "], expected ", NameOf(kDTypeOf<T>), "[",
                                      absl::StrJoin(shape, ","), "]"));
  }
  std::vector<T> values(static_cast<size_t>(count));
  std::memcpy(values.data(), tensor.data.data(), tensor.data.size());
  if (CountNonFinite(values.data(), count) != 0) {
    return Unfit(tensor, "holds values that are not finite");
  }
  return values;
}

// `share` is what this rank's error is of the mean: 0, or the world size.
template <typename T>
absl::Status LoadTensor(const StateTensor& tensor, int share,
                        LowRankMatrix<T>& matrix) {
  if (tensor.kind == kQ) {
    COXSWAIN_ASSIGN_OR_RETURN(
        matrix.q,
        ReadValues<T>(tensor, {matrix.r, matrix.m}, matrix.m * matrix.r));
    return absl::OkStatus();
  }
  if (tensor.kind != kError) return Unfit(tensor, "is of an unknown kind");
  COXSWAIN_ASSIGN_OR_RETURN(
      std::vector<T> mean,
      ReadValues<T>(tensor, matrix.shape, matrix.n * matrix.m));
  if (share == 0) return absl::OkStatus();
  for (T& value : mean) value *= static_cast<T>(share);
  matrix.error = std::move(mean);
  return absl::OkStatus();
}

// The same matrices without error and Q.
template <typename T>
LowRankMatrices<T> Emptied(const LowRankMatrices<T>& matrices) {
  LowRankMatrices<T> emptied;
  for (const auto& [name, matrix] : matrices) {
    LowRankMatrix<T>& empty = emptied[name];
    empty.name = matrix.name;
    empty.shape = matrix.shape;
    empty.n = matrix.n;
    empty.m = matrix.m;
    empty.r = matrix.r;
  }
  return emptied;
}

}  // namespace

absl::StatusOr<HookState> SavePowerSgdState(
    const std::vector<ParameterSpec>& parameters,
    const AllLowRankMatrices& matrices,
    std::map<std::string, std::string> options, Communicator& communicator) {
  HookState state;
  if (communicator.rank() == 0) {
    state.options = std::move(options);
    state.options[kParameters] = JoinLines(Describe(parameters));
  }
  const auto owners = ShardOwners(parameters, matrices, communicator.size());
  COXSWAIN_RETURN_IF_ERROR(
      SaveMatrices(std::get<0>(matrices), owners, communicator, state));
  COXSWAIN_RETURN_IF_ERROR(
      SaveMatrices(std::get<1>(matrices), owners, communicator, state));
  return state;
}

absl::StatusOr<AllLowRankMatrices> LoadPowerSgdState(
    const HookState& state, const std::vector<ParameterSpec>& parameters,
    const AllLowRankMatrices& matrices,
    const std::map<std::string, std::string>& options, int rank,
    int world_size) {
  COXSWAIN_RETURN_IF_ERROR(CheckFits(state, Describe(parameters), options));
  const auto owners = ShardOwners(parameters, matrices, world_size);
  AllLowRankMatrices loaded(Emptied(std::get<0>(matrices)),
                            Emptied(std::get<1>(matrices)));
  auto& floats = std::get<0>(loaded);
  auto& doubles = std::get<1>(loaded);
  std::set<std::pair<std::string, std::string>> seen;
  for (const StateTensor& tensor : state.tensors) {
    if (!seen.insert({tensor.kind, tensor.parameter}).second) {
      return Unfit(tensor, "is there twice");
    }
    const auto owner = owners.find(tensor.parameter);
    if (owner == owners.end()) {
      return Unfit(tensor, "belongs to no compressed parameter");
    }
    const int share = owner->second == rank ? world_size : 0;
    const auto found = floats.find(tensor.parameter);
    COXSWAIN_RETURN_IF_ERROR(
        found != floats.end()
            ? LoadTensor(tensor, share, found->second)
            : LoadTensor(tensor, share, doubles.at(tensor.parameter)));
  }
  return loaded;
}

}  // namespace coxswain
