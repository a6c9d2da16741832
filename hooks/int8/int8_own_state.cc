// What one rank alone saves of the int8 hook, and takes over.

#include <cmath>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/status_macros.h"
#include "hooks/int8/int8_state.h"
#include "hooks/narrow.h"
#include "hooks/parameter_state.h"

namespace coxswain {
namespace {

constexpr char kHook[] = "int8";
constexpr char kOwnError[] = "own_error";
constexpr char kOwnAverage[] = "own_average/";
constexpr char kWorldSize[] = "world_size";

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

HookState SaveOwnInt8State(const std::vector<ParameterSpec>& parameters,
                           const AllInt8Parameters& current,
                           std::map<std::string, std::string> options,
                           int world_size) {
  HookState state;
  state.options = std::move(options);
  state.options[kWorldSize] = absl::StrCat(world_size);
  state.options["parameters"] = ParameterLines(parameters);
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
