#include "client/session/session.h"

#include <algorithm>
#include <atomic>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/cord.h"
#include "absl/strings/match.h"
#include "base/fake_clock.h"
#include "base/mutex.h"
#include "base/status_matchers.h"
#include "base/status_prefix.h"
#include "base/version.h"
#include "client/rpc/fake_coordinator_stub.h"
#include "client/session/fake_ras_server.h"
#include "client/session/join.h"
#include "client/session/session_test_support.h"
#include "gtest/gtest.h"
#include "schedule/step_gate.h"
#include "transport/error_detail.h"

namespace coxswain::session_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

TEST_F(SessionTest, JoinSendsTheManifestAndReceivesThePlace) {
  v1::JoinRequest seen;
  AnswerJoin([&seen](const v1::JoinRequest& request) {
    seen = request;
    return absl::OkStatus();
  });
  manifest_.hook = "powersgd(rank=2)";
  manifest_.parameters = {{"fc.weight", {10, 20}, DType::kFloat32, {}, {}}};
  manifest_.settings = {{"seed", "1"}};
  ASSERT_OK_AND_ASSIGN(const auto session, Join());
  EXPECT_EQ(session->rank(), 0);
  EXPECT_EQ(session->world_size(), 1);
  EXPECT_EQ(session->generation(), 7);
  EXPECT_EQ(session->plan().hook, "powersgd(rank=2)");
  ASSERT_OK_AND_ASSIGN(const auto members, session->Members());
  EXPECT_EQ(members.at(0).identity.ToString(), "host-a/0");
  EXPECT_OK(session->status());
  EXPECT_EQ(seen.address(), "127.0.0.1");
  EXPECT_NE(seen.incarnation(), 0u);
  EXPECT_EQ(seen.timeout_ms(), 300000);
  EXPECT_EQ(seen.manifest().world_size(), 1);
  EXPECT_EQ(seen.manifest().parameters(0).name(), "fc.weight");
  EXPECT_EQ(seen.manifest().parameters(0).dtype(), "float32");
  EXPECT_EQ(seen.manifest().parameters(0).shape(1), 20);
  EXPECT_EQ(seen.manifest().settings().at("seed"), "1");
  EXPECT_EQ(seen.manifest().settings().at("library_version"), kVersion);
  EXPECT_EQ(seen.manifest().settings().at("device"), "cpu");
  EXPECT_EQ(seen.manifest().settings().count("nccl_version"), 0u);
}

TEST_F(SessionTest, JoinSendsWhetherThisWorkerEncrypts) {
  const auto settings = [this] {
    return MakeJoinRequest(options_, manifest_).manifest().settings();
  };
  EXPECT_EQ(settings().count("data_encryption"), 0u);
  options_.security.tls.ca = "ca.crt";
  EXPECT_EQ(settings().at("data_encryption"), "on");
  options_.plain_data = true;
  EXPECT_EQ(settings().count("data_encryption"), 0u);
}

TEST_F(SessionTest, JoinOnAGpuSendsTheVersionOfNccl) {
  std::map<std::string, std::string> settings;
  AnswerJoin([&settings](const v1::JoinRequest& request) {
    const auto& seen = request.manifest().settings();
    settings = {seen.begin(), seen.end()};
    return absl::OkStatus();
  });
  options_.device.kind = Device::Kind::kCuda;
  options_.nccl_version = "2.28.9";
  EXPECT_OK(Join());
  EXPECT_EQ(settings["device"], "cuda");
  EXPECT_EQ(settings["nccl_version"], "2.28.9");
  // That of the library, or that there is none.
  options_.nccl_version = "";
  EXPECT_OK(Join());
  EXPECT_NE(settings["nccl_version"], "");
}

TEST_F(SessionTest, JoinWaitsForACoordinatorThatStartsLater) {
  fake_->connected = false;
  Mailbox<std::string> notice;
  options_.notice_interval = absl::Milliseconds(1);
  options_.on_waiting = [&notice](const std::string& text) {
    // Earlier ones may report that nothing was received yet.
    if (absl::StrContains(text, "refused")) notice.Put(text);
  };
  uint64_t incarnation = 0;
  AnswerJoin([&](const v1::JoinRequest& request) -> absl::Status {
    if (joins_ == 1) {
      incarnation = request.incarnation();
      return absl::UnavailableError("connection refused");
    }
    EXPECT_EQ(request.incarnation(), incarnation);
    EXPECT_TRUE(notice.Wait());
    fake_->connected = true;
    return absl::OkStatus();
  });
  ASSERT_OK(Join());
  EXPECT_THAT(notice.Take(),
              AllOf(HasSubstr("the coordinator at 127.0.0.1:4711"),
                    HasSubstr("connection refused")));
}

TEST_F(SessionTest, JoinReportsThatItWaitsForOtherMembers) {
  Mailbox<std::string> notice;
  options_.notice_interval = absl::Milliseconds(1);
  options_.on_waiting = [&notice](const std::string& text) {
    notice.Put(text);
  };
  AnswerJoin([&](const v1::JoinRequest&) {
    EXPECT_TRUE(notice.Wait());
    return absl::OkStatus();
  });
  ASSERT_OK(Join());
  EXPECT_THAT(notice.Take(), AllOf(HasSubstr("other members of job 'mnist'"),
                                   HasSubstr("1 in all")));
}

TEST_F(SessionTest, AJoinThatIsCancelledFailsWithTheReason) {
  for (const bool in_a_call : {true, false}) {
    options_.cancel = std::make_shared<CancelSignal>();
    fake_->Answer<v1::JoinRequest, v1::JoinResponse>(
        "Rendezvous/Join",
        [this, in_a_call](const v1::JoinRequest&, const CallOptions& call)
            -> absl::StatusOr<v1::JoinResponse> {
          EXPECT_EQ(call.cancel, options_.cancel.get());
          options_.cancel->Raise(absl::CancelledError("the user is gone"));
          if (in_a_call) return call.cancel->status();
          return absl::UnavailableError("not started yet");
        });
    EXPECT_THAT(Join().status(), StatusIs(absl::StatusCode::kCancelled,
                                          HasSubstr("the user is gone")));
  }
}

