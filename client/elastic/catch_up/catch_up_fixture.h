#ifndef COXSWAIN_CLIENT_ELASTIC_CATCH_UP_CATCH_UP_FIXTURE_H_
#define COXSWAIN_CLIENT_ELASTIC_CATCH_UP_CATCH_UP_FIXTURE_H_

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/mutex.h"
#include "base/status_matchers.h"
#include "client/elastic/catch_up/receiver.h"
#include "client/elastic/catch_up/source.h"
#include "gtest/gtest.h"

// Members that train, and a newcomer that takes their state meanwhile, over
// real connections.

namespace coxswain::catch_up {

inline constexpr absl::Duration kSoon = absl::Seconds(30);
inline constexpr uint64_t kNewcomer = 77;
// Three pieces of the parameters; with momenta five, of which the last two hold
// nothing else.
inline constexpr size_t kElements = 300'000;

inline Span SpanOf(std::vector<double>* values) {
  return {values->data(), static_cast<int64_t>(values->size()), DType::kFloat64,
          Device()};
}

// Parameters with momenta, which the first step makes.
class Program : public CatchUpTarget {
 public:
  explicit Program(double first) : values_(kElements, first) {
    for (size_t i = 0; i < kElements; ++i) {
      values_[i] += 1e-3 * static_cast<double>(i);
    }
  }

  void TakeStep(double rate) {
    if (momenta_.empty()) momenta_.resize(kElements);
    for (size_t i = 0; i < kElements; ++i) {
      momenta_[i] = 0.9 * momenta_[i] + averages_[i] + 1e-3 * values_[i];
      values_[i] -= rate * momenta_[i];
    }
  }
  // Those of a step: a member's.
  std::vector<Span> MakeAverages(int64_t step) {
    averages_.resize(kElements);
    for (size_t i = 0; i < kElements; ++i) {
      averages_[i] = static_cast<double>(step) + 1e-4 * static_cast<double>(i);
    }
    return {SpanOf(&averages_)};
  }
  std::vector<Span> Spans() {
    if (momenta_.empty()) return {SpanOf(&values_)};
    return {SpanOf(&values_), SpanOf(&momenta_)};
  }
  static std::string Rest(double rate, bool has_momenta) {
    return absl::StrCat(has_momenta ? "m" : "-", rate);
  }
  bool has_momenta() const { return !momenta_.empty(); }
  bool operator==(const Program& other) const {
    return values_ == other.values_ && momenta_ == other.momenta_;
  }
  // Waits until it has begun, and taken so many steps.
  void Await(int taken) {
    MutexLock lock(&mutex_);
    EXPECT_TRUE(changed_.WaitFor(
        &mutex_, kSoon,
        [&]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return taken_ >= taken; }))
        << taken_ << " steps taken of " << taken;
  }
  bool undone() const { return undone_; }
  // Has each of its steps take so long: a newcomer's.
  void Hold(absl::Duration time) { hold_ms_ = absl::ToInt64Milliseconds(time); }

  absl::Status Begin(absl::string_view rest) override {
    kept_ = values_;
    if (rest[0] == 'm') momenta_.resize(kElements);
    return absl::OkStatus();
  }
  absl::StatusOr<std::vector<Part>> State() override {
    std::vector<Part> parts;
    for (const Span& span : Spans()) parts.push_back({span, 0});
    return parts;
  }
  absl::StatusOr<std::vector<Part>> Averages(absl::string_view) override {
    averages_.resize(kElements);
    return std::vector<Part>{{SpanOf(&averages_), 0}};
  }
  absl::Status Step(absl::string_view rest, bool applied) override {
    on_step();
    double rate = 0;
    EXPECT_TRUE(absl::SimpleAtod(rest.substr(1), &rate));
    if (applied) TakeStep(rate);
    const absl::Time end =
        Clock::Real()->Now() + absl::Milliseconds(hold_ms_.load());
    while (Clock::Real()->Now() < end) std::this_thread::yield();
    MutexLock lock(&mutex_);
    ++taken_;
    changed_.NotifyAll();
    return absl::OkStatus();
  }
  absl::Status Undo() override {
    on_undo();
    values_ = kept_;
    momenta_.clear();
    undone_ = true;
    return absl::OkStatus();
  }
  void Forget() override {}

