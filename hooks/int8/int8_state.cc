#include "hooks/int8/int8_state.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/logging.h"
#include "base/status_macros.h"
#include "hooks/narrow.h"
#include "hooks/parameter_state.h"

namespace coxswain {
namespace {

constexpr char kHook[] = "int8";
constexpr char kError[] = "error";
constexpr char kSlice[] = "slice";
constexpr char kOwnError[] = "own_error";
constexpr char kOwnAverage[] = "own_average/";
constexpr char kParameters[] = "parameters";
constexpr char kWorldSize[] = "world_size";

template <typename T>
void AppendBytes(const T* values, size_t count, std::string& bytes) {
  bytes.append(reinterpret_cast<const char*>(values), count * sizeof(T));
}

template <typename T>
void SaveErrors(const Int8Parameters<T>& parameters, int rank, int world_size,
                HookState& state) {
  for (const auto& [name, one] : parameters) {
    const Int8Errors<T>& errors = one.current;
    std::vector<T> error = Folded(errors, one.count, world_size);
    error.resize(static_cast<size_t>(one.count), T{0});
    StateTensor tensor{absl::StrCat(kError, "/", rank), name, one.shape,
                       kDTypeOf<T>, ""};
    AppendBytes(error.data(), error.size(), tensor.data);
    state.tensors.push_back(std::move(tensor));
    const size_t count = errors.average.size();
    if (count == 0) continue;
    StateTensor slice{absl::StrCat(kSlice, "/", rank, "/", errors.begin),
                      name,
                      {2, static_cast<int64_t>(count)},
                      kDTypeOf<T>,
                      ""};
    AppendBytes(errors.local.data() + errors.begin, count, slice.data);
    AppendBytes(errors.average.data(), count, slice.data);
    state.tensors.push_back(std::move(slice));
  }
}

// What a tensor's kind says.
struct Kind {
  bool slice = false;
  int from = 0;       // the rank that saved it
  int64_t begin = 0;  // of a slice
};

absl::StatusOr<Kind> ParseKind(const StateTensor& tensor, int saved) {
  const std::vector<std::string> words = absl::StrSplit(tensor.kind, '/');
  Kind kind;
  kind.slice = words[0] == kSlice;
  const bool sound = words.size() == (kind.slice ? 3u : 2u) &&
                     (kind.slice || words[0] == kError) &&
                     absl::SimpleAtoi(words[1], &kind.from) && kind.from >= 0 &&
                     kind.from < saved &&
                     (!kind.slice || absl::SimpleAtoi(words[2], &kind.begin));
  if (sound) return kind;
  return UnfitTensor(
      kHook, tensor,
      absl::StrCat("is of no kind of a state that ", saved, " ranks saved"));
}

// Puts a state's tensors together for one rank: first all errors, then what
// Complete does, then the slices.
class Loader {
 public:
  // `saved` ranks saved the state.
  Loader(int rank, int world_size, int saved)
      : rank_(rank), same_(world_size == saved), saved_(saved) {}

  template <typename T>
  absl::Status AddError(const StateTensor& tensor, const Kind& kind,
                        Int8Parameter<T>& one) {
    COXSWAIN_ASSIGN_OR_RETURN(const std::vector<T> values,
                              ReadTensor<T>(kHook, tensor, one.shape));
    if (!ranks_[tensor.parameter].insert(kind.from).second) {
      return UnfitTensor(kHook, tensor, "is there twice");
    }
    if (same_ && kind.from != rank_) return absl::OkStatus();
    std::vector<T>& local = one.current.local;
    local.resize(values.size(), T{0});
    for (size_t i = 0; i < values.size(); ++i) local[i] += values[i];
    return absl::OkStatus();
  }