TEST_F(SessionTest, ACoordinatorThatNeverAnswersIsNamedAtTheDeadline) {
  fake_->connected = false;
  AnswerJoin([this](const v1::JoinRequest&) {
    clock_.Advance(absl::Seconds(50));
    return absl::UnavailableError("connection refused");
  });
  EXPECT_THAT(
      Join(),
      StatusIs(absl::StatusCode::kDeadlineExceeded,
               AllOf(HasSubstr("could not join job 'mnist' within 5m"),
                     HasSubstr("the coordinator at 127.0.0.1:4711 never "
                               "answered (last error: connection refused)"),
                     HasSubstr("`coxswain serve`"))));
  EXPECT_EQ(joins_, 6);
}

TEST_F(SessionTest, ACoordinatorThatCannotServeIsNamedAtTheDeadline) {
  Mutex mutex;
  CondVar changed;
  int notices = 0;
  std::string last;
  options_.notice_interval = absl::Milliseconds(1);
  options_.on_waiting = [&](const std::string& text) {
    MutexLock lock(&mutex);
    last = text;
    ++notices;
    changed.NotifyAll();
  };
  AnswerJoin([&](const v1::JoinRequest&) {
    clock_.Advance(absl::Seconds(4));
    MutexLock lock(&mutex);
    // So that it was seen to be there in each call.
    const int seen = notices;
    EXPECT_TRUE(changed.WaitFor(&mutex, absl::Seconds(20),
                                [&, seen]() { return notices >= seen + 2; }));
    return absl::UnavailableError("the disk is full");
  });
  EXPECT_THAT(
      Join(),
      StatusIs(absl::StatusCode::kDeadlineExceeded,
               AllOf(HasSubstr("the coordinator at 127.0.0.1:4711 can be "
                               "reached, but refuses: UNAVAILABLE: the disk "
                               "is full"),
                     HasSubstr("Mend that at the coordinator"),
                     testing::Not(HasSubstr("never answered")))));
  EXPECT_EQ(joins_, 75);
  MutexLock lock(&mutex);
  EXPECT_THAT(last,
              AllOf(HasSubstr("can be reached"), HasSubstr("disk is full")));
}

TEST_F(SessionTest, TheErrorBeforeTheEndOfTheTimeIsNamed) {
  fake_->connected = false;
  AnswerJoin([this](const v1::JoinRequest&) -> absl::Status {
    clock_.Advance(absl::Minutes(3));
    if (joins_ == 1) return absl::UnavailableError("certificate refused");
    return absl::DeadlineExceededError("Deadline Exceeded");
  });
  EXPECT_THAT(Join(), StatusIs(absl::StatusCode::kDeadlineExceeded,
                               HasSubstr("never answered (last error: "
                                         "certificate refused)")));
}

TEST_F(SessionTest, FilesThatCannotBeReadAreNamedBeforeAnythingIsTried) {
  options_.stub_factory = nullptr;
  options_.security.tls.ca = testing::TempDir() + "/missing/ca.crt";
  EXPECT_THAT(Join(), StatusIs(absl::StatusCode::kInvalidArgument,
                               AllOf(HasSubstr("--tls-ca: cannot read "),
                                     HasSubstr("missing/ca.crt"))));
}

TEST_F(SessionTest, ACoordinatorThatIsLostAfterALongWaitHasTheWholeTimeAgain) {
  Mailbox<std::string> notice;
  options_.notice_interval = absl::Milliseconds(1);
  options_.on_waiting = [&](const std::string& text) { notice.Put(text); };
  AnswerJoin([&](const v1::JoinRequest&) -> absl::Status {
    if (joins_ > 1) return absl::OkStatus();
    EXPECT_TRUE(notice.Wait());
    clock_.Advance(absl::Hours(3));
    return absl::UnavailableError("connection reset");
  });
  EXPECT_OK(Join());
}

TEST_F(SessionTest, AWorkerThatDoesNotReturnAfterTheEndLeaves) {
  ASSERT_OK_AND_ASSIGN(const auto session, Join());
  Mailbox<absl::Status> told;
  session->OnAbort([&told](const absl::Status& why) { told.Put(why); });
  fake_->AttachmentNumber(0)->Event(AbortEvent());
  ASSERT_TRUE(told.Wait());
  EXPECT_OK(session->Leave("it drains"));
  const v1::LeaveRequest leave = leave_.Take();
  EXPECT_EQ(leave.reason(), "it drains");
  EXPECT_FALSE(leave.rejoin());
  EXPECT_FALSE(leave.failed());
}

TEST_F(SessionTest, AWorkerThatCouldNotRejoinLeaves) {
  ASSERT_OK_AND_ASSIGN(auto session, Join());
  Mailbox<absl::Status> told;
  session->OnAbort([&told](const absl::Status& why) { told.Put(why); });
  fake_->AttachmentNumber(0)->Event(AbortEvent());
  ASSERT_TRUE(told.Wait());
  AnswerJoin(
      [](const v1::JoinRequest&) { return absl::InvalidArgumentError("no"); });
  EXPECT_FALSE(session->Rejoin().ok());
  session.reset();
  EXPECT_FALSE(leave_.Take().rejoin());
}

