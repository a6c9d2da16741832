// What one worker sends must not keep the coordinator from starting again, with
// the jobs of others. Whole coordinators over one file, and real calls.
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/grpc_status.h"
#include "base/status_matchers.h"
#include "tests/system/restart/wire_server.h"

namespace coxswain {
namespace {

using testing::HasSubstr;

constexpr int64_t kMaxStep = int64_t{1} << 53;

class LeaveTest : public testing::Test {
 protected:
  static std::string NewFolder() {
    static std::atomic<int> count{0};
    return absl::StrCat(testing::TempDir(), "/leave-", getpid(), "-", count++);
  }

  void SetUp() override {
    ASSERT_OK(server_.Start());
    for (WireWorker* worker : {&bad_, &other_}) {
      ASSERT_OK(worker->Join());
      ASSERT_OK(worker->Attach());
    }
    v1::Decision decision;
    ASSERT_OK(Step(&other_, 0, 0, &decision));
  }
  void Restart(bool in_good_order) {
    server_.Stop(in_good_order);
    ASSERT_OK(server_.Start());
  }
  static absl::Status Step(WireWorker* worker, int64_t round, int64_t step,
                           v1::Decision* decision) {
    v1::AttachRequest request;
    v1::Ticket& ticket = *request.mutable_ticket();
    ticket.set_stream("train");
    ticket.set_round(round);
    ticket.set_step(step);
    ticket.set_micro_batches(1);
    ticket.set_window(1);
    ticket.set_weight(1);
    ticket.set_plan_version(1);
    ticket.set_hook("allreduce");
    worker->Write(request);
    return worker->ReadDecision(decision);
  }
  void ExpectTheOtherGoesOn() {
    ASSERT_OK(other_.Attach());
    v1::AttachRequest position;
    position.mutable_position()->mutable_last()->set_stream("train");
    position.mutable_position()->mutable_last()->set_commit(true);
    ASSERT_TRUE(other_.Write(position));
    v1::Decision decision;
    ASSERT_OK(Step(&other_, 1, 1, &decision));
    EXPECT_EQ(decision.round(), 1);
  }

  WireServer server_{NewFolder(), nullptr};
  WireWorker bad_{&server_, "bad", 0};
  WireWorker other_{&server_, "other", 1};
};

TEST_F(LeaveTest, ARefusedLeaveDoesNotKeepTheCoordinatorFromStarting) {
  v1::LeaveRequest leave;
  v1::Decision* last = leave.add_positions()->mutable_last();
  last->set_stream("train");
  last->mutable_plan()->set_version(1);
  last->mutable_plan()->set_at_step(-7);
  leave.add_positions()->mutable_last()->set_stream("!!");
  EXPECT_THAT(bad_.Leave(leave), StatusIs(absl::StatusCode::kInvalidArgument,
                                          HasSubstr("at_step")));
  // The same with a first position that could be stored.
  last->mutable_plan()->set_at_step(0);
  EXPECT_THAT(bad_.Leave(leave), StatusIs(absl::StatusCode::kInvalidArgument,
                                          HasSubstr("name of a stream")));
  Restart(/*in_good_order=*/false);
  ExpectTheOtherGoesOn();
  // The rank has not left, and its final state was not kept.
  ASSERT_OK(bad_.Attach());
  v1::Decision decision;
  ASSERT_OK(Step(&bad_, 0, 0, &decision));
  EXPECT_FALSE(decision.has_plan());
}

TEST_F(LeaveTest, APlanAfterTheHighestStepIsReadAgain) {
  Context context;
  v1::ProposePlanRequest propose;
  v1::ProposePlanResponse proposed;
  *propose.mutable_fence() = server_.OperatorFence();
  propose.set_job("bad");
  propose.set_expected_version(1);
  propose.mutable_plan()->set_accumulation_steps(1);
  propose.mutable_plan()->set_hook("bf16");
  propose.mutable_plan()->set_at_step(-1);
  ASSERT_OK(FromGrpcStatus(
      server_.schedule().ProposePlan(&context, propose, &proposed)));
  v1::Decision decision;
  EXPECT_THAT(Step(&bad_, 0, kMaxStep, &decision),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("ticket.step must be 0 to")));
  ASSERT_OK(bad_.Attach());
  ASSERT_OK(Step(&bad_, 0, kMaxStep - 1, &decision));
  ASSERT_TRUE(decision.has_plan());
  EXPECT_EQ(decision.plan().at_step(), kMaxStep);
  Restart(/*in_good_order=*/true);
  EXPECT_EQ(server_.PlanOf("bad").current().hook(), "bf16");
  EXPECT_EQ(server_.PlanOf("bad").current().at_step(), kMaxStep);
  ExpectTheOtherGoesOn();
}

}  // namespace
}  // namespace coxswain
