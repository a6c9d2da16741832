#ifndef COXSWAIN_SCHEDULE_MEMORY_TRANSFORMER_H_
#define COXSWAIN_SCHEDULE_MEMORY_TRANSFORMER_H_

#include "absl/status/status.h"
#include "schedule/memory/model.h"
#include "schedule/memory/model_fields.h"

namespace coxswain::memory {

// Adds the layers of a transformer as GPT's, and its input, to a model that has
// the bytes of an element: learned positions, a norm before attention and
// before the two products, whose middle is four times as wide, biases, dropout,
// a head that is not tied. tp divides it as client/torch/tensor does: heads,
// the middle, and the vocabulary.
absl::Status AddTransformer(const Json& json, Model* model);

}  // namespace coxswain::memory

#endif  // COXSWAIN_SCHEDULE_MEMORY_TRANSFORMER_H_
