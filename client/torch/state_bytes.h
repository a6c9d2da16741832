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

// Writes over `bytes`, whose memory is used again if it suffices. Fails with
// INTERNAL if libtorch throws.
absl::Status SaveModule(const ::torch::nn::Module& module, std::string* bytes);

// Fails with DATA_LOSS if the bytes are not valid, and with
// FAILED_PRECONDITION, listing what differs in the module, which stays as it
// was.
absl::Status LoadModule(absl::string_view bytes, ::torch::nn::Module* module);

// Of these, what is not trained: buffers, and parameters that need no gradient.
absl::Status SaveUntrained(const ::torch::nn::Module& module,
                           std::string* bytes);
absl::Status LoadUntrained(absl::string_view bytes,
                           ::torch::nn::Module* module);

// Returns an optimizer's state (momenta and the like) and its groups' learning
// rates, as bytes: for a peer that has the same optimizer of the same model.
// libtorch's format, so of one version of it. Fails with INTERNAL if libtorch
// throws.
absl::StatusOr<std::string> SaveOptimizer(
    const ::torch::optim::Optimizer& optimizer);

// Fails with DATA_LOSS if the bytes are not valid. Those of a program in Python
// are read, too, where the optimizer is AdamW, Adam or SGD; FAILED_PRECONDITION
// names what differs.
absl::Status LoadOptimizer(absl::string_view bytes,
                           ::torch::optim::Optimizer* optimizer);

// Returns a checksum of what SaveOptimizer saves: the same for the same state,
// however it came about, while the bytes themselves differ between processes,
// as libtorch names parameters by their address. The groups' other settings are
// no part of it, as LoadOptimizer does not change them. Reads each byte once,
// where the optimizer is a known one (CheckKnown, KeepsKnownState) with
// contiguous tensors; what others keep is written into an archive for it. Fails
// with INTERNAL if libtorch throws.
absl::StatusOr<uint64_t> DigestOptimizer(
    const ::torch::optim::Optimizer& optimizer);

}  // namespace coxswain::torch

#endif  // COXSWAIN_CLIENT_TORCH_STATE_BYTES_H_
