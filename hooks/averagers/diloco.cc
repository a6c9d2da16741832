#include "hooks/averagers/diloco.h"

#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "hooks/averagers/mean.h"
#include "hooks/averagers/stepped_averager.h"
#include "hooks/narrow.h"
#include "hooks/parameter_state.h"

namespace coxswain {
namespace {

constexpr char kOuter[] = "outer";
constexpr char kMomentum[] = "outer_momentum";

struct OuterOptimizer {
  int64_t inner_steps = 100;
  double lr = 0.7;
  double momentum = 0.9;
  bool nesterov = true;
};

// What is kept of one parameter; T is float or double.
template <typename T>
struct OuterTensor {
  std::vector<T> values;
  std::vector<T> momentum;
};

// By parameter number.
template <typename T>
using OuterTensors = std::map<size_t, OuterTensor<T>>;

// to = outer - to.
template <typename T>
void SubtractFrom(const std::vector<T>& outer, T* to) {
  for (size_t i = 0; i < outer.size(); ++i) to[i] = outer[i] - to[i];
}

template <typename T>
void OuterStep(const OuterOptimizer& optimizer, const T* gradient,
               OuterTensor<T>& outer) {
  const T mu = static_cast<T>(optimizer.momentum);
  const T lr = static_cast<T>(optimizer.lr);
  T* values = outer.values.data();
  T* momentum = outer.momentum.data();
  const size_t count = outer.values.size();
  for (size_t i = 0; i < count; ++i) {
    momentum[i] = mu * momentum[i] + gradient[i];
    const T direction =
        optimizer.nesterov ? gradient[i] + mu * momentum[i] : momentum[i];
    values[i] -= lr * direction;
  }
}

class Diloco : public SteppedAverager {
 public:
  Diloco(std::string spec, int64_t start_step, const OuterOptimizer& optimizer)
      : SteppedAverager(std::move(spec), start_step), optimizer_(optimizer) {}

 protected:
  bool Exchanges(int64_t call) const override {
    return (call + 1 - start_step()) % optimizer_.inner_steps == 0;
  }

  absl::Status Connect(const std::vector<ParameterSpec>& before,
                       const std::vector<Span>& values) override {
    if (step() < start_step()) return absl::OkStatus();
    Follow(before, values, floats_);
    Follow(before, values, doubles_);
    return absl::OkStatus();
  }

  void EndStep(const std::vector<Span>& values) override {
    if (step() == start_step()) Capture(values);
  }

  absl::Status Unite(const std::vector<Span>& values) override {
    // The differences replace the values where these are as wide, as they are
    // overwritten in the end anyway.
    std::vector<Span> differences = values;
    std::vector<std::shared_ptr<float>> memory;
    for (auto& [i, outer] : floats_) {
      if (values[i].dtype != DType::kFloat32) {
        memory.push_back(scratch().Take<float>(outer.values.size()));
        differences[i].data = memory.back().get();
        differences[i].dtype = DType::kFloat32;
        ReadSpan(values[i], memory.back().get());
      }
      SubtractFrom(outer.values, static_cast<float*>(differences[i].data));
    }
    for (auto& [i, outer] : doubles_) {
      SubtractFrom(outer.values, static_cast<double*>(differences[i].data));
    }
    COXSWAIN_RETURN_IF_ERROR(AverageOver(world(), differences, scratch()));
    Apply(differences, values, floats_);
    Apply(differences, values, doubles_);
    return absl::OkStatus();
  }

  void SaveTensors(int rank, int world_size, HookState& state) const override {
    Save(rank, world_size, floats_, state);
    Save(rank, world_size, doubles_, state);
  }

  absl::Status LoadTensors(const HookState& state) override {
    OuterTensors<float> floats;
    OuterTensors<double> doubles;
    if (state.step >= start_step()) {
      std::map<std::pair<std::string, std::string>, const StateTensor*> saved;
      for (const StateTensor& tensor : state.tensors) {
        saved[{tensor.kind, tensor.parameter}] = &tensor;
      }
      for (size_t i = 0; i < parameters().size(); ++i) {
        const std::string& name = parameters()[i].name;
        const StateTensor* outer = saved[{kOuter, name}];
        const StateTensor* momentum = saved[{kMomentum, name}];
        COXSWAIN_RETURN_IF_ERROR(
            parameters()[i].dtype == DType::kFloat64
                ? Load(parameters()[i], outer, momentum, doubles[i])
                : Load(parameters()[i], outer, momentum, floats[i]));
      }
    }
    floats_ = std::move(floats);
    doubles_ = std::move(doubles);
    return absl::OkStatus();
  }

 private:
  // Renumbers what was kept of `before` as the parameters are now. What the
  // model has got since, or what was set to other values while the ranks
  // agreed, begins anew from its values.
  template <typename T>
  void Follow(const std::vector<ParameterSpec>& before,
              const std::vector<Span>& values, OuterTensors<T>& tensors) const {
    std::map<std::string, size_t> numbers;
    for (size_t i = 0; i < before.size(); ++i) numbers[before[i].name] = i;
    OuterTensors<T> kept;
    for (size_t i = 0; i < values.size(); ++i) {
      if ((values[i].dtype == DType::kFloat64) != std::is_same_v<T, double>) {
        continue;
      }
      const auto number = numbers.find(parameters()[i].name);
      const auto found = number == numbers.end() ||
                                 !Same(before[number->second], parameters()[i])
                             ? tensors.end()
                             : tensors.find(number->second);
      if (found != tensors.end() &&
          (diverged() || StandsIn(found->second, values[i]))) {
        kept[i] = std::move(found->second);
      } else {
        Begin(values[i], kept[i]);
      }
    }
    tensors = std::move(kept);
  }

