#include "client/session/session.h"

#include <atomic>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/mutex.h"
#include "base/status_matchers.h"
#include "client/comm/backends/registry.h"
#include "client/rpc/forwarding_coordinator_stub.h"
#include "client/rpc/stub_factory.h"
#include "gtest/gtest.h"
#include "server/coordinator.h"
#include "tests/support/in_threads.h"

// Sessions against a real coordinator in the same process, over loopback, each
// rank a thread.

namespace coxswain::session_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr absl::Duration kTimeout = absl::Seconds(20);

class Notification {
 public:
  void Notify() {
    MutexLock lock(&mutex_);
    notified_ = true;
    cv_.NotifyAll();
  }
  bool Wait() {
    MutexLock lock(&mutex_);
    return cv_.WaitFor(&mutex_, kTimeout, [this]() { return notified_; });
  }

 private:
  Mutex mutex_;
  CondVar cv_;
  bool notified_ ABSL_GUARDED_BY(mutex_) = false;
};

using Sessions = std::vector<std::unique_ptr<Session>>;

class SessionIntegrationTest : public ::testing::Test {
 protected:
  SessionIntegrationTest() {
    state_dir_ = absl::StrCat(
        ::testing::TempDir(), "/",
        ::testing::UnitTest::GetInstance()->current_test_info()->name());
  }

  void StartCoordinator(int port = 0) {
    server::CoordinatorOptions options;
    options.listen = absl::StrCat("127.0.0.1:", port);
    options.state_dir = state_dir_;
    auto started = server::Coordinator::Start(options);
    ASSERT_OK(started);
    coordinator_ = std::move(started).value();
    port_ = coordinator_->port();
  }

  // A port with no listener.
  void FindFreePort() {
    StartCoordinator();
    coordinator_.reset();
  }

  SessionOptions OptionsOf(int slot, int world_size) const {
    SessionOptions options;
    options.coordinator = absl::StrCat("127.0.0.1:", port_);
    options.job = "mnist";
    options.identity = {"host-a", slot};
    options.host = "host-a";
    options.local_rank = slot;
    options.world_size = world_size;
    options.join_timeout = kTimeout;
    options.collective_timeout = kTimeout;
    return options;
  }

  // By rank; none on a failure.
  Sessions JoinAll(int count, const std::string& mesh = "") {
    Sessions joined(count);
    Mutex mutex;
    InThreads(count, [&](int slot) {
      JobManifest manifest;
      manifest.mesh = mesh;
      auto session = Session::Join(OptionsOf(slot, count), manifest);
      EXPECT_OK(session);
      if (!session.ok()) return;
      MutexLock lock(&mutex);
      const int rank = (*session)->rank();
      if (rank >= 0 && rank < count) joined[rank] = std::move(*session);
    });
    for (const auto& session : joined) {
      EXPECT_NE(session, nullptr) << "ranks are not distinct";
      if (session == nullptr) return {};
    }
    return joined;
  }

  static float Sum(const ProcessGroup& group, float value) {
    EXPECT_OK(group.communicator()
                  .AllReduce(Span{&value, 1, DType::kFloat32, {}})
                  ->Wait(kTimeout));
    return value;
  }

  std::string state_dir_;
  int port_ = 0;
  std::unique_ptr<server::Coordinator> coordinator_;
};

// Joins three workers whose options differ, and expects that each gets an error
// with the differences.
class DifferentDevicesTest : public SessionIntegrationTest {
 protected:
  void ExpectRefused(
      const std::function<void(int slot, SessionOptions*)>& change,
      const std::string& difference) {
    StartCoordinator();
    InThreads(3, [&](int slot) {
      SessionOptions options = OptionsOf(slot, 3);
      options.device = {Device::Kind::kCuda, slot};
      options.nccl_version = "2.28.9";
      change(slot, &options);
      EXPECT_THAT(Session::Join(options, {}),
                  StatusIs(absl::StatusCode::kFailedPrecondition,
                           HasSubstr(difference)))
          << slot;
    });
  }
};

