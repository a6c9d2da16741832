#ifndef COXSWAIN_EXAMPLES_GPT_MODEL_H_
#define COXSWAIN_EXAMPLES_GPT_MODEL_H_

#include <cstdint>

#include "client/torch/pipeline/pipeline_model.h"
#include "client/torch/pipeline/pipeline_options.h"

namespace coxswain::examples::gpt {

// A token is a byte.
inline constexpr int64_t kVocabulary = 256;

struct ModelOptions {
  int64_t layers = 4;  // blocks of attention and a feed-forward part
  int64_t features = 64;
  int64_t heads = 4;     // a divisor of the features, and no fewer than tp
  int64_t length = 64;   // of a text in tokens; of tp a multiple, with sequence
  double dropout = 0.1;  // the probability; 0: none
  // Numbers of 64 bits: then the losses of all meshes agree in all digits that
  // anyone shows.
  bool float64 = false;
  uint64_t seed = 1;  // of the initial values, and of dropout
};

// Returns a GPT as a list of layers, which tp divides (client/torch/tensor):
//   embedding   the bytes' vectors, by rows, and learned positions
//   block<i>    attention by heads, and two linear layers with GeLU between
//   head        a norm, and logits by the embedding's vectors, to which it is
//               tied: of each rank along tp those of its rows
// Inputs are one tensor of tokens, int64 [texts, length].
torch::PipelineModel MakeModel(const ModelOptions& options);

// Returns the mean cross entropy, in nats for each byte. Targets are one tensor
// like the inputs.
torch::MeshLoss MakeLoss();

}  // namespace coxswain::examples::gpt

#endif  // COXSWAIN_EXAMPLES_GPT_MODEL_H_