  template <typename T>
  absl::Status Complete(Int8Parameters<T>& parameters) {
    for (auto& [name, one] : parameters) {
      const size_t seen = ranks_[name].size();
      if (seen != 0 && seen != static_cast<size_t>(saved_)) {
        return absl::FailedPreconditionError(absl::StrCat(
            "the saved int8 state does not fit: it has the error of ", name,
            " of ", seen, " of ", saved_, " ranks"));
      }
      if (same_) continue;
      for (T& value : one.current.local) value /= static_cast<T>(saved_);
    }
    return absl::OkStatus();
  }

  template <typename T>
  absl::Status AddSlice(const StateTensor& tensor, const Kind& kind,
                        Int8Parameter<T>& one) {
    const int64_t count = tensor.shape.size() == 2 ? tensor.shape[1] : -1;
    const bool inside =
        kind.begin >= 0 && count >= 1 && kind.begin <= one.count - count;
    if (!inside || ranks_[tensor.parameter].empty()) {
      return UnfitTensor(kHook, tensor, "is no part of an error");
    }
    COXSWAIN_ASSIGN_OR_RETURN(const std::vector<T> values,
                              ReadTensor<T>(kHook, tensor, {2, count}));
    if (!slices_.insert({tensor.parameter, kind.from}).second) {
      return UnfitTensor(kHook, tensor, "is the second slice of that rank");
    }
    if (!same_ || kind.from != rank_) return absl::OkStatus();
    Int8Errors<T>& errors = one.current;
    std::copy_n(values.begin(), count, errors.local.begin() + kind.begin);
    errors.begin = kind.begin;
    errors.average.assign(values.begin() + count, values.end());
    return absl::OkStatus();
  }

 private:
  const int rank_;
  const bool same_;
  const int saved_;
  std::map<std::string, std::set<int>> ranks_;    // with an error, by parameter
  std::set<std::pair<std::string, int>> slices_;  // seen, by parameter and rank
};

// Hands each tensor of that sort to `add`, with its parameter.
template <typename Add>
absl::Status ForEachTensor(const HookState& state, int saved, bool slices,
                           AllInt8Parameters& loaded, const Add& add) {
  for (const StateTensor& tensor : state.tensors) {
    COXSWAIN_ASSIGN_OR_RETURN(const Kind kind, ParseKind(tensor, saved));
    if (kind.slice != slices) continue;
    auto& [floats, doubles] = loaded;
    const auto narrow = floats.find(tensor.parameter);
    const auto wide = doubles.find(tensor.parameter);
    if (narrow != floats.end()) {
      COXSWAIN_RETURN_IF_ERROR(add(tensor, kind, narrow->second));
    } else if (wide != doubles.end()) {
      COXSWAIN_RETURN_IF_ERROR(add(tensor, kind, wide->second));
    } else {
      return UnfitTensor(kHook, tensor, "belongs to no parameter");
    }
  }
  return absl::OkStatus();
}

// Returns what follows is of the state that one rank alone saves and takes
// over.

template <typename T>
StateTensor MakeTensor(std::string kind, const std::string& parameter,
                       std::vector<int64_t> shape,
                       const std::vector<T>& values) {
  StateTensor tensor;
  tensor.kind = std::move(kind);
  tensor.parameter = parameter;
  tensor.shape = std::move(shape);
  tensor.dtype = kDTypeOf<T>;
  tensor.data.assign(reinterpret_cast<const char*>(values.data()),
                     values.size() * sizeof(T));
  return tensor;
}

template <typename T>
void SaveOwnErrors(const Int8Parameters<T>& parameters, HookState& state) {
  for (const auto& [name, one] : parameters) {
    const Int8Errors<T>& errors = one.current;
    if (!errors.local.empty()) {
      state.tensors.push_back(
          MakeTensor(kOwnError, name, one.shape, errors.local));
    }
    if (errors.average.empty()) continue;
    state.tensors.push_back(MakeTensor(
        absl::StrCat(kOwnAverage, errors.begin), name,
        {static_cast<int64_t>(errors.average.size())}, errors.average));
  }
}

// Multiplying by 1 changes no bit.
template <typename T>
void Scale(double scale, std::vector<T>& values) {
  for (T& value : values) {
    value = static_cast<T>(scale * static_cast<double>(value));
  }
}

// Takes the tensors of a state over, one after the other.
class OwnLoader {
 public:
  // An average's share of a sum over the ranks was `saved` times its value and
  // will be `world_size` times.
  OwnLoader(double scale, int saved, int world_size)
      : scale_(scale), average_scale_(scale * saved / world_size) {}