TEST_F(SessionTest, AManifestMismatchShowsEveryDifference) {
  AnswerJoin([](const v1::JoinRequest&) {
    v1::ErrorDetail detail;
    detail.mutable_manifest_mismatch()->add_differences("fc.weight: 10 vs 12");
    return WithDetail(absl::FailedPreconditionError("manifests differ"),
                      detail);
  });
  EXPECT_THAT(Join(), StatusIs(absl::StatusCode::kFailedPrecondition,
                               AllOf(HasSubstr("manifests differ"),
                                     HasSubstr("fc.weight: 10 vs 12"))));
  EXPECT_EQ(joins_, 1);
}

TEST_F(SessionTest, AWorldSizeOtherThanTheLaunchersIsAnError) {
  manifest_.world_size = 3;
  EXPECT_THAT(Join(), StatusIs(absl::StatusCode::kInvalidArgument,
                               AllOf(HasSubstr("starts 1 workers"),
                                     HasSubstr("asks for 3"))));
}

TEST_F(SessionTest, TheMeshIsSentAndFitted) {
  std::string seen = "none";
  AnswerJoin([&seen](const v1::JoinRequest& request) {
    seen = request.manifest().mesh();
    return absl::OkStatus();
  });
  ASSERT_OK_AND_ASSIGN(const auto without, Join());
  EXPECT_EQ(seen, "");
  EXPECT_TRUE(without->mesh().empty());
  manifest_.mesh = "dp=*,shard=01";
  ASSERT_OK_AND_ASSIGN(const auto session, Join());
  EXPECT_EQ(seen, "dp=*,shard=1");
  EXPECT_EQ(session->mesh().ToString(), "dp=1,shard=1");
  options_.mesh = "dp=*,shard=1";
  EXPECT_OK(Join());
}

TEST_F(SessionTest, AMeshThatCannotBeIsRefusedBeforeAnythingIsTried) {
  const auto error = [this](const char* launcher, const char* program) {
    options_.mesh = launcher;
    manifest_.mesh = program;
    return Join().status();
  };
  const auto invalid = [](const char* text) {
    return StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(text));
  };
  EXPECT_THAT(error("dp=1", "dp=*"),
              invalid("the launcher gives the mesh dp=1 (COXSWAIN_MESH), the "
                      "program asks for dp=*"));
  EXPECT_THAT(error("", "dp=2"), invalid("does not fit 1 workers"));
  EXPECT_THAT(error("shards=1", ""), invalid("did you mean 'shard'?"));
  options_.world_size = 2;
  EXPECT_THAT(error("tp=2", ""), invalid("set the plan's pipeline"));
  EXPECT_THAT(error("pp=2", ""), invalid("set the plan's pipeline"));
  EXPECT_EQ(joins_, 0);
  options_.plan_overrides = {{"pipeline", "1f1b"}};
  EXPECT_THAT(error("pp=2", ""), Not(invalid("set the plan's pipeline")));
  EXPECT_GT(joins_, 0);
}

TEST_F(SessionTest, ACoordinatorThatJoinsNoAxesIsNamed) {
  fake_->Answer<v1::CreateMeshRequest, v1::CreateMeshResponse>(
      "Group/CreateMesh",
      [](const v1::CreateMeshRequest& request, const CallOptions&) {
        v1::CreateMeshResponse response;
        for (int i = 0; i < request.axes_size(); ++i) response.add_groups();
        return response;
      });
  ASSERT_OK_AND_ASSIGN(const auto session, Join());
  EXPECT_THAT(
      session->CreateMesh("m", {{"dp", 1}, {"tp", 1}}, {{"dp", "tp"}}),
      StatusIs(absl::StatusCode::kUnimplemented,
               AllOf(HasSubstr("was asked for 3 groups of the mesh 'm'"),
                     HasSubstr("update it"))));
}

TEST_F(SessionTest, AMeshOfOneRankIsOneGroup) {
  manifest_.mesh = "dp=1";
  ASSERT_OK_AND_ASSIGN(const auto session, Join());
  ASSERT_OK_AND_ASSIGN(const MeshGroups groups,
                       session->GroupsOf(session->mesh()));
  for (const auto& group : {groups.pp, groups.dp, groups.tp, groups.data}) {
    EXPECT_EQ(group, groups.world);
  }
  EXPECT_THAT(session->GroupsOf(Mesh()),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("the job has no mesh")));
  EXPECT_THAT(session->GroupsOf(*Mesh::Parse("dp=*")),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("Fit()")));
}

TEST_F(SessionTest, RequestsCarryTheFenceAndARequestId) {
  v1::SetRequest seen;
  fake_->Answer<v1::SetRequest, v1::SetResponse>(
      "Store/Set", [&seen](const v1::SetRequest& request, const CallOptions&) {
        seen = request;
        return v1::SetResponse();
      });
  options_.incarnation = Incarnation(99);
  ASSERT_OK_AND_ASSIGN(const auto session, Join());
  ASSERT_OK(session->store().Set("key", "value"));
  EXPECT_EQ(seen.fence().cluster_id(), "cluster");
  EXPECT_EQ(seen.fence().term(), 3);
  EXPECT_EQ(seen.fence().job(), "mnist");
  EXPECT_EQ(seen.fence().generation(), 7);
  EXPECT_EQ(seen.fence().incarnation(), 99u);
  EXPECT_NE(seen.fence().request_id(), 0u);
}

TEST_F(SessionTest, HeartbeatsHaveTheProgress) {
  ASSERT_OK_AND_ASSIGN(const auto session, Join());
  ASSERT_OK_AND_ASSIGN(const auto world, session->World());
  float value = 1;
  ASSERT_OK(world->communicator()
                .AllReduce(Span{&value, 1, DType::kFloat32, {}})
                ->Wait(absl::Seconds(20)));
  session->ReportProgress(12);
  EXPECT_TRUE(fake_->AttachmentNumber(0)->WaitForRequest(
      [](const v1::AttachRequest& request) {
        return request.heartbeat().step() == 12 &&
               request.heartbeat().collective_sequence() == 1 &&
               request.heartbeat().payload_bytes() == 4;
      }));
}