TEST_F(SessionIntegrationTest, CheckpointsOfAJobOnGpusGoByTheCpu) {
  StartCoordinator();
  SessionOptions options = OptionsOf(0, 1);
  options.device = {Device::Kind::kCuda, 0};
  options.nccl_version = "2.28.9";
  options.backend = "nccl";
  ASSERT_OK_AND_ASSIGN(const auto session, Session::Join(options, {}));
  ASSERT_OK_AND_ASSIGN(const auto group,
                       session->CreateGroup("checkpoint/1", {0}));
  EXPECT_EQ(group->communicator().backend(), "loopback");
  EXPECT_OK(session->Leave("done"));
}

TEST_F(DifferentDevicesTest, VersionsOfNcclAreReportedByRank) {
  ExpectRefused(
      [](int slot, SessionOptions* options) {
        if (slot == 2) options->nccl_version = "2.26.2";
      },
      "setting nccl_version: 2.28.9 on rank 0 (host-a/0), rank 1 (host-a/1); "
      "2.26.2 on rank 2 (host-a/2)");
}

TEST_F(DifferentDevicesTest, AWorkerOnTheCpuIsReportedByRank) {
  ExpectRefused(
      [](int slot, SessionOptions* options) {
        if (slot == 1) options->device = {};
      },
      "setting device: cuda on rank 0 (host-a/0), rank 2 (host-a/2); "
      "cpu on rank 1 (host-a/1)");
}

TEST_F(SessionIntegrationTest, RanksAreDistinctAndEveryoneKnowsEveryone) {
  StartCoordinator();
  const Sessions sessions = JoinAll(3);
  ASSERT_EQ(sessions.size(), 3u);
  for (const auto& session : sessions) {
    EXPECT_EQ(session->world_size(), 3);
    EXPECT_EQ(session->generation(), sessions[0]->generation());
    ASSERT_OK_AND_ASSIGN(const auto members, session->Members());
    ASSERT_EQ(members.size(), 3u);
    EXPECT_EQ(members[session->rank()].identity.slot, session->local_rank());
    EXPECT_EQ(members[0].host, "host-a");
    EXPECT_EQ(members[0].address, "127.0.0.1");
    EXPECT_OK(session->status());
  }
}

TEST_F(SessionIntegrationTest, OverlappingGroupsSumTheirOwnRanks) {
  StartCoordinator();
  const Sessions sessions = JoinAll(3);
  ASSERT_EQ(sessions.size(), 3u);
  InThreads(3, [&](int rank) {
    Session& session = *sessions[rank];
    const auto world = session.World();
    ASSERT_OK(world);
    EXPECT_EQ(Sum(**world, 1.0f + rank), 6);
    if (rank <= 1) {
      const auto low = session.CreateGroup("low", {0, 1});
      ASSERT_OK(low);
      EXPECT_EQ(Sum(**low, 1.0f + rank), 3);
    }
    if (rank >= 1) {
      const auto high = session.CreateGroup("high", {2, 1});
      ASSERT_OK(high);
      EXPECT_EQ((*high)->rank(), rank == 2 ? 0 : 1);
      EXPECT_EQ(Sum(**high, 1.0f + rank), 5);
    }
    EXPECT_OK(session.Barrier("", "end", kTimeout));
  });
}

TEST_F(SessionIntegrationTest, AGroupDoesNotWaitForARankThatHasLeft) {
  StartCoordinator();
  Notification connecting;
  InThreads(2, [&](int slot) {
    SessionOptions options = OptionsOf(slot, 2);
    options.collective_timeout = absl::Minutes(5);
    options.connect = [&](const std::string& backend,
                          const CommunicatorOptions& communicator) {
      connecting.Notify();
      return Connect(backend, communicator);
    };
    ASSERT_OK_AND_ASSIGN(const auto session, Session::Join(options, {}));
    if (slot == 1) {
      // So that the other one has attached, and is notified.
      ASSERT_TRUE(connecting.Wait());
      EXPECT_OK(session->Leave("no data"));
      return;
    }
    const auto missing =
        StatusIs(absl::StatusCode::kUnavailable,
                 AllOf(HasSubstr("cannot be connected: rank 1 on host-a has "
                                 "left: no data")));
    EXPECT_THAT(session->World(), missing);
    // And at once, now that this is known.
    EXPECT_THAT(session->CreateGroup("both", {1, 0}), missing);
    EXPECT_OK(session->status());
    EXPECT_OK(session->CreateGroup("alone", {0}));
  });
}

