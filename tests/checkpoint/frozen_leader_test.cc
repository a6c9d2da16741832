// Two real coordinators over one etcd and one folder of checkpoints. The first
// is stopped in the middle of a change to that folder, after it has found that
// it leads; the second takes over, commits and deletes; the first goes on.
// Whatever the second had is still there, byte by byte.
#include <sys/wait.h>

#include <csignal>
#include <cstdio>
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "client/rpc/stub_factory.h"
#include "client/session/session.h"
#include "tests/checkpoint/shard_bytes.h"
#include "tests/support/etcd_server.h"
#include "tests/support/loopback.h"
#include "tests/system/scenario.h"

namespace coxswain {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr char kStopAt[] = "tests/checkpoint/stop_at.so";
constexpr char kJob[] = "saves";
constexpr char kRefused[] = "may not change the checkpoints any more";

class FrozenLeaderTest : public testing::Test {
 protected:
  void SetUp() override {
    first_ = Serve(first_port_, {{"LD_PRELOAD", kStopAt},
                                 {"STOP_AT", folder_.path("stop_at")}});
    ASSERT_OK(first_->WaitForStdout("listening on", kTimeout));
    second_ = Serve(second_port_, {});
    ASSERT_OK(second_->WaitForStdout("standing by for", kTimeout));
    SessionOptions options;
    options.coordinator =
        absl::StrCat(Address(first_port_), ",", Address(second_port_));
    options.job = kJob;
    options.identity = {"host-a", 0};
    options.host = "host-a";
    options.address = "127.0.0.1";
    options.world_size = 1;
    options.join_timeout = kTimeout;
    options.reattach_grace = kTimeout;
    ASSERT_OK_AND_ASSIGN(session_, Session::Join(options, JobManifest()));
  }

  static std::string Address(int port) {
    return absl::StrCat("127.0.0.1:", port);
  }
  std::unique_ptr<Process> Serve(
      int port, const std::map<std::string, std::string>& environment) {
    auto process = Process::Start(
        {{kCoxswain, "serve", "--listen", Address(port), "--state",
          absl::StrCat("etcd://", etcd_.endpoint(), "/cluster"), "--state-dir",
          folder_.path("state"), "--leader-lease", "2s"},
         environment});
    EXPECT_OK(process);
    return process.ok() ? *std::move(process) : nullptr;
  }

  // Uploads the only shard.
  absl::StatusOr<std::string> Upload(int64_t step) {
    const auto bytes = std::make_shared<const std::string>(ShardBytes(step, 0));
    return session_->checkpoints().Save(step, 0, 1, {}, *bytes, bytes);
  }
  absl::StatusOr<std::string> Save(int64_t step) {
    COXSWAIN_ASSIGN_OR_RETURN(const std::string id, Upload(step));
    COXSWAIN_RETURN_IF_ERROR(session_->checkpoints().Commit(id).status());
    return id;
  }

  ~FrozenLeaderTest() override {
    if (changing_.joinable()) changing_.join();
  }

  // Makes `change`, which ends only after the second coordinator leads, on its
  // own thread, and stops the first one in that call.
  template <typename Change>
  void FreezeIn(const std::string& call, const std::string& path_end,
                Change change) {
    const std::string armed = folder_.path("armed");
    std::ofstream(armed) << call << " " << path_end;
    ASSERT_EQ(std::rename(armed.c_str(), folder_.path("stop_at").c_str()), 0);
    changing_ = std::thread(change);
    // It would go on to lead if it were not stopped.
    EXPECT_OK(second_->WaitForStdout("listening on", kTimeout));
    siginfo_t info = {};
    EXPECT_EQ(waitid(P_PID, first_->pid(), &info, WSTOPPED | WNOWAIT | WNOHANG),
              0);
    EXPECT_EQ(info.si_pid, first_->pid()) << "it is not stopped";
    changing_.join();
  }
  void Thaw() {
    first_->Signal(SIGCONT);
    ASSERT_OK(first_->WaitForStdout("standing by for", kTimeout));
  }
  // To a coordinator that takes over again.
  void KillTheSecond() {
    second_->Signal(SIGKILL);
    ASSERT_OK(first_->WaitForStderr("term=3", kTimeout));
  }

