#include "client/torch/optimizer_state.h"

#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>
#include <torch/utils.h>

#include <typeinfo>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "client/torch/module_tensors.h"

namespace coxswain::torch {
namespace {

namespace optim = ::torch::optim;
using ::torch::Tensor;

// A tensor of a parameter's state, by name.
struct Field {
  std::string name;
  Tensor* tensor = nullptr;
  // The optimizer cannot step without it.
  bool required = false;
};

// What is known of one kind of optimizer.
struct Kind {
  std::string name;
  std::function<bool(const optim::Optimizer&)> is;
  std::function<std::unique_ptr<optim::Optimizer>(
      const optim::Optimizer&, std::vector<optim::OptimizerParamGroup>)>
      make_like;
  std::function<std::unique_ptr<optim::OptimizerParamState>()> make_state;
  // Of the type that make_state makes, as what follows needs it.
  std::function<bool(const optim::OptimizerParamState&)> is_state;
  std::function<std::vector<Field>(optim::OptimizerParamState&)> fields;
  // Returns null for a kind that counts no steps.
  std::function<int64_t*(optim::OptimizerParamState&)> step;
};

template <class Optimizer, class Options, class State>
Kind KindOf(const std::string& name, std::vector<Field> (*fields)(State&),
            int64_t* (*step)(State&)) {
  Kind kind;
  kind.name = name;
  kind.is = [](const optim::Optimizer& optimizer) {
    return dynamic_cast<const Optimizer*>(&optimizer) != nullptr;
  };
  kind.make_like = [](const optim::Optimizer& optimizer,
                      std::vector<optim::OptimizerParamGroup> groups) {
    return std::make_unique<Optimizer>(
        std::move(groups), static_cast<const Options&>(optimizer.defaults()));
  };
  kind.make_state = [] { return std::make_unique<State>(); };
  kind.is_state = [](const optim::OptimizerParamState& state) {
    return typeid(state) == typeid(State);
  };
  kind.fields = [fields](optim::OptimizerParamState& state) {
    return fields(static_cast<State&>(state));
  };
  kind.step = [step](optim::OptimizerParamState& state) {
    return step(static_cast<State&>(state));
  };
  return kind;
}

template <class State>
std::vector<Field> AdamFields(State& state) {
  return {{"exp_avg", &state.exp_avg(), true},
          {"exp_avg_sq", &state.exp_avg_sq(), true},
          {"max_exp_avg_sq", &state.max_exp_avg_sq(), false}};
}

std::vector<Field> SgdFields(optim::SGDParamState& state) {
  return {{"momentum_buffer", &state.momentum_buffer(), false}};
}

std::vector<Field> RmspropFields(optim::RMSpropParamState& state) {
  return {{"square_avg", &state.square_avg(), true},
          {"momentum_buffer", &state.momentum_buffer(), false},
          {"grad_avg", &state.grad_avg(), false}};
}

std::vector<Field> AdagradFields(optim::AdagradParamState& state) {
  return {{"sum", &state.sum(), true}};
}

template <class State>
int64_t* StepIn(State& state) {
  return &state.step();
}

int64_t* NoStep(optim::SGDParamState&) { return nullptr; }

const std::vector<Kind>& Kinds() {
  static const auto* const kinds = new std::vector<Kind>{
      KindOf<optim::SGD, optim::SGDOptions, optim::SGDParamState>(
          "SGD", SgdFields, NoStep),
      KindOf<optim::Adam, optim::AdamOptions, optim::AdamParamState>(
          "Adam", AdamFields, StepIn),
      KindOf<optim::AdamW, optim::AdamWOptions, optim::AdamWParamState>(
          "AdamW", AdamFields, StepIn),
      KindOf<optim::RMSprop, optim::RMSpropOptions, optim::RMSpropParamState>(
          "RMSprop", RmspropFields, StepIn),
      KindOf<optim::Adagrad, optim::AdagradOptions, optim::AdagradParamState>(
          "Adagrad", AdagradFields, StepIn)};
  return *kinds;
}

// Returns null for a kind that is not known.
const Kind* KindOfThis(const optim::Optimizer& optimizer) {
  for (const Kind& kind : Kinds()) {
    if (kind.is(optimizer)) return &kind;
  }
  return nullptr;
}

std::string KeyOf(const Tensor& parameter) {
  return c10::guts::to_string(parameter.unsafeGetTensorImpl());
}

}  // namespace

absl::Status CheckElementWise(const optim::Optimizer& optimizer) {
  if (dynamic_cast<const optim::LBFGS*>(&optimizer) == nullptr) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      "LBFGS looks at all elements of all parameters together, so no rank can "
      "step a slice of them; take an optimizer that acts on each element alone "
      "(SGD, Adam, AdamW, RMSprop, Adagrad), or zero=0");
}

