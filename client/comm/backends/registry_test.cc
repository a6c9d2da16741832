#include "client/comm/backends/registry.h"

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/cancel_signal.h"
#include "base/status_matchers.h"
#include "client/comm/device_queue.h"
#include "client/comm/memory_store.h"
#include "client/comm/nccl/emulated/emulated_nccl.h"
#include "client/comm/nccl/nccl_library.h"
#include "client/device/cuda/devices.h"
#include "client/device/emulated/emulated_runtime.h"

namespace coxswain {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

TEST(RegistryTest, AnUnknownNameListsTheValidOnes) {
  EXPECT_THAT(
      Connect("mpi", CommunicatorOptions()),
      StatusIs(absl::StatusCode::kInvalidArgument,
               AllOf(HasSubstr("'mpi'"),
                     HasSubstr("auto, loopback, nccl, parameter_server, shm, "
                               "tcp, two_level"))));
}

TEST(RegistryTest, WhatTookTheirPlaceIsNamedForThoseThatAreGone) {
  const auto replaced = StatusIs(absl::StatusCode::kInvalidArgument,
                                 HasSubstr("'gloo' was replaced by 'tcp'"));
  EXPECT_THAT(BackendName("gloo"), replaced);
  EXPECT_THAT(Connect("gloo", CommunicatorOptions()), replaced);
}

TEST(RegistryTest, ASlipIsRecognised) {
  EXPECT_THAT(BackendName("two_levle"),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("did you mean 'two_level'?")));
}

TEST(RegistryTest, EachBackEndHasOneNameInWhicheverWayItIsSpelt) {
  std::vector<std::string> spellings = BackendNames();
  spellings.push_back("two_level(tcp)");
  std::vector<std::string> names = BackendNames();
  names.push_back("two_level");
  for (size_t i = 0; i < names.size(); ++i) {
    ASSERT_OK_AND_ASSIGN(const std::string name, BackendName(spellings[i]));
    EXPECT_EQ(name, names[i]);
  }
}

TEST(RegistryTest, AutoTakesLoopbackForOneRank) {
  ASSERT_OK_AND_ASSIGN(auto comm, Connect("auto", CommunicatorOptions()));
  EXPECT_EQ(comm->backend(), "loopback");
}

TEST(RegistryTest, ANamedBackEndIsNotReplaced) {
  CommunicatorOptions options;
  options.store = std::make_shared<MemoryStore>();
  for (const char* const name : {"tcp", "two_level"}) {
    options.id = name;
    ASSERT_OK_AND_ASSIGN(auto comm, Connect(name, options));
    EXPECT_EQ(comm->backend(), name);
  }
}

TEST(RegistryTest, AutoTakesTcpForMore) {
  CommunicatorOptions options;
  options.size = 2;
  EXPECT_THAT(Connect("auto", options),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("the tcp back end")));
}

TEST(RegistryTest, AutoSharesMemoryWithinAHost) {
  auto store = std::make_shared<MemoryStore>();
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&store, rank] {
      CommunicatorOptions options;
      options.rank = rank;
      options.size = 2;
      options.store = store;
      options.timeout = absl::Seconds(20);
      ASSERT_OK_AND_ASSIGN(const auto comm, Connect("auto", options));
      EXPECT_EQ(comm->backend(), "shm");
      EXPECT_OK(comm->Barrier()->Wait(absl::Seconds(20)));
    });
  }
  for (auto& thread : threads) thread.join();
}

TEST(RegistryTest, TwoLevelsAreTakenByNameOnOneHostToo) {
  for (const char* const name : {"two_level", "two_level(tcp)"}) {
    auto store = std::make_shared<MemoryStore>();
    std::vector<std::thread> threads;
    for (int rank = 0; rank < 2; ++rank) {
      threads.emplace_back([&, rank] {
        CommunicatorOptions options;
        options.rank = rank;
        options.size = 2;
        options.store = store;
        options.timeout = absl::Seconds(20);
        ASSERT_OK_AND_ASSIGN(const auto comm, Connect(name, options));
        EXPECT_EQ(comm->backend(), "two_level");
        std::vector<float> data(1 << 16, 1);
        const Span span{data.data(), 1 << 16, DType::kFloat32, {}};
        EXPECT_OK(comm->AllReduce(span)->Wait(absl::Seconds(20)));
        EXPECT_EQ(data[0], 2);
      });
    }
    for (auto& thread : threads) thread.join();
  }
}