  template <typename T>
  absl::Status Take(const StateTensor& tensor, Int8Parameter<T>& one) {
    absl::string_view kind = tensor.kind;
    const bool average = absl::ConsumePrefix(&kind, kOwnAverage);
    if (!seen_.insert({average, tensor.parameter}).second) {
      return UnfitTensor(kHook, tensor, "is there twice");
    }
    if (average) return TakeAverage(tensor, kind, one);
    if (kind == kOwnError) return TakeError(tensor, one);
    return UnfitTensor(kHook, tensor, "is of an unknown kind");
  }

 private:
  // Zeros with a scale of 0: whether there are errors is the same on all ranks.
  template <typename T>
  absl::Status TakeError(const StateTensor& tensor, Int8Parameter<T>& one) {
    COXSWAIN_ASSIGN_OR_RETURN(one.current.local,
                              ReadTensor<T>(kHook, tensor, one.shape));
    Scale(scale_, one.current.local);
    return absl::OkStatus();
  }

  template <typename T>
  absl::Status TakeAverage(const StateTensor& tensor, absl::string_view first,
                           Int8Parameter<T>& one) {
    int64_t begin = -1;
    const int64_t count = tensor.shape.size() == 1 ? tensor.shape[0] : -1;
    if (!absl::SimpleAtoi(first, &begin) || begin < 0 || count < 1 ||
        begin > one.count - count) {
      return UnfitTensor(kHook, tensor, "is no part of an error");
    }
    COXSWAIN_ASSIGN_OR_RETURN(std::vector<T> values,
                              ReadTensor<T>(kHook, tensor, {count}));
    if (scale_ == 0) return absl::OkStatus();
    Scale(average_scale_, values);
    one.current.begin = begin;
    one.current.average = std::move(values);
    return absl::OkStatus();
  }