TEST_F(SessionIntegrationTest, TheGroupsOfAMeshSumAlongTheirAxes) {
  StartCoordinator();
  const Sessions sessions = JoinAll(8);
  ASSERT_EQ(sessions.size(), 8u);
  // The type has all axes, whatever can be trained on.
  ASSERT_OK_AND_ASSIGN(const Mesh mesh,
                       Mesh::Create({{"pp", 2}, {"dp", 2}, {"shard", 2}}));
  InThreads(8, [&](int rank) {
    Session& session = *sessions[rank];
    ASSERT_OK_AND_ASSIGN(const MeshGroups groups, session.GroupsOf(mesh));
    for (const auto& [group, axes] :
         {std::pair(groups.world, MeshAxes{0, 1, 2}),
          std::pair(groups.pp, MeshAxes{0}), std::pair(groups.dp, MeshAxes{1}),
          std::pair(groups.shard, MeshAxes{2}),
          std::pair(groups.data, MeshAxes{1, 2}),
          std::pair(groups.tp, MeshAxes{})}) {
      const std::vector<int> ranks = mesh.GroupOf(rank, axes);
      EXPECT_EQ(group->ranks(), ranks);
      float expected = 0;
      for (const int member : ranks) expected += 1.0f + member;
      EXPECT_EQ(Sum(*group, 1.0f + rank), expected);
    }
    EXPECT_EQ(groups.data->communicator().backend(), "shm");
    // All of it once more: what is connected stays.
    ASSERT_OK_AND_ASSIGN(const MeshGroups again, session.GroupsOf(mesh));
    EXPECT_EQ(again.data, groups.data);
    EXPECT_EQ(again.tp, groups.tp);
    EXPECT_OK(session.Barrier(groups.data->name(), "data", kTimeout));
    EXPECT_OK(session.Barrier("", "end", kTimeout));
  });
}

TEST_F(SessionIntegrationTest, ReplicasAndShardsOfAllRanksAreTheWorld) {
  StartCoordinator();
  const Sessions sessions = JoinAll(4, "dp=*,shard=2");
  ASSERT_EQ(sessions.size(), 4u);
  InThreads(4, [&](int rank) {
    Session& session = *sessions[rank];
    EXPECT_EQ(session.mesh().ToString(), "dp=2,shard=2");
    ASSERT_OK_AND_ASSIGN(const MeshGroups groups,
                         session.GroupsOf(session.mesh()));
    EXPECT_EQ(groups.data, groups.world);
    EXPECT_EQ(groups.dp->size(), 2);
    EXPECT_EQ(groups.shard->size(), 2);
    EXPECT_EQ(groups.tp->size(), 1);
    ASSERT_OK_AND_ASSIGN(const auto members, session.Members());
    EXPECT_EQ(members.at(3).coordinates, "dp 1, shard 1");
    EXPECT_OK(session.Barrier("", "end", kTimeout));
  });
}

TEST_F(SessionIntegrationTest, GroupsOfAMeshWorkInterleaved) {
  StartCoordinator();
  const Sessions sessions = JoinAll(4);
  ASSERT_EQ(sessions.size(), 4u);
  InThreads(4, [&](int rank) {
    const auto mesh =
        sessions[rank]->CreateMesh("mesh", {{"dp", 2}, {"tp", 2}});
    ASSERT_OK(mesh);
    ASSERT_EQ(mesh->size(), 2u);
    Communicator& dp = (*mesh)[0]->communicator();
    Communicator& tp = (*mesh)[1]->communicator();
    for (int round = 0; round < 20; ++round) {
      float over_dp = 1.0f + rank, over_tp = 1.0f + rank;
      // Half of the ranks start them in the other order.
      WorkPtr first, second;
      if (rank % 2 == 0) {
        first = dp.AllReduce(Span{&over_dp, 1, DType::kFloat32, {}});
        second = tp.AllReduce(Span{&over_tp, 1, DType::kFloat32, {}});
      } else {
        second = tp.AllReduce(Span{&over_tp, 1, DType::kFloat32, {}});
        first = dp.AllReduce(Span{&over_dp, 1, DType::kFloat32, {}});
      }
      ASSERT_OK(first->Wait(kTimeout));
      ASSERT_OK(second->Wait(kTimeout));
      // Ranks are row-major: dp pairs {0,2} and {1,3}, tp {0,1} and {2,3}.
      EXPECT_EQ(over_dp, rank % 2 == 0 ? 1 + 3 : 2 + 4);
      EXPECT_EQ(over_tp, rank < 2 ? 1 + 2 : 3 + 4);
    }
    EXPECT_OK(sessions[rank]->Barrier("", "end", kTimeout));
  });
}