TEST_F(SessionTest, HeartbeatsReportAWaitWhereThePlanAsksForIt) {
  (*plan_.mutable_terms())["stall_timeout"] = "1s";
  ASSERT_OK_AND_ASSIGN(const auto session, Join());
  schedule::StepGate* const gate = TrainGateOf(*session);
  const auto stream = fake_->AttachmentNumber(0);
  ASSERT_OK(gate->Announce({}));
  ASSERT_TRUE(WaitForTicket(*stream, 0));
  std::thread waiting([&] { EXPECT_OK(gate->Decide({})); });
  EXPECT_TRUE(stream->WaitForRequest([](const v1::AttachRequest& request) {
    return !request.heartbeat().activity().empty() &&
           request.heartbeat().interval_ms() == 1;
  }));
  clock_.Advance(absl::Seconds(3));
  EXPECT_TRUE(stream->WaitForRequest([](const v1::AttachRequest& request) {
    return request.heartbeat().waiting_ms() == 3000;
  }));
  stream->Event(DecisionOn(0));
  waiting.join();
  session->ReportProgress(1);
  EXPECT_TRUE(stream->WaitForRequest([](const v1::AttachRequest& request) {
    return request.heartbeat().step() == 1 &&
           request.heartbeat().waiting_ms() == 0;
  }));
}

TEST_F(SessionTest, AWaitForWhatOthersExchangeIsTheProgramsToReport) {
  (*plan_.mutable_terms())["stall_timeout"] = "1s";
  ASSERT_OK_AND_ASSIGN(const auto session, Join());
  const auto stream = fake_->AttachmentNumber(0);
  session->ReportWait(true);
  // From its first heartbeat on, it counts.
  session->ReportProgress(1);
  EXPECT_TRUE(stream->WaitForRequest([](const v1::AttachRequest& request) {
    return request.heartbeat().step() == 1;
  }));
  clock_.Advance(absl::Seconds(3));
  EXPECT_TRUE(stream->WaitForRequest([](const v1::AttachRequest& request) {
    return request.heartbeat().waiting_ms() == 3000;
  }));
  session->ReportWait(false);
  session->ReportProgress(2);
  EXPECT_TRUE(stream->WaitForRequest([](const v1::AttachRequest& request) {
    return request.heartbeat().step() == 2 &&
           request.heartbeat().waiting_ms() == 0;
  }));
}

TEST_F(SessionTest, GroupsOfOneNameAreOneGroup) {
  ASSERT_OK_AND_ASSIGN(const auto session, Join());
  ASSERT_OK_AND_ASSIGN(const auto first, session->CreateGroup("solo", {0}));
  ASSERT_OK_AND_ASSIGN(const auto second, session->CreateGroup("solo", {0}));
  EXPECT_EQ(first, second);
  EXPECT_THAT(session->CreateGroup("others", {1, 2}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("rank 0 is not in the group 'others'")));
}

TEST_F(SessionTest, OfTheGroupsOfCheckpointsOnlyTheLastIsKept) {
  ASSERT_OK_AND_ASSIGN(const auto session, Join());
  std::weak_ptr<ProcessGroup> first, second;
  {
    ASSERT_OK_AND_ASSIGN(const auto group,
                         session->CreateGroup("checkpoint/1", {0}));
    float value = 1;
    ASSERT_OK(
        group->communicator()
            .AllReduce({&value, 1, DType::kFloat32, Device{}}, ReduceOp::kSum)
            ->Wait(absl::Seconds(20)));
    first = group;
    second = *session->CreateGroup("checkpoint/2", {0});
  }
  EXPECT_TRUE(first.expired());
  EXPECT_FALSE(second.expired());
  EXPECT_EQ(session->CreateGroup("checkpoint/2", {0}).value(), second.lock());
  session->ReportProgress(3);
  EXPECT_TRUE(fake_->AttachmentNumber(0)->WaitForRequest(
      [](const v1::AttachRequest& request) {
        return request.heartbeat().step() == 3 &&
               request.heartbeat().collective_sequence() == 1;
      }))
      << "what it has done counts";
}

TEST_F(SessionTest, ABackEndOfTheCpuServesCheckpointsOfGpusToo) {
  options_.device.kind = Device::Kind::kCuda;
  options_.nccl_version = "2.28.9";
  fake_->Answer<v1::SetRequest, v1::SetResponse>(
      "Store/Set", [](const v1::SetRequest&, const CallOptions&) {
        return v1::SetResponse();
      });
  options_.backend = "tcp";
  options_.address = "127.0.0.1";
  ASSERT_OK_AND_ASSIGN(const auto session, Join());
  ASSERT_OK_AND_ASSIGN(const auto group,
                       session->CreateGroup("checkpoint/1", {0}));
  EXPECT_EQ(group->communicator().backend(), "tcp");
}

TEST_F(SessionTest, AnAbortEndsEverythingWithItsReason) {
  ASSERT_OK_AND_ASSIGN(const auto session, Join());
  ASSERT_OK_AND_ASSIGN(const auto world, session->World());
  Mailbox<absl::Status> told;
  session->OnAbort([&told](const absl::Status& why) { told.Put(why); });
  Mailbox<absl::Status> got;
  std::thread getter([&]() {
    got.Put(session->store().Get("never", absl::Minutes(10)).status());
  });
  ASSERT_TRUE(waiting_.Wait());
  fake_->AttachmentNumber(0)->Event(AbortEvent());

  const auto lost = StatusIs(absl::StatusCode::kAborted,
                             HasSubstr("rank 1 on host-b was lost: killed"));
  EXPECT_THAT(told.Take(), lost);
  EXPECT_THAT(got.Take(), lost);
  EXPECT_THAT(session->status(), lost);
  EXPECT_THAT(world->communicator().Barrier()->Wait(absl::Seconds(20)), lost);
  EXPECT_THAT(session->CreateGroup("late", {0}), lost);
  Mailbox<absl::Status> late;
  session->OnAbort([&late](const absl::Status& why) { late.Put(why); });
  EXPECT_THAT(late.Take(), lost);
  getter.join();
}