  // What a newcomer does first; set before it listens.
  std::function<void()> on_step = [] {};
  std::function<void()> on_undo = [] {};

 private:
  std::vector<double> values_;
  std::vector<double> momenta_;
  std::vector<double> averages_;
  std::vector<double> kept_;
  bool undone_ = false;
  std::atomic<int64_t> hold_ms_{0};
  Mutex mutex_;
  CondVar changed_;
  int taken_ ABSL_GUARDED_BY(mutex_) = 0;
};

class CatchUpTest : public ::testing::Test {
 protected:
  void Listen(int max_damaged = 3) {
    Receiver::Options options;
    options.address = "127.0.0.1";
    options.max_damaged = max_damaged;
    ASSERT_OK_AND_ASSIGN(receiver_, Receiver::Listen(options, &newcomer_));
    for (int rank : {0, 1}) {
      Source::Options of_rank;
      of_rank.rank = rank;
      of_rank.world_size = 2;
      of_rank.generation = 5;
      of_rank.lineage = 9;
      of_rank.host = absl::StrCat("host-", rank);
      sources_[rank] = std::make_unique<Source>(of_rank);
      addresses_[rank] = receiver_->address();
    }
  }
  // One step of both members.
  void Step(bool applied = true, bool begins = false, bool last = false) {
    ++step_;
    // As text it is the same number.
    const double rate = 0.5 / static_cast<double>(1 << (step_ % 4));
    for (int rank : {0, 1}) {
      Source& source = *sources_[rank];
      Program& program = members_[rank];
      if (applied) {
        const std::vector<Span> averages = program.MakeAverages(step_);
        if (source.active()) source.CopyAverages(averages);
        program.TakeStep(rate);
      }
      Source::Step step;
      step.progress = step_;
      step.applied = applied;
      step.last = last;
      step.rest = Program::Rest(rate, program.has_momenta());
      step.state = [&program] { return program.Spans(); };
      if (begins) {
        step.newcomers = {
            {addresses_[rank], receiver_->secret() + wrong_, kNewcomer}};
      }
      source.EndStep(step);
    }
    if (!begins) ++sent_;
  }
  bool Settled() {
    const std::vector<NewcomerReport> reports = sources_[0]->Reports();
    return !reports.empty() && reports[0].settled;
  }
  // What it reports of damage, to rank 0.
  std::string Damage() {
    const std::vector<NewcomerReport> reports = sources_[0]->Reports();
    return reports.empty() ? "" : reports[0].damage;
  }
  // Trains, for four steps at least, until the newcomer is in step, which takes
  // each one at once; with `damage` also after it has reported that.
  void TrainUntilSettled(bool damage = false) {
    const auto done = [&] { return damage == !Damage().empty() && Settled(); };
    for (int i = 0; i < 1000 && (i < 4 || !done()); ++i) {
      Step(/*applied=*/i % 3 != 1);
      newcomer_.Await(sent_);
      if (HasFailure()) return;
    }
    EXPECT_TRUE(done()) << Damage();
  }
  void ExpectCaughtUp(absl::Duration timeout = kSoon) {
    Step(/*applied=*/false, /*begins=*/false, /*last=*/true);
    ASSERT_OK_AND_ASSIGN(const std::optional<CaughtUp> caught_up,
                         receiver_->Finish(timeout));
    ASSERT_TRUE(caught_up.has_value());
    EXPECT_EQ(caught_up->progress, step_);
    EXPECT_EQ(caught_up->trained, 5);
    EXPECT_EQ(caught_up->lineage, 9);
    EXPECT_TRUE(newcomer_ == members_[0]);
    EXPECT_TRUE(members_[1] == members_[0]);
    EXPECT_FALSE(newcomer_.undone());
  }

  std::array<Program, 2> members_ = {Program(1), Program(1)};
  Program newcomer_{5};
  std::unique_ptr<Receiver> receiver_;
  std::array<std::unique_ptr<Source>, 2> sources_;
  std::array<std::string, 2> addresses_;
  uint64_t wrong_ = 0;
  int64_t step_ = 0;
  int sent_ = 0;
};

}  // namespace coxswain::catch_up

#endif  // COXSWAIN_CLIENT_ELASTIC_CATCH_UP_CATCH_UP_FIXTURE_H_
