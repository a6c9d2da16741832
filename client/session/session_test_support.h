#ifndef COXSWAIN_CLIENT_SESSION_SESSION_TEST_SUPPORT_H_
#define COXSWAIN_CLIENT_SESSION_SESSION_TEST_SUPPORT_H_

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "base/fake_clock.h"
#include "base/mutex.h"
#include "base/status_matchers.h"
#include "client/rpc/fake_coordinator_stub.h"
#include "client/session/session.h"
#include "gtest/gtest.h"
#include "schedule/step_gate.h"

namespace coxswain {

// A value that one thread waits for and another brings.
template <typename T>
class Mailbox {
 public:
  void Put(T value) {
    MutexLock lock(&mutex_);
    if (full_) return;
    value_ = std::move(value);
    full_ = true;
    cv_.NotifyAll();
  }
  bool Wait() {
    MutexLock lock(&mutex_);
    return cv_.WaitFor(&mutex_, absl::Seconds(20),
                       [this]()
                           ABSL_NO_THREAD_SAFETY_ANALYSIS { return full_; });
  }
  bool Holds() {
    MutexLock lock(&mutex_);
    return full_;
  }
  T Take() {
    EXPECT_TRUE(Wait());
    MutexLock lock(&mutex_);
    return value_;
  }

 private:
  Mutex mutex_;
  CondVar cv_;
  bool full_ ABSL_GUARDED_BY(mutex_) = false;
  T value_ ABSL_GUARDED_BY(mutex_){};
};

// A session of one rank, whose coordinator is played by the test.
class SessionTest : public ::testing::Test {
 protected:
  SessionTest() {
    options_.coordinator = "127.0.0.1:4711";
    options_.job = "mnist";
    options_.identity = {"host-a", 0};
    options_.world_size = 1;
    options_.backend = "loopback";
    options_.clock = &clock_;
    options_.retry_base = absl::Microseconds(100);
    options_.retry_cap = absl::Microseconds(100);
    options_.stub_factory = [this](const std::string&) { return fake_; };
    AnswerJoin([](const v1::JoinRequest&) { return absl::OkStatus(); });
    fake_->Answer<v1::LeaveRequest, v1::LeaveResponse>(
        "Rendezvous/Leave",
        [this](const v1::LeaveRequest& request, const CallOptions&) {
          leave_.Put(request);
          return v1::LeaveResponse();
        });
    fake_->Answer<v1::CreateGroupRequest, v1::CreateGroupResponse>(
        "Group/CreateGroup",
        [](const v1::CreateGroupRequest& request, const CallOptions&) {
          v1::CreateGroupResponse response;
          response.mutable_group()->set_name(request.name());
          *response.mutable_group()->mutable_ranks() = request.ranks();
          if (request.all_ranks()) response.mutable_group()->add_ranks(0);
          response.mutable_group()->set_communicator_id("1/" + request.name());
          return response;
        });
    // Waits as the coordinator would, until the caller gives up.
    fake_->Answer<v1::GetRequest, v1::GetResponse>(
        "Store/Get",
        [this](const v1::GetRequest&,
               const CallOptions& call) -> absl::StatusOr<v1::GetResponse> {
          waiting_.Put(true);
          if (!call.cancel->WaitFor(absl::Seconds(20))) {
            return absl::DeadlineExceededError("no thread ended the wait");
          }
          return call.cancel->status();
        });
  }

  // Answers Join with rank 0 of 1 when `judge` returns OK.
  void AnswerJoin(
      const std::function<absl::Status(const v1::JoinRequest&)>& judge) {
    fake_->Answer<v1::JoinRequest, v1::JoinResponse>(
        "Rendezvous/Join",
        [this, judge](const v1::JoinRequest& request,
                      const CallOptions&) -> absl::StatusOr<v1::JoinResponse> {
          ++joins_;
          const absl::Status verdict = judge(request);
          if (!verdict.ok()) return verdict;
          v1::JoinResponse response;
          response.set_cluster_id("cluster");
          response.set_term(3);
          response.set_generation(7);
          response.set_heartbeat_interval_ms(1);
          response.MergeFrom(joined_);
          v1::Member* member = response.add_members();
          *member->mutable_identity() = request.identity();
          member->set_host(request.host());
          member->set_address(request.address());
          if (peer_.rank() > 0) *response.add_members() = peer_;
          if (joined_.world_size() == 0) {
            response.set_world_size(response.members_size());
          }
          response.mutable_plan()->set_hook(request.manifest().hook());
          response.mutable_plan()->MergeFrom(plan_);
          return response;
        });
  }

  absl::StatusOr<std::unique_ptr<Session>> Join() {
    return Session::Join(options_, manifest_);
  }

  static v1::AttachEvent AbortEvent() {
    v1::AttachEvent event;
    event.mutable_abort()->set_reason("rank 1 on host-b was lost: killed");
    event.mutable_abort()->mutable_lost()->mutable_member()->set_rank(1);
    event.mutable_abort()->mutable_lost()->mutable_member()->set_host("host-b");
    return event;
  }

  static schedule::StepGate* TrainGateOf(Session& session) {
    const auto gate = session.schedule().Gate();
    EXPECT_OK(gate);
    return gate.ok() ? *gate : nullptr;
  }
  // Waits for the ticket of a round.
  static bool WaitForTicket(FakeAttachment& stream, int64_t round) {
    return stream.WaitForRequest([round](const v1::AttachRequest& request) {
      return request.has_ticket() && request.ticket().round() == round;
    });
  }
  static v1::AttachEvent DecisionOn(int64_t round) {
    v1::AttachEvent event;
    event.mutable_decision()->set_stream("train");
    event.mutable_decision()->set_round(round);
    event.mutable_decision()->set_commit(true);
    return event;
  }

  FakeClock clock_;
  std::shared_ptr<FakeCoordinatorStub> fake_ =
      std::make_shared<FakeCoordinatorStub>();
  SessionOptions options_;
  JobManifest manifest_;
  v1::Member peer_;          // joins as well, if it has a rank
  v1::Plan plan_;            // the coordinator's plan
  v1::JoinResponse joined_;  // what it answers besides
  std::atomic<int> joins_{0};
  Mailbox<v1::LeaveRequest> leave_;
  Mailbox<bool> waiting_;
};

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_SESSION_SESSION_TEST_SUPPORT_H_