TEST_F(SessionTest, AnAbortWithoutAHostInItsReasonGetsOne) {
  ASSERT_OK_AND_ASSIGN(const auto session, Join());
  Mailbox<absl::Status> told;
  session->OnAbort([&told](const absl::Status& why) { told.Put(why); });
  v1::AttachEvent event = AbortEvent();
  event.mutable_abort()->set_reason("a member was lost");
  fake_->AttachmentNumber(0)->Event(event);
  EXPECT_THAT(told.Take(), StatusIs(absl::StatusCode::kAborted,
                                    HasSubstr("rank 1 on host host-b")));
}

TEST_F(SessionTest, ALostConnectionIsAttachedAgainUnnoticed) {
  ASSERT_OK_AND_ASSIGN(const auto session, Join());
  fake_->AttachmentNumber(0)->End(absl::UnavailableError("connection reset"));
  const auto second = fake_->AttachmentNumber(1);
  ASSERT_NE(second, nullptr);
  EXPECT_TRUE(second->WaitForRequest([](const v1::AttachRequest& request) {
    return request.hello().fence().generation() == 7;
  }));
  EXPECT_TRUE(second->WaitForRequest([](const v1::AttachRequest& request) {
    return request.has_heartbeat();
  }));
  EXPECT_OK(session->status());
}

TEST_F(SessionTest, ACoordinatorLostForTheGraceEndsTheGeneration) {
  ASSERT_OK_AND_ASSIGN(const auto session, Join());
  Mailbox<absl::Status> told;
  session->OnAbort([&told](const absl::Status& why) { told.Put(why); });
  fake_->OnAttach([this](FakeAttachment& stream) {
    clock_.Advance(absl::Seconds(10));
    stream.End(absl::UnavailableError("connection refused"));
  });
  fake_->AttachmentNumber(0)->End(absl::UnavailableError("connection reset"));
  EXPECT_THAT(told.Take(),
              StatusIs(absl::StatusCode::kAborted,
                       AllOf(HasSubstr("127.0.0.1:4711"),
                             HasSubstr("could not be reached for 30s"),
                             HasSubstr("connection refused"))));
  EXPECT_NE(fake_->AttachmentNumber(3), nullptr);
}

TEST_F(SessionTest, ARefusedStreamEndsTheGeneration) {
  ASSERT_OK_AND_ASSIGN(const auto session, Join());
  Mailbox<absl::Status> told;
  session->OnAbort([&told](const absl::Status& why) { told.Put(why); });
  fake_->AttachmentNumber(0)->End(
      absl::FailedPreconditionError("replaced by a new incarnation"));
  EXPECT_THAT(told.Take(),
              StatusIs(absl::StatusCode::kAborted,
                       HasSubstr("replaced by a new incarnation")));
}

TEST_F(SessionTest, AStaleFenceEndsTheGeneration) {
  fake_->Answer<v1::SetRequest, v1::SetResponse>(
      "Store/Set", [](const v1::SetRequest&, const CallOptions&) {
        v1::ErrorDetail detail;
        detail.mutable_stale_fence()->set_field("generation");
        return WithDetail(absl::FailedPreconditionError("generation 7 is over"),
                          detail);
      });
  ASSERT_OK_AND_ASSIGN(const auto session, Join());
  Mailbox<absl::Status> told;
  session->OnAbort([&told](const absl::Status& why) { told.Put(why); });
  const absl::Status set = session->store().Set("key", "value");
  EXPECT_THAT(set, StatusIs(absl::StatusCode::kFailedPrecondition,
                            HasSubstr("generation 7 is over")));
  // An elastic worker that connects to others then goes on with the next one.
  EXPECT_TRUE(MayComeFromPeers(WithPrefix("connecting rank 0: ", set)));
  EXPECT_FALSE(MayComeFromPeers(absl::FailedPreconditionError("no memory")));
  EXPECT_THAT(told.Take(), StatusIs(absl::StatusCode::kAborted,
                                    HasSubstr("generation 7 is over")));
}

TEST_F(SessionTest, ARankThatWaitsForAKeyWaitsForOthers) {
  (*plan_.mutable_terms())["stall_timeout"] = "1s";
  ASSERT_OK_AND_ASSIGN(const auto session, Join());
  const auto stream = fake_->AttachmentNumber(0);
  std::thread waiting([&] {
    EXPECT_FALSE(session->store().Get("key", absl::Minutes(1)).ok());
  });
  ASSERT_TRUE(waiting_.Wait());
  // From the first heartbeat that comes now, it counts.
  session->ReportProgress(1);
  EXPECT_TRUE(stream->WaitForRequest([](const v1::AttachRequest& request) {
    return request.heartbeat().step() == 1;
  }));
  clock_.Advance(absl::Seconds(3));
  EXPECT_TRUE(stream->WaitForRequest([](const v1::AttachRequest& request) {
    return request.heartbeat().waiting_ms() == 3000;
  }));
  stream->Event(AbortEvent());
  waiting.join();
}

