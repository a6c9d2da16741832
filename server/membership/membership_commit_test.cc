// What goes on while a generation is committed: other jobs as ever, and its own
// job in the order of the calls, once that is done.

#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "server/membership/membership_fixture.h"
#include "server/state/direct_writer.h"
#include "server/state/group_commit.h"

namespace coxswain::server {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

// While it is held, commits what was written when a test asks for the next
// commit, in order. Nothing may wait for a commit then: Apply() fails.
class SteppedWriter : public DirectWriter {
 public:
  using DirectWriter::DirectWriter;

  absl::Status Apply(const StateBatch& batch) override {
    if (!held_) return DirectWriter::Apply(batch);
    return absl::UnavailableError("the test would wait for ever");
  }
  void Write(StateBatch batch, Done done) override {
    if (!held_) return DirectWriter::Write(std::move(batch), std::move(done));
    waiting_.emplace_back(std::move(batch), std::move(done));
  }
  void AfterWritten(std::function<void()> done) override {
    Write(StateBatch(),
          [done = std::move(done)](const absl::Status&) { done(); });
  }

  void Hold() { held_ = true; }
  size_t waiting() const { return waiting_.size(); }
  void CommitNext() {
    auto [batch, done] = std::move(waiting_.front());
    waiting_.pop_front();
    DirectWriter::Write(std::move(batch), std::move(done));
  }
  void Release() {
    while (!waiting_.empty()) CommitNext();
    held_ = false;
  }

 private:
  bool held_ = false;
  std::deque<std::pair<StateBatch, Done>> waiting_;
};

// Holds Apply() while a test wants it.
class HeldStore : public DirectWriter {
 public:
  using DirectWriter::DirectWriter;
  absl::Status Apply(const StateBatch& batch) override {
    if (latch != nullptr) latch->Pass();
    return DirectWriter::Apply(batch);
  }
  Latch* latch = nullptr;
};

class CommitTest : public MembershipTest {
 protected:
  // The plans do not wait: their commit is the last of a generation's.
  void SetUp() override { Open(&stepped_, &writer_); }
  void TearDown() override {
    stepped_.Release();
    MembershipTest::TearDown();
  }
  // A coordinator on the same state.
  void Open(StateWriter* writer, StateStore* plans) {
    membership_.reset();
    ASSERT_OK_AND_ASSIGN(plans_, PlanStore::Load(PlanOptions(), plans));
    ASSERT_OK_AND_ASSIGN(
        membership_,
        Membership::Open(options_, {&clock_, &random_, writer, plans_.get()}));
    membership_->AddObserver(&log_);
    ASSERT_OK(membership_->Resume());
  }
  // Its manifest has some megabytes.
  Worker* MakeLarge(int world, int slot, const std::string& job) {
    Worker* const worker = Make(world, slot, job);
    for (int i = 0; i < 3000; ++i) {
      worker->request.manifest.parameters.push_back(
          {absl::StrCat(std::string(1000, 'p'), i), {2, 3}, "float32", {}});
    }
    return worker;
  }
  // Notes the answer in the log, under this name.
  void JoinAs(const std::string& name, const Worker& worker) {
    membership_->Join(worker.request,
                      [this, name](const absl::StatusOr<JoinResult>& result) {
                        Note(name, result.status());
                      });
  }
  void Note(const std::string& name, const absl::Status& status) {
    log_.Add(absl::StrCat(name, ": ", absl::StatusCodeToString(status.code())));
  }
  // Without its checksum.
  std::string NextGeneration() const {
    const std::string sealed =
        store_.Get("cluster", "next_generation").value_or("none");
    return sealed.substr(0, sealed.find(' '));
  }

