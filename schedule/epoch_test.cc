#include "schedule/epoch.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace coxswain::schedule::epoch_test {
namespace {

using testing::HasSubstr;

constexpr int64_t kMax = Epoch::kMaxFallback;

// The table in the comment of Epoch, and what is between its lines.
TEST(EpochTest, EachDeciderOfAGenerationComesAfterTheOneBefore) {
  const std::vector<Epoch> timeline = {{0, 0}, {0, 1},    {0, 2},   {1, 0},
                                       {1, 1}, {1, 2},    {2, 0},   {3, 0},
                                       {3, 2}, {kMax, 0}, {kMax, 7}};
  for (size_t i = 0; i < timeline.size(); ++i) {
    for (size_t j = 0; j < timeline.size(); ++j) {
      EXPECT_EQ(timeline[i] < timeline[j], i < j) << i << " and " << j;
      EXPECT_EQ(timeline[i] == timeline[j], i == j) << i << " and " << j;
      EXPECT_EQ(timeline[i] != timeline[j], i != j) << i << " and " << j;
    }
  }
}

TEST(EpochTest, OneThatCannotBeIsRefused) {
  ASSERT_OK_AND_ASSIGN(const Epoch none, EpochFromWire(0, 0));
  EXPECT_EQ(none, Epoch());
  ASSERT_OK_AND_ASSIGN(const Epoch last, EpochFromWire(kMax, 9));
  EXPECT_EQ(last, (Epoch{kMax, 9}));
  const auto refused = [](const std::string& text) {
    return StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(text));
  };
  EXPECT_THAT(EpochFromWire(-1, 0), refused("must be 0 to 2147483647, not -1"));
  EXPECT_THAT(EpochFromWire(kMax + 1, 0), refused("not 2147483648"));
  EXPECT_THAT(EpochFromWire(0, 1, 1), refused("must be 1 to 2147483647"));
  EXPECT_OK(EpochFromWire(1, 1, 1));
  EXPECT_THAT(EpochFromWire(1, -1), refused("term must not be negative"));
}

TEST(EpochTest, ItIsReadable) {
  EXPECT_EQ((Epoch{3, 2}).ToString(), "fallback epoch 3, term 2");
}

// Every history of one round: two ranks, coordinators of some terms that know
// of any fallback epoch or of none, some fallback epochs. Decisions stay under
// way for as long as they like, and a rank takes one of any leader, also of one
// that it has left: nothing but the comparison prevents that. No rank waits for
// the release of the fallback coordinator either.
constexpr int kRanks = 2;
constexpr int64_t kMostTerms = 2;
constexpr int64_t kMostFallbacks = 2;
constexpr size_t kEpochs = (kMostFallbacks + 1) * (kMostTerms + 1);

size_t IndexOf(const Epoch& epoch) {
  return static_cast<size_t>(epoch.fallback * (kMostTerms + 1) + epoch.term);
}
Epoch EpochOf(size_t index) {
  return {static_cast<int64_t>(index) / (kMostTerms + 1),
          static_cast<int64_t>(index) % (kMostTerms + 1)};
}

struct Rank {
  Epoch knows;
  Epoch sends_in;        // what its attachment was given, or it has reported
  int64_t fallback = 0;  // the last fallback epoch that it was in
  uint32_t tickets = 0;  // by epoch: a decider of it has this rank's
  int followed = 0;      // the decision that it acted upon; 0: none yet

  uint64_t Key() const {
    uint64_t key = IndexOf(knows);
    key = key << 4 | IndexOf(sends_in);
    key = key << 2 | static_cast<uint64_t>(fallback);
    key = key << kEpochs | tickets;
    return key << 4 | static_cast<uint64_t>(followed);
  }
  bool operator<(const Rank& other) const { return Key() < other.Key(); }
};

struct State {
  Epoch coordinator{0, 1};
  int64_t fallback = 0;  // the epoch of the fallback coordinator
  std::array<Rank, kRanks> ranks;
  // By epoch, what its decider has decided, or has taken over: 1 + the index of
  // the epoch in which that was first decided; 0: nothing.
  std::array<int, kEpochs> decided{};

  using Packed = std::array<uint64_t, kRanks + 1>;
  Packed Key() const {
    Packed key{};
    key[0] = IndexOf(coordinator) << 2 | static_cast<uint64_t>(fallback);
    for (int one : decided) key[0] = key[0] << 4 | static_cast<uint64_t>(one);
    for (size_t i = 0; i < kRanks; ++i) key[i + 1] = ranks[i].Key();
    return key;
  }
};

using Earlier = std::function<bool(const Epoch&, const Epoch&)>;

struct Limits {
  int64_t terms = 0;
  int64_t fallbacks = 0;
};

class Histories {
 public:
  // `drops`: whether a rank that knows the second epoch drops a decision of the
  // first; `ignores`: whether a decider in the second ignores what was sent in
  // the first.
  Histories(const Limits& limits, Earlier drops, Earlier ignores)
      : limits_(limits),
        drops_(std::move(drops)),
        ignores_(std::move(ignores)) {}

  // Returns whether a round is followed in two ways in any of them.
  bool Contradict() {
    Add(State());
    while (!open_.empty() && !contradiction_) {
      const State state = open_.back();
      open_.pop_back();
      Restart(state);
      for (size_t rank = 0; rank < kRanks; ++rank) {
        AttachToCoordinator(state, rank);
        AttachToFallback(state, rank);
        Send(state, rank);
        for (size_t i = 0; i < kEpochs; ++i) Receive(state, rank, i);
      }
      Decide(state, state.coordinator);
      if (state.fallback > 0) Decide(state, {state.fallback, 0});
    }
    return contradiction_;
  }
  size_t count() const { return seen_.size(); }