TEST_F(SessionTest, LeaveSendsTheReasonOnceAndKeepsTheCommunicators) {
  ASSERT_OK_AND_ASSIGN(auto session, Join());
  ASSERT_OK_AND_ASSIGN(const auto world, session->World());
  ASSERT_OK(session->Leave("done"));
  EXPECT_EQ(leave_.Take().reason(), "done");
  EXPECT_FALSE(leave_.Take().failed());
  EXPECT_THAT(session->status(),
              StatusIs(absl::StatusCode::kCancelled, HasSubstr("done")));
  EXPECT_OK(world->communicator().Barrier()->Wait(absl::Seconds(20)));
  EXPECT_OK(session->Leave("again"));
  session.reset();
}

TEST_F(SessionTest, TheStreamStaysOpenUntilLeaveIsAnswered) {
  Session* leaving = nullptr;
  fake_->Answer<v1::LeaveRequest, v1::LeaveResponse>(
      "Rendezvous/Leave", [&](const v1::LeaveRequest&, const CallOptions&) {
        leaving->ReportProgress(99);
        EXPECT_TRUE(fake_->AttachmentNumber(0)->WaitForRequest(
            [](const v1::AttachRequest& request) {
              return request.heartbeat().step() == 99;
            }));
        EXPECT_FALSE(fake_->AttachmentNumber(0)->closed());
        return v1::LeaveResponse();
      });
  ASSERT_OK_AND_ASSIGN(const auto session, Join());
  leaving = session.get();
  ASSERT_OK(session->Leave("done"));
  EXPECT_TRUE(fake_->AttachmentNumber(0)->closed());
}

TEST_F(SessionTest, AStreamThatEndsWhileLeavingIsNotOpenedAgain) {
  std::atomic<int> opened{0};
  fake_->OnAttach([&opened](FakeAttachment& stream) {
    ++opened;
    stream.Attached();
  });
  fake_->Answer<v1::LeaveRequest, v1::LeaveResponse>(
      "Rendezvous/Leave", [this](const v1::LeaveRequest&, const CallOptions&) {
        fake_->AttachmentNumber(0)->End(absl::OkStatus());
        return v1::LeaveResponse();
      });
  ASSERT_OK_AND_ASSIGN(const auto session, Join());
  ASSERT_OK(session->Leave("done"));
  EXPECT_EQ(opened, 1);
  EXPECT_THAT(session->status(),
              StatusIs(absl::StatusCode::kCancelled, HasSubstr("done")));
}

TEST_F(SessionTest, AGroupThatCouldNotBeConnectedStaysFailed) {
  std::atomic<int> published{0};
  fake_->Answer<v1::SetRequest, v1::SetResponse>(
      "Store/Set",
      [&](const v1::SetRequest&,
          const CallOptions&) -> absl::StatusOr<v1::SetResponse> {
        ++published;
        return absl::ResourceExhaustedError("the store is full");
      });
  options_.backend = "tcp";
  options_.address = "127.0.0.1";
  ASSERT_OK_AND_ASSIGN(const auto session, Join());
  const auto full = StatusIs(absl::StatusCode::kResourceExhausted,
                             HasSubstr("the store is full"));
  EXPECT_THAT(session->CreateGroup("pair", {0, 1}), full);
  EXPECT_THAT(session->CreateGroup("pair", {0, 1}), full);
  EXPECT_EQ(published, 1);
}

TEST_F(SessionTest, AnAbortEndsConnectingAGroup) {
  // Rank 0 says where it is, and is called by the others.
  fake_->Answer<v1::SetRequest, v1::SetResponse>(
      "Store/Set", [this](const v1::SetRequest&, const CallOptions&) {
        waiting_.Put(true);
        return v1::SetResponse();
      });
  options_.backend = "tcp";
  options_.address = "127.0.0.1";
  ASSERT_OK_AND_ASSIGN(const auto session, Join());
  Mailbox<absl::Status> got;
  std::thread creator([&]() {
    got.Put(session->CreateGroup("pair", {0, 1}).status());
  });
  ASSERT_TRUE(waiting_.Wait());
  fake_->AttachmentNumber(0)->Event(AbortEvent());
  EXPECT_THAT(got.Take(), StatusIs(absl::StatusCode::kAborted,
                                   HasSubstr("rank 1 on host-b was lost")));
  creator.join();
}

TEST_F(SessionTest,
       ABackEndThatThereIsNotIsRefusedBeforeTheCoordinatorIsAsked) {
  options_.backend = "gloo";
  EXPECT_THAT(Join(), StatusIs(absl::StatusCode::kInvalidArgument,
                               HasSubstr("was replaced by 'tcp'")));
}

TEST_F(SessionTest, ALoopbackAddressAmongSeveralHostsIsRefused) {
  joined_.set_world_size(100);
  v1::Member* const member = joined_.mutable_unreachable();
  member->set_rank(1);
  member->set_host("host-b");
  member->set_address("127.0.1.1");
  EXPECT_THAT(Join(), StatusIs(absl::StatusCode::kFailedPrecondition,
                               AllOf(HasSubstr("rank 1 on host host-b"),
                                     HasSubstr("127.0.1.1"),
                                     HasSubstr("COXSWAIN_BIND_ADDRESS"))));
  EXPECT_TRUE(leave_.Take().failed());
}

TEST_F(SessionTest, TheMembersOfALargeJobAreAskedForOnceAndInPages) {
  constexpr int kWorld = 100, kPage = 40;
  joined_.set_world_size(kWorld);
  std::atomic<int> calls{0};
  std::atomic<bool> refuse{true};
  fake_->Answer<v1::MembersRequest, v1::MembersResponse>(
      "Rendezvous/Members",
      [&](const v1::MembersRequest& request,
          const CallOptions&) -> absl::StatusOr<v1::MembersResponse> {
        ++calls;
        EXPECT_EQ(request.fence().generation(), 7);
        if (refuse) return absl::InternalError("not now");
        v1::MembersResponse response;
        const int end = std::min(request.first_rank() + kPage, kWorld);
        for (int rank = request.first_rank(); rank < end; ++rank) {
          response.add_members()->set_rank(rank);
        }
        return response;
      });
  ASSERT_OK_AND_ASSIGN(const auto session, Join());
  EXPECT_EQ(session->world_size(), kWorld);
  EXPECT_EQ(calls, 0) << "nobody wanted to know";
  EXPECT_THAT(session->Members(),
              StatusIs(absl::StatusCode::kInternal, HasSubstr("not now")));
  refuse = false;
  calls = 0;
  for (int i = 0; i < 2; ++i) {
    ASSERT_OK_AND_ASSIGN(const auto members, session->Members());
    ASSERT_EQ(members.size(), static_cast<size_t>(kWorld));
    EXPECT_EQ(members[99].rank, 99);
  }
  EXPECT_EQ(calls, 3);
}

