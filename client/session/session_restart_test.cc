// A session whose coordinator is started again, and one after another.

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "client/rpc/fake_coordinator_stub.h"
#include "client/session/session.h"
#include "client/session/session_test_support.h"
#include "gtest/gtest.h"
#include "transport/error_detail.h"

namespace coxswain::session_restart_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Kind = SessionEvent::Kind;

absl::Status Stale(const std::string& field, int64_t expected) {
  v1::ErrorDetail detail;
  detail.mutable_stale_fence()->set_field(field);
  detail.mutable_stale_fence()->set_expected(absl::StrCat(expected));
  return WithDetail(
      absl::FailedPreconditionError(absl::StrCat("stale ", field)), detail);
}

class SessionRestartTest : public SessionTest {
 protected:
  // From now on streams are accepted in this term.
  void AcceptIn(int64_t term) {
    fake_->OnAttach([term](FakeAttachment& stream) {
      v1::AttachEvent event;
      event.mutable_attached()->set_term(term);
      stream.Event(event);
    });
  }
  // The coordinator dies, and another one begins this term.
  void RestartIn(int64_t term) {
    AcceptIn(term);
    fake_->AttachmentNumber(streams_++)
        ->End(absl::UnavailableError("connection reset"));
  }
  static SessionEvent NextOf(Session& session, Kind kind) {
    while (true) {
      auto event = session.events().Next(absl::Seconds(20));
      EXPECT_OK(event) << "while waiting for " << ToString(kind);
      if (!event.ok() || event->kind == kind) {
        return event.value_or(SessionEvent());
      }
    }
  }

  size_t streams_ = 0;
};

TEST_F(SessionRestartTest, TheStreamIsOpenedAgainInTheNewTerm) {
  ASSERT_OK_AND_ASSIGN(const auto session, Join());
  RestartIn(4);
  const SessionEvent lost = NextOf(*session, Kind::kCoordinatorLost);
  EXPECT_THAT(lost.text, AllOf(HasSubstr("127.0.0.1:4711"),
                               HasSubstr("connection reset")));
  EXPECT_EQ(lost.term, 3);
  EXPECT_EQ(NextOf(*session, Kind::kReattached).term, 4);
  // And once more: the next Hello has what was learnt.
  fake_->OnAttach([](FakeAttachment&) {});
  fake_->AttachmentNumber(1)->End(absl::UnavailableError("connection reset"));
  const auto third = fake_->AttachmentNumber(2);
  ASSERT_NE(third, nullptr);
  EXPECT_TRUE(third->WaitForRequest([](const v1::AttachRequest& request) {
    return request.hello().fence().term() == 4;
  }));
  v1::AttachEvent attached;
  attached.mutable_attached()->set_term(6);
  third->Event(attached);
  EXPECT_EQ(NextOf(*session, Kind::kReattached).term, 6);
  EXPECT_OK(session->status());
}

TEST_F(SessionRestartTest, ARequestOfTheOldTermIsRepeatedInTheNewOne) {
  std::atomic<int> sets{0};
  std::vector<v1::Fence> fences;
  fake_->Answer<v1::SetRequest, v1::SetResponse>(
      "Store/Set",
      [&](const v1::SetRequest& request,
          const CallOptions&) -> absl::StatusOr<v1::SetResponse> {
        fences.push_back(request.fence());
        switch (++sets) {
          case 1:
            return absl::UnavailableError("connection reset");
          case 2:
            RestartIn(4);
            return Stale("term", 4);
          default:
            return v1::SetResponse();
        }
      });
  ASSERT_OK_AND_ASSIGN(const auto session, Join());
  EXPECT_OK(session->store().Set("key", "value"));
  ASSERT_EQ(fences.size(), 3u);
  EXPECT_EQ(fences[1].term(), 3);
  EXPECT_EQ(fences[2].term(), 4);
  EXPECT_EQ(fences[2].request_id(), fences[0].request_id());
  EXPECT_OK(session->status());
}

