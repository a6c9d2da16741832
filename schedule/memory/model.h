#ifndef COXSWAIN_SCHEDULE_MEMORY_MODEL_H_
#define COXSWAIN_SCHEDULE_MEMORY_MODEL_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace coxswain::memory {

// A layer, as far as memory goes. Bytes are those of one micro-batch.
struct Layer {
  std::string name;
  std::vector<int64_t> tensors;  // the elements of each trained tensor
  // What it keeps from its forward to its backward pass, beside its input: its
  // output, where that is needed again.
  int64_t activations = 0;
  int64_t output = 0;   // what it hands to the next layer
  int64_t working = 0;  // what a pass takes beside, until it returns

  int64_t elements() const;
};

struct Model {
  int64_t element_bytes = 4;  // of parameters, gradients and optimizer state
  int64_t input = 0;          // bytes of a micro-batch's input
  std::vector<Layer> layers;
};

// The most that a description has.
inline constexpr int64_t kMaxModelText = int64_t{1} << 20;
inline constexpr int kMaxLayers = 1 << 16;
inline constexpr int64_t kMaxSize = int64_t{1} << 48;  // each number, and sums

// Reads a description, as JSON (docs/parallelism.md), of layers:
//
//   {"dtype": "float32", "input": 4096,
//    "layers": [{"name": "in", "parameters": [8192, 128],
//                "activations": 16384, "output": 16384, "working": 32768},
//               {"name": "hidden", "parameters": 16512, "repeat": 4, ...}]}
//
// or of a transformer, whose layers it makes: the embedding, each block, and
// the head:
//
//   {"dtype": "bfloat16",
//    "transformer": {"layers": 12, "hidden": 768, "heads": 12,
//                    "vocabulary": 50257, "sequence": 1024, "batch": 4}}
//
// INVALID_ARGUMENT names the field and what it may be.
absl::StatusOr<Model> ParseModel(absl::string_view text);

}  // namespace coxswain::memory

#endif  // COXSWAIN_SCHEDULE_MEMORY_MODEL_H_
