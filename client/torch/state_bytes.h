#ifndef COXSWAIN_CLIENT_TORCH_STATE_BYTES_H_
#define COXSWAIN_CLIENT_TORCH_STATE_BYTES_H_

#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace coxswain::torch {

// A module's parameters and buffers as the bytes of
// client/resume/tensor_bytes.h.

// Writes over `bytes`, whose memory is used again where it suffices. INTERNAL:
// libtorch threw.
absl::Status SaveModule(const ::torch::nn::Module& module, std::string* bytes);

// DATA_LOSS: these are no such bytes. FAILED_PRECONDITION lists what the module
// has otherwise, and leaves it as it was.
absl::Status LoadModule(absl::string_view bytes, ::torch::nn::Module* module);

// Returns what an optimizer has learned (momenta and the like) and its groups'
// learning rates, as bytes: for a peer that has the same optimizer of the same
// model. libtorch's format, so of one version of it. INTERNAL: libtorch threw.
absl::StatusOr<std::string> SaveOptimizer(
    const ::torch::optim::Optimizer& optimizer);

// DATA_LOSS: these are not such bytes.
absl::Status LoadOptimizer(absl::string_view bytes,
                           ::torch::optim::Optimizer* optimizer);

// Returns a checksum of the same, by parameter in order. The bytes differ
// between processes that hold the same, as libtorch names parameters by their
// address.
absl::StatusOr<uint64_t> DigestOptimizer(
    const ::torch::optim::Optimizer& optimizer);

}  // namespace coxswain::torch

#endif  // COXSWAIN_CLIENT_TORCH_STATE_BYTES_H_
