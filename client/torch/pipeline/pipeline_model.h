#ifndef COXSWAIN_CLIENT_TORCH_PIPELINE_PIPELINE_MODEL_H_
#define COXSWAIN_CLIENT_TORCH_PIPELINE_PIPELINE_MODEL_H_

#include <torch/nn/module.h>
#include <torch/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "client/reduce/bucket.h"
#include "client/torch/pipeline/torch_stage.h"
#include "client/torch/tensor/initial_values.h"
#include "client/torch/tensor/mesh_dropout.h"
#include "client/torch/tensor/parallel_layer.h"
#include "client/torch/tensor/tensor_parallel.h"

namespace coxswain::torch {

// What a layer is made with on a rank.
struct LayerContext {
  // Of the ranks along tp, for layers that these divide among them. Not null;
  // of one rank where the mesh has no tp.
  TensorParallelPtr parallel;
  // Where in the training the rank is, for MeshDropout: the pipeline sets it
  // before each pass. Not null.
  std::shared_ptr<const DropoutPlace> place;
};

// Returns that of rank 0 of `tp`, of which layers can be made, and described;
// with one rank they can be trained, too.
LayerContext ContextOfOne(int tp = 1, bool sequence = false);

// A model as a pipeline trains it: a list of layers, each of which is made only
// where its stage is. A layer gets the tensors that the one before it returned,
// and the first one those of the batch: as many as there are, of any shapes,
// which may differ from one micro-batch to the next; integers and flags as
// integers, too, which have no gradients. What a later layer needs, such as a
// mask or an encoder's output, the layers in between pass on.
struct PipelineLayer {
  // Of its parameters in the job: "decoder3" has "decoder3.weight". Not empty,
  // without dots, and no other layer's.
  std::string name;
  // Makes its module. Null: it has none, and forward gets null.
  std::function<std::shared_ptr<::torch::nn::Module>()> make;
  // May throw. Does not write to its inputs in place.
  std::function<Tensors(::torch::nn::Module* module, const Tensors& inputs)>
      forward;
  // In place of `make`, for layers that are divided along tp, or have a
  // MeshDropout.
  std::function<absl::StatusOr<std::shared_ptr<::torch::nn::Module>>(
      const LayerContext& context)>
      make_on_mesh = nullptr;
};

// Two parameters of different layers that are one, such as an embedding's and a
// head's: "embedding.weight", "head.weight". Their values are the first one's,
// and their gradients are added up.
struct Tie {
  std::string first;
  std::string second;
};

struct PipelineModel {
  std::vector<PipelineLayer> layers;
  std::vector<Tie> ties;
  // With a seed each layer is made with random numbers of its own, so that the
  // initial values are the same however the layers are cut into stages.
  // Without one they are what the program's generator makes of them. libtorch's
  // generator of the CPU only.
  std::optional<uint64_t> seed;
  // How parameters begin, by their names in the job and their shapes in the
  // whole model: as InitialiseByName makes them of the seed, with the same bits
  // on any mesh. Null: as the layers were made. Needed, as is the seed, where
  // layers are divided along tp: UsualInitialValues, for example.
  InitialRule initial_values = nullptr;
};

// Returns a layer whose module passes one tensor on: of `make`, which returns a
// shared_ptr of a module with forward(Tensor), such as
//   LayerOf("hidden", [] { return std::make_shared<LinearImpl>(8, 8); })
template <typename Make>
PipelineLayer LayerOf(std::string name, Make make) {
  using Module = typename std::invoke_result_t<Make>::element_type;
  const std::string own = name;
  return {std::move(name), std::move(make),
          [own](::torch::nn::Module* module, const Tensors& inputs) -> Tensors {
            TORCH_CHECK(inputs.size() == 1, "layer ", own,
                        " takes one tensor, and got ", inputs.size());
            return {dynamic_cast<Module&>(*module).forward(inputs[0])};
          }};
}

// The same of a layer that is made on a mesh: of `make`, which takes a
// LayerContext and returns a StatusOr<shared_ptr> of such a module, such as
//   MeshLayerOf("up", [](const LayerContext& context) {
//     return ColumnParallelLinear::Create(context.parallel, {8, 32});
//   })
template <typename Make>
PipelineLayer MeshLayerOf(std::string name, Make make) {
  using Made = std::invoke_result_t<Make, const LayerContext&>;
  using Module = typename Made::value_type::element_type;
  PipelineLayer layer =
      LayerOf(std::move(name), [] { return std::shared_ptr<Module>(); });
  layer.make = nullptr;
  layer.make_on_mesh = [make = std::move(make)](const LayerContext& context)
      -> absl::StatusOr<std::shared_ptr<::torch::nn::Module>> {
    Made made = make(context);
    if (!made.ok()) return made.status();
    return std::shared_ptr<::torch::nn::Module>(*std::move(made));
  };
  return layer;
}

// What a job knows of a model before any rank has it.
struct PipelineDescription {
  // The trainable ones of all layers, in their order: "layer.name". Their
  // shapes are those of the whole model.
  std::vector<ParameterSpec> parameters;
  // By layer: how many elements they have, in the whole model.
  std::vector<int64_t> elements;
  // Of those that are divided along tp, the part that its rank 0 has.
  ParameterBoxes boxes;
};

// Makes the layers one after the other, as rank 0 of `tp` has them, and keeps
// none. Leaves the generator as it was. INVALID_ARGUMENT: no layers, a name
// that is no name or another layer's too, a tie of what cannot be one, or
// layers that tp divides and no seed or initial values; INTERNAL: what libtorch
// throws.
absl::StatusOr<PipelineDescription> Describe(const PipelineModel& model,
                                             int tp = 1, bool sequence = false);

// Makes one layer's module, with the values that it begins with; null where it
// has none. One thread of the process at a time does, where the model has a
// seed. Fails as Describe.
absl::StatusOr<std::shared_ptr<::torch::nn::Module>> MakeLayer(
    const PipelineModel& model, int layer,
    const LayerContext& context = ContextOfOne());

// Returns the boxes of a layer's divided parameters by their names in the job.
ParameterBoxes BoxesOf(const PipelineLayer& layer,
                       const ::torch::nn::Module& module);

}  // namespace coxswain::torch

#endif  // COXSWAIN_CLIENT_TORCH_PIPELINE_PIPELINE_MODEL_H_
