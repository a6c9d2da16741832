// What a newcomer that catches up does while it is taken in.

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/status_matchers.h"
#include "client/elastic/catch_up/catch_up_target.h"
#include "client/elastic/catch_up/source.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/integration/elastic_team.h"

namespace coxswain::elastic_newcomer_test {
namespace {

using ::testing::SizeIs;

constexpr char kLast[] = "last";

std::unique_ptr<ElasticToyState> MakeState() {
  return std::make_unique<ElasticToyState>(DType::kFloat64, 16, 2);
}

// A member's state, that shows when recovery compares it.
class ComparedState : public ElasticToyState {
 public:
  explicit ComparedState(Door* compared)
      : ElasticToyState(DType::kFloat64, 16, 2), compared_(*compared) {}

  absl::StatusOr<uint64_t> Digest() override {
    if (grows_) compared_.Open();
    return ElasticToyState::Digest();
  }
  // The generation ends to take newcomers in.
  void Grow() { grows_ = true; }

 private:
  Door& compared_;
  bool grows_ = false;
};

// Takes nothing but the members' last step, which lasts until a member compares
// its state with the newcomer's: they are connected by then.
class HeldTarget : public CatchUpTarget {
 public:
  explicit HeldTarget(Door* compared) : compared_(*compared) {}

  absl::Status Begin(absl::string_view) override { return absl::OkStatus(); }
  absl::StatusOr<std::vector<Part>> State() override {
    std::vector<Part> parts;
    for (const Span& span : taken_->Tensors()) parts.push_back({span, 0});
    return parts;
  }
  absl::StatusOr<std::vector<Part>> Averages(absl::string_view) override {
    return std::vector<Part>();
  }
  absl::Status Step(absl::string_view rest, bool) override {
    if (rest != kLast) return absl::OkStatus();
    held_ = true;
    passed_ = compared_.Pass();
    return passed_;
  }
  absl::Status Undo() override {
    ++undone_;
    return absl::OkStatus();
  }
  void Forget() override {}

  bool held() const { return held_; }
  const absl::Status& passed() const { return passed_; }
  int undone() const { return undone_; }

 private:
  Door& compared_;
  const std::unique_ptr<ElasticToyState> taken_ = MakeState();
  bool held_ = false;
  absl::Status passed_ = absl::UnknownError("there was no last step");
  int undone_ = 0;
};

// Sends what a member has to, until all three train.
class Sending {
 public:
  explicit Sending(ComparedState* state) : state_(*state) {}

  void AfterDecision(const schedule::Decision& decision,
                     const ElasticGeneration& generation) {
    if (generation.communicator->size() > 2) return;
    Session& session = *generation.session;
    if (source_ == nullptr) {
      catch_up::Source::Options options;
      options.rank = session.rank();
      options.world_size = session.world_size();
      options.generation = session.generation();
      options.lineage = generation.lineage;
      options.host = "host-a";
      source_ = std::make_unique<catch_up::Source>(options);
    }
    catch_up::Source::Step step;
    step.progress = state_.progress();
    step.last = !decision.regroup.empty();
    step.rest = step.last ? kLast : "-";
    step.newcomers = decision.newcomers;
    step.state = [this] { return state_.Tensors(); };
    if (step.last) state_.Grow();
    source_->EndStep(step);
    session.ReportNewcomers(source_->Reports());
  }

 private:
  ComparedState& state_;
  std::unique_ptr<catch_up::Source> source_;
};

TEST(ElasticNewcomerTest, TakesTheLastStepsWhileItConnects) {
  Door compared;
  Door begun;
  HeldTarget target(&compared);
  std::vector<std::unique_ptr<Sending>> sending;
  ElasticTeam team(3, 2);
  for (const int slot : {0, 1}) {
    ElasticWorker& member = team.Add(slot, 100'000);
    auto state = std::make_unique<ComparedState>(&compared);
    sending.push_back(std::make_unique<Sending>(state.get()));
    member.state = std::move(state);
    member.training.after_decision =
        [sends = sending.back().get(), slot, &begun, together = 0](
            const schedule::Decision& decision,
            const ElasticGeneration& generation) mutable {
          sends->AfterDecision(decision, generation);
          if (slot == 0) begun.Open();
          if (generation.communicator->size() == 3 && ++together == 5 &&
              slot == 0) {
            generation.session->schedule().RequestStop("five steps of three");
          }
        };
  }
  team.StartAll();
  ASSERT_OK(begun.Pass());
  ElasticWorker& newcomer = team.Add(2, 100'000);
  newcomer.catch_up = &target;
  team.Start(newcomer);
  team.Join();
  for (const auto& worker : team.workers()) {
    EXPECT_OK(worker->status) << "slot " << worker->slot;
    EXPECT_EQ(worker->state->Distance(), 0) << "slot " << worker->slot;
  }
  EXPECT_TRUE(target.held());
  EXPECT_OK(target.passed()) << "the members were not connected meanwhile";
  // It has taken other bits than the members', and gives them up once.
  EXPECT_EQ(target.undone(), 1);
  ASSERT_THAT(newcomer.reports, SizeIs(1));
  EXPECT_TRUE(newcomer.reports[0].copied);
  EXPECT_FALSE(newcomer.reports[0].caught_up);
}

}  // namespace
}  // namespace coxswain::elastic_newcomer_test
