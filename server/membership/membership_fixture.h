#ifndef COXSWAIN_SERVER_MEMBERSHIP_MEMBERSHIP_FIXTURE_H_
#define COXSWAIN_SERVER_MEMBERSHIP_MEMBERSHIP_FIXTURE_H_

#include <algorithm>
#include <deque>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/fake_clock.h"
#include "base/mutex.h"
#include "base/random.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/types.pb.h"
#include "schedule/plan.h"
#include "server/membership/flat_event.h"
#include "server/membership/membership.h"
#include "server/plan/plan_store.h"
#include "server/state/direct_writer.h"
#include "server/state/memory_state_store.h"

namespace coxswain::server {

// What the tests of the membership stand on: one whose time and state
// are in their hands, and workers that note what they receive.

inline schedule::Plan MakePlan(int accumulation, const std::string& hook,
                               int64_t start_step) {
  schedule::Plan plan;
  plan.accumulation_steps = accumulation;
  plan.hook = hook;
  plan.compression_start_step = start_step;
  return plan;
}

inline Progress MakeProgress(int64_t step, int64_t sequence) {
  Progress progress;
  progress.step = step;
  progress.collective_sequence = sequence;
  progress.payload_bytes = 100;
  progress.wire_bytes = 120;
  return progress;
}

class CountingRandom : public RandomSource {
 public:
  uint64_t Next() override { return Mix64(count_++); }

 private:
  uint64_t count_ = 1;
};

struct Ended {
  std::string job;
  Generation generation;
  absl::Status reason;
};
class RecordingObserver : public GenerationObserver {
 public:
  void OnGenerationEnded(absl::string_view job, Generation generation,
                         const absl::Status& reason) override {
    ended.push_back({std::string(job), generation, reason});
  }
  absl::Status OnResume(
      const std::vector<GenerationResumed>& running) override {
    resumed.push_back(running);
    return absl::OkStatus();
  }
  void OnRegroupWanted(absl::string_view job, Generation generation,
                       absl::string_view reason) override {
    regroups.push_back(
        absl::StrCat(job, " ", generation.value(), ": ", reason));
  }
  void OnMemberLeft(absl::string_view job, Generation generation,
                    int rank) override {
    left.push_back(absl::StrCat(job, " ", generation.value(), " ", rank));
  }
  void OnCatchUpWanted(
      absl::string_view job, Generation generation,
      const std::vector<schedule::Newcomer>& newcomers) override {
    for (const schedule::Newcomer& newcomer : newcomers) {
      catch_ups.push_back(absl::StrCat(job, " ", generation.value(), ": ",
                                       newcomer.address, " ", newcomer.secret));
    }
  }
  std::vector<Ended> ended;
  std::vector<std::string> catch_ups;
  std::vector<std::string> left;
  std::vector<std::string> regroups;
  std::vector<std::vector<GenerationResumed>> resumed;
};

// The events of jobs in the order in which an observer learns of them: "began
// 1", "left 1 0" (generation and rank), "ended 1". Thread-safe.
class EventLog : public GenerationObserver {
 public:
  void OnGenerationBegan(const GenerationBegin& begin) override {
    Add(absl::StrCat("began ", begin.generation.value()));
  }
  void OnMemberLeft(absl::string_view /*job*/, Generation generation,
                    int rank) override {
    Add(absl::StrCat("left ", generation.value(), " ", rank));
  }
  void OnGenerationEnded(absl::string_view /*job*/, Generation generation,
                         const absl::Status& /*reason*/) override {
    Add(absl::StrCat("ended ", generation.value()));
  }
  void Add(std::string event) {
    MutexLock lock(&mutex_);
    events_.push_back(std::move(event));
  }
  std::vector<std::string> events() const {
    MutexLock lock(&mutex_);
    return events_;
  }

 private:
  mutable Mutex mutex_;
  std::vector<std::string> events_ ABSL_GUARDED_BY(mutex_);
};

// Holds the threads that come to it until a test opens it. Every wait ends
// after a minute, which is a failure.
class Latch {
 public:
  ~Latch() { Open(); }
  void Pass() {
    MutexLock lock(&mutex_);
    reached_ = true;
    changed_.NotifyAll();
    EXPECT_TRUE(changed_.WaitFor(
        &mutex_, kDeadline,
        [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return open_; }));
  }
  // Returns whether a thread has come.
  bool AwaitThread() {
    MutexLock lock(&mutex_);
    return changed_.WaitFor(
        &mutex_, kDeadline,
        [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return reached_; });
  }
  void Open() {
    MutexLock lock(&mutex_);
    open_ = true;
    changed_.NotifyAll();
  }

 private:
  static constexpr absl::Duration kDeadline = absl::Minutes(1);
  Mutex mutex_;
  CondVar changed_;
  bool reached_ ABSL_GUARDED_BY(mutex_) = false;
  bool open_ ABSL_GUARDED_BY(mutex_) = false;
};

// One process: what it asks to join with, and what it received.
struct Worker {
  JoinRequest request;
  uint64_t join_id = 0;
  std::vector<absl::StatusOr<JoinResult>> answers;
  uint64_t attachment = 0;
  std::vector<FlatEvent> events;

  const JoinResult& joined() const { return *answers.back(); }
  Fence fence() const {
    const JoinResult& result = joined();
    return {result.cluster_id, result.term,         request.job,
            result.generation, request.incarnation, 1};
  }
  ExitReport exit(int signal) const {
    return {request.job,
            request.launcher_id,
            request.identity,
            request.incarnation,
            0,
            signal};
  }
};

// A store that can be made to fail from the n-th write on: what a crash, or a
// full disk, leaves behind.
class MortalStore : public MemoryStateStore {
 public:
  absl::Status Apply(const StateBatch& batch) override {
    if (on_apply) on_apply();
    if (writes_left-- <= 0) return absl::UnavailableError("disk full");
    return MemoryStateStore::Apply(batch);
  }
  int64_t writes_left = std::numeric_limits<int64_t>::max();
  std::function<void()> on_apply;  // may move the clock
};

class MembershipTest : public testing::Test {
 protected:
  void SetUp() override { Restart(); }
  // Callbacks of what still waits refer to the workers.
  void TearDown() override { membership_.reset(); }