 private:
  void Add(State state) {
    // Which rank is which makes no difference.
    std::sort(state.ranks.begin(), state.ranks.end());
    if (seen_.insert(state.Key()).second) open_.push_back(state);
  }
  void Restart(State state) {
    if (state.coordinator.term == limits_.terms) return;
    state.coordinator = {0, state.coordinator.term + 1};
    Add(state);
  }
  void AttachToCoordinator(State state, size_t index) {
    Rank& rank = state.ranks[index];
    rank.sends_in = state.coordinator;
    rank.knows = std::max(
        rank.knows, {std::max(rank.knows.fallback, state.coordinator.fallback),
                     state.coordinator.term});
    Add(state);
  }
  // Joins the epoch, or begins another one.
  void AttachToFallback(const State& state, size_t index) {
    const Rank& rank = state.ranks[index];
    const int64_t last = std::min(state.fallback + 1, limits_.fallbacks);
    for (int64_t epoch = std::max<int64_t>(state.fallback, 1); epoch <= last;
         ++epoch) {
      if (rank.fallback >= epoch) continue;
      State next = state;
      next.fallback = epoch;
      Rank& joined = next.ranks[index];
      joined.fallback = epoch;
      joined.sends_in = {epoch, 0};
      joined.knows = std::max(joined.knows, joined.sends_in);
      Add(next);
    }
  }
  // The report, then the position or the ticket.
  void Send(State state, size_t index) {
    Rank& rank = state.ranks[index];
    const bool to_fallback = rank.sends_in.term == 0;
    if (rank.sends_in == Epoch()) return;
    Epoch now{state.fallback, 0};
    if (!to_fallback) {
      if (rank.sends_in.term != state.coordinator.term) return;
      rank.sends_in.fallback =
          std::max(rank.sends_in.fallback, rank.knows.fallback);
      state.coordinator = std::max(state.coordinator, rank.sends_in);
      now = state.coordinator;
    }
    if (!ignores_(rank.sends_in, now)) {
      int& decided = state.decided[IndexOf(now)];
      if (rank.followed == 0) {
        rank.tickets |= uint32_t{1} << IndexOf(now);
      } else if (decided == 0) {
        decided = rank.followed;
      } else if (decided != rank.followed && !to_fallback) {
        // The generation would end. A fallback epoch is suspended.
        contradiction_ = true;
      }
    }
    Add(state);
  }
  void Decide(State state, const Epoch& epoch) {
    const size_t index = IndexOf(epoch);
    for (const Rank& rank : state.ranks) {
      if ((rank.tickets >> index & 1) == 0) return;
    }
    if (state.decided[index] != 0) return;
    state.decided[index] = static_cast<int>(index) + 1;
    Add(state);
  }
  void Receive(State state, size_t index, size_t decision) {
    Rank& rank = state.ranks[index];
    const Epoch made = EpochOf(decision);
    if (state.decided[decision] == 0 || rank.followed != 0) return;
    if (drops_(made, rank.knows)) return;
    rank.knows = std::max(rank.knows, made);
    rank.followed = state.decided[decision];
    for (const Rank& other : state.ranks) {
      contradiction_ |= other.followed != 0 && other.followed != rank.followed;
    }
    Add(state);
  }

  const Limits limits_;
  const Earlier drops_;
  const Earlier ignores_;
  std::set<State::Packed> seen_;
  std::vector<State> open_;
  bool contradiction_ = false;
};

bool Compared(const Epoch& made, const Epoch& known) { return made < known; }

constexpr Limits kTwoTerms{2, 1};
constexpr Limits kTwoFallbacks{1, 2};

TEST(EpochTest, NoRoundIsFollowedInTwoWaysInAnyHistory) {
  for (const Limits& limits : {kTwoTerms, kTwoFallbacks}) {
    Histories histories(limits, Compared, Compared);
    EXPECT_FALSE(histories.Contradict());
    EXPECT_GT(histories.count(), 5000u);
  }
}

// Each half of the comparison is needed, at each end.
TEST(EpochTest, AnythingLessIsFollowedInTwoWays) {
  const Earlier never = [](const Epoch&, const Epoch&) { return false; };
  const Earlier fallback_only = [](const Epoch& made, const Epoch& known) {
    return made.fallback < known.fallback;
  };
  const Earlier term_only = [](const Epoch& made, const Epoch& known) {
    return made.term < known.term;
  };
  const Earlier term_first = [](const Epoch& made, const Epoch& known) {
    return std::tie(made.term, made.fallback) <
           std::tie(known.term, known.fallback);
  };
  const auto contradict = [](const Earlier& drops, const Earlier& ignores) {
    return Histories(kTwoTerms, drops, ignores).Contradict();
  };
  EXPECT_TRUE(contradict(never, Compared));
  EXPECT_TRUE(contradict(fallback_only, Compared));
  EXPECT_TRUE(contradict(term_only, Compared));
  EXPECT_TRUE(contradict(term_first, Compared));
  EXPECT_TRUE(contradict(Compared, never));
}

}  // namespace
}  // namespace coxswain::schedule::epoch_test