  SteppedWriter stepped_{&store_};
  EventLog log_;
};

TEST_F(CommitTest, OtherJobsGoOnWhileALargeManifestIsCommitted) {
  const auto other = Run(2, "other");
  Worker* const large = MakeLarge(1, 0, "large");
  Worker* const small = Make(1, 0, "small");
  stepped_.Hold();
  Join(large);
  EXPECT_EQ(stepped_.waiting(), 1u) << "one table at a time";
  // Its first table, those of the small one, and the departure.
  Join(small);
  std::vector<absl::Status> left;
  LeaveNotice notice;
  notice.reason = "done";
  membership_->Leave(
      other[1]->fence(), notice,
      [&](const absl::Status& status) { left.push_back(status); });
  Attach(other[0]);
  EXPECT_OK(membership_->Heartbeat(other[0]->attachment, Progress()));
  Worker* const waits = Make(2, 0, "forming");
  Join(waits);
  membership_->Tick();
  EXPECT_EQ(Description("forming").state, JobState::kForming);
  EXPECT_EQ(Description("other").state, JobState::kRunning);
  EXPECT_EQ(Description("large").state, JobState::kForming);

  for (int i = 0; i < 3; ++i) stepped_.CommitNext();
  EXPECT_THAT(left, ElementsAre(absl::OkStatus()));
  EXPECT_EQ(Description("other").members[1].state, MemberState::kLeft);
  while (small->answers.empty()) {
    ASSERT_THAT(large->answers, IsEmpty());
    ASSERT_GT(stepped_.waiting(), 0u);
    stepped_.CommitNext();
  }
  EXPECT_OK(small->answers[0]);
  EXPECT_THAT(large->answers, IsEmpty()) << "it has more tables";
  stepped_.Release();
  ASSERT_THAT(large->answers, SizeIs(1));
  EXPECT_OK(large->answers[0]);
  Attach(large);
  EXPECT_EQ(Description("large").state, JobState::kRunning);
}

TEST_F(CommitTest, CallsOfTheJobWaitForItsCommitAndAreAnsweredInTheirOrder) {
  Worker* const a = Make(2, 0);
  Worker* const b = Make(2, 1);
  stepped_.Hold();
  JoinAs("a", *a);
  JoinAs("b", *b);
  JoinAs("a again", *a);
  membership_->ReportExit(
      b->exit(9), [&](const absl::Status& status) { Note("exit", status); });
  JoinAs("a stranger", *Make(2, 2));
  EXPECT_THAT(log_.events(), IsEmpty());
  EXPECT_EQ(Description().state, JobState::kForming);
  stepped_.Release();
  // The stranger comes to a job that has ended, and waits for another worker.
  EXPECT_THAT(log_.events(), ElementsAre("began 1", "a: OK", "b: OK",
                                         "a again: OK", "ended 1", "exit: OK"));
  EXPECT_EQ(Description().state, JobState::kForming);
  EXPECT_THAT(Description().members, SizeIs(1));
}

TEST_F(CommitTest, ADepartureWaitsForTheCommitOfTheNextGeneration) {
  const auto team = RunElastic(1, 3, 3);
  ASSERT_OK(Leave(team[0], true));
  ASSERT_OK(Leave(team[1], true));
  ASSERT_OK(Leave(team[2], true));
  team[1]->request.after_generation = Generation(1);
  team[2]->request.after_generation = Generation(1);
  JoinAs("one", *team[1]);
  JoinAs("two", *team[2]);
  stepped_.Hold();
  // The last survivor does not come: the others are all there are.
  membership_->ReportExit(team[0]->exit(9));
  // Its generation is over by then, and must not come back to the disk.
  membership_->Leave(
      team[1]->fence(), LeaveNotice(),
      [&](const absl::Status& status) { Note("leave", status); });
  stepped_.Release();
  EXPECT_EQ(Description().generation, Generation(2));
  EXPECT_THAT(*store_.Tables("members/"), ElementsAre("members/2"));
  const std::vector<std::string> events = log_.events();
  EXPECT_EQ(events.back(), "leave: NOT_FOUND");
}

TEST_F(CommitTest, AWorkerCanWithdrawWhileItsJobIsCommitted) {
  Worker* const first = MakeElastic(1, 2, 0);
  Join(first);
  stepped_.Hold();
  Pass(options_.last_call);
  EXPECT_EQ(stepped_.waiting(), 1u);
  Worker* const gone = MakeElastic(1, 2, 1);
  Join(gone);
  Worker* const stays = MakeElastic(1, 2, 2);
  Join(stays);
  membership_->Withdraw(gone->join_id);
  stepped_.Release();
  ASSERT_THAT(first->answers, SizeIs(1));
  EXPECT_OK(first->answers[0]);
  ASSERT_THAT(Description().spares, SizeIs(1));
  EXPECT_EQ(Description().spares[0].member.identity, stays->request.identity);
  membership_->Withdraw(stays->join_id);
  EXPECT_THAT(Description().spares, IsEmpty());
  EXPECT_THAT(gone->answers, IsEmpty());
}

TEST_F(CommitTest, ACommitThatFailsFailsItsRoundAndNoOther) {
  Worker* const worker = MakeLarge(1, 0, "job");
  stepped_.Hold();
  Join(worker);
  stepped_.CommitNext();
  Join(worker);  // again
  store_.FailWrites(absl::UnavailableError("disk full"));
  stepped_.CommitNext();
  ASSERT_THAT(worker->answers, SizeIs(1));
  EXPECT_THAT(worker->answers[0],
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("disk full")));
  EXPECT_THAT(log_.events(), IsEmpty());
  store_.FailWrites(absl::OkStatus());
  stepped_.Release();
  ASSERT_THAT(worker->answers, SizeIs(2));
  ASSERT_OK(worker->answers[1]);
  EXPECT_EQ(worker->joined().generation, Generation(2));
  EXPECT_THAT(log_.events(), ElementsAre("began 2"));
  membership_->Tick();
  EXPECT_THAT(*store_.Tables("members/"), ElementsAre("members/2"));
  EXPECT_THAT(*store_.Tables("manifest/"), ElementsAre("manifest/2"));
}

