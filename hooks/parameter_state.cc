#include "hooks/parameter_state.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "hooks/kernels/elementwise.h"
#include "hooks/narrow.h"

namespace coxswain {
namespace {

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
              "StateTensor holds little-endian bytes");

constexpr char kParameters[] = "parameters";
constexpr size_t kMaxDifferences = 8;

using Lines = std::map<std::string, std::string>;

std::string TypeText(DType dtype, const std::vector<int64_t>& shape) {
  return absl::StrCat(NameOf(dtype), "[", absl::StrJoin(shape, ","), "]");
}

// Each parameter's type and shape, by name.
Lines Describe(const std::vector<ParameterSpec>& parameters) {
  Lines lines;
  for (const ParameterSpec& parameter : parameters) {
    lines[parameter.name] = TypeText(parameter.dtype, parameter.shape);
  }
  return lines;
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

absl::Status NoFit(absl::string_view hook, absl::string_view why) {
  return absl::FailedPreconditionError(
      absl::StrCat("the saved ", hook, " state does not fit: ", why));
}

// The first ones, each in a few words, and how many there are.
absl::Status Mismatch(absl::string_view hook,
                      std::vector<std::string> differences) {
  const size_t count = differences.size();
  if (count > kMaxDifferences) {
    differences.resize(kMaxDifferences);
    differences.push_back(
        absl::StrCat("and ", count - kMaxDifferences, " more"));
  }
  return NoFit(
      hook, absl::StrCat(count, count == 1 ? " difference: " : " differences: ",
                         absl::StrJoin(differences, "; "),
                         ". Resume with the model and the options that saved "
                         "it, or begin without its state"));
}

}  // namespace

absl::Status CheckParameters(const std::vector<ParameterSpec>& parameters,
                             int world_size) {
  if (world_size < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("a world has at least 1 rank, got ", world_size));
  }
  std::set<std::string> names;
  for (const ParameterSpec& parameter : parameters) {
    if (names.insert(parameter.name).second) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("two parameters are called '", parameter.name,
                     "'; a hook keeps its state by name"));
  }
  return absl::OkStatus();
}

absl::Status CheckSlots(const Bucket& bucket,
                        const std::vector<ParameterSpec>& parameters) {
  for (const GradientSlot& slot : bucket.gradients) {
    const auto number = static_cast<size_t>(slot.parameter);
    if (slot.parameter < 0 || number >= parameters.size()) {
      return absl::InvalidArgumentError(
          absl::StrCat("bucket ", bucket.index, " has a gradient of parameter ",
                       slot.parameter, ", the hook was configured with ",
                       parameters.size(), " parameters"));
    }
    const ParameterSpec& parameter = parameters[number];
    if (parameter.count() != slot.count ||
        parameter.dtype != bucket.data.dtype) {
      return absl::InvalidArgumentError(absl::StrCat(
          "bucket ", bucket.index, " has ", slot.count, " x ",
          NameOf(bucket.data.dtype), " for parameter '", parameter.name,
          "', which has ", parameter.count(), " x ", NameOf(parameter.dtype)));
    }
  }
  return absl::OkStatus();
}

std::string ParameterLines(const std::vector<ParameterSpec>& parameters) {
  return absl::StrJoin(Describe(parameters), "\n", absl::PairFormatter(" "));
}

absl::Status CheckStateFits(absl::string_view hook, const HookState& state,
                            const std::vector<ParameterSpec>& parameters,
                            const std::map<std::string, std::string>& options,
                            const std::set<std::string>& may_change) {
  const auto listed = state.options.find(kParameters);
  if (listed == state.options.end()) {
    return NoFit(hook,
                 "it does not list its parameters (one rank's shard of a state "
                 "has to be merged with the others)");
  }
  std::vector<std::string> differences;
  Lines saved = state.options;
  Lines here = options;
  saved.erase(kParameters);
  here.erase(kParameters);
  for (const std::string& name : may_change) {
    saved.erase(name);
    here.erase(name);
  }
  Compare("option", saved, here, differences);
  Compare("parameter", SplitLines(listed->second), Describe(parameters),
          differences);
  return differences.empty() ? absl::OkStatus()
                             : Mismatch(hook, std::move(differences));
}

absl::Status UnfitTensor(absl::string_view hook, const StateTensor& tensor,
                         absl::string_view why) {
  return NoFit(hook, absl::StrCat("its tensor '", tensor.kind, "' of ",
                                  tensor.parameter, " ", why));
}

template <typename T>
absl::StatusOr<std::vector<T>> ReadTensor(absl::string_view hook,
                                          const StateTensor& tensor,
                                          const std::vector<int64_t>& shape) {
  int64_t bytes = sizeof(T);
  bool sound = tensor.dtype == kDTypeOf<T> && tensor.shape == shape;
  for (const int64_t extent : shape) {
    sound =
        sound && extent >= 0 && !__builtin_mul_overflow(bytes, extent, &bytes);
  }
  if (!sound || tensor.data.size() != static_cast<size_t>(bytes)) {
    return UnfitTensor(
        hook, tensor,
        absl::StrCat("is ", tensor.data.size(), " bytes of ",
                     TypeText(tensor.dtype, tensor.shape), ", expected ",
                     TypeText(kDTypeOf<T>, shape)));
  }
  const auto count = bytes / static_cast<int64_t>(sizeof(T));
  std::vector<T> values(static_cast<size_t>(count));
  if (count > 0) {
    std::memcpy(values.data(), tensor.data.data(), tensor.data.size());
  }
  if (CountNonFinite(values.data(), count) != 0) {
    return UnfitTensor(hook, tensor, "holds values that are not finite");
  }
  return values;
}

template absl::StatusOr<std::vector<float>> ReadTensor<float>(
    absl::string_view, const StateTensor&, const std::vector<int64_t>&);
template absl::StatusOr<std::vector<double>> ReadTensor<double>(
    absl::string_view, const StateTensor&, const std::vector<int64_t>&);

}  // namespace coxswain