  // Returns the steps of the complete checkpoints, each of which is whole.
  std::vector<int64_t> WholeSteps() {
    std::vector<int64_t> steps;
    const auto all = session_->checkpoints().List();
    EXPECT_OK(all);
    if (!all.ok()) return steps;
    for (const CheckpointDescription& checkpoint : *all) {
      const auto shards = session_->checkpoints().LoadAll(checkpoint);
      EXPECT_OK(shards);
      if (!shards.ok() || shards->size() != 1) continue;
      EXPECT_TRUE(shards->front() == ShardBytes(checkpoint.step, 0))
          << checkpoint.id;
      steps.push_back(checkpoint.step);
    }
    return steps;
  }

  EtcdServer etcd_;
  TemporaryFolder folder_;
  const int first_port_ = UnusedPort();
  const int second_port_ = UnusedPort();
  std::unique_ptr<Process> first_;
  std::unique_ptr<Process> second_;
  std::unique_ptr<Session> session_;
  std::thread changing_;
};

TEST_F(FrozenLeaderTest, ItsDeletionDoesNotReachWhatTheNextOneServes) {
  ASSERT_OK_AND_ASSIGN(const std::string kept, Save(1));
  ASSERT_OK_AND_ASSIGN(const std::string newest, Save(2));
  // Asks the first alone, so that the second does not delete it in its place.
  const auto stub = ConnectCoordinator(Address(first_port_));
  CallOptions call;
  call.retry = false;
  ASSERT_OK_AND_ASSIGN(const auto cluster, stub->Describe({}, call));
  v1::DeleteRequest request;
  request.mutable_fence()->set_cluster_id(cluster.cluster_id());
  request.mutable_fence()->set_term(cluster.term());
  request.mutable_fence()->set_job(kJob);
  request.mutable_fence()->set_request_id(1);
  request.set_job(kJob);
  request.set_checkpoint_id(kept);
  FreezeIn("rename", absl::StrCat("/", kJob, "/", kept), [&] {
    EXPECT_THAT(stub->DeleteCheckpoint(request, call),
                StatusIs(absl::StatusCode::kUnavailable, testing::_));
  });
  ASSERT_FALSE(HasFailure());
  ASSERT_THAT(WholeSteps(), ElementsAre(2, 1));
  ASSERT_OK(session_->checkpoints().Delete(newest));
  Thaw();
  EXPECT_THAT(first_->err(), HasSubstr(kRefused));
  EXPECT_THAT(WholeSteps(), ElementsAre(1));
  KillTheSecond();
  EXPECT_THAT(WholeSteps(), ElementsAre(1));
}

TEST_F(FrozenLeaderTest, ItsRetentionDoesNotDeleteAfterASlowSync) {
  ASSERT_OK(Save(1));
  ASSERT_OK(Save(2));
  ASSERT_OK_AND_ASSIGN(const std::string newest, Upload(3));
  // The first has given it its name: it is complete for the second as well.
  CheckpointRetention retention;
  retention.keep_last = 1;
  FreezeIn("fsync", absl::StrCat("/checkpoints/", kJob), [&] {
    EXPECT_OK(session_->checkpoints().Commit(newest, retention));
  });
  ASSERT_FALSE(HasFailure());
  ASSERT_THAT(WholeSteps(), ElementsAre(3, 2, 1));
  ASSERT_OK(session_->checkpoints().Delete(newest));
  Thaw();
  EXPECT_THAT(first_->err(), HasSubstr(kRefused));
  EXPECT_THAT(WholeSteps(), ElementsAre(2, 1));
  KillTheSecond();
  EXPECT_THAT(WholeSteps(), ElementsAre(2, 1));
}

TEST_F(FrozenLeaderTest, ItsCommitDoesNotAppearAmongThoseOfTheNextOne) {
  ASSERT_OK_AND_ASSIGN(const std::string old, Save(1));
  ASSERT_OK_AND_ASSIGN(const std::string open, Upload(2));
  FreezeIn("rename", absl::StrCat("/", kJob, "/", open), [&] {
    EXPECT_THAT(session_->checkpoints().Commit(open),
                StatusIs(absl::StatusCode::kNotFound, HasSubstr("begin it")));
  });
  ASSERT_FALSE(HasFailure());
  ASSERT_OK_AND_ASSIGN(const std::string again, Save(2));
  EXPECT_NE(again, open);
  ASSERT_OK(session_->checkpoints().Delete(old));
  Thaw();
  EXPECT_THAT(first_->err(), HasSubstr("checkpoint_commit_failed"));
  EXPECT_THAT(first_->err(), HasSubstr(kRefused));
  EXPECT_THAT(WholeSteps(), ElementsAre(2));
  KillTheSecond();
  EXPECT_THAT(WholeSteps(), ElementsAre(2));
}

}  // namespace
}  // namespace coxswain