// The commits of two jobs end in another order than they began.
TEST_F(CommitTest, TheNumberOfAGenerationIsNeverGivenOutTwice) {
  stepped_.Hold();
  Worker* const large = MakeLarge(1, 0, "large");
  Join(large);
  Worker* const small = Make(1, 0, "small");
  Join(small);
  while (small->answers.empty()) stepped_.CommitNext();
  EXPECT_EQ(small->joined().generation, Generation(2));
  EXPECT_EQ(NextGeneration(), "3");
  EXPECT_THAT(large->answers, IsEmpty());
  stepped_.Release();
  EXPECT_EQ(large->joined().generation, Generation(1));
  EXPECT_EQ(NextGeneration(), "3");
}

TEST_F(CommitTest, AShutdownAnswersAllAndNothingBegins) {
  Worker* const a = MakeLarge(1, 0, "job");
  stepped_.Hold();
  JoinAs("a", *a);
  JoinAs("b", *Make(1, 1));
  membership_->ReportExit(
      a->exit(9), [&](const absl::Status& status) { Note("exit", status); });
  membership_->Shutdown();
  stepped_.Release();
  EXPECT_THAT(log_.events(), ElementsAre("a: UNAVAILABLE", "b: UNAVAILABLE",
                                         "exit: UNAVAILABLE"));
  Open(&stepped_, &writer_);
  EXPECT_THAT(membership_->Describe("job"),
              StatusIs(absl::StatusCode::kNotFound, testing::_));
  EXPECT_THAT(*store_.Tables("members/"), IsEmpty());
  EXPECT_THAT(*store_.Tables("manifest/"), IsEmpty());
}

TEST_F(CommitTest, CallsThatWaitForACommitAreLimited) {
  Worker* const worker = Make(1, 0);
  stepped_.Hold();
  Join(worker);
  std::vector<absl::Status> refused;
  const auto note = [&](const absl::Status& status) {
    if (!status.ok()) refused.push_back(status);
  };
  for (int i = 0; i < 17; ++i) {
    membership_->Join(Make(1, 1 + i)->request,
                      [&](const auto& result) { note(result.status()); });
  }
  EXPECT_THAT(refused,
              ElementsAre(StatusIs(absl::StatusCode::kUnavailable,
                                   HasSubstr("16 more workers wait"))));
  ExitReport report = worker->exit(9);
  report.incarnation = Incarnation(99);
  for (int i = 16; i < 1024; ++i) membership_->ReportExit(report, note);
  EXPECT_THAT(refused, SizeIs(1));
  membership_->ReportExit(report, note);
  membership_->Join(worker->request,
                    [&](const auto& result) { note(result.status()); });
  ASSERT_THAT(refused, SizeIs(3));
  for (int i = 1; i < 3; ++i) {
    EXPECT_THAT(refused[i], StatusIs(absl::StatusCode::kUnavailable,
                                     HasSubstr("1024 calls wait")));
  }
  // Of a name that no worker has, nothing is kept.
  report.identity.node = std::string(1 << 20, 'n');
  membership_->ReportExit(report, note);
  EXPECT_THAT(refused, SizeIs(3));
  stepped_.Release();
  EXPECT_EQ(Description().state, JobState::kRunning);
  EXPECT_THAT(refused, SizeIs(3 + 16)) << "the job is full";
}