TEST_F(SessionTest, MembersThatWereNotAskedForAreAnError) {
  joined_.set_world_size(100);
  fake_->Answer<v1::MembersRequest, v1::MembersResponse>(
      "Rendezvous/Members", [](const v1::MembersRequest&, const CallOptions&) {
        return v1::MembersResponse();
      });
  ASSERT_OK_AND_ASSIGN(const auto session, Join());
  EXPECT_THAT(session->Members(), StatusIs(absl::StatusCode::kInternal,
                                           HasSubstr("from rank 0 to 99")));
}

TEST_F(SessionTest, AFailedLeaveAbortsTheCommunicators) {
  ASSERT_OK_AND_ASSIGN(const auto session, Join());
  ASSERT_OK_AND_ASSIGN(const auto world, session->World());
  ASSERT_OK(session->Leave("out of memory", /*failed=*/true));
  EXPECT_TRUE(leave_.Take().failed());
  EXPECT_THAT(world->communicator().Barrier()->Wait(absl::Seconds(20)),
              StatusIs(absl::StatusCode::kAborted, HasSubstr("out of memory")));
}

TEST_F(SessionTest, TheManifestHasTermsAndStrides) {
  manifest_.terms.tail = schedule::TailPolicy::kCarry;
  manifest_.accumulation_steps = 2;
  ParameterSpec parameter;
  parameter.name = "row-major";
  parameter.shape = {2, 3};
  parameter.strides = {3, 1};
  manifest_.parameters.push_back(parameter);
  parameter.name = "transposed";
  parameter.strides = {1, 2};
  manifest_.parameters.push_back(parameter);
  options_.plan_overrides = {{"accumulation", "8"},
                             {"hook", "fp16( allreduce )"},
                             {"compression_start", "5"},
                             {"enforcement", "strict"}};
  v1::Manifest told;
  AnswerJoin([&told](const v1::JoinRequest& request) {
    told = request.manifest();
    return absl::OkStatus();
  });
  plan_.set_version(2);
  plan_.set_compression_start_step(5);
  plan_.set_global_micro_batches(24);
  (*plan_.mutable_terms())["tail"] = "drop";
  ASSERT_OK_AND_ASSIGN(auto session, Join());
  EXPECT_EQ(told.accumulation_steps(), 8);
  EXPECT_EQ(told.hook(), "fp16( allreduce )");
  EXPECT_EQ(told.compression_start(), 6);
  ASSERT_EQ(told.terms().size(), 2u);  // those that are not the defaults
  EXPECT_EQ(told.terms().at("tail"), "carry");
  EXPECT_EQ(told.terms().at("enforcement"), "strict");
  EXPECT_EQ(told.parameters(0).strides_size(), 0);
  ASSERT_EQ(told.parameters(1).strides_size(), 2);
  EXPECT_EQ(told.parameters(1).strides(1), 2);
  EXPECT_EQ(session->plan().version, 2);
  EXPECT_EQ(session->plan().terms.tail, schedule::TailPolicy::kDrop);
  EXPECT_EQ(session->plan().global_micro_batches, 24);
  EXPECT_EQ(session->plan().compression_start_step, 5);
  // What was overridden, and what the plan has otherwise than the manifest.
  const auto changed = session->ChangedByOperator(session->plan());
  for (const char* name :
       {"accumulation", "hook", "compression_start", "enforcement", "tail"}) {
    EXPECT_EQ(changed.count(name), 1u) << name;
  }
  EXPECT_EQ(changed.count("weighting"), 0u);
}

TEST_F(SessionTest, ContradictoryTermsAreRefused) {
  manifest_.terms.commit_vote = true;
  options_.plan_overrides = {{"enforcement", "off"}};
  EXPECT_THAT(Join(), StatusIs(absl::StatusCode::kInvalidArgument,
                               HasSubstr("enforcement=off")));
  EXPECT_EQ(joins_, 0);
}

TEST_F(SessionTest, APlanOfANewerCoordinatorIsNotJoined) {
  plan_.set_version(2);
  (*plan_.mutable_terms())["gravity"] = "9.81";
  EXPECT_THAT(Join(), StatusIs(absl::StatusCode::kFailedPrecondition,
                               HasSubstr("\"gravity\"")));
  EXPECT_TRUE(leave_.Take().failed());
}

TEST_F(SessionTest, TicketsTravelOnTheStream) {
  ASSERT_OK_AND_ASSIGN(auto session, Join());
  schedule::StepGate* const gate = TrainGateOf(*session);
  const auto stream = fake_->AttachmentNumber(0);
  for (int64_t round = 0; round < 3; ++round) {
    ASSERT_OK(gate->Announce({}));
    ASSERT_TRUE(WaitForTicket(*stream, round));
    stream->Event(DecisionOn(round));
    ASSERT_OK(gate->Decide({}));
  }
  EXPECT_TRUE(stream->WaitForRequest([](const v1::AttachRequest& request) {
    return request.has_heartbeat() && request.heartbeat().rounds() == 3;
  }));
}

