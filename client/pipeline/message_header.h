#ifndef COXSWAIN_CLIENT_PIPELINE_MESSAGE_HEADER_H_
#define COXSWAIN_CLIENT_PIPELINE_MESSAGE_HEADER_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "client/pipeline/stage_runner.h"

namespace coxswain {

// What precedes the elements of a message between stages, as it travels:
// little-endian, of one size, so that its receiver can state what it expects.
constexpr size_t kMaxBoundaryTensors = 12;
constexpr size_t kMaxBoundaryDims = 8;
using HeaderBytes = std::array<char, 1024>;

struct MessageHeader {
  int micro_batch = 0;
  // Without memory; those that are absent have no dimensions and a flag.
  struct Tensor {
    bool present = false;
    DType dtype = DType::kFloat32;
    std::vector<int64_t> dims;
    int64_t bytes = 0;
  };
  std::vector<Tensor> tensors;

  // INVALID_ARGUMENT: a message cannot have these tensors; the message has why.
  static absl::StatusOr<MessageHeader> Of(int micro_batch,
                                          const Activations& tensors,
                                          int64_t max_bytes);
  HeaderBytes Encode() const;
  // Of a peer that may be broken. INTERNAL: it is malformed.
  // RESOURCE_EXHAUSTED: it states more than `max_bytes` of elements.
  static absl::StatusOr<MessageHeader> Decode(const HeaderBytes& bytes,
                                              int64_t max_bytes);
};

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_PIPELINE_MESSAGE_HEADER_H_