  const double scale_;
  const double average_scale_;
  std::set<std::pair<bool, std::string>> seen_;
};

absl::Status TakeTensor(const StateTensor& tensor, OwnLoader& loader,
                        AllInt8Parameters& loaded) {
  auto& [floats, doubles] = loaded;
  const auto narrow = floats.find(tensor.parameter);
  if (narrow != floats.end()) return loader.Take(tensor, narrow->second);
  const auto wide = doubles.find(tensor.parameter);
  if (wide != doubles.end()) return loader.Take(tensor, wide->second);
  return UnfitTensor(kHook, tensor, "belongs to no parameter");
}

template <typename T>
double SquaresOf(const Int8Parameters<T>& parameters, int world_size) {
  double sum = 0;
  for (const auto& [name, one] : parameters) {
    const Int8Errors<T>& errors = one.current;
    const auto begin = static_cast<size_t>(errors.begin);
    const size_t end = begin + errors.average.size();
    for (size_t i = 0; i < errors.local.size(); ++i) {
      double value = static_cast<double>(errors.local[i]);
      if (i >= begin && i < end) {
        value += world_size * static_cast<double>(errors.average[i - begin]);
      }
      sum += value * value;
    }
  }
  return sum;
}

}  // namespace

absl::StatusOr<int> SavedWorldSize(const HookState& state) {
  int saved = 0;
  const auto found = state.options.find(kWorldSize);
  if (found != state.options.end() && absl::SimpleAtoi(found->second, &saved) &&
      saved >= 1) {
    return saved;
  }
  return absl::FailedPreconditionError(
      "the saved int8 state does not fit: it does not say how many ranks "
      "saved it");
}

HookState SaveInt8State(const std::vector<ParameterSpec>& parameters,
                        const AllInt8Parameters& current, bool with_errors,
                        std::map<std::string, std::string> options, int rank,
                        int world_size) {
  HookState state;
  if (rank == 0) {
    state.options = std::move(options);
    state.options[kWorldSize] = absl::StrCat(world_size);
    state.options[kParameters] = ParameterLines(parameters);
  }
  if (!with_errors) return state;
  SaveErrors(std::get<0>(current), rank, world_size, state);
  SaveErrors(std::get<1>(current), rank, world_size, state);
  return state;
}

absl::StatusOr<AllInt8Parameters> LoadInt8State(
    const HookState& state, const std::vector<ParameterSpec>& parameters,
    const AllInt8Parameters& current,
    const std::map<std::string, std::string>& options, int rank,
    int world_size) {
  COXSWAIN_RETURN_IF_ERROR(CheckStateFits(kHook, state, parameters, options,
                                          {"start_step", "block", kWorldSize}));
  COXSWAIN_ASSIGN_OR_RETURN(const int saved, SavedWorldSize(state));
  AllInt8Parameters loaded(WithoutErrors(std::get<0>(current)),
                           WithoutErrors(std::get<1>(current)));
  Loader loader(rank, world_size, saved);
  COXSWAIN_RETURN_IF_ERROR(ForEachTensor(
      state, saved, false, loaded,
      [&loader](const StateTensor& tensor, const Kind& kind, auto& one) {
        return loader.AddError(tensor, kind, one);
      }));
  COXSWAIN_RETURN_IF_ERROR(loader.Complete(std::get<0>(loaded)));
  COXSWAIN_RETURN_IF_ERROR(loader.Complete(std::get<1>(loaded)));
  COXSWAIN_RETURN_IF_ERROR(ForEachTensor(
      state, saved, true, loaded,
      [&loader](const StateTensor& tensor, const Kind& kind, auto& one) {
        return loader.AddSlice(tensor, kind, one);
      }));
  if (saved != world_size && rank == 0 && !state.tensors.empty()) {
    LogWarning("int8_errors_averaged",
               {{"saved_by_ranks", saved},
                {"ranks", world_size},
                {"effect",
                 "approximate: each rank goes on from the mean error; nothing "
                 "is lost, but steps are rounded to 8 bits otherwise than "
                 "those of an uninterrupted run"}});
  }
  return loaded;
}

HookState SaveOwnInt8State(const std::vector<ParameterSpec>& parameters,
                           const AllInt8Parameters& current,
                           std::map<std::string, std::string> options,
                           int world_size) {
  HookState state;
  state.options = std::move(options);
  state.options[kWorldSize] = absl::StrCat(world_size);
  state.options[kParameters] = ParameterLines(parameters);
  SaveOwnErrors(std::get<0>(current), state);
  SaveOwnErrors(std::get<1>(current), state);
  return state;
}

absl::StatusOr<AllInt8Parameters> LoadOwnInt8State(
    const HookState& state, const std::vector<ParameterSpec>& parameters,
    const AllInt8Parameters& current,
    const std::map<std::string, std::string>& options, int world_size,
    double scale) {
  COXSWAIN_RETURN_IF_ERROR(CheckStateFits(kHook, state, parameters, options,
                                          {"start_step", "block", kWorldSize}));
  COXSWAIN_ASSIGN_OR_RETURN(const int saved, SavedWorldSize(state));
  AllInt8Parameters loaded(WithoutErrors(std::get<0>(current)),
                           WithoutErrors(std::get<1>(current)));
  OwnLoader loader(scale, saved, world_size);
  for (const StateTensor& tensor : state.tensors) {
    COXSWAIN_RETURN_IF_ERROR(TakeTensor(tensor, loader, loaded));
  }
  return loaded;
}

double NormOf(const AllInt8Parameters& current, int world_size) {
  return std::sqrt(SquaresOf(std::get<0>(current), world_size) +
                   SquaresOf(std::get<1>(current), world_size));
}

}  // namespace coxswain