TEST_F(SessionRestartTest, ACoordinatorThatWasReplacedIsNoEnd) {
  ASSERT_OK_AND_ASSIGN(const auto session, Join());
  RestartIn(5);
  EXPECT_EQ(NextOf(*session, Kind::kReattached).term, 5);
  fake_->OnAttach([](FakeAttachment& stream) { stream.End(Stale("term", 3)); });
  fake_->AttachmentNumber(streams_++)->End(absl::UnavailableError("reset"));
  ASSERT_NE(fake_->AttachmentNumber(2), nullptr);
  AcceptIn(6);
  EXPECT_EQ(NextOf(*session, Kind::kReattached).term, 6);
  EXPECT_OK(session->status());
}

TEST_F(SessionRestartTest, AnotherClusterIsAnEnd) {
  ASSERT_OK_AND_ASSIGN(const auto session, Join());
  fake_->OnAttach(
      [](FakeAttachment& stream) { stream.End(Stale("cluster_id", 0)); });
  fake_->AttachmentNumber(0)->End(absl::UnavailableError("reset"));
  EXPECT_THAT(NextOf(*session, Kind::kGenerationEnded).text,
              HasSubstr("stale cluster_id"));
  EXPECT_THAT(session->status(), StatusIs(absl::StatusCode::kAborted,
                                          HasSubstr("stale cluster_id")));
}

TEST_F(SessionRestartTest, ALeaveOutlivesTheCoordinator) {
  std::vector<v1::Fence> fences;
  fake_->Answer<v1::LeaveRequest, v1::LeaveResponse>(
      "Rendezvous/Leave",
      [&](const v1::LeaveRequest& request,
          const CallOptions& call) -> absl::StatusOr<v1::LeaveResponse> {
        fences.push_back(request.fence());
        if (fences.size() == 1) {
          EXPECT_EQ(call.timeout, absl::Seconds(30));
          RestartIn(4);
          return absl::UnavailableError("connection reset");
        }
        // Away for longer than a failed Leave would wait.
        clock_.Advance(absl::Seconds(6));
        if (request.fence().term() < 4) return Stale("term", 4);
        return v1::LeaveResponse();
      });
  ASSERT_OK_AND_ASSIGN(const auto session, Join());
  EXPECT_OK(session->Leave("done"));
  EXPECT_EQ(fences.back().term(), 4);
  EXPECT_EQ(fences.back().request_id(), fences.front().request_id());
  NextOf(*session, Kind::kCoordinatorLost);
  NextOf(*session, Kind::kReattached);
  EXPECT_THAT(session->events().Next(absl::Seconds(20)),
              StatusIs(absl::StatusCode::kOutOfRange, ::testing::_));
}

TEST_F(SessionRestartTest, AFailedLeaveDoesNotWaitForTheCoordinator) {
  std::atomic<int> leaves{0};
  fake_->Answer<v1::LeaveRequest, v1::LeaveResponse>(
      "Rendezvous/Leave",
      [&](const v1::LeaveRequest&,
          const CallOptions& call) -> absl::StatusOr<v1::LeaveResponse> {
        if (++leaves == 1) {
          EXPECT_EQ(call.timeout, absl::Seconds(5));
        }
        clock_.Advance(absl::Seconds(2));
        return absl::UnavailableError("connection reset");
      });
  ASSERT_OK_AND_ASSIGN(const auto session, Join());
  EXPECT_THAT(session->Leave("out of memory", /*failed=*/true),
              StatusIs(absl::StatusCode::kUnavailable, ::testing::_));
  EXPECT_EQ(leaves, 3);
}

TEST_F(SessionRestartTest, ALeaveThatWasTakenBeforeTheCoordinatorDiedIsOk) {
  // Its answer was lost: the next coordinator refuses the stream, and takes the
  // Leave of who has left as done.
  int leaves = 0;
  fake_->Answer<v1::LeaveRequest, v1::LeaveResponse>(
      "Rendezvous/Leave",
      [&](const v1::LeaveRequest& request,
          const CallOptions&) -> absl::StatusOr<v1::LeaveResponse> {
        if (++leaves == 1) {
          fake_->OnAttach([](FakeAttachment& stream) {
            stream.End(Stale("incarnation", 0));
          });
          fake_->AttachmentNumber(0)->End(absl::UnavailableError("reset"));
          return absl::UnavailableError("connection reset");
        }
        if (request.fence().term() < 4) return Stale("term", 4);
        return v1::LeaveResponse();
      });
  ASSERT_OK_AND_ASSIGN(const auto session, Join());
  EXPECT_OK(session->Leave("done"));
  EXPECT_EQ(leaves, 3);
}