absl::Status CheckKnown(const optim::Optimizer& optimizer) {
  if (KindOfThis(optimizer) != nullptr) return absl::OkStatus();
  return absl::UnimplementedError(
      "the state of this optimizer is not known, which is none of SGD, Adam, "
      "AdamW, RMSprop and Adagrad");
}

std::unique_ptr<optim::Optimizer> MakeLike(
    const optim::Optimizer& optimizer,
    std::vector<optim::OptimizerParamGroup> groups) {
  return KindOfThis(optimizer)->make_like(optimizer, std::move(groups));
}

bool KeepsKnownState(const optim::Optimizer& optimizer,
                     const Tensor& parameter) {
  const auto state = optimizer.state().find(KeyOf(parameter));
  const Kind* const kind = KindOfThis(optimizer);
  return state == optimizer.state().end() ||
         (kind != nullptr && kind->is_state(*state->second));
}

SliceState StateOf(const optim::Optimizer& optimizer, const Tensor& parameter) {
  SliceState found;
  const auto state = optimizer.state().find(KeyOf(parameter));
  const Kind* const kind = KindOfThis(optimizer);
  if (state == optimizer.state().end() || kind == nullptr) return found;
  TORCH_CHECK(kind->is_state(*state->second), "what this ", kind->name,
              " keeps of a parameter is of a type of its own");
  for (const Field& field : kind->fields(*state->second)) {
    if (field.tensor->defined()) {
      found.tensors.emplace_back(field.name, *field.tensor);
    }
  }
  const int64_t* const step = kind->step(*state->second);
  found.steps = step != nullptr ? *step : found.tensors.empty() ? 0 : 1;
  return found;
}

absl::Status SetState(optim::Optimizer& optimizer, const Tensor& parameter,
                      int64_t step,
                      const std::function<absl::StatusOr<bool>(
                          const std::string& name, const Tensor& to)>& read) {
  COXSWAIN_RETURN_IF_ERROR(CheckKnown(optimizer));
  const Kind& kind = *KindOfThis(optimizer);
  std::unique_ptr<optim::OptimizerParamState> state = kind.make_state();
  bool any = false;
  for (const Field& field : kind.fields(*state)) {
    Tensor to;
    COXSWAIN_RETURN_IF_ERROR(Guarded("making an optimizer's state", [&] {
      const ::torch::NoGradGuard no_grad;
      to = ::torch::zeros_like(parameter);
    }));
    COXSWAIN_ASSIGN_OR_RETURN(const bool found, read(field.name, to));
    if (found) {
      *field.tensor = to;
      any = true;
    } else if (field.required && step > 0) {
      return absl::FailedPreconditionError(
          absl::StrCat("there is no ", field.name, ", which ", kind.name,
                       " needs; load what an optimizer of the same kind has "
                       "saved"));
    }
  }
  if (int64_t* const count = kind.step(*state); count != nullptr) {
    *count = step;
  }
  if (any) {
    optimizer.state()[KeyOf(parameter)] = std::move(state);
  } else {
    optimizer.state().erase(KeyOf(parameter));
  }
  return absl::OkStatus();
}

}  // namespace coxswain::torch
