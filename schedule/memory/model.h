#ifndef COXSWAIN_SCHEDULE_MEMORY_MODEL_H_
#define COXSWAIN_SCHEDULE_MEMORY_MODEL_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace coxswain::memory {

// A trained tensor of the whole model.
struct Parameter {
  int64_t elements = 0;
  // Of how many equal parts it consists, each of which a rank along tp has or
  // has not; 0: each of them has all of it.
  int64_t parts = 0;
};

// Bytes of one micro-batch, as ranks along tp have them.
struct Bytes {
  int64_t whole = 0;     // on each of them
  int64_t tp = 0;        // divided among them
  int64_t sequence = 0;  // with sequence parallelism divided, otherwise whole

  int64_t all() const { return whole + tp + sequence; }
};

// A layer, as far as memory goes.
struct Layer {
  std::string name;
  std::vector<Parameter> parameters;
  // What it keeps from its forward to its backward pass, beside its input: its
  // output, where that is needed again.
  Bytes activations;
  Bytes output;   // what it hands to the next layer
  Bytes working;  // what a pass takes beside, until it returns

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
// Of a layer that tp divides, a parameter has its shape and the dimension, and
// bytes are given apart:
//
//   {"parameters": [{"shape": [512, 128], "tp": 0}, 128],
//    "activations": {"whole": 4096, "tp": 16384}, ...}
//
// INVALID_ARGUMENT names the field and what it may be.
absl::StatusOr<Model> ParseModel(absl::string_view text);

}  // namespace coxswain::memory

#endif  // COXSWAIN_SCHEDULE_MEMORY_MODEL_H_