TEST_F(SessionRestartTest, EventsReportTheCoordinatorsEvents) {
  joined_.set_reason("all 1 workers have joined");
  ASSERT_OK_AND_ASSIGN(const auto session, Join());
  EXPECT_EQ(NextOf(*session, Kind::kJoined).text, "all 1 workers have joined");
  const auto stream = fake_->AttachmentNumber(0);
  v1::AttachEvent event;
  event.mutable_warning()->set_text("rank 1 is slow");
  stream->Event(event);
  EXPECT_EQ(NextOf(*session, Kind::kWarning).text, "rank 1 is slow");
  event.mutable_member_left()->mutable_member()->set_rank(1);
  event.mutable_member_left()->set_reason("no data left");
  stream->Event(event);
  const SessionEvent left = NextOf(*session, Kind::kMemberLeft);
  EXPECT_EQ(left.rank, 1);
  EXPECT_THAT(left.text, HasSubstr("no data left"));
  event = DecisionOn(0);
  event.mutable_decision()->mutable_plan()->set_version(2);
  event.mutable_decision()->mutable_plan()->set_accumulation_steps(8);
  event.mutable_decision()->set_regroup("host-b/0 waits for a place");
  stream->Event(event);
  stream->Event(event);  // as after a reconnect
  EXPECT_THAT(NextOf(*session, Kind::kPlanChanged).text,
              AllOf(HasSubstr("version 2"), HasSubstr("accumulation=8")));
  ASSERT_OK_AND_ASSIGN(const SessionEvent regroup,
                       session->events().Next(absl::Seconds(20)));
  EXPECT_EQ(regroup.kind, Kind::kRegroup);
  EXPECT_EQ(regroup.text, "host-b/0 waits for a place");
  stream->Event(AbortEvent());
  ASSERT_OK_AND_ASSIGN(const SessionEvent end,
                       session->events().Next(absl::Seconds(20)));
  EXPECT_EQ(end.kind, Kind::kGenerationEnded);
  EXPECT_EQ(end.rank, 1);
  EXPECT_EQ(end.generation, 7);
  EXPECT_THAT(session->events().Next(absl::Seconds(20)),
              StatusIs(absl::StatusCode::kOutOfRange, ::testing::_));
}

TEST_F(SessionRestartTest, HeartbeatsHaveTheErrorNorm) {
  ASSERT_OK_AND_ASSIGN(const auto session, Join());
  session->ReportErrorNorm(2.5, 12);
  EXPECT_TRUE(fake_->AttachmentNumber(0)->WaitForRequest(
      [](const v1::AttachRequest& request) {
        return request.heartbeat().error_norm() == 2.5 &&
               request.heartbeat().error_step() == 12;
      }));
}

TEST_F(SessionRestartTest, HeartbeatsHaveThePlaceInAPipelineWhereThereIsOne) {
  ASSERT_OK_AND_ASSIGN(const auto session, Join());
  EXPECT_TRUE(fake_->AttachmentNumber(0)->WaitForRequest(
      [](const v1::AttachRequest& request) {
        return request.has_heartbeat() && !request.heartbeat().has_pipeline();
      }));
  session->SetPipelinePlace([]() -> std::optional<PipelinePlace> {
    PipelinePlace place = {3, 17, 8, absl::Seconds(2), {}, 77};
    for (int stage = 0; stage < 20; ++stage) {
      place.passes.push_back({stage, 0.5, 1.5, 0, 0});
    }
    return place;
  });
  EXPECT_TRUE(fake_->AttachmentNumber(0)->WaitForRequest(
      [](const v1::AttachRequest& request) {
        const v1::PipelinePlace& place = request.heartbeat().pipeline();
        return place.step() == 3 && place.action() == 17 &&
               place.micro_batches() == 8 && place.seconds() == 2 &&
               place.passes_size() == 16 && place.passes(1).stage() == 1 &&
               place.passes(1).backward() == 1.5 && place.schedule() == 77;
      }));
}

