#include <dirent.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cstdlib>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/mutex.h"
#include "base/status_matchers.h"
#include "client/rpc/forwarding_coordinator_stub.h"
#include "client/rpc/stub_factory.h"
#include "client/session/session.h"
#include "gtest/gtest.h"
#include "server/coordinator.h"
#include "tests/support/in_threads.h"

// Sessions whose coordinator is destroyed and started again on the same state
// and port, each rank a thread.

namespace coxswain::session_restart_test {
namespace {

using ::testing::HasSubstr;
using Kind = SessionEvent::Kind;

constexpr absl::Duration kTimeout = absl::Seconds(20);

// Returns the TCP connections of this process.
std::set<int> Connections() {
  std::set<int> connections;
  DIR* const folder = opendir("/proc/self/fd");
  while (const dirent* entry = readdir(folder)) {
    const int fd = std::atoi(entry->d_name);
    sockaddr_in peer = {};
    socklen_t size = sizeof(peer);
    if (getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &size) == 0 &&
        peer.sin_family == AF_INET) {
      connections.insert(fd);
    }
  }
  closedir(folder);
  return connections;
}

// Counts the calls that a stub passes on.
class CallCounter {
 public:
  void Note(absl::string_view method) {
    MutexLock lock(&mutex_);
    ++calls_[std::string(method)];
    changed_.NotifyAll();
  }
  bool Wait(const std::string& method, int count) {
    MutexLock lock(&mutex_);
    return changed_.WaitFor(&mutex_, kTimeout,
                            [&]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
                              return calls_[method] >= count;
                            });
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  std::map<std::string, int> calls_ ABSL_GUARDED_BY(mutex_);
};

// Counts the ranks that are reported as broken as calls of "broken/<rank>".
class CountingAttachStream : public AttachStream {
 public:
  CountingAttachStream(std::unique_ptr<AttachStream> stream,
                       CallCounter* counter)
      : stream_(std::move(stream)), counter_(counter) {}
  bool Send(const v1::AttachRequest& request) override {
    for (const int rank : request.peers_broken().ranks()) {
      counter_->Note(absl::StrCat("broken/", rank));
    }
    return stream_->Send(request);
  }

 private:
  const std::unique_ptr<AttachStream> stream_;
  CallCounter* const counter_;
};

class CountingStub : public ForwardingCoordinatorStub {
 public:
  CountingStub(std::shared_ptr<CoordinatorStub> stub, CallCounter* counter)
      : ForwardingCoordinatorStub(std::move(stub)), counter_(counter) {}

  absl::Status Call(absl::string_view method,
                    const google::protobuf::MessageLite& request,
                    google::protobuf::MessageLite* response,
                    const CallOptions& options) override {
    counter_->Note(method);
    return stub().Call(method, request, response, options);
  }
  std::unique_ptr<AttachStream> Attach(
      StreamCallbacks<v1::AttachEvent> callbacks) override {
    return std::make_unique<CountingAttachStream>(
        stub().Attach(std::move(callbacks)), counter_);
  }

 private:
  CallCounter* const counter_;
};

using Sessions = std::vector<std::unique_ptr<Session>>;

class SessionRestartIntegrationTest : public ::testing::Test {
 protected:
  SessionRestartIntegrationTest() {
    state_dir_ = absl::StrCat(
        ::testing::TempDir(), "/",
        ::testing::UnitTest::GetInstance()->current_test_info()->name());
    StartCoordinator();
  }

  void StartCoordinator() {
    server::CoordinatorOptions options;
    options.listen = absl::StrCat("127.0.0.1:", port_);
    options.state_dir = state_dir_;
    auto started = server::Coordinator::Start(options);
    ASSERT_OK(started);
    coordinator_ = std::move(started).value();
    port_ = coordinator_->port();
  }
  void StopCoordinator() { coordinator_.reset(); }
  void Restart() {
    StopCoordinator();
    StartCoordinator();
  }

  SessionOptions OptionsOf(int slot, int world_size) {
    SessionOptions options;
    options.coordinator = absl::StrCat("127.0.0.1:", port_);
    options.job = "mnist";
    options.identity = {"host-a", slot};
    options.host = "host-a";
    options.local_rank = slot;
    options.world_size = world_size;
    options.min_world_size = min_world_size_;
    options.backend = backend_;
    options.join_timeout = kTimeout;
    options.collective_timeout = kTimeout;
    options.retry_base = absl::Milliseconds(20);
    options.retry_cap = absl::Milliseconds(200);
    options.stub_factory = [this](const std::string& address) {
      return std::make_shared<CountingStub>(ConnectWithoutRetries(address),
                                            &calls_);
    };
    return options;
  }

