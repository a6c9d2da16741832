#ifndef COXSWAIN_EXAMPLES_FASHION_MNIST_DEVICE_CHOICE_H_
#define COXSWAIN_EXAMPLES_FASHION_MNIST_DEVICE_CHOICE_H_

#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "client/device/tensor.h"

namespace coxswain::examples {

// Where to train: what --device asks for, and what there is.

struct DeviceFacts {
  bool torch_has_cuda = false;  // libtorch was built with it
  int torch_gpus = 0;           // that libtorch sees
  int gpus = 0;                 // that this library sees
  std::string why_none;         // if there are none
  std::optional<int> assigned;  // by the launcher
  int local_rank = 0;
  int local_world_size = 1;
  std::string backend = "auto";  // of the session
};

// Returns the facts of this process; the last three from what its launcher has
// set.
DeviceFacts FindDevices(const Device& assigned, int local_rank,
                        int local_world_size);

struct DeviceChoice {
  Device device;
  std::string why;  // "libtorch was built without CUDA"
};

// Returns where to train. `asked` is auto, cpu, cuda (the one that the launcher
// has assigned, or the one of this local rank) or cuda:N. auto is the CPU where
// there is no GPU for each worker, or the back end moves none of their memory.
// Fails with INVALID_ARGUMENT if it is none of these, and with
// FAILED_PRECONDITION and the reason if there is no such GPU.
absl::StatusOr<DeviceChoice> ChooseDevice(absl::string_view asked,
                                          const DeviceFacts& facts);

// "the CPU" or "cuda:N".
std::string NameOf(const Device& device);

}  // namespace coxswain::examples

#endif  // COXSWAIN_EXAMPLES_FASHION_MNIST_DEVICE_CHOICE_H_