  static bool Same(const ParameterSpec& a, const ParameterSpec& b) {
    return a.name == b.name && a.shape == b.shape && a.dtype == b.dtype;
  }

  // Whether these values are the outer ones, rounded to their type.
  template <typename T>
  static bool StandsIn(const OuterTensor<T>& outer, const Span& value) {
    std::string rounded(static_cast<size_t>(value.bytes()), '\0');
    Span span = value;
    span.data = rounded.data();
    WriteSpan(outer.values.data(), span);
    return rounded.empty() ||
           std::memcmp(rounded.data(), value.data, rounded.size()) == 0;
  }

  // The ranks agree on these values.
  void Capture(const std::vector<Span>& values) {
    floats_.clear();
    doubles_.clear();
    for (size_t i = 0; i < values.size(); ++i) {
      if (values[i].dtype == DType::kFloat64) {
        Begin(values[i], doubles_[i]);
      } else {
        Begin(values[i], floats_[i]);
      }
    }
  }

  template <typename T>
  static void Begin(const Span& value, OuterTensor<T>& outer) {
    outer.values.resize(static_cast<size_t>(value.count));
    outer.momentum.resize(outer.values.size());
    ReadSpan(value, outer.values.data());
  }

  template <typename T>
  void Apply(const std::vector<Span>& gradients,
             const std::vector<Span>& values, OuterTensors<T>& tensors) const {
    for (auto& [i, outer] : tensors) {
      OuterStep(optimizer_, static_cast<const T*>(gradients[i].data), outer);
      WriteSpan(outer.values.data(), values[i]);
    }
  }

  template <typename T>
  void Save(int rank, int world_size, const OuterTensors<T>& tensors,
            HookState& state) const {
    for (const auto& [i, outer] : tensors) {
      if (static_cast<int>(i % static_cast<size_t>(world_size)) != rank) {
        continue;
      }
      const auto add = [&, number = i](const char* kind,
                                       const std::vector<T>& values) {
        StateTensor tensor;
        tensor.kind = kind;
        tensor.parameter = parameters()[number].name;
        tensor.shape = parameters()[number].shape;
        tensor.dtype = kDTypeOf<T>;
        tensor.data.assign(reinterpret_cast<const char*>(values.data()),
                           values.size() * sizeof(T));
        state.tensors.push_back(std::move(tensor));
      };
      add(kOuter, outer.values);
      add(kMomentum, outer.momentum);
    }
  }

  template <typename T>
  absl::Status Load(const ParameterSpec& parameter, const StateTensor* outer,
                    const StateTensor* momentum, OuterTensor<T>& to) const {
    COXSWAIN_RETURN_IF_ERROR(LoadValues(parameter, kOuter, outer, to.values));
    return LoadValues(parameter, kMomentum, momentum, to.momentum);
  }

  template <typename T>
  absl::Status LoadValues(const ParameterSpec& parameter, const char* kind,
                          const StateTensor* tensor,
                          std::vector<T>& values) const {
    if (tensor == nullptr) {
      return StateMismatch(
          spec(), absl::StrCat("it has no '", kind, "' of ", parameter.name,
                               "; was it saved with a later start_step?"));
    }
    COXSWAIN_ASSIGN_OR_RETURN(values,
                              ReadTensor<T>(spec(), *tensor, parameter.shape));
    return absl::OkStatus();
  }

  const OuterOptimizer optimizer_;
  // Empty before start_step.
  OuterTensors<float> floats_;
  OuterTensors<double> doubles_;
};

OuterOptimizer OptimizerOf(const OptionValues& options) {
  OuterOptimizer optimizer;
  optimizer.inner_steps = options.Int("inner_steps");
  optimizer.lr = options.Double("outer_lr");
  optimizer.momentum = options.Double("outer_momentum");
  optimizer.nesterov = options.Bool("nesterov");
  return optimizer;
}

}  // namespace

HookRow DilocoRow() {
  HookRow row;
  row.description.name = "diloco";
  row.description.help =
      "long runs of local steps, then one Nesterov step on their mean";
  row.description.options = {
      IntOption("inner_steps", 100, 1, 1'000'000'000,
                "local optimizer steps per outer step"),
      DoubleOption("outer_lr", 0.7, 0, 1000, "learning rate of the outer step"),
      DoubleOption("outer_momentum", 0.9, 0, 1, "momentum of the outer step"),
      BoolOption("nesterov", true, "whether the momentum is Nesterov's"),
      IntOption("start_step", 0, 0, 1'000'000'000,
                "steps that average gradients plainly over all ranks"),
  };
  row.description.card = {
      "gradients: N elements before the start, 0 after it; parameters: 4 bytes "
      "an element (8 of float64) every inner_steps steps",
      "gradients: 1 all-reduce before the start, 0 after it; parameters: 1 "
      "all-reduce per 4 Mi elements every inner_steps steps",
      "outer parameters and momentum, 4 bytes an element each (8 of float64), "
      "4 more for 16-bit parameters, and two chunks of 4 Mi elements from the "
      "first average on",
      "the ranks hold different parameters in between; float32 (float64 for "
      "float64) outer state, divided before the sum",
      "on a network that can carry an exchange per step; with few steps in "
      "all: the outer momentum needs tens of outer steps",
  };
  row.make = [](std::string spec, OptionValues options, std::unique_ptr<Hook>) {
    return MakeLocalGradientsHook(std::move(spec), options.Int("start_step"),
                                  /*group=*/1);
  };
  row.make_averager = [](std::string spec, const OptionValues& options) {
    return std::make_unique<Diloco>(std::move(spec), options.Int("start_step"),
                                    OptimizerOf(options));
  };
  return row;
}

}  // namespace coxswain
