#ifndef COXSWAIN_CLIENT_TORCH_MODULE_BYTES_H_
#define COXSWAIN_CLIENT_TORCH_MODULE_BYTES_H_

#include <torch/nn/module.h>

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace coxswain::torch {

// A module's parameters and buffers as bytes: their number, then for each its
// name, its type and shape as text ("float32 [3, 4]"), and its elements in
// row-major order; each text and run of elements after its length, all numbers
// 8 bytes, little-endian.

// Writes over `bytes`, whose memory is used again where it suffices. INTERNAL:
// libtorch threw.
absl::Status SaveModule(const ::torch::nn::Module& module, std::string* bytes);

// DATA_LOSS: these are no such bytes. FAILED_PRECONDITION lists what the module
// has otherwise, and leaves it as it was.
absl::Status LoadModule(absl::string_view bytes, ::torch::nn::Module* module);

}  // namespace coxswain::torch

#endif  // COXSWAIN_CLIENT_TORCH_MODULE_BYTES_H_
