#ifndef COXSWAIN_BASE_TENSOR_CHUNK_H_
#define COXSWAIN_BASE_TENSOR_CHUNK_H_

#include <cstdint>

namespace coxswain {

// Tensors that pass through the coordinator travel in chunks of this size; the
// last one of each part is shorter. Large enough that messages cost little,
// small enough that one is summed up while the next one travels. A part of the
// wire contract (proto/parameter.proto).
inline constexpr int64_t kTensorChunkBytes = 1 << 20;

}  // namespace coxswain

#endif  // COXSWAIN_BASE_TENSOR_CHUNK_H_
