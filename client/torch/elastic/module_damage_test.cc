// A newcomer takes the state of libtorch members over a network that damages
// some of it.

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "base/mutex.h"
#include "base/status_matchers.h"
#include "client/elastic/catch_up/damaged_network_for_test.h"
#include "client/elastic/catch_up/receiver.h"
#include "client/elastic/catch_up/source.h"
#include "client/torch/elastic/catch_up_program_for_test.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace coxswain::torch::module_catch_up_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr absl::Duration kSoon = absl::Seconds(30);
// Parameters of 1.4 MB: the third piece of the state holds momenta alone.
constexpr int64_t kIn = 512;
constexpr int64_t kOut = 700;

// A newcomer's state, whose steps are counted.
class Counted : public CatchUpTarget {
 public:
  explicit Counted(CatchUpTarget* target) : target_(*target) {}

  absl::Status Begin(absl::string_view rest) override {
    return target_.Begin(rest);
  }
  absl::StatusOr<std::vector<Part>> State() override { return target_.State(); }
  absl::StatusOr<std::vector<Part>> Averages(absl::string_view rest) override {
    return target_.Averages(rest);
  }
  absl::Status Step(absl::string_view rest, bool applied) override {
    const absl::Status status = target_.Step(rest, applied);
    MutexLock lock(&mutex_);
    ++taken_;
    changed_.NotifyAll();
    return status;
  }
  absl::Status Undo() override { return target_.Undo(); }
  void Forget() override { target_.Forget(); }

  void Await(int taken) {
    MutexLock lock(&mutex_);
    EXPECT_TRUE(changed_.WaitFor(
        &mutex_, kSoon,
        [&]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return taken_ >= taken; }));
  }

 private:
  CatchUpTarget& target_;
  Mutex mutex_;
  CondVar changed_;
  int taken_ ABSL_GUARDED_BY(mutex_) = 0;
};

class ModuleDamageTest : public ::testing::Test {
 protected:
  void Listen() {
    catch_up::Receiver::Options options;
    options.address = "127.0.0.1";
    ASSERT_OK_AND_ASSIGN(receiver_,
                         catch_up::Receiver::Listen(options, &counted_));
    for (const int rank : {0, 1}) {
      catch_up::Source::Options of_rank;
      of_rank.rank = rank;
      of_rank.world_size = 2;
      of_rank.generation = 1;
      of_rank.lineage = 1;
      sources_[rank] = std::make_unique<catch_up::Source>(of_rank);
      addresses_[rank] = receiver_->address();
    }
  }
  // A step of both members.
  void Step(bool applied, bool begins = false, bool last = false) {
    ++step_;
    for (const int rank : {0, 1}) {
      const Program& program = members_[rank];
      catch_up::Source& source = *sources_[rank];
      if (applied) {
        program.SetGradients(1 / static_cast<double>(step_));
        const std::vector<Span> averages = program.catch_up->AveragesToSend();
        if (source.active()) source.CopyAverages(averages);
        program.optimizer->step();
      }
      program.SetRate(0.01 / static_cast<double>(step_));
      catch_up::Source::Step step;
      step.progress = step_;
      step.applied = applied;
      step.last = last;
      step.rest = program.catch_up->DescribeStep(begins);
      step.state = [&program] { return program.catch_up->StateToSend(); };
      if (begins) {
        step.newcomers = {{addresses_[rank], receiver_->secret(), 7}};
      }
      source.EndStep(step);
    }
    if (sources_[0]->active() && !begins) ++sent_;
  }
  bool Settled() const { return sources_[0]->Reports()[0].settled; }

  std::array<Program, 2> members_ = {Program(SgdWithMomentum(), 1, kIn, kOut),
                                     Program(SgdWithMomentum(), 1, kIn, kOut)};
  Program newcomer_{SgdWithMomentum(), 2, kIn, kOut};
  Counted counted_{newcomer_.catch_up.get()};
  std::unique_ptr<catch_up::Receiver> receiver_;
  std::array<std::unique_ptr<catch_up::Source>, 2> sources_;
  std::array<std::string, 2> addresses_;
  int64_t step_ = 0;
  int sent_ = 0;
};

TEST_F(ModuleDamageTest, DamagedMomentaLeaveNothingBehind) {
  Listen();
  const catch_up::DamagedNetwork network(addresses_[0],
                                         {{catch_up::Kind::kState, 2, 1002}});
  addresses_[0] = network.address();
  Step(/*applied=*/true);
  sent_ = 0;
  Step(/*applied=*/true, /*begins=*/true);
  for (int i = 0; i < 1000 && (i < 4 || !Settled()); ++i) {
    Step(/*applied=*/i % 3 != 1);
    counted_.Await(sent_);
    if (HasFailure()) return;
  }
  EXPECT_TRUE(Settled());
  Step(/*applied=*/false, /*begins=*/false, /*last=*/true);
  ASSERT_OK_AND_ASSIGN(const auto caught_up, receiver_->Finish(kSoon));
  ASSERT_TRUE(caught_up.has_value());
  EXPECT_EQ(caught_up->progress, step_);
  ExpectSame(newcomer_, members_[0]);
  EXPECT_THAT(receiver_->damage(),
              ElementsAre(HasSubstr("piece 2 of the state")));
}

}  // namespace
}  // namespace coxswain::torch::module_catch_up_test
