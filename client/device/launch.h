#ifndef COXSWAIN_CLIENT_DEVICE_LAUNCH_H_
#define COXSWAIN_CLIENT_DEVICE_LAUNCH_H_

#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "base/host_device.h"

// Kernels as values. A program is what each thread of each block does between
// two barriers, in code that compiles for the GPU and for the CPU; so a machine
// without a GPU tests the kernel that a GPU runs: its arithmetic, its indices
// and its barriers. Free of Abseil and gRPC, as are the .cu files.
//
//   struct Halve {
//     static constexpr int kThreads = 256;  // of a block
//     struct Shared {};                     // what a block shares, <= 48 KiB
//     struct Thread {};                     // what a thread keeps
//     float* values;
//     int64_t count;
//     // Barriers stand between phases; the same number in all threads.
//     COXSWAIN_HOST_DEVICE constexpr int phases() const { return 1; }
//     COXSWAIN_HOST_DEVICE void Run(int phase, const BlockPlace& at,
//                                   Thread* thread, Shared* shared) const {
//       const int64_t i = at.block * kThreads + at.thread;
//       if (i < count) values[i] *= 0.5f;
//     }
//   };
//   Launch(&target, blocks, Halve{values, count});
//
// A program is a trivially copyable struct of at most 4000 bytes. Blocks run in
// any order, and so do threads between two barriers; the CPU's order is not the
// GPU's, and changes. Where .cu files instantiate a program is
// client/device/launch.cuh.

namespace coxswain {

// Handles of a runtime (client/device/runtime.h); of CUDA's, a cudaStream_t.
struct DeviceStreamHandle;
using DeviceStream = DeviceStreamHandle*;

struct BlockPlace {
  int64_t block = 0;
  int64_t blocks = 0;
  int thread = 0;
};

// A stream whose work runs on the CPU, in order.
class HostStream {
 public:
  virtual ~HostStream() = default;
  virtual void Enqueue(std::function<void()> work) = 0;
};

// cudaErrorInvalidValue: what no kernel takes.
constexpr int kInvalidValue = 1;

// Where kernels are enqueued, and their first error. One thread at a time.
struct LaunchTarget {
  DeviceStream stream = nullptr;
  HostStream* host = nullptr;  // set: the CPU runs them
  int error = 0;               // the first cudaError_t that was not 0
  int64_t launches = 0;
};

// Runs all blocks on this thread. `order` permutes blocks and threads.
template <class Program>
void RunOnHost(const Program& program, int64_t blocks, uint64_t order = 0) {
  std::vector<typename Program::Thread> threads;
  for (int64_t b = 0; b < blocks; ++b) {
    BlockPlace at;
    at.block = order % 2 == 0 ? b : blocks - 1 - b;
    at.blocks = blocks;
    typename Program::Shared shared;
    threads.assign(Program::kThreads, typename Program::Thread());
    for (int phase = 0; phase < program.phases(); ++phase) {
      for (int t = 0; t < Program::kThreads; ++t) {
        at.thread =
            (order / 2 + phase) % 2 == 0 ? t : Program::kThreads - 1 - t;
        program.Run(phase, at, &threads[static_cast<size_t>(at.thread)],
                    &shared);
      }
    }
  }
}

// Runs the program on the current GPU. Returns a cudaError_t. Defined in
// client/device/launch.cuh, for the files that instantiate it.
template <class Program>
int LaunchOnDevice(const Program& program, int64_t blocks, DeviceStream stream);

// Enqueues a program; nothing if `blocks` is 0. Errors stay in the target.
template <class Program>
void Launch(LaunchTarget* target, int64_t blocks, const Program& program) {
  static_assert(sizeof(Program) <= 4000);
  if (blocks <= 0 || target->error != 0) return;
  const int64_t number = target->launches++;
  if (target->host != nullptr) {
    target->host->Enqueue([program, blocks, number] {
      RunOnHost(program, blocks, static_cast<uint64_t>(number));
    });
    return;
  }
#ifdef COXSWAIN_CUDA
  target->error = LaunchOnDevice(program, blocks, target->stream);
#else
  constexpr int kNoDevice = 100;  // cudaErrorNoDevice
  target->error = kNoDevice;
#endif
}

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_DEVICE_LAUNCH_H_