TEST_F(SessionIntegrationTest, ABarrierNamesTheMissingRanks) {
  StartCoordinator();
  const Sessions sessions = JoinAll(3);
  ASSERT_EQ(sessions.size(), 3u);
  InThreads(2, [&](int rank) {
    EXPECT_THAT(sessions[rank]->Barrier("", "lonely", absl::Milliseconds(200)),
                StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("2")));
  });
}

TEST_F(SessionIntegrationTest, TheStoreIsExactUnderContention) {
  StartCoordinator();
  constexpr int kClients = 16, kAdds = 20;
  const Sessions sessions = JoinAll(kClients);
  ASSERT_EQ(sessions.size(), size_t{kClients});
  std::atomic<int> winners{0}, woken{0};
  InThreads(kClients, [&](int i) {
    StoreClient& store = sessions[i]->store();
    for (int n = 0; n < kAdds; ++n) EXPECT_OK(store.Add("count", 1));
    const auto claim = store.CompareSet("owner", "", absl::StrCat("t", i));
    ASSERT_OK(claim);
    if (claim->swapped) ++winners;
    // The last client to come here wakes the others.
    const auto ready = store.Add("ready", 1);
    ASSERT_OK(ready);
    if (*ready == kClients) {
      EXPECT_OK(store.Set("go", "now"));
    }
    const auto go = store.Get("go", kTimeout);
    ASSERT_OK(go);
    if (*go == "now") ++woken;
  });
  EXPECT_EQ(*sessions[0]->store().Add("count", 0), kClients * kAdds);
  EXPECT_EQ(winners, 1);
  EXPECT_EQ(woken, kClients);
}

TEST_F(SessionIntegrationTest, DeadlinesOfTheStoreHold) {
  StartCoordinator();
  const Sessions sessions = JoinAll(1);
  ASSERT_EQ(sessions.size(), 1u);
  StoreClient& store = sessions[0]->store();
  const absl::Time before = Clock::Real()->Now();
  EXPECT_THAT(
      store.Get("never", absl::Milliseconds(200)),
      StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("never")));
  EXPECT_THAT(store.Wait({"never", "ever"}, absl::Milliseconds(200)),
              StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("ever")));
  EXPECT_LT(Clock::Real()->Now() - before, absl::Seconds(5));
  EXPECT_THAT(store.Get("never", absl::ZeroDuration()),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("never")));
  EXPECT_EQ(*store.DeleteKey("never"), false);
}

TEST_F(SessionIntegrationTest, AWatchSeesChangesOfAnotherRank) {
  StartCoordinator();
  const Sessions sessions = JoinAll(2);
  ASSERT_EQ(sessions.size(), 2u);
  Notification seen, deleted;
  const auto watch = sessions[0]->store().Watch(
      "key",
      [&](const StoreEvent& event) {
        if (event.value == "value") seen.Notify();
        if (event.deleted) deleted.Notify();
      },
      [](const absl::Status&) {});
  ASSERT_OK(sessions[1]->store().Set("key", "value"));
  EXPECT_TRUE(seen.Wait());
  EXPECT_EQ(sessions[1]->store().CountKeys("ke").value_or(-1), 1);
  EXPECT_TRUE(*sessions[1]->store().DeleteKey("key"));
  EXPECT_EQ(sessions[1]->store().CountKeys("ke").value_or(-1), 0);
  EXPECT_TRUE(deleted.Wait());
}

