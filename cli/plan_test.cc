#include "cli/commands.h"

#include "absl/strings/str_cat.h"
#include "base/random.h"
#include "base/status_matchers.h"
#include "client/rpc/fake_coordinator_stub.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "proto/schedule.pb.h"

namespace coxswain::plan_test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

std::string TextOf(const absl::StatusOr<std::string>& text) {
  return text.ok() ? *text : text.status().ToString();
}

class Ones : public RandomSource {
 public:
  uint64_t Next() override { return 1; }
};

v1::Plan PlanOf(int64_t version, int accumulation, const std::string& hook) {
  v1::Plan plan;
  plan.set_version(version);
  plan.set_accumulation_steps(accumulation);
  plan.set_hook(hook);
  plan.set_compression_start_step(-1);
  return plan;
}

// A coordinator with a job "x" in the third version of its plan.
class PlanTest : public testing::Test {
 protected:
  PlanTest() {
    *plans_.mutable_current() = PlanOf(3, 2, "allreduce");
    stub_.Answer<v1::DescribeRequest, v1::DescribeResponse>(
        "Rendezvous/Describe",
        [this](const v1::DescribeRequest& request, const CallOptions&) {
          return Describe(request);
        });
    stub_.Answer<v1::GetPlanRequest, v1::GetPlanResponse>(
        "Schedule/GetPlan",
        [this](const v1::GetPlanRequest& request, const CallOptions&) {
          if (request.job() != "x") {
            return absl::StatusOr<v1::GetPlanResponse>(
                absl::NotFoundError("no plan of such a job"));
          }
          return absl::StatusOr<v1::GetPlanResponse>(plans_);
        });
    stub_.Answer<v1::ProposePlanRequest, v1::ProposePlanResponse>(
        "Schedule/ProposePlan",
        [this](const v1::ProposePlanRequest& request, const CallOptions&) {
          return Propose(request);
        });
  }

  absl::StatusOr<v1::DescribeResponse> Describe(
      const v1::DescribeRequest& request) const {
    v1::DescribeResponse response;
    response.set_cluster_id("c");
    response.set_term(7);
    for (const std::string& name : jobs_) {
      if (!request.job().empty() && request.job() != name) continue;
      v1::JobDescription* job = response.add_jobs();
      job->set_job(name);
      job->set_state(state_);
    }
    if (response.jobs_size() == 0 && !request.job().empty()) {
      return absl::NotFoundError("no such job");
    }
    return response;
  }

  absl::StatusOr<v1::ProposePlanResponse> Propose(
      const v1::ProposePlanRequest& request) {
    proposed_ = request;
    if (!refusal_.ok()) return refusal_;
    v1::ProposePlanResponse response;
    *response.mutable_next() = request.plan();
    response.mutable_next()->set_version(request.expected_version() + 1);
    return response;
  }

  absl::StatusOr<std::string> Set(const std::vector<std::string>& changes,
                                  int64_t expect = 0) {
    PlanSetOptions options;
    options.job = job_;
    options.changes = changes;
    options.expect = expect;
    proposed_.reset();
    return SetPlan(options, stub_, &random_);
  }

  static auto IsInvalid(const std::string& text) {
    return StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(text));
  }

  std::vector<std::string> jobs_ = {"x"};
  std::string job_ = "x";
  std::string state_ = "running";
  v1::GetPlanResponse plans_;
  absl::Status refusal_;
  std::optional<v1::ProposePlanRequest> proposed_;
  FakeCoordinatorStub stub_;
  Ones random_;
};

TEST_F(PlanTest, AChangeOfARunningJobBeginsAtTheNextStep) {
  EXPECT_THAT(TextOf(Set({"accumulation=8"})),
              "version 4 of the plan of job x: accumulation 2 -> "
              "8, from the next step\n");
  ASSERT_TRUE(proposed_.has_value());
  EXPECT_EQ(proposed_->job(), "x");
  EXPECT_EQ(proposed_->expected_version(), 3);
  EXPECT_EQ(proposed_->plan().at_step(), -1);
  EXPECT_EQ(proposed_->fence().cluster_id(), "c");
  EXPECT_EQ(proposed_->fence().term(), 7);
  EXPECT_EQ(proposed_->fence().generation(), 0);
  EXPECT_EQ(proposed_->fence().incarnation(), 0u);
  EXPECT_EQ(proposed_->fence().request_id(), 1u);
}

TEST_F(PlanTest, AJobThatDoesNotRunChangesWithItsNextGeneration) {
  state_ = "ended";
  EXPECT_THAT(TextOf(Set({"accumulation=8"})),
              HasSubstr("from the next generation\n"));
  EXPECT_EQ(proposed_->plan().at_step(), 0);
  EXPECT_THAT(Set({"accumulation=8", "at=next"}),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr("job x is ended"),
                             HasSubstr("write at=generation"))));
  EXPECT_FALSE(proposed_.has_value());
}

TEST_F(PlanTest, WithoutEnforcementAPlanWaitsForAGeneration) {
  (*plans_.mutable_current()->mutable_terms())["enforcement"] = "off";
  EXPECT_THAT(TextOf(Set({"accumulation=8"})),
              HasSubstr("from the next generation\n"));
  EXPECT_THAT(Set({"accumulation=8", "at=20"}),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("enforcement=off")));
}

TEST_F(PlanTest, AStepCanBeNamed) {
  EXPECT_THAT(TextOf(Set({"accumulation=8", "at=200"})),
              HasSubstr("from step 200\n"));
  EXPECT_EQ(proposed_->plan().at_step(), 200);
}

