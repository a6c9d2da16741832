#ifndef COXSWAIN_CLIENT_TORCH_MODULE_TENSORS_H_
#define COXSWAIN_CLIENT_TORCH_MODULE_TENSORS_H_

#include <c10/util/Exception.h>
#include <torch/nn/module.h>
#include <torch/types.h>

#include <exception>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "client/device/launch.h"
#include "client/device/tensor.h"
#include "client/reduce/bucket.h"

namespace coxswain::torch {

// Converts a module's tensors to the types of the core. For the files of this
// folder.

struct NamedTensor {
  std::string name;
  ::torch::Tensor tensor;
};

// Returns them in registration order; each tensor once, under its first name.
std::vector<NamedTensor> TrainableParameters(const ::torch::nn::Module& module);
// Returns all parameters, frozen ones too, and all buffers.
std::vector<NamedTensor> TensorsOf(const ::torch::nn::Module& module);

// Fails with INVALID_ARGUMENT, naming a parameter of an unsupported type.
absl::StatusOr<ParameterSpec> Describe(const NamedTensor& parameter);
// Returns a tensor's type and shape: "Float [3, 4]".
std::string DescribeForm(const ::torch::Tensor& tensor);
// Returns DescribeForm by kind and name ("buffer running_mean") of what is
// broadcast but not trained: ranks must have the same.
std::map<std::string, std::string> DescribeUntrained(
    const ::torch::nn::Module& module);

::torch::ScalarType FromDType(DType dtype);
Device ToDevice(const ::torch::Device& device);

// Returns a tensor of these elements, which are not owned.
::torch::Tensor TensorOf(const Span& span, at::IntArrayRef sizes);
// The same, which calls `done` at its end.
::torch::Tensor TensorOf(const Span& span, at::IntArrayRef sizes,
                         const std::function<void(void*)>& done);
// Returns the elements of a row-major tensor of a supported type.
Span ElementsOf(const ::torch::Tensor& tensor);
// Returns any row-major tensor as bytes.
Span BytesOf(const ::torch::Tensor& tensor);

// Returns where the module's first trainable parameter is: the value for
// SessionOptions::device, so that ranks connect through NCCL if that is a GPU.
// The CPU, if there is none.
Device DeviceOf(const ::torch::nn::Module& module);

// Returns the stream of this GPU that the calling thread's libtorch works on,
// for ReducerOptions::caller_stream. Thread-safe. UNIMPLEMENTED: libtorch was
// built without CUDA; or it is too old to hand out another stream than the
// default one (before 2.3), and the program has to, as
//   options.reducer.caller_stream = [] {
//     return reinterpret_cast<coxswain::DeviceStream>(
//         c10::cuda::getCurrentCUDAStream().stream());
//   };
absl::StatusOr<DeviceStream> CurrentStream(const Device& device);

// The only place where the exceptions of libtorch, and of functions that a
// program passes to it, are translated: they become INTERNAL.
template <typename Action>
absl::Status Guarded(absl::string_view what, Action action) {
  try {
    action();
    return absl::OkStatus();
  } catch (const c10::Error& error) {
    return absl::InternalError(
        absl::StrCat(what, ": ", error.what_without_backtrace()));
  } catch (const std::exception& error) {
    return absl::InternalError(absl::StrCat(what, ": ", error.what()));
  } catch (...) {
    // A program's own functions run here, too.
    return absl::InternalError(absl::StrCat(
        what, ": an exception was thrown that is no std::exception"));
  }
}

}  // namespace coxswain::torch

#endif  // COXSWAIN_CLIENT_TORCH_MODULE_TENSORS_H_