TEST_F(SessionRestartTest, BrokenPeersAreReportedOnce) {
  peer_.set_rank(1);
  peer_.set_host("host-a");
  options_.host = "host-a";
  ASSERT_OK_AND_ASSIGN(const auto session, Join());
  session->ReportBrokenPeers({1, 0, 7});  // itself, and no rank: not reported
  session->ReportBrokenPeers({1});
  const auto is_report = [](const v1::AttachRequest& request) {
    return request.peers_broken().ranks_size() == 1 &&
           request.peers_broken().ranks(0) == 1;
  };
  EXPECT_TRUE(fake_->AttachmentNumber(0)->WaitForRequest(is_report));
  EXPECT_EQ(
      fake_->AttachmentNumber(0)->Count([](const v1::AttachRequest& request) {
        return request.has_peers_broken();
      }),
      1);
  // To a coordinator of a later term it would be news, and it is none.
  RestartIn(4);
  ASSERT_NE(fake_->AttachmentNumber(1), nullptr);
  EXPECT_TRUE(fake_->AttachmentNumber(1)->WaitForRequest(
      [](const v1::AttachRequest& request) {
        return request.has_heartbeat();
      }));
  EXPECT_EQ(fake_->AttachmentNumber(1)->Count(is_report), 0);
}

TEST_F(SessionRestartTest, RejoinAsksForTheGenerationAfterThisOne) {
  std::vector<v1::JoinRequest> joins;
  AnswerJoin([&joins](const v1::JoinRequest& request) {
    joins.push_back(request);
    return absl::OkStatus();
  });
  options_.plan_overrides = {{"accumulation", "8"}};
  options_.world_size = 3;
  options_.min_world_size = 1;
  options_.attempt = 5;
  manifest_.hook = "fp16";
  ASSERT_OK_AND_ASSIGN(const auto first, Join());
  joined_.set_generation(8);
  joined_.set_previous_generation(7);
  joined_.set_previous_world_size(3);
  joined_.set_reason("rank 1 was lost");
  joined_.set_lost_count(100);
  v1::LostMember* lost = joined_.add_lost();
  lost->mutable_member()->set_rank(1);
  lost->set_reason("killed");
  lost->set_error_norm(1.5);
  lost->set_error_step(12);
  fake_->AttachmentNumber(0)->Event(AbortEvent());
  NextOf(*first, Kind::kGenerationEnded);
  ASSERT_OK_AND_ASSIGN(const auto second, first->Rejoin());
  EXPECT_EQ(second->generation(), 8);
  EXPECT_EQ(second->previous().generation, 7);
  EXPECT_EQ(second->previous().world_size, 3);
  EXPECT_EQ(second->previous().lost_count, 100);
  EXPECT_EQ(second->previous().reason, "rank 1 was lost");
  ASSERT_EQ(second->previous().lost.size(), 1u);
  EXPECT_EQ(second->previous().lost[0].member.rank, 1);
  EXPECT_EQ(second->previous().lost[0].reason, "killed");
  EXPECT_EQ(second->previous().lost[0].error_norm, 1.5);
  EXPECT_EQ(second->previous().lost[0].error_step, 12);
  ASSERT_EQ(joins.size(), 2u);
  EXPECT_EQ(joins[0].after_generation(), 0);
  EXPECT_EQ(joins[1].after_generation(), 7);
  EXPECT_EQ(joins[1].incarnation(), joins[0].incarnation());
  EXPECT_EQ(joins[1].attempt(), 5);
  EXPECT_EQ(joins[1].manifest().world_size(), 3);
  EXPECT_EQ(joins[1].manifest().min_world_size(), 1);
  EXPECT_EQ(joins[1].manifest().hook(), "fp16");
  EXPECT_EQ(joins[1].manifest().DebugString(),
            joins[0].manifest().DebugString());
  EXPECT_OK(second->Leave("done"));
}

