#ifndef COXSWAIN_CLIENT_TORCH_OPTIMIZER_BYTES_H_
#define COXSWAIN_CLIENT_TORCH_OPTIMIZER_BYTES_H_

#include <torch/optim/optimizer.h>

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace coxswain::torch {

// What an optimizer has learned (momenta and the like) and its groups' learning
// rates, as bytes: for a peer that has the same optimizer of the same model.
// libtorch's format, so of one version of it. INTERNAL: libtorch threw.
absl::StatusOr<std::string> SaveOptimizer(
    const ::torch::optim::Optimizer& optimizer);

// DATA_LOSS: these are not such bytes.
absl::Status LoadOptimizer(absl::string_view bytes,
                           ::torch::optim::Optimizer* optimizer);

// A checksum of the same, by parameter in order. The bytes differ between
// processes that hold the same, as libtorch names parameters by their address.
absl::StatusOr<uint64_t> DigestOptimizer(
    const ::torch::optim::Optimizer& optimizer);

}  // namespace coxswain::torch

#endif  // COXSWAIN_CLIENT_TORCH_OPTIMIZER_BYTES_H_