  // Sorts by rank; none on a failure.
  static Sessions ByRank(
      std::vector<absl::StatusOr<std::unique_ptr<Session>>> unsorted) {
    Sessions sorted(unsorted.size());
    for (auto& session : unsorted) {
      EXPECT_OK(session);
      if (!session.ok()) return {};
      const size_t rank = static_cast<size_t>((*session)->rank());
      if (rank < sorted.size()) sorted[rank] = std::move(*session);
    }
    for (const auto& session : sorted) {
      EXPECT_NE(session, nullptr) << "ranks are not distinct";
      if (session == nullptr) return {};
    }
    return sorted;
  }
  Sessions JoinAll(int count) {
    std::vector<absl::StatusOr<std::unique_ptr<Session>>> joined(count);
    InThreads(count, [&](int slot) {
      joined[slot] = Session::Join(OptionsOf(slot, count), {});
    });
    return ByRank(std::move(joined));
  }

  static SessionEvent NextOf(Session& session, Kind kind) {
    while (true) {
      auto event = session.events().Next(kTimeout);
      EXPECT_OK(event) << "while waiting for " << ToString(kind);
      if (!event.ok() || event->kind == kind) {
        return event.value_or(SessionEvent());
      }
    }
  }
  static float Sum(const ProcessGroup& group, float value) {
    EXPECT_OK(group.communicator()
                  .AllReduce(Span{&value, 1, DType::kFloat32, {}})
                  ->Wait(kTimeout));
    return value;
  }
  static void LeaveAll(const Sessions& sessions) {
    InThreads(static_cast<int>(sessions.size()),
              [&](int rank) { EXPECT_OK(sessions[rank]->Leave("done")); });
  }