  // A new coordinator on the same state.
  void Restart() {
    membership_.reset();
    ASSERT_OK_AND_ASSIGN(plans_, PlanStore::Load(PlanOptions(), &writer_));
    ASSERT_OK_AND_ASSIGN(
        membership_, Membership::Open(options_, {&clock_, &random_, &writer_,
                                                 plans_.get()}));
    membership_->AddObserver(&observer_);
    ASSERT_OK(membership_->Resume());
  }

  Worker* Make(int world, int slot, const std::string& job = "job",
               const std::string& node = "host-a") {
    Worker& worker = workers_.emplace_back();
    JoinRequest& request = worker.request;
    request.job = job;
    request.identity = {node, slot};
    request.incarnation = Incarnation(++incarnations_);
    request.launcher_id = launcher_;
    request.host = node;
    request.address = absl::StrCat(node, ":1234");
    request.manifest.world_size = world;
    request.manifest.hook = "allreduce";
    request.manifest.accumulation_steps = 1;
    request.manifest.parameters = {{"weight", {2, 3}, "float32", {}}};
    request.timeout = absl::Seconds(30);
    return &worker;
  }
  // Returns the same for a job that may have `min` to `max` workers.
  Worker* MakeElastic(int min, int max, int slot,
                      const std::string& node = "host-a") {
    Worker* const worker = Make(max, slot, "job", node);
    worker->request.manifest.min_world_size = min;
    return worker;
  }
  void Join(Worker* worker) {
    worker->join_id = membership_->Join(worker->request, [worker](auto result) {
      worker->answers.push_back(std::move(result));
    });
  }
  void Attach(Worker* worker) {
    ASSERT_OK_AND_ASSIGN(
        worker->attachment,
        membership_->Attach(worker->fence(), [worker](const AttachEvent& e) {
          worker->events.emplace_back(e);
        }));
  }
  // Returns a running job whose workers are attached.
  std::vector<Worker*> Run(int world, const std::string& job = "job") {
    std::vector<Worker*> team;
    for (int slot = 0; slot < world; ++slot) {
      team.push_back(Make(world, slot, job));
      Join(team.back());
    }
    for (Worker* worker : team) {
      EXPECT_THAT(worker->answers, testing::SizeIs(1));
      EXPECT_OK(worker->answers[0]);
      Attach(worker);
    }
    return team;
  }
  // Returns a running job of `count` workers that may have `min` to `max`.
  std::vector<Worker*> RunElastic(int min, int max, int count) {
    std::vector<Worker*> team;
    for (int slot = 0; slot < count; ++slot) {
      team.push_back(MakeElastic(min, max, slot));
      Join(team.back());
    }
    if (count < max) Pass(options_.last_call);
    for (Worker* worker : team) Attach(worker);
    return team;
  }
  // Asks the generation to regroup, as the schedule does.
  void AskToYield(Generation generation) {
    schedule::Message decided;
    decided.kind = schedule::Message::Kind::kDecision;
    decided.decision.regroup = "rank 0 is drained";
    membership_->SendMessages("job", generation, {decided});
  }
  // Joins the generation after its last one, as the same process.
  void Rejoin(Worker* worker) {
    worker->request.after_generation = worker->joined().generation;
    Join(worker);
  }
  absl::Status Leave(Worker* worker, bool rejoin,
                     const std::string& reason = "done") {
    return membership_->Leave(worker->fence(), reason, false, rejoin);
  }
  void Beat(const std::vector<Worker*>& team) {
    for (const Worker* worker : team) {
      EXPECT_OK(membership_->Heartbeat(worker->attachment, Progress()));
    }
  }
  // Ticks as often as a coordinator that does not stand still.
  void Pass(absl::Duration time) {
    for (; time > absl::ZeroDuration(); time -= absl::Seconds(1)) {
      clock_.Advance(std::min(time, absl::Seconds(1)));
      membership_->Tick();
    }
  }
  JobDescription Description(const std::string& job = "job") {
    auto jobs = membership_->Describe(job);
    return jobs.ok() ? jobs->front() : JobDescription();
  }
  // Expects the event of an attached worker whose generation ends by a loss.
  static void ExpectAborted(const Worker& worker, const std::string& text) {
    ASSERT_THAT(worker.events, testing::SizeIs(2));
    EXPECT_EQ(worker.events[0].kind, FlatEvent::Kind::kAbort);
    EXPECT_THAT(worker.events[0].reason, testing::HasSubstr(text));
    EXPECT_EQ(worker.events[1].kind, FlatEvent::Kind::kClosed);
    EXPECT_THAT(worker.events[1].status,
                StatusIs(absl::StatusCode::kAborted, testing::HasSubstr(text)));
  }

  MembershipOptions options_;
  FakeClock clock_;
  CountingRandom random_;
  MortalStore store_;
  DirectWriter writer_{&store_};
  RecordingObserver observer_;
  std::unique_ptr<PlanStore> plans_;
  std::unique_ptr<Membership> membership_;
  std::deque<Worker> workers_;  // addresses stay
  uint64_t incarnations_ = 0;
  uint64_t launcher_ = 7;  // of those who are made from now on
};

}  // namespace coxswain::server

#endif  // COXSWAIN_SERVER_MEMBERSHIP_MEMBERSHIP_FIXTURE_H_
