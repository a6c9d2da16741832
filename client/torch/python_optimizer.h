#ifndef COXSWAIN_CLIENT_TORCH_PYTHON_OPTIMIZER_H_
#define COXSWAIN_CLIENT_TORCH_PYTHON_OPTIMIZER_H_

#include <torch/optim/optimizer.h>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

// The optimizer's state of programs in Python, python/coxswain/torch/_state.py.
// For the files of this folder.
namespace coxswain::torch {

// Returns whether these are the bytes of a state that Python has saved.
bool IsOfPython(absl::string_view bytes);

// Goes on with the state of torch's AdamW, Adam or SGD in a libtorch optimizer
// of the same name, whose parameters are the same in the same order: with the
// momenta and the groups' learning rates. Fails with DATA_LOSS if the bytes are
// not valid, and with FAILED_PRECONDITION, naming what differs; the optimizer
// stays as it was.
absl::Status LoadPythonOptimizer(absl::string_view bytes,
                                 ::torch::optim::Optimizer* optimizer);

}  // namespace coxswain::torch

#endif  // COXSWAIN_CLIENT_TORCH_PYTHON_OPTIMIZER_H_