TEST(RegistryTest, ACancelledRankOfTwoLevelsDoesNotWait) {
  CancelSignal cancel;
  CommunicatorOptions options;
  options.size = 2;
  options.store = std::make_shared<MemoryStore>();
  options.cancel = &cancel;
  std::thread canceller([&] { cancel.Raise(absl::AbortedError("enough")); });
  EXPECT_THAT(Connect("two_level(tcp)", options),
              StatusIs(absl::StatusCode::kAborted, HasSubstr("enough")));
  canceller.join();
}

// Connects the ranks of a group by "auto", rank r with data on devices[r].
std::vector<absl::StatusOr<std::unique_ptr<Communicator>>> ConnectAuto(
    const std::vector<Device>& devices, bool encrypts = false) {
  auto store = std::make_shared<MemoryStore>();
  std::vector<absl::StatusOr<std::unique_ptr<Communicator>>> connected(
      devices.size());
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < devices.size(); ++rank) {
    threads.emplace_back([&, rank] {
      CommunicatorOptions options;
      options.rank = static_cast<int>(rank);
      options.size = static_cast<int>(devices.size());
      options.store = store;
      options.device = devices[rank];
      options.encrypts = encrypts;
      options.timeout = absl::Seconds(20);
      connected[rank] = Connect("auto", options);
    });
  }
  for (auto& thread : threads) thread.join();
  return connected;
}

// While it lives, the devices of this process and its NCCL are emulated.
class EmulatedHost {
 public:
  explicit EmulatedHost(int gpus) : gpus_(gpus) {
    UseNccl(&nccl_);
    for (int index = 0; index < gpus_; ++index) {
      UseDevice(index, std::make_unique<EmulatedRuntime>(index));
    }
  }
  ~EmulatedHost() {
    for (int index = 0; index < gpus_; ++index) UseDevice(index, nullptr);
    UseNccl(nullptr);
  }
  EmulatedNccl& nccl() { return nccl_; }

 private:
  const int gpus_;
  EmulatedNccl nccl_;
};

constexpr Device kGpu0 = {Device::Kind::kCuda, 0};
constexpr Device kGpu1 = {Device::Kind::kCuda, 1};

TEST(RegistryTest, AutoTakesNcclForDataOnGpus) {
  EmulatedHost host(2);
  {
    const auto connected = ConnectAuto({kGpu0, kGpu1});
    for (const auto& comm : connected) {
      ASSERT_OK(comm);
      EXPECT_EQ((*comm)->backend(), "nccl");
      EXPECT_NE((*comm)->device_queue(), nullptr);
    }
    EXPECT_EQ(host.nccl().counts().communicators, 2);
  }
  EXPECT_EQ(host.nccl().counts().communicators, 0);
}

TEST(RegistryTest, WhatIsNotEncryptedAsAskedForIsLogged) {
  EmulatedHost host(2);
  const auto logged = [](bool encrypts) {
    testing::internal::CaptureStderr();
    for (const auto& comm : ConnectAuto({kGpu0, kGpu1}, encrypts)) {
      EXPECT_OK(comm);
    }
    return testing::internal::GetCapturedStderr();
  };
  EXPECT_THAT(logged(false), Not(HasSubstr("gradients_in_plain_text")));
  EXPECT_THAT(logged(true), HasSubstr("W gradients_in_plain_text"));
}

TEST(RegistryTest, AutoTakesNcclForOneRankOnAGpuWithoutAStore) {
  EmulatedHost host(1);
  CommunicatorOptions options;
  options.device = kGpu0;
  ASSERT_OK_AND_ASSIGN(const auto comm, Connect("auto", options));
  EXPECT_EQ(comm->backend(), "nccl");
}

TEST(RegistryTest, AutoRefusesDataOnGpusAndOnTheCpu) {
  for (const auto& comm : ConnectAuto({kGpu0, Device()})) {
    EXPECT_THAT(comm, StatusIs(absl::StatusCode::kFailedPrecondition,
                               AllOf(HasSubstr("rank 0: its data is on GPU 0"),
                                     HasSubstr("rank 1: its data is in"))));
  }
}

TEST(RegistryTest, NcclNeedsADevice) {
  CommunicatorOptions options;
  options.store = std::make_shared<MemoryStore>();
  EXPECT_THAT(Connect("nccl", options),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("rank 0's is on the CPU")));
}

}  // namespace
}  // namespace coxswain
