#include "schedule/memory/passes.h"

#include <algorithm>

namespace coxswain::memory {

void Passes::Forward(int stage, bool received) {
  if (received) now_.received += InputOf(stage);
  for (int i = cut_.begin(stage); i < cut_.end(stage); ++i) {
    now_.activations += LayerOf(i).activations;
    Look(LayerOf(i).working);
  }
}

void Passes::BackwardInput(int stage) {
  for (int i = cut_.end(stage); i-- > cut_.begin(stage);) {
    now_.activations += LayerOf(i).output;
    Look(LayerOf(i).working);
  }
}

void Passes::Backward(int stage, bool received, bool is_half) {
  for (int i = cut_.end(stage); i-- > cut_.begin(stage);) {
    const RankLayer& layer = LayerOf(i);
    int64_t largest = 0;
    for (const int64_t elements : layer.tensors) {
      largest = std::max(largest, elements * model_.element_bytes);
    }
    Look((is_half ? 0 : layer.working) + (copies_ ? largest : 0));
    now_.activations -= layer.activations + (is_half ? layer.output : 0);
  }
  if (received) now_.received -= InputOf(stage);
  Look(0);
}

int64_t Passes::InputOf(int stage) const {
  const int first = cut_.begin(stage);
  return first == 0 ? model_.input : LayerOf(first - 1).output;
}

void Passes::Look(int64_t working) {
  now_.working = working;
  if (now_.sum() > peak_.sum()) peak_ = now_;
}

}  // namespace coxswain::memory
