#include "client/torch/pipeline/rank_layers.h"

#include <torch/csrc/autograd/variable.h>
#include <torch/utils.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/status_macros.h"
#include "client/torch/module_tensors.h"

namespace coxswain::torch {
namespace {

using Module = std::shared_ptr<::torch::nn::Module>;

// Has the tensors of layers that are not its children, which it trains or
// evaluates with.
class Stages : public ::torch::nn::Module {
 public:
  using Layer = std::shared_ptr<::torch::nn::Module>;

  Stages() : ::torch::nn::Module("stages") {}
  void Add(Layer layer) { layers_.push_back(std::move(layer)); }
  void train(bool on) override {
    ::torch::nn::Module::train(on);
    for (const Layer& layer : layers_) layer->train(on);
  }

 private:
  std::vector<Layer> layers_;
};

// Returns the module of this name, made where there is none: "decoder.norm".
::torch::nn::Module& HolderOf(::torch::nn::Module& root,
                              const std::vector<std::string>& path) {
  ::torch::nn::Module* holder = &root;
  for (size_t i = 0; i + 1 < path.size(); ++i) {
    const auto children = holder->named_children();
    const Module* const found = children.find(path[i]);
    holder =
        found != nullptr
            ? found->get()
            : holder
                  ->register_module(
                      path[i], std::make_shared<::torch::nn::Module>(path[i]))
                  .get();
  }
  return *holder;
}

}  // namespace

absl::StatusOr<std::unique_ptr<RankLayers>> RankLayers::Make(
    const PipelineModel& model, const pipeline::StageCut& cut,
    const std::vector<int>& stages, const LayerContext& context) {
  std::unique_ptr<RankLayers> layers(new RankLayers(cut, context));
  COXSWAIN_RETURN_IF_ERROR(layers->MakeModules(model, stages));
  COXSWAIN_RETURN_IF_ERROR(Guarded("joining the layers", [&] {
    layers->Join(model);
    layers->Register();
    layers->FindReplicated();
  }));
  return layers;
}

absl::Status RankLayers::MakeModules(const PipelineModel& model,
                                     const std::vector<int>& stages) {
  for (const int stage : stages) {
    for (int number = cut_.begin(stage); number < cut_.end(stage); ++number) {
      Layer layer;
      layer.number = number;
      layer.described = model.layers[static_cast<size_t>(number)];
      COXSWAIN_ASSIGN_OR_RETURN(layer.module,
                                MakeLayer(model, number, context_));
      if (layer.module != nullptr) {
        if (context_.parallel->size() > 1) {
          boxes_.merge(BoxesOf(layer.described, *layer.module));
        }
        for (const NamedTensor& named : TrainableParameters(*layer.module)) {
          layer.parameters.push_back({named.tensor, named.tensor});
        }
      }
      layers_.push_back(std::move(layer));
    }
  }
  return absl::OkStatus();
}

RankLayers::Found RankLayers::Find(const std::string& name) {
  const std::pair<std::string, std::string> parts =
      absl::StrSplit(name, absl::MaxSplits('.', 1));
  for (Layer& layer : layers_) {
    if (layer.described.name != parts.first) continue;
    const std::vector<NamedTensor> named = TrainableParameters(*layer.module);
    for (size_t i = 0; i < named.size(); ++i) {
      if (named[i].name == parts.second) {
        return {&layer.parameters[i], cut_.StageOf(layer.number)};
      }
    }
  }
  return {};
}

void RankLayers::Join(const PipelineModel& model) {
  namespace impl = ::torch::autograd::impl;
  const auto layer_of = [&](const std::string& name) {
    const auto found = std::find_if(
        model.layers.begin(), model.layers.end(), [&](const auto& layer) {
          return absl::StartsWith(name, absl::StrCat(layer.name, "."));
        });
    return static_cast<int>(found - model.layers.begin());
  };
  const auto share = [&](const std::string& name, const Found& own,
                         const std::string& other, bool is_first) {
    late_.insert(name);
    of_late_.push_back(own.parameter->trained);
    shared_.push_back(
        {name, own.parameter->trained, layer_of(other), is_first});
  };
  for (const Tie& tie : model.ties) {
    const Found first = Find(tie.first);
    const Found second = Find(tie.second);
    if (first.parameter == nullptr && second.parameter == nullptr) continue;
    if (second.parameter == nullptr) {
      share(tie.first, first, tie.second, /*is_first=*/true);
    } else if (first.parameter == nullptr) {
      share(tie.second, second, tie.first, /*is_first=*/false);
    } else {
      const ::torch::Tensor one = first.parameter->trained;
      second.parameter->trained = one;
      second.parameter->used.set_data(one.detach());
      nodes_.push_back(impl::grad_accumulator(one));
      impl::set_grad_accumulator(second.parameter->used, nodes_.back());
      names_.push_back(*second.parameter);
      if (first.stage == second.stage) continue;
      late_.insert(tie.first);
      of_late_.push_back(one);
    }
  }
}

void RankLayers::Register() {
  const auto stages = std::make_shared<Stages>();
  module_ = stages;
  const auto is_name = [this](const ::torch::Tensor& tensor) {
    return std::any_of(
        names_.begin(), names_.end(),
        [&](const StageParameter& one) { return one.used.is_same(tensor); });
  };
  for (const Layer& layer : layers_) {
    if (layer.module == nullptr) continue;
    stages->Add(layer.module);
    const auto path_of = [&](const std::string& name) {
      const std::vector<std::string> path =
          absl::StrSplit(absl::StrCat(layer.described.name, ".", name), '.');
      return path;
    };
    for (const auto& item : layer.module->named_parameters()) {
      if (is_name(item.value())) continue;
      const std::vector<std::string> path = path_of(item.key());
      HolderOf(*module_, path)
          .register_parameter(path.back(), item.value(),
                              item.value().requires_grad());
    }
    for (const auto& item : layer.module->named_buffers()) {
      const std::vector<std::string> path = path_of(item.key());
      HolderOf(*module_, path).register_buffer(path.back(), item.value());
    }
  }
}

void RankLayers::FindReplicated() {
  if (context_.parallel->size() == 1) return;
  // The seconds of ties within this rank are other names of the first ones.
  const auto named = module_->named_parameters();
  for (auto box = boxes_.begin(); box != boxes_.end();) {
    box = named.contains(box->first) ? std::next(box) : boxes_.erase(box);
  }
  const bool sequence = context_.parallel->sequence();
  for (const NamedTensor& one : TrainableParameters(*module_)) {
    if (boxes_.count(one.name) > 0) continue;
    replicated_.push_back({one.name, one.tensor});
    // Completed by the ranks along tp together.
    if (sequence && late_.insert(one.name).second) {
      of_late_.push_back(one.tensor);
    }
  }
}

std::vector<StageLayer> RankLayers::LayersOf(int stage) const {
  std::vector<StageLayer> result;
  for (const Layer& layer : layers_) {
    if (cut_.StageOf(layer.number) != stage) continue;
    result.push_back(
        {[forward = layer.described.forward, module = layer.module](
             const Tensors& inputs) { return forward(module.get(), inputs); },
         layer.parameters});
  }
  return result;
}

std::vector<::torch::Tensor> RankLayers::TrainedAlone(int stage) const {
  std::vector<::torch::Tensor> result;
  for (const Layer& layer : layers_) {
    if (cut_.StageOf(layer.number) != stage) continue;
    for (const StageParameter& parameter : layer.parameters) {
      const auto is_trained = [&](const ::torch::Tensor& one) {
        return one.is_same(parameter.trained);
      };
      const bool once =
          std::none_of(of_late_.begin(), of_late_.end(), is_trained) &&
          std::none_of(result.begin(), result.end(), is_trained);
      if (once) result.push_back(parameter.trained);
    }
  }
  return result;
}

absl::Status RankLayers::FollowMoves() {
  return Guarded("tying parameters", [this] {
    const ::torch::NoGradGuard no_grad;
    for (StageParameter& name : names_) {
      name.used.set_data(name.trained.detach());
    }
  });
}

}  // namespace coxswain::torch
