#include "client/torch/python_optimizer.h"

#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/status_macros.h"
#include "client/resume/tensor_bytes.h"
#include "client/torch/module_tensors.h"

namespace coxswain::torch {
namespace {

using ::torch::Tensor;

constexpr absl::string_view kMagic = "CXPY0001";
constexpr char kRates[] = "learning_rates";
// A step count is a number of 32 bits in Python.
constexpr char kStep[] = "step";
constexpr char kStepForm[] = "Float []";

using States = std::vector<std::map<std::string, SavedTensor>>;

// What Python has saved: by parameter, in order, and name.
struct PythonState {
  std::string kind;
  States states;
  std::vector<double> rates;
};

absl::Status Differs(absl::string_view what) {
  return absl::FailedPreconditionError(absl::StrCat(
      "the optimizer's state was saved by a program in Python, and ", what));
}

// Takes a text off the front, after its length.
absl::StatusOr<std::string> TakeText(absl::string_view* bytes) {
  uint64_t size = 0;
  if (bytes->size() >= sizeof(size)) {
    std::memcpy(&size, bytes->data(), sizeof(size));
    bytes->remove_prefix(sizeof(size));
    if (size <= bytes->size()) {
      const std::string text(bytes->substr(0, size));
      bytes->remove_prefix(size);
      return text;
    }
  }
  return absl::DataLossError("an optimizer's state from Python is cut short");
}

// Puts a tensor into its place by its name, "7/state/0/exp_avg".
absl::Status Place(const std::string& name, const SavedTensor& saved,
                   PythonState* state) {
  const std::vector<std::string> path = absl::StrSplit(name, '/');
  size_t parameter = 0;
  if (path.size() == 4 && path[1] == "state" &&
      absl::SimpleAtoi(path[2], &parameter) &&
      parameter < state->states.size()) {
    state->states[parameter][path[3]] = saved;
    return absl::OkStatus();
  }
  if (path.size() != 2 || path[1] != kRates) {
    return Differs(absl::StrCat("has '", name,
                                "', which this optimizer has no place for"));
  }
  state->rates.resize(saved.elements.size() / sizeof(double));
  if (!state->rates.empty()) {
    std::memcpy(state->rates.data(), saved.elements.data(),
                state->rates.size() * sizeof(double));
  }
  return absl::OkStatus();
}

absl::StatusOr<PythonState> Parse(absl::string_view bytes, size_t parameters) {
  bytes.remove_prefix(kMagic.size());
  PythonState state;
  state.states.resize(parameters);
  COXSWAIN_ASSIGN_OR_RETURN(state.kind, TakeText(&bytes));
  // The structure: all that libtorch keeps of it is in the tensors, too.
  COXSWAIN_RETURN_IF_ERROR(TakeText(&bytes).status());
  COXSWAIN_ASSIGN_OR_RETURN(const auto tensors, ParseTensors(bytes));
  for (const auto& [name, saved] : tensors) {
    COXSWAIN_RETURN_IF_ERROR(Place(name, saved, &state));
  }
  return state;
}

std::vector<Tensor> ParametersOf(const ::torch::optim::Optimizer& optimizer) {
  std::vector<Tensor> parameters;
  for (const auto& group : optimizer.param_groups()) {
    const auto& more = group.params();
    parameters.insert(parameters.end(), more.begin(), more.end());
  }
  return parameters;
}

// Fails unless a parameter's state has some of these names, and each of them is
// of the form that it has here.
absl::Status CheckForms(const std::map<std::string, SavedTensor>& state,
                        const Tensor& parameter,
                        const std::vector<std::string>& needed,
                        const std::string& optional = "") {
  for (const auto& [name, saved] : state) {
    const bool known =
        name == optional ||
        std::find(needed.begin(), needed.end(), name) != needed.end();
    if (!known) return Differs(absl::StrCat("has '", name, "'"));
    const std::string form =
        name == kStep ? kStepForm : DescribeForm(parameter);
    const size_t size = name == kStep ? sizeof(float) : parameter.nbytes();
    if (saved.form == form && saved.elements.size() == size) continue;
    return Differs(
        absl::StrCat("'", name, "' is ", saved.form, ", and ", form, " here"));
  }
  for (const std::string& name : needed) {
    if (state.count(name) == 0) {
      return Differs(absl::StrCat("has no '", name, "' of a parameter"));
    }
  }
  return absl::OkStatus();
}

Tensor Load(const SavedTensor& saved, const Tensor& like) {
  Tensor loaded = ::torch::empty(
      like.sizes(), ::torch::TensorOptions().dtype(like.scalar_type()));
  if (!saved.elements.empty()) {
    std::memcpy(loaded.data_ptr(), saved.elements.data(),
                saved.elements.size());
  }
  return loaded.to(like.device());
}

using StatePtr = std::unique_ptr<::torch::optim::OptimizerParamState>;
using Saved = std::map<std::string, SavedTensor>;

// Returns the state of one parameter, of Adam or AdamW.
template <typename State>
absl::StatusOr<StatePtr> AdamState(const Saved& saved, const Tensor& like) {
  COXSWAIN_RETURN_IF_ERROR(CheckForms(
      saved, like, {kStep, "exp_avg", "exp_avg_sq"}, "max_exp_avg_sq"));
  float step = 0;
  std::memcpy(&step, saved.at(kStep).elements.data(), sizeof(step));
  auto state = std::make_unique<State>();
  state->step(std::llround(step));
  state->exp_avg(Load(saved.at("exp_avg"), like));
  state->exp_avg_sq(Load(saved.at("exp_avg_sq"), like));
  const auto most = saved.find("max_exp_avg_sq");
  if (most != saved.end()) state->max_exp_avg_sq(Load(most->second, like));
  return StatePtr(std::move(state));
}

absl::StatusOr<StatePtr> SgdState(const Saved& saved, const Tensor& like) {
  COXSWAIN_RETURN_IF_ERROR(CheckForms(saved, like, {"momentum_buffer"}));
  auto state = std::make_unique<::torch::optim::SGDParamState>();
  state->momentum_buffer(Load(saved.at("momentum_buffer"), like));
  return StatePtr(std::move(state));
}

using Maker = absl::StatusOr<StatePtr> (*)(const Saved&, const Tensor&);

// Returns how the state of that class is made for this optimizer.
absl::StatusOr<Maker> MakerOf(const std::string& kind,
                              const ::torch::optim::Optimizer& optimizer) {
  namespace optim = ::torch::optim;
  const absl::string_view name =
      absl::string_view(kind).substr(kind.rfind('.') + 1);
  const bool of_torch = absl::StartsWith(kind, "torch.optim.");
  if (of_torch && name == "AdamW" &&
      dynamic_cast<const optim::AdamW*>(&optimizer) != nullptr) {
    return &AdamState<optim::AdamWParamState>;
  }
  if (of_torch && name == "Adam" &&
      dynamic_cast<const optim::Adam*>(&optimizer) != nullptr) {
    return &AdamState<optim::AdamParamState>;
  }
  if (of_torch && name == "SGD" &&
      dynamic_cast<const optim::SGD*>(&optimizer) != nullptr) {
    return &SgdState;
  }
  return Differs(absl::StrCat("is of ", kind,
                              ", and this optimizer is another one: AdamW, "
                              "Adam and SGD can go on from Python's"));
}

}  // namespace

bool IsOfPython(absl::string_view bytes) {
  return absl::StartsWith(bytes, kMagic);
}

absl::Status LoadPythonOptimizer(absl::string_view bytes,
                                 ::torch::optim::Optimizer* optimizer) {
  const std::vector<Tensor> parameters = ParametersOf(*optimizer);
  COXSWAIN_ASSIGN_OR_RETURN(const PythonState python,
                            Parse(bytes, parameters.size()));
  COXSWAIN_ASSIGN_OR_RETURN(const Maker make, MakerOf(python.kind, *optimizer));
  auto& groups = optimizer->param_groups();
  if (python.rates.size() != groups.size()) {
    return Differs(absl::StrCat("has ", python.rates.size(),
                                " groups of parameters, and this one ",
                                groups.size()));
  }
  std::vector<StatePtr> states(parameters.size());
  absl::Status made;
  COXSWAIN_RETURN_IF_ERROR(Guarded("loading the optimizer", [&] {
    for (size_t i = 0; made.ok() && i < states.size(); ++i) {
      // One that has had no gradient has no state.
      if (python.states[i].empty()) continue;
      auto state = make(python.states[i], parameters[i]);
      made = state.status();
      if (made.ok()) states[i] = *std::move(state);
    }
  }));
  COXSWAIN_RETURN_IF_ERROR(made);
  optimizer->state().clear();
  for (size_t i = 0; i < states.size(); ++i) {
    if (states[i] == nullptr) continue;
    optimizer
        ->state()[c10::guts::to_string(parameters[i].unsafeGetTensorImpl())] =
        std::move(states[i]);
  }
  for (size_t i = 0; i < groups.size(); ++i) {
    groups[i].options().set_lr(python.rates[i]);
  }
  return absl::OkStatus();
}

}  // namespace coxswain::torch
