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

absl::StatusOr<Module> Call(const PipelineLayer& layer,
                            const LayerContext& context) {
  absl::StatusOr<Module> module = Module();
  if (!layer.make && !layer.make_on_mesh) return module;
  const absl::Status thrown = Guarded("making it", [&] {
    if (layer.make_on_mesh) {
      module = layer.make_on_mesh(context);
    } else {
      module = layer.make();
    }
  });
  COXSWAIN_RETURN_IF_ERROR(
      WithPrefix(absl::StrCat("layer \"", layer.name, "\": "),
                 thrown.ok() ? module.status() : thrown));
  if (*module != nullptr) return module;
  return absl::InvalidArgumentError(absl::StrCat(
      "layer \"", layer.name,
      "\" made no module; leave `make` out for a layer without one"));
}

// Layers that are divided have zeros until they are initialised.
absl::Status CheckInitialValues(const PipelineModel& model,
                                const PipelineLayer& layer,
                                const ParameterBoxes& boxes) {
  if (boxes.empty() || model.initial_values) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "layer \"", layer.name, "\" is made for a mesh, and its parameter \"",
      boxes.begin()->first,
      "\" is zeros until it is initialised by name: set the model's "
      "initial_values, as to UsualInitialValues, and its seed"));
}

absl::Status CheckSeed(const PipelineModel& model, int tp) {
  if (model.seed.has_value()) return absl::OkStatus();
  if (model.initial_values) {
    return absl::InvalidArgumentError(
        "initial values by name are made of the model's seed: set it");
  }
  if (tp == 1) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "a model without a seed on a mesh with tp=", tp,
      ": what each rank along tp has whole is to begin with the same values "
      "on all of them; set the model's seed"));
}

// Sets the values that a layer's parameters begin with.
absl::Status Initialise(const PipelineModel& model, const PipelineLayer& layer,
                        const Module& module) {
  const ParameterBoxes boxes = BoxesOf(layer, *module);
  COXSWAIN_RETURN_IF_ERROR(CheckInitialValues(model, layer, boxes));
  if (!model.initial_values) return absl::OkStatus();
  // With the names of the whole model.
  ::torch::nn::Module root;
  COXSWAIN_RETURN_IF_ERROR(Guarded("naming its parameters", [&] {
    root.register_module(layer.name, module);
  }));
  return InitialiseByName(root, *model.seed, boxes, model.initial_values);
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
    if (layer.make && layer.make_on_mesh) {
      return absl::InvalidArgumentError(absl::StrCat(
          "layer \"", layer.name,
          "\" has `make` and `make_on_mesh`: leave one of them out"));
    }
    if (!layer.forward) {
      return absl::InvalidArgumentError(
          absl::StrCat("layer \"", layer.name, "\" has no forward"));
    }
  }
  return absl::OkStatus();
}

// Returns whether a rank has the same part of two parameters of one shape.
bool SamePart(const ParameterBoxes& boxes, const std::string& first,
              const std::string& second) {
  const auto a = boxes.find(first);
  const auto b = boxes.find(second);
  if (a == boxes.end() || b == boxes.end()) {
    return a == boxes.end() && b == boxes.end();
  }
  return a->second.box.begin == b->second.box.begin &&
         a->second.box.end == b->second.box.end;
}

absl::Status CheckTies(const PipelineModel& model,
                       const PipelineDescription& described) {
  std::map<std::string, const ParameterSpec*> by_name;
  for (const ParameterSpec& one : described.parameters) {
    by_name[one.name] = &one;
  }
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
    if (!SamePart(described.boxes, tie.first, tie.second)) {
      return refuse(
          "ranks along tp have another part of the one than of the other");
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

absl::StatusOr<Module> MakeWithSeed(const PipelineModel& model, int layer,
                                    const LayerContext& context) {
  const PipelineLayer& made = model.layers[static_cast<size_t>(layer)];
  if (!model.seed.has_value()) return Call(made, context);
  const MutexLock lock(&OfGenerator());
  const GeneratorState state(
      CounterRandom(*model.seed, StableHash("pipeline layers"))
          .Bits(static_cast<uint64_t>(layer)));
  return Call(made, context);
}

}  // namespace

LayerContext ContextOfOne(int tp, bool sequence) {
  return {TensorParallel::ForDescription(tp, sequence),
          std::make_shared<DropoutPlace>()};
}

ParameterBoxes BoxesOf(const PipelineLayer& layer,
                       const ::torch::nn::Module& module) {
  ParameterBoxes boxes;
  for (auto& [name, box] : BoxesOf(module)) {
    boxes[absl::StrCat(layer.name, ".", name)] = box;
  }
  return boxes;
}

absl::StatusOr<Module> MakeLayer(const PipelineModel& model, int layer,
                                 const LayerContext& context) {
  COXSWAIN_RETURN_IF_ERROR(CheckSeed(model, context.parallel->size()));
  COXSWAIN_ASSIGN_OR_RETURN(Module module, MakeWithSeed(model, layer, context));
  if (module == nullptr) return module;
  COXSWAIN_RETURN_IF_ERROR(
      Initialise(model, model.layers[static_cast<size_t>(layer)], module));
  return module;
}

absl::StatusOr<PipelineDescription> Describe(const PipelineModel& model, int tp,
                                             bool sequence) {
  COXSWAIN_RETURN_IF_ERROR(CheckNames(model));
  COXSWAIN_RETURN_IF_ERROR(CheckSeed(model, tp));
  const LayerContext context = ContextOfOne(tp, sequence);
  PipelineDescription described;
  for (const PipelineLayer& layer : model.layers) {
    Module module;
    {
      const MutexLock lock(&OfGenerator());
      const GeneratorState state(std::nullopt);
      COXSWAIN_ASSIGN_OR_RETURN(module, Call(layer, context));
    }
    described.elements.push_back(0);
    if (module == nullptr) continue;
    COXSWAIN_ASSIGN_OR_RETURN(std::vector<ParameterSpec> own,
                              DescribeParameters(*module));
    const ParameterBoxes boxes = BoxesOf(layer, *module);
    COXSWAIN_RETURN_IF_ERROR(CheckInitialValues(model, layer, boxes));
    for (ParameterSpec& parameter : own) {
      parameter.name = absl::StrCat(layer.name, ".", parameter.name);
      const auto box = boxes.find(parameter.name);
      if (box != boxes.end()) parameter.shape = box->second.shape;
      described.elements.back() += parameter.count();
      described.parameters.push_back(std::move(parameter));
    }
    if (tp > 1) described.boxes.insert(boxes.begin(), boxes.end());
  }
  COXSWAIN_RETURN_IF_ERROR(CheckTies(model, described));
  return described;
}

}  // namespace coxswain::torch
