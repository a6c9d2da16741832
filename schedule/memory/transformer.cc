#include "schedule/memory/transformer.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>

#include "base/status_macros.h"

namespace coxswain::memory {
namespace {

struct Sizes {
  int64_t e = 0;    // bytes of an element
  int64_t h = 0;    // features
  int64_t a = 0;    // heads
  int64_t v = 0;    // vocabulary
  int64_t s = 0;    // sequence
  int64_t sbh = 0;  // elements of an activation
  int64_t sbv = 0;  // of logits
  int64_t ass = 0;  // of the attention's probabilities
};

// Activations are those of Korthikanti et al. (arXiv:2205.05198, section 4),
// with e bytes an element in place of 2:
//
//   block       s b h (16 e + 2) + a s^2 b (2 e + 1)  [34 s b h + 5 a s^2 b]
//   head        2 e s b h + 4 s b V
//   embedding   s b h, the mask of its dropout
//
// Of a block, 12 e s b h and all that has a are divided by tp; of the rest,
// what the norms take and the dropouts' masks are divided along the sequence,
// and what the first of two products takes is gathered again, and kept so.
//
// `working`: gradients of what a pass has in its widest place, two at a time.
// Of what tp divides, both ends are whole.

Layer Embedding(const Sizes& n) {
  Layer layer;
  layer.name = "embedding";
  layer.parameters = {{n.v * n.h, n.v}, {n.s * n.h}};
  layer.activations.sequence = n.sbh;
  layer.output.sequence = n.e * n.sbh;
  layer.working.whole = n.e * n.sbh;
  return layer;
}

Layer Block(const Sizes& n) {
  const int64_t square = n.h * n.h;
  Layer layer;
  layer.name = "block";
  layer.parameters = {{3 * square, n.a},
                      {3 * n.h, n.a},
                      {square, n.a},
                      {n.h},
                      {4 * square, 4 * n.h},
                      {4 * n.h, 4 * n.h},
                      {4 * square, 4 * n.h},
                      {n.h},
                      {n.h},
                      {n.h},
                      {n.h},
                      {n.h}};
  layer.activations.whole = 2 * n.e * n.sbh;
  layer.activations.sequence = (2 * n.e + 2) * n.sbh;
  layer.activations.tp = 12 * n.e * n.sbh + n.ass * (2 * n.e + 1);
  layer.output.sequence = n.e * n.sbh;
  layer.working.whole = 2 * n.e * n.sbh;
  layer.working.tp =
      std::max(8 * n.e * n.sbh, 2 * n.e * n.ass) - layer.working.whole;
  return layer;
}

Layer Head(const Sizes& n) {
  Layer layer;
  layer.name = "head";
  layer.parameters = {{n.h}, {n.h}, {n.v * n.h, n.v}};
  layer.activations.whole = n.e * n.sbh;
  layer.activations.sequence = n.e * n.sbh;
  layer.activations.tp = 4 * n.sbv;
  layer.working.tp = 2 * n.e * n.sbv;
  return layer;
}

}  // namespace

absl::Status AddTransformer(const Json& json, Model* model) {
  const std::string where = "transformer";
  COXSWAIN_RETURN_IF_ERROR(CheckFields(
      json, where,
      {"layers", "hidden", "heads", "vocabulary", "sequence", "batch"}));
  constexpr int64_t kMost = int64_t{1} << 20;
  std::map<std::string, int64_t> size;
  for (const char* name :
       {"layers", "hidden", "heads", "vocabulary", "sequence", "batch"}) {
    const int64_t most = name == std::string("layers") ? kMaxLayers - 2 : kMost;
    COXSWAIN_ASSIGN_OR_RETURN(size[name], Field(json, where, name, 1, most, 0));
  }
  Sizes n;
  n.e = model->element_bytes;
  n.h = size["hidden"];
  n.a = size["heads"];
  n.v = size["vocabulary"];
  n.s = size["sequence"];
  // Beyond what any memory has, sums stay in their range.
  const double heads = static_cast<double>(n.a) *
                       static_cast<double>(size["batch"]) *
                       static_cast<double>(n.s) * static_cast<double>(n.s);
  const double wide = static_cast<double>(n.s) *
                      static_cast<double>(size["batch"]) *
                      static_cast<double>(std::max(n.h, n.v));
  constexpr double kMostPart = static_cast<double>(kMaxSize) / 256;
  if (heads > kMostPart || wide > kMostPart ||
      static_cast<double>(n.h) * static_cast<double>(std::max(n.h, n.v)) >
          kMostPart) {
    return Wrong(where, "these sizes are larger than any memory");
  }
  n.sbh = n.s * size["batch"] * n.h;
  n.sbv = n.s * size["batch"] * n.v;
  n.ass = n.a * size["batch"] * n.s * n.s;
  model->input = n.s * size["batch"] * 8;  // tokens, as int64
  model->layers.push_back(Embedding(n));
  model->layers.insert(model->layers.end(), static_cast<size_t>(size["layers"]),
                       Block(n));
  model->layers.push_back(Head(n));
  return absl::OkStatus();
}

}  // namespace coxswain::memory
