// Members that train, and a newcomer that takes their state meanwhile, over
// real connections.

#include <poll.h>

#include <array>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/mutex.h"
#include "base/status_matchers.h"
#include "client/comm/tcp/tcp_socket.h"
#include "client/elastic/catch_up/receiver.h"
#include "client/elastic/catch_up/source.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace coxswain::catch_up {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr absl::Duration kSoon = absl::Seconds(30);
constexpr uint64_t kNewcomer = 77;
// Three pieces of the parameters.
constexpr size_t kElements = 300'000;
constexpr char kHost[] = "host-";

Span SpanOf(std::vector<double>* values) {
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
      momenta_[i] = 0.9 * momenta_[i] + averages_[i];
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
    double rate = 0;
    EXPECT_TRUE(absl::SimpleAtod(rest.substr(1), &rate));
    if (applied) TakeStep(rate);
    MutexLock lock(&mutex_);
    ++taken_;
    changed_.NotifyAll();
    return absl::OkStatus();
  }
  absl::Status Undo() override {
    values_ = kept_;
    momenta_.clear();
    undone_ = true;
    return absl::OkStatus();
  }
  void Forget() override {}

 private:
  std::vector<double> values_;
  std::vector<double> momenta_;
  std::vector<double> averages_;
  std::vector<double> kept_;
  bool undone_ = false;
  Mutex mutex_;
  CondVar changed_;
  int taken_ ABSL_GUARDED_BY(mutex_) = 0;
};

// A network that flips a bit of the byte at each of these places of what a
// member sends.
class DamagedNetwork {
 public:
  DamagedNetwork(const std::string& target, std::vector<int64_t> places)
      : places_(std::move(places)) {
    const size_t colon = target.rfind(':');
    target_.host = target.substr(0, colon);
    EXPECT_TRUE(absl::SimpleAtoi(target.substr(colon + 1), &target_.port));
    auto listener = ListenTcp("127.0.0.1");
    EXPECT_OK(listener);
    listener_ = *std::move(listener);
    thread_ = std::thread([this] { EXPECT_OK(Run()); });
  }
  ~DamagedNetwork() {
    stop_.Raise();
    thread_.join();
  }
  std::string address() const {
    return absl::StrCat(listener_.address.host, ":", listener_.address.port);
  }

 private:
  absl::Status Run() {
    const absl::Time end = Clock::Real()->Now() + kSoon;
    std::vector<pollfd> entries = {{listener_.socket.get(), POLLIN, 0},
                                   {stop_.get(), POLLIN, 0}};
    PollUntil(&entries, end);
    if (entries[1].revents != 0) return absl::OkStatus();
    auto from = AcceptTcp(listener_.socket);
    if (!from.ok()) return from.status();
    auto to = BeginConnectTcp(target_);
    if (!to.ok()) return to.status();
    int64_t at = 0;
    while (true) {
      entries = {{from->get(), POLLIN, 0},
                 {to->get(), POLLIN, 0},
                 {stop_.get(), POLLIN, 0}};
      PollUntil(&entries, end);
      if (entries[2].revents != 0) return absl::OkStatus();
      char bytes[65536];
      for (const auto& [in, out] :
           {std::pair(&*from, &*to), std::pair(&*to, &*from)}) {
        const auto got = ReceiveSome(*in, bytes, sizeof(bytes));
        if (!got.ok()) return absl::OkStatus();  // it has ended
        if (in == &*from) {
          for (const int64_t place : places_) {
            if (place >= at && place < at + *got) bytes[place - at] ^= 4;
          }
          at += *got;
        }
        const absl::Status sent =
            SendAll(*out, {bytes, static_cast<size_t>(*got)}, stop_, end);
        if (!sent.ok()) return absl::OkStatus();
      }
    }
  }

