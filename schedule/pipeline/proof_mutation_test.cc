// The proof agrees with what happens: schedules are changed at random, and
// executed by simulated ranks that take turns in a random order. These share no
// code with the proof.
#include <algorithm>
#include <deque>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "gtest/gtest.h"
#include "schedule/pipeline/proof.h"
#include "schedule/pipeline/random_lists.h"

namespace coxswain::pipeline {
namespace {

// What the ranks of a pipeline hold, and whether what they do can be done.
class Ranks {
 public:
  explicit Ranks(const Lists& lists) : lists_(lists), at_(lists.size()) {
    for (size_t rank = 0; rank < lists.size(); ++rank) {
      for (const Action& action : lists[rank]) {
        const auto [home, is_new] =
            home_.emplace(action.stage, static_cast<int>(rank));
        ok_ = ok_ && home->second == static_cast<int>(rank);
        micro_batches_ = std::max(micro_batches_, action.micro_batch + 1);
      }
    }
    stages_ = static_cast<int>(home_.size());
    ok_ = ok_ && home_.rbegin()->first == stages_ - 1;
  }

  bool ok() const { return ok_; }
  bool AtEnd(int rank) const { return at_[rank] == lists_[rank].size(); }
  const Action& Current(int rank) const { return lists_[rank][at_[rank]]; }

  // Returns the rank that a transfer is with, -1 if there is none.
  int PeerOf(const Action& action) const {
    const bool up = action.kind == ActionKind::kSendForward ||
                    action.kind == ActionKind::kWaitSendForward ||
                    action.kind == ActionKind::kReceiveBackward;
    const auto peer = home_.find(action.stage + (up ? 1 : -1));
    if (peer == home_.end() || peer->second == home_.at(action.stage)) {
      return -1;
    }
    return peer->second;
  }

  // Does a rank's current action, as far as it alone goes.
  void Do(int rank) {
    const Action& action = Current(rank);
    const int s = action.stage;
    const int i = action.micro_batch;
    switch (action.kind) {
      case ActionKind::kForward:
        Require(s == 0 || Holds("activations", s, i) ||
                (OnRank(s - 1, rank) && Holds("F", s - 1, i)));
        Put("F", s, i);
        break;
      case ActionKind::kBackward:
      case ActionKind::kBackwardInput:
        Require(Holds("F", s, i));
        Require(s == stages_ - 1 || Holds("gradients", s, i) ||
                (OnRank(s + 1, rank) && Holds("I", s + 1, i)));
        Put("I", s, i);
        if (action.kind == ActionKind::kBackward) Put("W", s, i);
        break;
      case ActionKind::kBackwardWeight:
        Require(Holds("I", s, i));
        Put("W", s, i);
        break;
      case ActionKind::kSendForward:
        Require(PeerOf(action) >= 0 && Holds("F", s, i));
        Put("sent F", s, i);
        break;
      case ActionKind::kSendBackward:
        Require(PeerOf(action) >= 0 && Holds("I", s, i));
        Put("sent B", s, i);
        break;
      case ActionKind::kReceiveForward:
        Require(PeerOf(action) >= 0 && Holds("sent F", s - 1, i));
        Put("activations", s, i);
        break;
      case ActionKind::kReceiveBackward:
        Require(PeerOf(action) >= 0 && Holds("sent B", s + 1, i));
        Put("gradients", s, i);
        break;
      case ActionKind::kWaitSendForward:
        Require(PeerOf(action) >= 0 && Holds("activations", s + 1, i));
        Put("waited F", s, i);
        break;
      case ActionKind::kWaitSendBackward:
        Require(PeerOf(action) >= 0 && Holds("gradients", s - 1, i));
        Put("waited B", s, i);
        break;
      case ActionKind::kReduceGradient:
        for (int k = 0; k < micro_batches_; ++k) Require(Holds("W", s, k));
        Put("reduced", s, 0);
        break;
      default:
        break;
    }
    ++at_[rank];
  }

  // After the end: whether every gradient is there.
  bool AllComputed() const {
    bool all = ok_;
    for (int s = 0; s < stages_; ++s) {
      for (int i = 0; i < micro_batches_; ++i) all = all && Holds("W", s, i);
    }
    return all;
  }

  bool Holds(const std::string& what, int stage, int micro_batch) const {
    return things_.count({what, stage, micro_batch}) > 0;
  }
  void Require(bool condition) { ok_ = ok_ && condition; }

 private:
  void Put(const std::string& what, int stage, int micro_batch) {
    Require(things_.insert({what, stage, micro_batch}).second);
  }
  bool OnRank(int stage, int rank) const {
    const auto home = home_.find(stage);
    return home != home_.end() && home->second == rank;
  }

  const Lists& lists_;
  std::vector<size_t> at_;
  std::map<int, int> home_;  // by stage
  std::set<std::tuple<std::string, int, int>> things_;
  int stages_ = 0;
  int micro_batches_ = 0;
  bool ok_ = true;  // nothing has been done that cannot be
};

// Ranks that take turns in a random order, with the messages between them.
class Simulation {
 public:
  Simulation(const Lists& lists, int capacity)
      : ranks_(lists),
        count_(static_cast<int>(lists.size())),
        capacity_(capacity) {}

