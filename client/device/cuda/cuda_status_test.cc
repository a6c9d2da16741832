#include "client/device/cuda/cuda_status.h"

#include <vector>

#include "base/status_matchers.h"
#include "gtest/gtest.h"

#ifdef COXSWAIN_CUDA
#include <cuda_runtime.h>
#endif

namespace coxswain {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

void ExpectCode(absl::StatusCode code, const std::vector<int>& errors) {
  for (const int error : errors) {
    const absl::Status status = CudaStatus(error, "GPU 0: copying");
    EXPECT_EQ(status.code(), code) << error << ": " << status;
    EXPECT_THAT(std::string(status.message()), StartsWith("GPU 0: copying: "));
    EXPECT_THAT(std::string(status.message()),
                HasSubstr("(" + std::to_string(error) + ")"));
  }
}

TEST(CudaStatusTest, SuccessIsOk) { EXPECT_OK(CudaStatus(0, "nothing")); }

TEST(CudaStatusTest, ErrorsHaveCodes) {
  ExpectCode(absl::StatusCode::kResourceExhausted, {2, 701});
  ExpectCode(absl::StatusCode::kInvalidArgument, {1, 9, 17, 21, 400});
  ExpectCode(absl::StatusCode::kFailedPrecondition,
             {3, 34, 35, 46, 100, 101, 209, 222, 401, 802, 803, 901, 908});
  ExpectCode(absl::StatusCode::kUnimplemented, {801, 900});
  ExpectCode(absl::StatusCode::kUnavailable,
             {214, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719, 999});
  ExpectCode(absl::StatusCode::kInternal, {30, 301, 12345, -1});
}

TEST(CudaStatusTest, ErrorsHaveAdvice) {
  const auto message = [](int error) {
    return std::string(CudaStatus(error, "x").message());
  };
  EXPECT_THAT(message(2), HasSubstr("smaller"));
  EXPECT_THAT(message(35), HasSubstr("install NVIDIA's driver"));
  EXPECT_THAT(message(100), HasSubstr("CUDA_VISIBLE_DEVICES"));
  EXPECT_THAT(message(209), HasSubstr("COXSWAIN_CUDA_ARCHITECTURES"));
  EXPECT_THAT(message(700), HasSubstr("Xid"));
}

TEST(CudaStatusTest, ErrorsHaveNames) {
  EXPECT_THAT(CudaStatus(719, "x").ToString(),
              HasSubstr("cudaErrorLaunchFailure (719)"));
}

#ifdef COXSWAIN_CUDA
TEST(CudaStatusTest, TheNumbersAreCudas) {
  ExpectCode(absl::StatusCode::kResourceExhausted,
             {cudaErrorMemoryAllocation, cudaErrorLaunchOutOfResources});
  ExpectCode(absl::StatusCode::kInvalidArgument,
             {cudaErrorInvalidValue, cudaErrorInvalidConfiguration,
              cudaErrorInvalidDevicePointer, cudaErrorInvalidMemcpyDirection,
              cudaErrorInvalidResourceHandle});
  ExpectCode(absl::StatusCode::kFailedPrecondition,
             {cudaErrorInitializationError,
              cudaErrorStubLibrary,
              cudaErrorInsufficientDriver,
              cudaErrorDevicesUnavailable,
              cudaErrorNoDevice,
              cudaErrorInvalidDevice,
              cudaErrorNoKernelImageForDevice,
              cudaErrorUnsupportedPtxVersion,
              cudaErrorIllegalState,
              cudaErrorSystemNotReady,
              cudaErrorSystemDriverMismatch,
              cudaErrorCompatNotSupportedOnDevice,
              cudaErrorStreamCaptureInvalidated,
              cudaErrorStreamCaptureMerge,
              cudaErrorStreamCaptureUnmatched,
              cudaErrorStreamCaptureUnjoined,
              cudaErrorStreamCaptureIsolation,
              cudaErrorStreamCaptureImplicit,
              cudaErrorCapturedEvent,
              cudaErrorStreamCaptureWrongThread});
  ExpectCode(absl::StatusCode::kUnimplemented,
             {cudaErrorNotSupported, cudaErrorStreamCaptureUnsupported});
  ExpectCode(
      absl::StatusCode::kUnavailable,
      {cudaErrorCudartUnloading, cudaErrorECCUncorrectable,
       cudaErrorNvlinkUncorrectable, cudaErrorIllegalAddress,
       cudaErrorLaunchTimeout, cudaErrorContextIsDestroyed, cudaErrorAssert,
       cudaErrorHardwareStackError, cudaErrorIllegalInstruction,
       cudaErrorMisalignedAddress, cudaErrorInvalidAddressSpace,
       cudaErrorInvalidPc, cudaErrorLaunchFailure, cudaErrorExternalDevice,
       cudaErrorUnknown});
}
#endif

}  // namespace
}  // namespace coxswain