TEST_F(PlanTest, HooksThatCannotFollowEachOtherAreRefusedHere) {
  EXPECT_THAT(Set({"hook=powersgd"}), IsInvalid("hook_state=reset"));
  EXPECT_FALSE(proposed_.has_value());
  EXPECT_THAT(TextOf(Set({"hook=powersgd", "hook_state=reset"})),
              HasSubstr("hook allreduce -> powersgd, hook_state "
                        "carry -> reset, from the next step\n"));
  EXPECT_THAT(Set({"hook=powersgd", "at=generation"}), IsOk());
  EXPECT_EQ(proposed_->plan().at_step(), 0);
}

TEST_F(PlanTest, LocalSgdBeginsWithAGenerationUnlessAsked) {
  EXPECT_THAT(TextOf(Set({"hook=post_local_sgd"})),
              HasSubstr("from the next generation\n"));
  EXPECT_THAT(Set({"hook=post_local_sgd", "at=next"}),
              IsInvalid("hook_state=reset"));
  EXPECT_THAT(
      TextOf(Set({"hook=post_local_sgd", "hook_state=reset", "at=next"})),
      HasSubstr("from the next step\n"));
}

TEST_F(PlanTest, APendingPlanIsChangedFurther) {
  *plans_.mutable_next() = PlanOf(4, 2, "bf16");
  EXPECT_THAT(TextOf(Set({"accumulation=8", "at=generation"})),
              "version 5 of the plan of job x: accumulation 2 -> 8, hook "
              "allreduce -> bf16, from the next generation; it replaces "
              "version 4, which has not begun\n");
  EXPECT_EQ(proposed_->expected_version(), 4);
}

TEST_F(PlanTest, NothingToChangeIsNotProposed) {
  EXPECT_THAT(TextOf(Set({"accumulation=2"})),
              "no change: the plan of job x already has these settings, in "
              "version 3\n");
  EXPECT_FALSE(proposed_.has_value());
}

TEST_F(PlanTest, AnotherNewestVersionIsAnError) {
  refusal_ = absl::FailedPreconditionError("the newest plan has version 9");
  EXPECT_THAT(Set({"accumulation=8"}, /*expect=*/2),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr("127.0.0.1:4711"),
                             HasSubstr("the newest plan has version 9"))));
  EXPECT_EQ(proposed_->expected_version(), 2);
}

TEST_F(PlanTest, TheOnlyJobNeedsNoName) {
  job_ = "";
  EXPECT_THAT(Set({"accumulation=8"}), IsOk());
  jobs_ = {"x", "y"};
  EXPECT_THAT(Set({"accumulation=8"}), IsInvalid("name one of the jobs"));
  jobs_ = {};
  EXPECT_THAT(Set({"accumulation=8"}),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("has no jobs")));
}

TEST_F(PlanTest, UnknownJobsAreErrors) {
  job_ = "z";
  EXPECT_THAT(Set({"accumulation=8"}),
              StatusIs(absl::StatusCode::kNotFound,
                       HasSubstr("no plan of such a job")));
}

TEST_F(PlanTest, APlanThatOutlivedItsJobCanBeChanged) {
  jobs_ = {};
  EXPECT_THAT(Set({"accumulation=8"}), IsOk());
  ASSERT_TRUE(proposed_.has_value());
  EXPECT_EQ(proposed_->plan().accumulation_steps(), 8);
  EXPECT_EQ(proposed_->plan().at_step(), 0);  // with the next generation
}

TEST_F(PlanTest, ShowPutsWhatDiffersFirst) {
  (*plans_.mutable_current()->mutable_terms())["tail"] = "carry";
  *plans_.mutable_next() = plans_.current();
  plans_.mutable_next()->set_version(4);
  plans_.mutable_next()->set_accumulation_steps(8);
  plans_.mutable_next()->set_at_step(200);
  JobOptions options;
  ASSERT_OK_AND_ASSIGN(const std::string text, ShowPlan(options, stub_));
  EXPECT_THAT(
      text, testing::StartsWith(
                "job x: version 3 of its plan; version 4 begins with step 200\n"
                "     NAME               VERSION 3         VERSION 4\n"
                "     accumulation       2                 8\n"
                "     hook               allreduce\n"
                "     compression_start  the hook's own\n"
                "  *  tail               carry\n"
                "     adjust_scheduler   step\n"));
  EXPECT_THAT(text, testing::EndsWith("* not the default\n"));
}

TEST_F(PlanTest, ShowAsJsonHasAllTerms) {
  (*plans_.mutable_current()->mutable_terms())["tail"] = "carry";
  JobOptions options;
  options.json = true;
  ASSERT_OK_AND_ASSIGN(const std::string text, ShowPlan(options, stub_));
  const auto json = nlohmann::json::parse(text);
  EXPECT_EQ(json["job"], "x");
  EXPECT_EQ(json["plan"]["version"], 3);
  EXPECT_EQ(json["plan"]["terms"]["tail"], "carry");
  EXPECT_EQ(json["plan"]["terms"]["enforcement"], "audit");
  EXPECT_EQ(json["plan"]["changed"], nlohmann::json({"tail"}));
  EXPECT_TRUE(json["plan_next"].is_null());
}

TEST_F(PlanTest, ShowAsJsonHasAnEarlierVersionsNamesToo) {
  *plans_.mutable_next() = PlanOf(4, 2, "bf16");
  const auto json = nlohmann::json::parse(FormatPlansJson("x", plans_));
  EXPECT_EQ(json["current"], json["plan"]);
  EXPECT_EQ(json["next"], json["plan_next"]);
  EXPECT_EQ(json["next"]["version"], 4);
}

}  // namespace
}  // namespace coxswain::plan_test