  const std::vector<int64_t> places_;
  TcpAddress target_;
  TcpListener listener_;
  WakeFd stop_;
  std::thread thread_;
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
      of_rank.host = absl::StrCat(kHost, rank);
      sources_[rank] = std::make_unique<Source>(of_rank);
      addresses_[rank] = receiver_->address();
    }
  }
  // The first bytes that a member sends before its first piece.
  static int64_t Head(int64_t rest) {
    return static_cast<int64_t>(2 * sizeof(Header) + sizeof(Hello) +
                                sizeof(kHost) + sizeof(Header)) +
           rest;
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
  void ExpectCaughtUp() {
    Step(/*applied=*/false, /*begins=*/false, /*last=*/true);
    ASSERT_OK_AND_ASSIGN(const std::optional<CaughtUp> caught_up,
                         receiver_->Finish(kSoon));
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

TEST_F(CatchUpTest, ANewcomerTakesTheStateWhileTheMembersTrain) {
  Listen();
  Step();
  sent_ = 0;
  Step(/*applied=*/true, /*begins=*/true);
  TrainUntilSettled();
  ExpectCaughtUp();
  EXPECT_THAT(receiver_->damage(), IsEmpty());
}

TEST_F(CatchUpTest, TheOptimizerMayHaveNoStateYet) {
  Listen();
  Step(/*applied=*/false, /*begins=*/true);
  TrainUntilSettled();
  ExpectCaughtUp();
}

TEST_F(CatchUpTest, ADamagedPieceComesFromAnotherMember) {
  Listen();
  // In the first piece of rank 1.
  const DamagedNetwork network(addresses_[1], {Head(0) + 1000});
  addresses_[1] = network.address();
  Step();
  sent_ = 0;
  Step(/*applied=*/true, /*begins=*/true);
  TrainUntilSettled(/*damage=*/true);
  EXPECT_THAT(Damage(), AllOf(HasSubstr("piece 1 of the state"),
                              HasSubstr("from rank 1 on host-1")));
  ExpectCaughtUp();
  EXPECT_THAT(receiver_->damage(), ElementsAre(HasSubstr("rank 1 on host-1")));
}

TEST_F(CatchUpTest, WhatDamagedAveragesWereUsedForComesFromAnotherMember) {
  Listen();
  // Rank 1 has one of the three pieces of the parameters, that are all of the
  // state: then comes a step, and one of three of its averages.
  const DamagedNetwork network(
      addresses_[1],
      {Head(0) + kPieceBytes + 2 * int64_t{sizeof(Header)} + 500});
  addresses_[1] = network.address();
  Step(/*applied=*/false, /*begins=*/true);
  TrainUntilSettled(/*damage=*/true);
  ExpectCaughtUp();
  EXPECT_THAT(receiver_->damage(),
              ElementsAre(AllOf(HasSubstr("piece 1 of the averages"),
                                HasSubstr("rank 1 on host-1"))));
}

TEST_F(CatchUpTest, TooMuchDamageIsGivenUp) {
  const Program before(5);
  Listen(/*max_damaged=*/0);
  const DamagedNetwork network(addresses_[1], {Head(0) + 1000});
  addresses_[1] = network.address();
  Step(/*applied=*/false, /*begins=*/true);
  for (int i = 0; i < 1000 && sources_[0]->active(); ++i) Step();
  EXPECT_FALSE(sources_[0]->active()) << "it still sends";
  EXPECT_TRUE(Settled()) << "the regroup would wait for it";
  ASSERT_OK_AND_ASSIGN(const auto caught_up, receiver_->Finish(kSoon));
  EXPECT_FALSE(caught_up.has_value());
  EXPECT_TRUE(newcomer_.undone());
  EXPECT_TRUE(newcomer_ == before);
}

TEST_F(CatchUpTest, AGenerationThatEndsEarlyLeavesNothingBehind) {
  const Program before(5);
  Listen();
  Step(/*applied=*/true, /*begins=*/true);
  TrainUntilSettled();
  for (auto& source : sources_) source.reset();
  ASSERT_OK_AND_ASSIGN(const auto caught_up, receiver_->Finish(kSoon));
  EXPECT_FALSE(caught_up.has_value());
  EXPECT_TRUE(newcomer_ == before);
}

TEST_F(CatchUpTest, WithoutMembersItEndsAtOnce) {
  Listen();
  ASSERT_OK_AND_ASSIGN(const auto caught_up,
                       receiver_->Finish(absl::InfiniteDuration()));
  EXPECT_FALSE(caught_up.has_value());
  EXPECT_FALSE(newcomer_.undone());
}

TEST_F(CatchUpTest, WhoDoesNotKnowTheSecretIsNoMember) {
  Listen();
  wrong_ = 1;
  Step(/*applied=*/false, /*begins=*/true);
  for (int i = 0; i < 1000 && sources_[0]->active(); ++i) Step();
  EXPECT_FALSE(sources_[0]->active());
  ASSERT_OK_AND_ASSIGN(const auto caught_up, receiver_->Finish(kSoon));
  EXPECT_FALSE(caught_up.has_value());
  EXPECT_FALSE(newcomer_.undone()) << "it has begun to take the state";
}

// One that is stopped, for example: its system accepts the connection.
TEST_F(CatchUpTest, ANewcomerThatTakesNothingIsDropped) {
  Listen();
  ASSERT_OK_AND_ASSIGN(const TcpListener stopped, ListenTcp("127.0.0.1"));
  for (std::string& address : addresses_) {
    address = absl::StrCat("127.0.0.1:", stopped.address.port);
  }
  Step(/*applied=*/false, /*begins=*/true);
  EXPECT_TRUE(sources_[0]->active());
  EXPECT_FALSE(Settled());
  int steps = 0;
  while (steps < 1000 && sources_[0]->active()) {
    Step();
    ++steps;
  }
  EXPECT_FALSE(sources_[0]->active()) << "after " << steps << " steps";
  EXPECT_TRUE(Settled());
}

}  // namespace
}  // namespace coxswain::catch_up
