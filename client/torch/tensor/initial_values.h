#ifndef COXSWAIN_CLIENT_TORCH_TENSOR_INITIAL_VALUES_H_
#define COXSWAIN_CLIENT_TORCH_TENSOR_INITIAL_VALUES_H_

#include <torch/nn/module.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "client/torch/tensor/parallel_layer.h"

namespace coxswain::torch {

// How a parameter begins: each element is `mean` and `deviation` times a
// standard normal number.
struct InitialValues {
  double mean = 0;
  double deviation = 0;
};

// Of a parameter by its name and shape, in the whole model.
using InitialRule = std::function<InitialValues(
    const std::string& name, const std::vector<int64_t>& shape)>;

// Matrices, and what has more dimensions, are normal, with a mean of 0 and a
// variance of one over their inputs (the elements of weight[0]). What has one
// dimension, or none, is 0 if its name ends in "bias" and otherwise 1.
InitialValues UsualInitialValues(const std::string& name,
                                 const std::vector<int64_t>& shape);

// Sets all parameters of a module, each element by the seed, the parameter's
// name in the module and the element's index in the whole parameter: the same
// bits on any mesh, whatever else a rank has, without a collective. Names are
// those of the whole model. A parameter that is registered several times has
// the values of its first name. Buffers stay as they are.
//
// `boxes` are BoxesOf(module). INVALID_ARGUMENT, and nothing is set: one of
// them is not in the module, has another shape than its parameter, or does not
// lie in its whole; a parameter that is not of float32 or float64, or not on
// the CPU.
absl::Status InitialiseByName(::torch::nn::Module& module, uint64_t seed,
                              const ParameterBoxes& boxes,
                              const InitialRule& rule = UsualInitialValues);

}  // namespace coxswain::torch

#endif  // COXSWAIN_CLIENT_TORCH_TENSOR_INITIAL_VALUES_H_