TEST_F(SessionIntegrationTest, CheckpointsAreLoadedAsTheyWereSaved) {
  StartCoordinator();
  const Sessions sessions = JoinAll(2);
  ASSERT_EQ(sessions.size(), 2u);
  const std::vector<std::string> shards = {std::string(3'000'000, 'a'), "b"};
  std::string id;
  InThreads(2, [&](int rank) {
    const auto saved = sessions[rank]->checkpoints().Save(
        7, rank, 2, {{"hook", "fp16"}}, shards[rank]);
    ASSERT_OK(saved);
    if (rank == 0) id = *saved;
  });
  ASSERT_OK(sessions[0]->checkpoints().Commit(id));
  const auto list = sessions[1]->checkpoints().List();
  ASSERT_OK(list);
  ASSERT_EQ(list->size(), 1u);
  EXPECT_EQ((*list)[0].step, 7);
  const auto loaded = sessions[1]->checkpoints().LoadAll((*list)[0]);
  ASSERT_OK(loaded);
  EXPECT_EQ(*loaded, shards);
}

TEST_F(SessionIntegrationTest, AMemberThatLeavesDoesNotStopTheOthers) {
  StartCoordinator();
  const Sessions sessions = JoinAll(3);
  ASSERT_EQ(sessions.size(), 3u);
  EXPECT_OK(sessions[2]->Leave("no data left"));
  InThreads(2, [&](int rank) {
    const auto pair = sessions[rank]->CreateGroup("pair", {0, 1});
    ASSERT_OK(pair);
    EXPECT_EQ(Sum(**pair, 1.0f), 2);
    EXPECT_OK(sessions[rank]->status());
  });
}

TEST_F(SessionIntegrationTest, AFailedMemberStopsTheOthersAndIsNamed) {
  StartCoordinator();
  const Sessions sessions = JoinAll(3);
  ASSERT_EQ(sessions.size(), 3u);
  Notification connected[3];
  std::thread failing([&]() {
    for (Notification& each : connected) EXPECT_TRUE(each.Wait());
    EXPECT_OK(sessions[1]->Leave("out of memory", /*failed=*/true));
  });
  InThreads(3, [&](int rank) {
    const auto world = sessions[rank]->World();
    ASSERT_OK(world);
    Notification aborted;
    sessions[rank]->OnAbort(
        [&aborted](const absl::Status&) { aborted.Notify(); });
    connected[rank].Notify();
    if (rank == 1) return;
    // A collective that rank 1 never joins ends, and a wait of the store.
    const auto lost = AllOf(HasSubstr("rank 1"), HasSubstr("host-a"),
                            HasSubstr("out of memory"));
    EXPECT_THAT((*world)->communicator().Barrier()->Wait(kTimeout),
                ::testing::Not(IsOk()));
    ASSERT_TRUE(aborted.Wait());
    EXPECT_THAT(sessions[rank]->status(),
                StatusIs(absl::StatusCode::kAborted, lost));
    EXPECT_THAT(sessions[rank]->store().Get("never", kTimeout),
                StatusIs(absl::StatusCode::kAborted, lost));
  });
  failing.join();
}

TEST_F(SessionIntegrationTest, AWorkerWithAnotherModelSeesTheDifference) {
  StartCoordinator();
  Notification first_waits;
  SessionOptions first = OptionsOf(0, 2);
  first.join_timeout = absl::Seconds(3);
  first.notice_interval = absl::Milliseconds(20);
  first.on_waiting = [&](const std::string& notice) {
    if (notice.find("other members") != std::string::npos) first_waits.Notify();
  };
  JobManifest manifest, other;
  manifest.parameters = {{"fc.weight", {10, 20}, DType::kFloat32, {}, {}}};
  other.parameters = {{"fc.weight", {10, 30}, DType::kFloat32, {}, {}}};
  std::thread waiting(
      [&]() { EXPECT_FALSE(Session::Join(first, manifest).ok()); });
  ASSERT_TRUE(first_waits.Wait());
  EXPECT_THAT(Session::Join(OptionsOf(1, 2), other),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr("fc.weight"), HasSubstr("20"),
                             HasSubstr("30"))));
  waiting.join();
}

