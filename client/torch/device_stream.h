#ifndef COXSWAIN_CLIENT_TORCH_DEVICE_STREAM_H_
#define COXSWAIN_CLIENT_TORCH_DEVICE_STREAM_H_

#include <torch/nn/module.h>

#include "absl/status/statusor.h"
#include "client/device/launch.h"
#include "client/device/tensor.h"

namespace coxswain::torch {

// Where the module's first trainable parameter lies: what a program sets
// SessionOptions::device to, so that its ranks connect through NCCL where
// that is a GPU. The CPU, if there is none.
Device DeviceOf(const ::torch::nn::Module& module);

// The stream of this GPU that the calling thread's libtorch works on, for
// ReducerOptions::caller_stream. Thread-safe. UNIMPLEMENTED: libtorch was built
// without CUDA; or it is too old to hand out another stream than the default
// one (before 2.3), and the program has to, as
//   options.reducer.caller_stream = [] {
//     return reinterpret_cast<coxswain::DeviceStream>(
//         c10::cuda::getCurrentCUDAStream().stream());
//   };
absl::StatusOr<DeviceStream> CurrentStream(const Device& device);

}  // namespace coxswain::torch

#endif  // COXSWAIN_CLIENT_TORCH_DEVICE_STREAM_H_