  // Returns whether all come to the end, and nothing is wrong.
  bool Run(Dice& dice) {
    while (ranks_.ok()) {
      std::vector<int> able;
      for (int rank = 0; rank < count_; ++rank) {
        if (!ranks_.AtEnd(rank) && CanGoOn(rank)) able.push_back(rank);
      }
      if (able.empty()) break;
      Step(able[dice.Below(able.size())]);
    }
    bool all = ranks_.AllComputed();
    for (int rank = 0; rank < count_; ++rank) all = all && ranks_.AtEnd(rank);
    for (const auto& [channel, messages] : messages_) {
      all = all && messages.empty();
    }
    return all;
  }

  const Ranks& ranks() const { return ranks_; }

 private:
  // The stage that sends, and the one that receives.
  using Ends = std::pair<int, int>;
  static Ends EndsOf(const Action& action) {
    switch (action.kind) {
      case ActionKind::kReceiveForward:
        return {action.stage - 1, action.stage};
      case ActionKind::kReceiveBackward:
        return {action.stage + 1, action.stage};
      case ActionKind::kSendBackward:
      case ActionKind::kWaitSendBackward:
        return {action.stage, action.stage - 1};
      default:
        return {action.stage, action.stage + 1};
    }
  }

  // Whether the rank on the other end is at the receive of this channel.
  bool MeetsReceive(const Action& send) const {
    const int peer = ranks_.PeerOf(send);
    if (peer < 0 || ranks_.AtEnd(peer)) return false;
    const Action& other = ranks_.Current(peer);
    return IsReceive(other.kind) && EndsOf(other) == EndsOf(send);
  }

  // What cannot ever be done is tried at once, and found to be wrong.
  bool CanGoOn(int rank) const {
    const Action& action = ranks_.Current(rank);
    if (!IsTransfer(action.kind) || ranks_.PeerOf(action) < 0) return true;
    const Ends ends = EndsOf(action);
    const auto channel = messages_.find(ends);
    const size_t waiting =
        channel == messages_.end() ? 0 : channel->second.size();
    if (IsReceive(action.kind)) return waiting > 0;
    if (IsSend(action.kind)) {
      return capacity_ == 0 ? MeetsReceive(action)
                            : waiting < static_cast<size_t>(capacity_);
    }
    const bool forward = action.kind == ActionKind::kWaitSendForward;
    return !ranks_.Holds(forward ? "sent F" : "sent B", action.stage,
                         action.micro_batch) ||
           ranks_.Holds(forward ? "activations" : "gradients", ends.second,
                        action.micro_batch);
  }

  void Step(int rank) {
    const Action action = ranks_.Current(rank);
    const int peer = IsTransfer(action.kind) ? ranks_.PeerOf(action) : -1;
    ranks_.Do(rank);
    if (peer < 0) return;
    std::deque<int>& messages = messages_[EndsOf(action)];
    if (IsSend(action.kind)) {
      messages.push_back(action.micro_batch);
      if (capacity_ == 0) Step(peer);
    } else if (IsReceive(action.kind)) {
      ranks_.Require(!messages.empty() &&
                     messages.front() == action.micro_batch);
      if (!messages.empty()) messages.pop_front();
    }
  }

  Ranks ranks_;
  const int count_;
  const int capacity_;
  std::map<Ends, std::deque<int>> messages_;
};

absl::Status Verdict(const Lists& lists, int capacity) {
  const auto schedule = Schedule::Create(lists);
  return schedule.ok() ? Prove(*schedule, capacity) : schedule.status();
}

TEST(ProofMutationTest, TheProofSaysWhatHappens) {
  constexpr int kSchedules = 20000;
  int ends = 0;
  int stops = 0;
  int wrong = 0;
  for (int i = 0; i < kSchedules; ++i) {
    Dice dice(i);
    const Lists lists = RandomLists(dice);
    const int capacity = dice.Below(3);
    const absl::Status verdict = Verdict(lists, capacity);
    Simulation simulation(lists, capacity);
    ASSERT_EQ(simulation.Run(dice), verdict.ok())
        << verdict << "\nnumber " << i << ", capacity " << capacity << "\n"
        << TextOf(lists);
    ++(verdict.ok()                          ? ends
       : absl::IsFailedPrecondition(verdict) ? stops
                                             : wrong);
    // Each rank of the circle stands where the message says it does.
    if (!absl::StrContains(verdict.message(), "ranks wait for each")) continue;
    const std::vector<std::string> lines =
        absl::StrSplit(verdict.message(), '\n');
    ASSERT_GT(lines.size(), 2u);
    for (size_t line = 1; line < lines.size(); ++line) {
      const std::vector<std::string> words =
          absl::StrSplit(absl::StripAsciiWhitespace(lines[line]), ' ');
      int rank = 0;
      ASSERT_TRUE(absl::SimpleAtoi(words[1], &rank)) << lines[line];
      ASSERT_FALSE(simulation.ranks().AtEnd(rank)) << lines[line];
      ASSERT_EQ(ToString(simulation.ranks().Current(rank)), words[4]);
    }
  }
  // All three happen often.
  EXPECT_GT(ends, kSchedules / 10);
  EXPECT_GT(stops, kSchedules / 10);
  EXPECT_GT(wrong, kSchedules / 10);
}

}  // namespace
}  // namespace coxswain::pipeline