TEST_F(SessionIntegrationTest, ASecondJobOfTheSameNameIsRefused) {
  StartCoordinator();
  const Sessions sessions = JoinAll(1);
  ASSERT_EQ(sessions.size(), 1u);
  SessionOptions second = OptionsOf(0, 1);
  second.identity.node = "host-b";
  JobManifest manifest;
  manifest.hook = "fp16";
  EXPECT_THAT(Session::Join(second, manifest),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr("mnist"), HasSubstr("fp16"))));
  EXPECT_OK(sessions[0]->status());
}

TEST_F(SessionIntegrationTest, WorkersWaitForACoordinatorThatStartsLater) {
  FindFreePort();
  Notification waits;
  std::thread worker([&]() {
    SessionOptions options = OptionsOf(0, 1);
    options.notice_interval = absl::Milliseconds(20);
    options.on_waiting = [&](const std::string& notice) {
      if (notice.find("the coordinator at") == 0) waits.Notify();
    };
    const auto session = Session::Join(options, {});
    EXPECT_OK(session);
    if (session.ok()) {
      EXPECT_OK((*session)->Leave("done"));
    }
  });
  EXPECT_TRUE(waits.Wait());
  StartCoordinator(port_);
  worker.join();
}

// A stub whose first connect(2) fails. In a process that has just started gRPC
// sometimes reports the error of another system call as that of connect(2).
class FirstConnectFails : public ForwardingCoordinatorStub {
 public:
  FirstConnectFails(std::shared_ptr<CoordinatorStub> stub, absl::Status* first)
      : ForwardingCoordinatorStub(std::move(stub)), first_(*first) {}

  absl::Status Call(absl::string_view method,
                    const google::protobuf::MessageLite& request,
                    google::protobuf::MessageLite* response,
                    const CallOptions& options) override {
    if (!first_.ok()) return stub().Call(method, request, response, options);
    first_ = ConnectWithoutRetries("unix:/nonexistent/coordinator")
                 ->Call(method, request, response, options);
    return first_;
  }

 private:
  absl::Status& first_;
};

TEST_F(SessionIntegrationTest, AJoinWhoseFirstConnectFailsIsRepeated) {
  StartCoordinator();
  InThreads(4, [&](int slot) {
    SessionOptions options = OptionsOf(slot, 4);
    absl::Status first;
    if (slot == 2) {
      options.stub_factory = [&first](const std::string& address) {
        return std::make_shared<FirstConnectFails>(
            ConnectWithoutRetries(address), &first);
      };
    }
    const auto session = Session::Join(options, {});
    ASSERT_OK(session);
    EXPECT_OK((*session)->Leave("done"));
    if (slot == 2) {
      EXPECT_THAT(first, StatusIs(absl::StatusCode::kUnavailable,
                                  HasSubstr("No such file or directory")));
    }
  });
}

TEST_F(SessionIntegrationTest, ACoordinatorThatNeverStartsIsAClearError) {
  FindFreePort();
  SessionOptions options = OptionsOf(0, 1);
  options.join_timeout = absl::Milliseconds(500);
  EXPECT_THAT(Session::Join(options, {}),
              StatusIs(absl::StatusCode::kDeadlineExceeded,
                       AllOf(HasSubstr("could not join job 'mnist'"),
                             HasSubstr(options.coordinator),
                             HasSubstr("never answered"),
                             HasSubstr("coxswain serve"))));
}

TEST_F(SessionIntegrationTest, AnIncompleteRoundNamesTheWorkersThatJoined) {
  StartCoordinator();
  SessionOptions options = OptionsOf(0, 2);
  options.join_timeout = absl::Milliseconds(500);
  EXPECT_THAT(Session::Join(options, {}),
              StatusIs(absl::StatusCode::kDeadlineExceeded,
                       AllOf(HasSubstr("mnist"), HasSubstr("host-a/0"))));
}

}  // namespace
}  // namespace coxswain::session_test
