#ifndef COXSWAIN_TESTS_CONFORMANCE_DEVICE_CONFORMANCE_H_
#define COXSWAIN_TESTS_CONFORMANCE_DEVICE_CONFORMANCE_H_

#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "client/device/buffer.h"
#include "client/device/runtime.h"
#include "gtest/gtest.h"

namespace coxswain {

// What every DeviceRuntime must do. A runtime's test instantiates it:
//
//   INSTANTIATE_TEST_SUITE_P(Emulated, DeviceConformance,
//                            testing::Values(DeviceCase{...}));
struct DeviceCase {
  std::string name;
  std::function<DeviceRuntime*()> get;  // owned by the test
};
inline void PrintTo(const DeviceCase& the_case, std::ostream* os) {
  *os << the_case.name;
}

class DeviceConformance : public testing::TestWithParam<DeviceCase> {
 protected:
  DeviceConformance() : runtime_(GetParam().get()) {}
  ~DeviceConformance() override;

  // Return streams and events, which end with the test.
  DeviceStream NewStream();
  DeviceEvent NewEvent();
  // Return memory of the device, and memory of the host that copies use.
  float* NewMemory(int64_t floats);
  float* NewHostMemory(int64_t floats);

  absl::Status CopyFloats(float* to, const float* from, int64_t count,
                          DeviceStream stream);
  // Returns the contents of memory of the device, once the stream has reached
  // this call.
  std::vector<float> Read(const float* from, int64_t count,
                          DeviceStream stream);
  // Computes the sum of each 64 values.
  absl::Status Sum(const float* values, float* sums, int64_t count,
                   DeviceStream stream);
  // Enqueues work that takes a while.
  void Delay(DeviceStream stream);

  DeviceRuntime* const runtime_;

 private:
  std::vector<DeviceStream> streams_;
  std::vector<DeviceEvent> events_;
  std::vector<DeviceBuffer> memory_;
  std::vector<PinnedBuffer> host_memory_;
};

}  // namespace coxswain

#endif  // COXSWAIN_TESTS_CONFORMANCE_DEVICE_CONFORMANCE_H_
