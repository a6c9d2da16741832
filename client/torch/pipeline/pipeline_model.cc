#include "client/torch/pipeline/pipeline_model.h"

#include <ATen/CPUGeneratorImpl.h>
#include <torch/utils.h>

#include <map>
#include <mutex>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/element_names.h"
#include "base/mutex.h"
#include "base/random.h"
#include "base/status_macros.h"
#include "base/status_prefix.h"
#include "client/torch/distributed_data_parallel.h"
#include "client/torch/module_tensors.h"

namespace coxswain::torch {
namespace {

using Module = std::shared_ptr<::torch::nn::Module>;

// libtorch has one generator in a process, whose state is put back.
Mutex& OfGenerator() {
  static Mutex* const mutex = new Mutex();
  return *mutex;
}

class GeneratorState {
 public:
  explicit GeneratorState(std::optional<uint64_t> seed)
      : generator_(at::detail::getDefaultCPUGenerator()) {
    const std::lock_guard<std::mutex> lock(generator_.mutex());
    before_ = generator_.get_state();
    if (seed.has_value()) generator_.set_current_seed(*seed);
  }
  ~GeneratorState() {
    const std::lock_guard<std::mutex> lock(generator_.mutex());
    (void)Guarded("putting the generator back",
                  [this] { generator_.set_state(before_); });
  }
  GeneratorState(const GeneratorState&) = delete;
  GeneratorState& operator=(const GeneratorState&) = delete;

 private:
  at::Generator generator_;
  ::torch::Tensor before_;
};

absl::StatusOr<Module> Call(const PipelineLayer& layer) {
  Module module;
  if (!layer.make) return module;
  COXSWAIN_RETURN_IF_ERROR(
      WithPrefix(absl::StrCat("layer \"", layer.name, "\": "),
                 Guarded("making it", [&] { module = layer.make(); })));
  if (module != nullptr) return module;
  return absl::InvalidArgumentError(absl::StrCat(
      "layer \"", layer.name,
      "\" made no module; leave `make` out for a layer without one"));
}

absl::Status CheckNames(const PipelineModel& model) {
  if (model.layers.empty()) {
    return absl::InvalidArgumentError("a pipeline of a model without layers");
  }
  std::set<std::string> names;
  for (const PipelineLayer& layer : model.layers) {
    if (layer.name.empty() || layer.name.find('.') != std::string::npos) {
      return absl::InvalidArgumentError(
          absl::StrCat("a layer with the name \"", layer.name,
                       "\": names are not empty, and have no dots"));
    }
    if (!names.insert(layer.name).second) {
      return absl::InvalidArgumentError(absl::StrCat(
          "two layers have the name \"", layer.name, "\"; give each its own"));
    }
    if (!layer.forward) {
      return absl::InvalidArgumentError(
          absl::StrCat("layer \"", layer.name, "\" has no forward"));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckTies(const PipelineModel& model,
                       const std::vector<ParameterSpec>& parameters) {
  std::map<std::string, const ParameterSpec*> by_name;
  for (const ParameterSpec& one : parameters) by_name[one.name] = &one;
  std::set<std::string> tied;
  for (const Tie& tie : model.ties) {
    const auto refuse = [&](absl::string_view why) {
      return absl::InvalidArgumentError(absl::StrCat(
          "the tie of \"", tie.first, "\" and \"", tie.second, "\": ", why));
    };
    for (const std::string& name : {tie.first, tie.second}) {
      if (by_name.count(name) == 0) {
        return refuse(
            absl::StrCat("no layer has a trainable parameter \"", name, "\""));
      }
      if (!tied.insert(name).second) {
        return refuse(
            absl::StrCat("\"", name, "\" is tied twice; a tie is of two"));
      }
    }
    const ParameterSpec& first = *by_name[tie.first];
    const ParameterSpec& second = *by_name[tie.second];
    if (first.shape != second.shape || first.dtype != second.dtype) {
      const auto form = [](const ParameterSpec& spec) {
        return absl::StrCat(NameOf(spec.dtype), " [",
                            absl::StrJoin(spec.shape, ", "), "]");
      };
      return refuse(
          absl::StrCat("one is ", form(first), ", the other ", form(second)));
    }
    const auto layer = [](const std::string& name) {
      return std::string(name, 0, name.find('.'));
    };
    if (layer(tie.first) == layer(tie.second)) {
      return refuse(
          "both are of one layer, which shares them by itself: register one "
          "tensor twice");
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Module> MakeLayer(const PipelineModel& model, int layer) {
  const PipelineLayer& made = model.layers[static_cast<size_t>(layer)];
  if (!model.seed.has_value()) return Call(made);
  const MutexLock lock(&OfGenerator());
  const GeneratorState state(
      CounterRandom(*model.seed, StableHash("pipeline layers"))
          .Bits(static_cast<uint64_t>(layer)));
  return Call(made);
}

absl::StatusOr<PipelineDescription> Describe(const PipelineModel& model) {
  COXSWAIN_RETURN_IF_ERROR(CheckNames(model));
  PipelineDescription described;
  for (const PipelineLayer& layer : model.layers) {
    Module module;
    {
      const MutexLock lock(&OfGenerator());
      const GeneratorState state(std::nullopt);
      COXSWAIN_ASSIGN_OR_RETURN(module, Call(layer));
    }
    described.elements.push_back(0);
    if (module == nullptr) continue;
    COXSWAIN_ASSIGN_OR_RETURN(std::vector<ParameterSpec> own,
                              DescribeParameters(*module));
    for (ParameterSpec& parameter : own) {
      parameter.name = absl::StrCat(layer.name, ".", parameter.name);
      described.elements.back() += parameter.count();
      described.parameters.push_back(std::move(parameter));
    }
  }
  COXSWAIN_RETURN_IF_ERROR(CheckTies(model, described.parameters));
  return described;
}

}  // namespace coxswain::torch