TEST_F(SessionRestartTest, ARegroupBeginsWithACleanLeave) {
  ASSERT_OK_AND_ASSIGN(const auto first, Join());
  ASSERT_OK(first->Rejoin());
  const v1::LeaveRequest leave = leave_.Take();
  EXPECT_TRUE(leave.rejoin());
  EXPECT_FALSE(leave.failed());
  EXPECT_EQ(joins_, 2);
}

TEST_F(SessionRestartTest, AWorkerThatHasLeftForGoodCannotRejoin) {
  ASSERT_OK_AND_ASSIGN(const auto session, Join());
  ASSERT_OK(session->Leave("done"));
  EXPECT_THAT(session->Rejoin(), StatusIs(absl::StatusCode::kFailedPrecondition,
                                          HasSubstr("for good")));
  EXPECT_EQ(joins_, 1);
}

TEST_F(SessionRestartTest, ARejoinThatFailedCanBeTriedAgain) {
  ASSERT_OK_AND_ASSIGN(const auto session, Join());
  AnswerJoin([this](const v1::JoinRequest&) {
    return joins_ == 2 ? absl::AbortedError("a member died") : absl::OkStatus();
  });
  EXPECT_THAT(session->Rejoin(),
              StatusIs(absl::StatusCode::kAborted, HasSubstr("a member died")));
  EXPECT_OK(session->Rejoin());
}

TEST_F(SessionRestartTest, AGenerationThatEndedBeforeItBeganLosesNoMember) {
  std::vector<v1::JoinRequest> joins;
  AnswerJoin([&joins](const v1::JoinRequest& request) {
    joins.push_back(request);
    return absl::OkStatus();
  });
  ASSERT_OK_AND_ASSIGN(const auto session, Join());
  fake_->AttachmentNumber(0)->Event(AbortEvent());
  NextOf(*session, Kind::kGenerationEnded);
  joined_.set_generation(8);
  fake_->OnAttach(
      [](FakeAttachment& stream) { stream.End(Stale("generation", 0)); });
  EXPECT_THAT(session->Rejoin(), StatusIs(absl::StatusCode::kAborted,
                                          HasSubstr("stale generation")));
  EXPECT_FALSE(leave_.Holds()) << "it is a member of what comes next";
  AcceptIn(3);
  joined_.set_generation(9);
  ASSERT_OK_AND_ASSIGN(const auto next, session->Rejoin());
  ASSERT_EQ(joins.size(), 3u);
  EXPECT_EQ(joins[1].after_generation(), 7);
  EXPECT_EQ(joins[2].after_generation(), 8);
  EXPECT_OK(next->Leave("done"));
}

TEST_F(SessionRestartTest, WhoDoesNotComeBackFromSuchAGenerationLeavesIt) {
  ASSERT_OK_AND_ASSIGN(const auto session, Join());
  fake_->AttachmentNumber(0)->Event(AbortEvent());
  NextOf(*session, Kind::kGenerationEnded);
  joined_.set_generation(8);
  fake_->OnAttach(
      [](FakeAttachment& stream) { stream.End(Stale("generation", 0)); });
  EXPECT_FALSE(session->Rejoin().ok());
  EXPECT_OK(session->Leave("it drains"));
  // The coordinator knows it as a member of the former one no more.
  const v1::LeaveRequest leave = leave_.Take();
  EXPECT_EQ(leave.fence().generation(), 8);
  EXPECT_EQ(leave.reason(), "it drains");
  EXPECT_FALSE(leave.rejoin());
  EXPECT_FALSE(leave.failed());
}

TEST_F(SessionRestartTest, ANewcomerToSuchAGenerationIsNotWaitedFor) {
  fake_->OnAttach(
      [](FakeAttachment& stream) { stream.End(Stale("generation", 0)); });
  EXPECT_THAT(Join().status(), StatusIs(absl::StatusCode::kAborted,
                                        HasSubstr("stale generation")));
  EXPECT_TRUE(leave_.Take().failed());
}

