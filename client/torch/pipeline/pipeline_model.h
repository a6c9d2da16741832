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

namespace coxswain::torch {

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

// What a job knows of a model before any rank has it.
struct PipelineDescription {
  // The trainable ones of all layers, in their order: "layer.name".
  std::vector<ParameterSpec> parameters;
  // By layer: how many elements they have.
  std::vector<int64_t> elements;
};

// Makes the layers one after the other, and keeps none. Leaves the generator as
// it was. INVALID_ARGUMENT: no layers, a name that is no name or another
// layer's too, or a tie of what cannot be one; INTERNAL: what libtorch throws.
absl::StatusOr<PipelineDescription> Describe(const PipelineModel& model);

// Makes one layer's module; null where it has none. One thread of the process
// at a time does, where the model has a seed. Fails as Describe.
absl::StatusOr<std::shared_ptr<::torch::nn::Module>> MakeLayer(
    const PipelineModel& model, int layer);

}  // namespace coxswain::torch

#endif  // COXSWAIN_CLIENT_TORCH_PIPELINE_PIPELINE_MODEL_H_
