#ifndef COXSWAIN_CLIENT_DEVICE_LAUNCH_CUH_
#define COXSWAIN_CLIENT_DEVICE_LAUNCH_CUH_

#include <cuda_runtime.h>

#include "client/device/launch.h"

// For .cu files. Each program that is launched is instantiated in one of them:
//
//   COXSWAIN_DEVICE_PROGRAM(Halve);

namespace coxswain {

template <class Program>
__global__ void __launch_bounds__(Program::kThreads)
    RunProgram(const __grid_constant__ Program program) {
  // Without constructors: all threads would run them.
  __shared__ alignas(16) unsigned char shared[sizeof(typename Program::Shared)];
  typename Program::Thread thread;
  BlockPlace at;
  at.block = blockIdx.x;
  at.blocks = gridDim.x;
  at.thread = static_cast<int>(threadIdx.x);
#pragma unroll
  for (int phase = 0; phase < program.phases(); ++phase) {
    if (phase > 0) __syncthreads();
    program.Run(phase, at, &thread,
                reinterpret_cast<typename Program::Shared*>(shared));
  }
}

template <class Program>
int LaunchOnDevice(const Program& program, int64_t blocks,
                   DeviceStream stream) {
  constexpr int64_t kMostBlocks = 0x7fffffff;
  if (blocks > kMostBlocks) return cudaErrorInvalidConfiguration;
  // An error that other libraries left on this thread, such as a query of an
  // event that had not passed, is not of this launch.
  (void)cudaGetLastError();
  RunProgram<Program><<<static_cast<unsigned>(blocks), Program::kThreads, 0,
                        reinterpret_cast<cudaStream_t>(stream)>>>(program);
  return cudaGetLastError();
}

}  // namespace coxswain

#define COXSWAIN_DEVICE_PROGRAM(...)                  \
  template int coxswain::LaunchOnDevice<__VA_ARGS__>( \
      const __VA_ARGS__&, int64_t, coxswain::DeviceStream)

#endif  // COXSWAIN_CLIENT_DEVICE_LAUNCH_CUH_