TEST_F(SessionTest, ARoundOutlivesALostConnection) {
  ASSERT_OK_AND_ASSIGN(auto session, Join());
  schedule::StepGate* const gate = TrainGateOf(*session);
  ASSERT_OK(gate->Announce({}));
  const auto stream = fake_->AttachmentNumber(0);
  ASSERT_TRUE(WaitForTicket(*stream, 0));
  stream->End(absl::UnavailableError("connection reset"));
  const auto again = fake_->AttachmentNumber(1);
  ASSERT_NE(again, nullptr);
  ASSERT_TRUE(WaitForTicket(*again, 0));
  again->Event(DecisionOn(0));
  EXPECT_OK(gate->Decide({}));
}

TEST_F(SessionTest, AMismatchIsWhatTheGateReturns) {
  ASSERT_OK_AND_ASSIGN(auto session, Join());
  schedule::StepGate* const gate = TrainGateOf(*session);
  ASSERT_OK(gate->Announce({}));
  std::thread coordinator([this]() {
    v1::AttachEvent event;
    event.mutable_abort()->set_reason("rank 1 is at step 8, the others at 7");
    event.mutable_abort()->mutable_mismatch()->set_round(7);
    event.mutable_abort()->mutable_mismatch()->add_odd_ranks(1);
    fake_->AttachmentNumber(0)->Event(event);
  });
  const absl::Status status = gate->Decide({}).status();
  coordinator.join();
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kAborted,
                               "rank 1 is at step 8, the others at 7"));
  const v1::ErrorDetail detail = DetailOf(status);
  EXPECT_EQ(detail.schedule_mismatch().round(), 7);
  EXPECT_EQ(detail.schedule_mismatch().odd_ranks(0), 1);
  EXPECT_EQ(session->status(), status);
}

class StalledOnGpusTest : public SessionTest {
 protected:
  StalledOnGpusTest() {
    options_.device.kind = Device::Kind::kCuda;
    options_.nccl_version = "2.28.9";
    options_.ras_address = ras_.address();
  }

  static v1::AttachEvent Mismatch() {
    v1::AttachEvent event;
    event.mutable_abort()->set_reason("rank 1 stands still");
    event.mutable_abort()->mutable_mismatch()->set_round(7);
    return event;
  }
  static absl::StatusOr<SessionEvent> NextWarning(Session& session) {
    while (true) {
      auto event = session.events().Next(absl::Seconds(20));
      if (!event.ok() || event->kind == SessionEvent::Kind::kWarning) {
        return event;
      }
    }
  }

  FakeRasServer ras_{
      {"SERVER PROTOCOL 2\n", "OK\n", "Rank 1: 3 collectives behind\n"}};
};

TEST_F(StalledOnGpusTest, AStallIsReportedWithNcclsState) {
  ASSERT_OK_AND_ASSIGN(auto session, Join());
  fake_->AttachmentNumber(0)->Event(Mismatch());
  ASSERT_OK_AND_ASSIGN(const SessionEvent event, NextWarning(*session));
  EXPECT_EQ(event.text, "NCCL reports:\nRank 1: 3 collectives behind\n");
  ASSERT_OK_AND_ASSIGN(const SessionEvent last,
                       session->events().Next(absl::Seconds(20)));
  EXPECT_EQ(last.kind, SessionEvent::Kind::kGenerationEnded);
  EXPECT_EQ(last.text, "rank 1 stands still");
}

TEST_F(StalledOnGpusTest, AWarningOfAStallToo) {
  ASSERT_OK_AND_ASSIGN(auto session, Join());
  v1::AttachEvent warning;
  warning.mutable_warning()->set_text("rank 1 is slow");
  fake_->AttachmentNumber(0)->Event(warning);
  ASSERT_OK_AND_ASSIGN(const SessionEvent first, NextWarning(*session));
  EXPECT_EQ(first.text, "rank 1 is slow");
  ASSERT_OK_AND_ASSIGN(const SessionEvent second, NextWarning(*session));
  EXPECT_THAT(second.text, HasSubstr("3 collectives behind"));
  EXPECT_OK(session->Leave("done"));
}

TEST_F(StalledOnGpusTest, OnTheCpuNcclIsNotAsked) {
  options_.device = Device();
  ASSERT_OK_AND_ASSIGN(auto session, Join());
  fake_->AttachmentNumber(0)->Event(Mismatch());
  EXPECT_THAT(NextWarning(*session),
              StatusIs(absl::StatusCode::kOutOfRange, HasSubstr("no more")));
  EXPECT_TRUE(ras_.Finish().empty());
}

TEST_F(SessionTest, LeavingEndsTheWaitsOfGates) {
  ASSERT_OK_AND_ASSIGN(auto session, Join());
  schedule::StepGate* const gate = TrainGateOf(*session);
  ASSERT_OK(gate->Announce({}));
  std::thread leaving([&session]() { EXPECT_OK(session->Leave("done")); });
  EXPECT_THAT(gate->Decide({}), StatusIs(absl::StatusCode::kCancelled,
                                         HasSubstr("has left the job: done")));
  leaving.join();
}

TEST_F(SessionTest, DestroyingWithoutLeavingLeavesAsFailed) {
  ASSERT_OK_AND_ASSIGN(auto session, Join());
  session.reset();
  EXPECT_TRUE(leave_.Take().failed());
  EXPECT_THAT(leave_.Take().reason(), HasSubstr("without leaving"));
}

TEST_F(SessionTest, ASessionThatCannotAttachIsNotJoined) {
  fake_->OnAttach([](FakeAttachment& stream) { stream.Event(AbortEvent()); });
  EXPECT_THAT(Join(), StatusIs(absl::StatusCode::kAborted,
                               HasSubstr("rank 1 on host-b was lost")));
}

}  // namespace
}  // namespace coxswain::session_test