  std::string state_dir_;
  int port_ = 0;
  int min_world_size_ = 0;
  std::string backend_ = "auto";
  CallCounter calls_;
  std::unique_ptr<server::Coordinator> coordinator_;
};

TEST_F(SessionRestartIntegrationTest, WorkersGoOnBetweenTheirSteps) {
  const Sessions sessions = JoinAll(2);
  ASSERT_EQ(sessions.size(), 2u);
  ASSERT_OK(sessions[0]->store().Set("kept", "value"));
  std::vector<std::shared_ptr<ProcessGroup>> worlds(2);
  InThreads(2, [&](int rank) {
    const auto world = sessions[rank]->World();
    ASSERT_OK(world);
    worlds[rank] = *world;
  });
  for (int restart = 0; restart < 2; ++restart) {
    StopCoordinator();
    // Gradients do not need it.
    InThreads(2, [&](int rank) { EXPECT_EQ(Sum(*worlds[rank], 1), 2); });
    StartCoordinator();
    InThreads(2, [&](int rank) {
      Session& session = *sessions[rank];
      const SessionEvent lost = NextOf(session, Kind::kCoordinatorLost);
      const SessionEvent back = NextOf(session, Kind::kReattached);
      EXPECT_EQ(back.term, lost.term + 1);
      EXPECT_EQ(Sum(*worlds[rank], 1), 2);
      EXPECT_OK(session.Barrier("", absl::StrCat("after-", restart), kTimeout));
      const auto kept = session.store().Get("kept", kTimeout);
      ASSERT_OK(kept);
      EXPECT_EQ(*kept, "value");
      // A group that is declared again is the same one.
      const auto world = session.World();
      ASSERT_OK(world);
      EXPECT_EQ(*world, worlds[rank]);
      EXPECT_OK(session.status());
    });
  }
  LeaveAll(sessions);
}

TEST_F(SessionRestartIntegrationTest, ABarrierOutlivesIt) {
  const Sessions sessions = JoinAll(2);
  ASSERT_EQ(sessions.size(), 2u);
  std::thread waiting(
      [&]() { EXPECT_OK(sessions[0]->Barrier("", "meet", kTimeout)); });
  ASSERT_TRUE(calls_.Wait("/coxswain.v1.Group/Barrier", 1));
  Restart();
  EXPECT_OK(sessions[1]->Barrier("", "meet", kTimeout));
  waiting.join();
  LeaveAll(sessions);
}

TEST_F(SessionRestartIntegrationTest, WaitsOfTheStoreOutliveIt) {
  const Sessions sessions = JoinAll(2);
  ASSERT_EQ(sessions.size(), 2u);
  std::thread getting([&]() {
    const auto value = sessions[0]->store().Get("late", kTimeout);
    ASSERT_OK(value);
    EXPECT_EQ(*value, "here");
  });
  std::thread waiting([&]() {
    EXPECT_OK(sessions[0]->store().Wait({"late", "later"}, kTimeout));
  });
  ASSERT_TRUE(calls_.Wait("/coxswain.v1.Store/Get", 1));
  ASSERT_TRUE(calls_.Wait("/coxswain.v1.Store/Wait", 1));
  Restart();
  EXPECT_OK(sessions[1]->store().Set("late", "here"));
  getting.join();
  Restart();
  EXPECT_OK(sessions[1]->store().Set("later", "here"));
  waiting.join();
  LeaveAll(sessions);
}

TEST_F(SessionRestartIntegrationTest, NothingIsDoneTwice) {
  constexpr int kAdds = 50;
  const Sessions sessions = JoinAll(2);
  ASSERT_EQ(sessions.size(), 2u);
  // In the middle of the calls, wherever they are.
  std::thread restarts([&]() {
    for (int calls = 20; calls <= 80; calls += 20) {
      EXPECT_TRUE(calls_.Wait("/coxswain.v1.Store/Add", calls));
      Restart();
    }
  });
  InThreads(2, [&](int rank) {
    for (int i = 0; i < kAdds; ++i) {
      EXPECT_OK(sessions[rank]->store().Add("count", 1));
    }
  });
  restarts.join();
  const auto count = sessions[0]->store().Add("count", 0);
  ASSERT_OK(count);
  EXPECT_EQ(*count, 2 * kAdds);
  LeaveAll(sessions);
}

TEST_F(SessionRestartIntegrationTest, AWatchSeesChangesAfterIt) {
  const Sessions sessions = JoinAll(1);
  ASSERT_EQ(sessions.size(), 1u);
  Mutex mutex;
  CondVar changed;
  std::vector<std::string> seen;
  const auto watch = sessions[0]->store().Watch(
      "key",
      [&](const StoreEvent& event) {
        MutexLock lock(&mutex);
        seen.push_back(event.value);
        changed.NotifyAll();
      },
      [](const absl::Status& status) { ADD_FAILURE() << status; });
  const auto wait = [&](size_t count) {
    MutexLock lock(&mutex);
    return changed.WaitFor(&mutex, kTimeout,
                           [&]() { return seen.size() >= count; });
  };
  ASSERT_OK(sessions[0]->store().Set("key", "1"));
  ASSERT_TRUE(wait(1));
  Restart();
  ASSERT_OK(sessions[0]->store().Set("key", "2"));
  ASSERT_TRUE(wait(2));
  EXPECT_EQ(seen, (std::vector<std::string>{"1", "2"}));
}

TEST_F(SessionRestartIntegrationTest, ALeaveWaitsForIt) {
  const Sessions sessions = JoinAll(2);
  ASSERT_EQ(sessions.size(), 2u);
  StopCoordinator();
  std::thread leaving([&]() { LeaveAll(sessions); });
  ASSERT_TRUE(calls_.Wait("/coxswain.v1.Rendezvous/Leave", 2));
  StartCoordinator();
  leaving.join();
  // The job has ended cleanly, and its name is free.
  const Sessions next = JoinAll(1);
  ASSERT_EQ(next.size(), 1u);
  LeaveAll(next);
}

TEST_F(SessionRestartIntegrationTest, AJoinWaitsForItAndForms) {
  std::vector<absl::StatusOr<std::unique_ptr<Session>>> joined(2);
  std::thread first([&]() { joined[0] = Session::Join(OptionsOf(0, 2), {}); });
  ASSERT_TRUE(calls_.Wait("/coxswain.v1.Rendezvous/Join", 1));
  Restart();
  joined[1] = Session::Join(OptionsOf(1, 2), {});
  first.join();
  const Sessions sessions = ByRank(std::move(joined));
  ASSERT_EQ(sessions.size(), 2u);
  EXPECT_EQ(sessions[0]->generation(), sessions[1]->generation());
  LeaveAll(sessions);
}

TEST_F(SessionRestartIntegrationTest, ALossIsReportedAfterIt) {
  const Sessions sessions = JoinAll(2);
  ASSERT_EQ(sessions.size(), 2u);
  Restart();
  NextOf(*sessions[0], Kind::kReattached);
  NextOf(*sessions[1], Kind::kReattached);
  EXPECT_OK(sessions[1]->Leave("out of memory", /*failed=*/true));
  const SessionEvent end = NextOf(*sessions[0], Kind::kGenerationEnded);
  EXPECT_EQ(end.rank, 1);
  EXPECT_THAT(end.text, HasSubstr("out of memory"));
}

TEST_F(SessionRestartIntegrationTest, ABrokenPeerIsReportedByItsRankInTheJob) {
  backend_ = "tcp";
  const Sessions sessions = JoinAll(3);
  ASSERT_EQ(sessions.size(), 3u);
  const std::set<int> others = Connections();
  std::vector<std::shared_ptr<ProcessGroup>> groups(3);
  InThreads(2, [&](int i) {
    const int rank = i == 0 ? 0 : 2;
    const auto group = sessions[rank]->CreateGroup("ends", {2, 0});
    ASSERT_OK(group);
    groups[rank] = *group;
    EXPECT_EQ(Sum(**group, 1), 2);
  });
  for (const int connection : Connections()) {
    if (others.count(connection) == 0) shutdown(connection, SHUT_RDWR);
  }
  EXPECT_TRUE(calls_.Wait("broken/2", 1));
  EXPECT_OK(sessions[0]->status());
}

TEST_F(SessionRestartIntegrationTest, SurvivorsFormTheNextGeneration) {
  min_world_size_ = 1;
  const Sessions sessions = JoinAll(3);
  ASSERT_EQ(sessions.size(), 3u);
  sessions[0]->ReportErrorNorm(0.5, 4);
  EXPECT_OK(sessions[1]->Leave("out of memory", /*failed=*/true));
  NextOf(*sessions[0], Kind::kGenerationEnded);
  NextOf(*sessions[2], Kind::kGenerationEnded);
  std::vector<absl::StatusOr<std::unique_ptr<Session>>> rejoined(2);
  InThreads(2, [&](int i) { rejoined[i] = sessions[i * 2]->Rejoin(); });
  const Sessions next = ByRank(std::move(rejoined));
  ASSERT_EQ(next.size(), 2u);
  for (const auto& session : next) {
    EXPECT_EQ(session->world_size(), 2);
    EXPECT_GT(session->generation(), sessions[0]->generation());
    EXPECT_EQ(session->previous().generation, sessions[0]->generation());
    EXPECT_EQ(session->previous().world_size, 3);
    ASSERT_EQ(session->previous().lost.size(), 1u);
    EXPECT_EQ(session->previous().lost[0].member.rank, 1);
  }
  InThreads(2, [&](int rank) {
    const auto world = next[rank]->World();
    ASSERT_OK(world);
    EXPECT_EQ(Sum(**world, 1), 2);
  });
  LeaveAll(next);
}

TEST_F(SessionRestartIntegrationTest, ASurvivorThatLeavesIsNotWaitedFor) {
  min_world_size_ = 1;
  const Sessions sessions = JoinAll(3);
  ASSERT_EQ(sessions.size(), 3u);
  EXPECT_OK(sessions[1]->Leave("out of memory", /*failed=*/true));
  NextOf(*sessions[0], Kind::kGenerationEnded);
  NextOf(*sessions[2], Kind::kGenerationEnded);
  EXPECT_OK(sessions[0]->Leave("it drains"));
  ASSERT_OK_AND_ASSIGN(const auto next, sessions[2]->Rejoin());
  EXPECT_EQ(next->world_size(), 1);
  // And not because no other worker had joined for a while.
  EXPECT_THAT(next->previous().reason, HasSubstr("survivors are back"));
  ASSERT_EQ(next->previous().lost.size(), 2u);
  EXPECT_EQ(next->previous().lost[0].reason, "it drains");
  EXPECT_OK(next->Leave("done"));
}

TEST_F(SessionRestartIntegrationTest, ToRegroupEndsNothingAsALoss) {
  min_world_size_ = 1;
  Sessions sessions = JoinAll(2);
  ASSERT_EQ(sessions.size(), 2u);
  for (int round = 0; round < 3; ++round) {
    if (round == 1) Restart();
    std::vector<absl::StatusOr<std::unique_ptr<Session>>> rejoined(2);
    InThreads(2, [&](int rank) { rejoined[rank] = sessions[rank]->Rejoin(); });
    Sessions next = ByRank(std::move(rejoined));
    ASSERT_EQ(next.size(), 2u);
    for (int rank = 0; rank < 2; ++rank) {
      EXPECT_TRUE(next[rank]->previous().lost.empty());
      // Ranks are kept.
      EXPECT_EQ(next[rank]->local_rank(), sessions[rank]->local_rank());
    }
    sessions = std::move(next);
  }
  LeaveAll(sessions);
}

}  // namespace
}  // namespace coxswain::session_restart_test