TEST_F(SessionRestartTest, ASpareThatWasNotNeededIsRecognised) {
  v1::ErrorDetail finished;
  finished.mutable_job_finished();
  AnswerJoin([&](const v1::JoinRequest&) {
    return WithDetail(absl::CancelledError("the job has ended"), finished);
  });
  EXPECT_TRUE(IsJobFinished(Join().status()));
  AnswerJoin([](const v1::JoinRequest&) {
    return absl::CancelledError("a later Join took this one's place");
  });
  EXPECT_FALSE(IsJobFinished(Join().status()));
  EXPECT_FALSE(IsJobFinished(absl::OkStatus()));
}

TEST_F(SessionRestartTest, AnElasticJoinWaitsForAsLongAsTheCoordinatorDoes) {
  std::vector<absl::Duration> timeouts;
  fake_->Answer<v1::JoinRequest, v1::JoinResponse>(
      "Rendezvous/Join",
      [&](const v1::JoinRequest&,
          const CallOptions& call) -> absl::StatusOr<v1::JoinResponse> {
        timeouts.push_back(call.timeout);
        return absl::ResourceExhaustedError("enough seen");
      });
  options_.world_size = 4;
  EXPECT_FALSE(Join().ok());
  options_.min_world_size = 2;
  EXPECT_FALSE(Join().ok());
  ASSERT_EQ(timeouts.size(), 2u);
  // Each of the four may come in the last moment.
  EXPECT_GE(timeouts[0], options_.join_timeout * 4);
  EXPECT_LT(timeouts[0], absl::Hours(1));
  EXPECT_GE(timeouts[1], absl::Hours(24 * 365));
}

TEST_F(SessionRestartTest, ASpareIsNotifiedThatItIsOne) {
  Mailbox<std::string> notice;
  options_.notice_interval = absl::Milliseconds(1);
  options_.on_waiting = [&notice](const std::string& text) {
    notice.Put(text);
  };
  options_.world_size = 4;
  options_.min_world_size = 2;
  fake_->Answer<v1::DescribeRequest, v1::DescribeResponse>(
      "Rendezvous/Describe",
      [](const v1::DescribeRequest& request, const CallOptions&) {
        EXPECT_EQ(request.job(), "mnist");
        v1::DescribeResponse response;
        v1::JobDescription* job = response.add_jobs();
        job->set_world_size(3);
        v1::WorkerIdentity* spare =
            job->add_spares()->mutable_member()->mutable_identity();
        spare->set_node("host-a");
        spare->set_slot(0);
        return response;
      });
  AnswerJoin([&](const v1::JoinRequest&) {
    EXPECT_TRUE(notice.Wait());
    return absl::OkStatus();
  });
  ASSERT_OK(Join());
  EXPECT_THAT(notice.Take(),
              AllOf(HasSubstr("as a spare"), HasSubstr("3 workers")));
}

TEST_F(SessionRestartTest, ASpareMayLoseTheCoordinatorAfterHours) {
  Mailbox<std::string> notice;
  options_.notice_interval = absl::Milliseconds(1);
  options_.on_waiting = [&notice](const std::string& text) {
    notice.Put(text);
  };
  AnswerJoin([&](const v1::JoinRequest& request) -> absl::Status {
    if (joins_ > 1) {
      EXPECT_GT(request.timeout_ms(), 290'000);
      return absl::OkStatus();
    }
    EXPECT_TRUE(notice.Wait());  // that it is there
    clock_.Advance(absl::Hours(5));
    return absl::UnavailableError("connection reset");
  });
  EXPECT_OK(Join());
  EXPECT_EQ(joins_, 2);
}

TEST_F(SessionRestartTest, AWorldBelowTheMinimumIsRefused) {
  options_.world_size = 2;
  options_.min_world_size = 3;
  EXPECT_THAT(Join(), StatusIs(absl::StatusCode::kInvalidArgument,
                               HasSubstr("COXSWAIN_MIN_WORLD_SIZE")));
  options_.min_world_size = 1;
  manifest_.min_world_size = 2;
  EXPECT_THAT(Join(), StatusIs(absl::StatusCode::kInvalidArgument,
                               AllOf(HasSubstr("needs 1 workers"),
                                     HasSubstr("asks for 2"))));
}

}  // namespace
}  // namespace coxswain::session_restart_test
