#ifndef COXSWAIN_TESTS_FUZZ_TEST_SERVER_H_
#define COXSWAIN_TESTS_FUZZ_TEST_SERVER_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "base/fake_clock.h"
#include "base/random.h"
#include "grpcpp/grpcpp.h"
#include "proto/types.pb.h"
#include "server/checkpoint/checkpoint_store.h"
#include "server/group/groups.h"
#include "server/membership/membership.h"
#include "server/parameter/parameter_store.h"
#include "server/plan/plan_store.h"
#include "server/rpc/checkpoint_service.h"
#include "server/rpc/group_service.h"
#include "server/rpc/parameter_service.h"
#include "server/rpc/rendezvous_service.h"
#include "server/rpc/schedule_service.h"
#include "server/rpc/store_service.h"
#include "server/schedule/schedule_registry.h"
#include "server/state/direct_writer.h"
#include "server/state/memory_state_store.h"
#include "server/storage/memory_file_system.h"
#include "server/store/key_value_store.h"

namespace coxswain {

// All components of a coordinator behind its real services, in this process,
// with a clock that does not advance and a disk in memory. A job "mnist" of two
// members runs in it. The destructor checks that all that was stored can be
// read again, and that components start on it. One thread.
class TestServer {
 public:
  TestServer();
  ~TestServer();
  TestServer(const TestServer&) = delete;
  TestServer& operator=(const TestServer&) = delete;

  std::shared_ptr<grpc::Channel> channel() const { return channel_; }
  // Returns the fences of rank 0 and rank 1.
  const std::vector<v1::Fence>& fences() const { return fences_; }

  // Lets so much time pass, and everything happen that it brings.
  void Pass(absl::Duration time);

 private:
  class CountedRandom : public RandomSource {
   public:
    uint64_t Next() override { return Mix64(++count_); }

   private:
    uint64_t count_ = 0;
  };

  void OpenComponents();
  void CloseComponents();
  void CheckRecords();
  void OpenServer();
  void RunJob();

  FakeClock clock_;
  CountedRandom random_;
  server::MemoryStateStore state_;
  server::DirectWriter writer_{&state_};
  server::MemoryFileSystem files_;
  std::unique_ptr<server::PlanStore> plans_;
  std::unique_ptr<server::CheckpointStore> checkpoints_;
  std::unique_ptr<server::Membership> membership_;
  std::unique_ptr<server::ScheduleRegistry> schedule_;
  std::unique_ptr<server::KeyValueStore> store_;
  std::unique_ptr<server::Groups> groups_;
  std::unique_ptr<server::ParameterStore> parameters_;

  std::unique_ptr<server::RendezvousService> rendezvous_service_;
  std::unique_ptr<server::ScheduleService> schedule_service_;
  std::unique_ptr<server::StoreService> store_service_;
  std::unique_ptr<server::GroupService> group_service_;
  std::unique_ptr<server::CheckpointService> checkpoint_service_;
  std::unique_ptr<server::ParameterService> parameter_service_;
  std::unique_ptr<grpc::Server> server_;
  std::shared_ptr<grpc::Channel> channel_;
  std::vector<v1::Fence> fences_;
};

}  // namespace coxswain

#endif  // COXSWAIN_TESTS_FUZZ_TEST_SERVER_H_
