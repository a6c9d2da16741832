#include "examples/fashion_mnist/device_choice.h"

#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/status_macros.h"
#include "client/device/cuda/devices.h"

namespace coxswain::examples {
namespace {

// Returns how many GPUs both libtorch and this library can use.
int UsableGpus(const DeviceFacts& facts) {
  return facts.torch_has_cuda ? std::min(facts.torch_gpus, facts.gpus) : 0;
}

std::string WhyNone(const DeviceFacts& facts) {
  if (!facts.torch_has_cuda) return "libtorch was built without CUDA";
  if (facts.gpus == 0) return facts.why_none;
  return "libtorch sees no GPU";
}

DeviceChoice Gpu(int index, std::string why) {
  DeviceChoice choice;
  choice.device.kind = Device::Kind::kCuda;
  choice.device.index = index;
  choice.why = std::move(why);
  return choice;
}

DeviceChoice Cpu(std::string why) {
  DeviceChoice choice;
  choice.why = std::move(why);
  return choice;
}

DeviceChoice OwnGpu(const DeviceFacts& facts) {
  if (facts.assigned) {
    return Gpu(*facts.assigned, "the launcher has assigned it");
  }
  return Gpu(facts.local_rank,
             absl::StrCat("it is that of local rank ", facts.local_rank));
}

DeviceChoice ChooseAuto(const DeviceFacts& facts) {
  if (facts.backend != "auto" && facts.backend != "nccl") {
    return Cpu(
        absl::StrCat("the back end ", facts.backend, " moves its memory"));
  }
  const int usable = UsableGpus(facts);
  if (usable == 0) return Cpu(WhyNone(facts));
  const DeviceChoice own = OwnGpu(facts);
  if (own.device.index < usable && facts.local_world_size <= usable) return own;
  return Cpu(absl::StrCat(facts.local_world_size, " workers here and ", usable,
                          usable == 1 ? " GPU" : " GPUs"));
}

absl::StatusOr<DeviceChoice> CheckThere(absl::string_view asked,
                                        const DeviceFacts& facts,
                                        const DeviceChoice& choice) {
  const int usable = UsableGpus(facts);
  if (usable == 0) {
    return absl::FailedPreconditionError(absl::StrCat(
        "--device ", asked, ": ", WhyNone(facts), "; train with --device cpu"));
  }
  const std::string there =
      absl::StrCat(usable, usable == 1 ? " GPU" : " GPUs", " visible");
  constexpr char kInstead[] =
      "; start fewer workers, or train with --device cpu";
  if (choice.device.index >= usable) {
    return absl::FailedPreconditionError(
        absl::StrCat("--device ", asked, ": local rank ", facts.local_rank,
                     " would use GPU ", choice.device.index,
                     ", counted from 0, "
                     "with ",
                     there, kInstead));
  }
  if (asked != "cuda" && facts.local_world_size > 1) {
    return absl::FailedPreconditionError(absl::StrCat(
        "--device ", asked, ": ", facts.local_world_size,
        " workers here would share GPU ", choice.device.index,
        "; train with --device cuda, which gives each its own, or with one "
        "worker"));
  }
  if (asked == "cuda" && !facts.assigned && facts.local_world_size > usable) {
    return absl::FailedPreconditionError(
        absl::StrCat("--device cuda: ", facts.local_world_size,
                     " workers here, with ", there, kInstead));
  }
  return choice;
}

}  // namespace

DeviceFacts FindDevices(const Device& assigned, int local_rank,
                        int local_world_size) {
  DeviceFacts facts;
  facts.torch_has_cuda = c10::impl::hasDeviceGuardImpl(c10::DeviceType::CUDA);
  if (facts.torch_has_cuda) {
    facts.torch_gpus =
        c10::impl::VirtualGuardImpl(c10::DeviceType::CUDA).deviceCount();
  }
  facts.gpus = DeviceCount(&facts.why_none);
  if (assigned.kind == Device::Kind::kCuda) facts.assigned = assigned.index;
  facts.local_rank = local_rank;
  facts.local_world_size = local_world_size;
  return facts;
}

absl::StatusOr<DeviceChoice> ChooseDevice(absl::string_view asked,
                                          const DeviceFacts& facts) {
  if (asked == "cpu") return Cpu("--device asks for it");
  if (asked == "auto") return ChooseAuto(facts);
  if (asked == "cuda") return CheckThere(asked, facts, OwnGpu(facts));
  absl::string_view number = asked;
  int index = 0;
  if (absl::ConsumePrefix(&number, "cuda:") &&
      absl::SimpleAtoi(number, &index) && index >= 0) {
    return CheckThere(asked, facts, Gpu(index, "--device asks for it"));
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "--device is auto, cpu, cuda or cuda:N (such as cuda:0), not '", asked,
      "'"));
}

std::string NameOf(const Device& device) {
  return device.kind == Device::Kind::kCpu
             ? "the CPU"
             : absl::StrCat("cuda:", device.index);
}

}  // namespace coxswain::examples