TEST_F(CommitTest, AJoinThatIsRefusedAfterTheCommitIsReportedAsRefused) {
  Worker* const first = Make(1, 0);
  stepped_.Hold();
  Join(first);
  Worker* const stranger = Make(1, 1);
  stranger->request.on_refused = [&](const absl::Status& status) {
    EXPECT_THAT(stranger->answers, IsEmpty());
    Note("refused", status);
  };
  Join(stranger);
  EXPECT_THAT(log_.events(), IsEmpty());
  stepped_.Release();
  EXPECT_THAT(log_.events(),
              ElementsAre("began 1", "refused: FAILED_PRECONDITION"));
  EXPECT_THAT(stranger->answers, SizeIs(1));
}

TEST_F(CommitTest, NothingWaitsForTheCommitOfAPlanUnderTheLock) {
  options_.max_jobs = 3;
  HeldStore held(&store_);
  Open(&writer_, &held);
  const auto runs = Run(1, "runs");
  const auto gone = Run(1, "gone");
  membership_->ReportExit(gone[0]->exit(9));

  Latch disk;
  held.latch = &disk;
  Worker* const begins = Make(1, 0, "begins");
  std::thread joining([&] { Join(begins); });
  EXPECT_TRUE(disk.AwaitThread());
  Latch done;
  done.Open();
  std::thread others([&] {
    // In the place of the one that has ended, with its plan.
    Join(Make(2, 0, "forms"));
    EXPECT_OK(membership_->Heartbeat(runs[0]->attachment, Progress()));
    EXPECT_OK(plans_->Get("runs"));
    EXPECT_EQ(*plans_->TakeEffect("runs", Generation(1), 1), std::nullopt);
    EXPECT_FALSE(plans_->Get("gone").ok());
    done.Pass();
  });
  EXPECT_TRUE(done.AwaitThread());
  EXPECT_THAT(begins->answers, IsEmpty());
  disk.Open();
  joining.join();
  others.join();
  ASSERT_THAT(begins->answers, SizeIs(1));
  EXPECT_OK(begins->answers[0]);
  EXPECT_FALSE(store_.Get("plan.current", "gone").ok());
  membership_.reset();
}

// With the writer of a coordinator, and a disk that stands still.
TEST_F(CommitTest, NothingWaitsForTheDiskUnderTheLock) {
  GroupCommit commit(&store_);
  Open(&commit, &commit);
  Latch answered;
  answered.Open();
  Worker* const large = MakeLarge(1, 0, "large");
  Worker* const other = Make(1, 0, "other");
  membership_->Join(other->request, [&](auto result) {
    other->answers.push_back(std::move(result));
    answered.Pass();
  });
  EXPECT_TRUE(answered.AwaitThread());

  Latch disk;
  store_.on_apply = [&] { disk.Pass(); };
  Latch began;
  began.Open();
  std::thread joining([&] {
    membership_->Join(large->request, [&](const auto& result) {
      EXPECT_OK(result);
      began.Pass();
    });
  });
  EXPECT_TRUE(disk.AwaitThread());
  Latch done, left;
  done.Open();
  left.Open();
  std::thread others([&] {
    Join(Make(2, 0, "forming"));
    Attach(other);
    EXPECT_EQ(Description("other").state, JobState::kRunning);
    membership_->Leave(other->fence(), LeaveNotice(),
                       [&](const absl::Status& status) {
                         EXPECT_OK(status);
                         left.Pass();
                       });
    membership_->Tick();
    done.Pass();
  });
  EXPECT_TRUE(done.AwaitThread());
  disk.Open();
  joining.join();
  others.join();
  EXPECT_TRUE(left.AwaitThread());
  EXPECT_TRUE(began.AwaitThread());
  membership_.reset();
}

}  // namespace
}  // namespace coxswain::server
