// The end of a generation while ranks exchange: at every point between the
// steps of two or three ranks, and at any point of four threads at work.
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/crc32c.h"
#include "base/fake_clock.h"
#include "base/random.h"
#include "base/status_matchers.h"
#include "base/tensor_chunk.h"
#include "server/parameter/parameter_store.h"

namespace coxswain::server {
namespace {

constexpr absl::Duration kTimeout = absl::Minutes(1);

// What the ranks of one play do, all alike.
struct Scene {
  std::string name;
  Reduction reduction = Reduction::kSum;
  int64_t bytes = 0;  // of each part
  int root = -1;
  int peer = -1;
  int64_t pulled = 0;  // bytes of the tensor that each rank wants

  CollectiveOperation Operation(uint64_t id) const {
    CollectiveOperation operation;
    operation.id = id;
    operation.name = "collective";
    operation.version = static_cast<int64_t>(id);
    operation.reduction = reduction;
    operation.dtype = "uint8";
    operation.bytes = bytes;
    operation.root = root;
    operation.peer = peer;
    operation.what = name;
    operation.range = {0, pulled, 0, 1};
    operation.timeout = kTimeout;
    return operation;
  }
};

class Player {
 public:
  Player(ParameterStore* parameters, const Fence& fence, int rank, int size)
      : rank_(rank), outbox_(std::make_shared<Outbox>([] {})) {
    auto participant =
        parameters->JoinGroup(fence, "group", rank, size, outbox_);
    EXPECT_OK(participant);
    if (participant.ok()) participant_ = *std::move(participant);
  }

  // As a stream does: after an error it begins nothing.
  void Begin(const CollectiveOperation& operation) {
    operation_ = operation;
    if (alive()) participant_alive_ = participant_->Begin(operation).ok();
  }
  void Give(int64_t offset) {
    if (!alive() || !operation_.Contributes(rank_)) return;
    const int64_t size = std::min(kTensorChunkBytes, operation_.bytes - offset);
    const std::string bytes(static_cast<size_t>(size),
                            static_cast<char>(rank_ + 1));
    const absl::Status given =
        participant_->Append(operation_.id, offset, bytes, Crc32c(bytes));
    EXPECT_OK(given);
  }
  void Leave() { participant_.reset(); }

  // Takes what was sent: nothing after the end, at most one error for each
  // operation, and nothing after that.
  void Read() {
    while (auto delivery = outbox_->Take()) {
      EXPECT_GT(delivery->operation, 0u);
      EXPECT_NE(delivery->operation, failed_);
      if (!delivery->status.ok()) failed_ = delivery->operation;
      bytes_ += delivery->bytes().size();
    }
  }
  bool ended() const { return outbox_->ended().has_value(); }
  uint64_t failed() const { return failed_; }
  size_t bytes() const { return bytes_; }

 private:
  bool alive() const { return participant_ != nullptr && participant_alive_; }

  const int rank_;
  const std::shared_ptr<Outbox> outbox_;
  std::unique_ptr<ParameterStore::Participant> participant_;
  bool participant_alive_ = true;
  CollectiveOperation operation_;
  uint64_t failed_ = 0;
  size_t bytes_ = 0;
};

Fence MakeFence() {
  Fence fence;
  fence.job = "job";
  fence.generation = Generation(7);
  return fence;
}

void EndGeneration(ParameterStore* parameters) {
  parameters->OnGenerationEnded("job", Generation(7),
                                absl::AbortedError("over"));
}

// The steps of one actor of a play, in order.
using Part = std::vector<std::function<void()>>;

// One play of a scene: each rank begins, gives its chunks and leaves; the
// deadline of all operations passes, and the generation ends, some time.
class Play {
 public:
  Play(const Scene& scene, int size) : size_(size) {
    for (int rank = 0; rank < size; ++rank) {
      players_.push_back(
          std::make_unique<Player>(&parameters_, MakeFence(), rank, size));
      Player* const player = players_.back().get();
      Part part = {[player, scene] { player->Begin(scene.Operation(1)); }};
      for (int64_t at = 0; at < scene.bytes; at += kTensorChunkBytes) {
        part.push_back([player, at] { player->Give(at); });
      }
      part.push_back([player] { player->Leave(); });
      parts_.push_back(std::move(part));
    }
    parts_.push_back({[this] {
      EndGeneration(&parameters_);
      ended_ = true;
    }});
    // Not with all that is large or many: the orders would be too many.
    if (size == 2 && scene.bytes <= kTensorChunkBytes) {
      parts_.push_back({[this] {
        clock_.Advance(kTimeout);
        parameters_.Tick(clock_.Now());
      }});
    }
  }

  // How many steps each actor has.
  std::vector<int> Steps() const {
    std::vector<int> steps;
    for (const Part& part : parts_) {
      steps.push_back(static_cast<int>(part.size()));
    }
    return steps;
  }

  void Run(const std::vector<int>& order) {
    std::vector<size_t> next(parts_.size(), 0);
    for (const int actor : order) {
      const auto which = static_cast<size_t>(actor);
      parts_[which][next[which]++]();
      for (int rank = 0; rank < size_; ++rank) {
        Player& player = *players_[static_cast<size_t>(rank)];
        player.Read();
        // Of those that had left before, none is ended.
        const bool left = next[static_cast<size_t>(rank)] ==
                          parts_[static_cast<size_t>(rank)].size();
        EXPECT_TRUE(player.ended() || left || !ended_);
      }
    }
    EXPECT_EQ(parameters_.bytes(), 0);
  }

 private:
  const int size_;
  FakeClock clock_;
  ParameterStore parameters_{ParameterLimits(), &clock_};
  std::vector<std::unique_ptr<Player>> players_;
  std::vector<Part> parts_;
  bool ended_ = false;
};

// Plays every order in which the actors' steps can follow one another.
int PlayAll(const Scene& scene, int size, std::vector<int>* left,
            std::vector<int>* order) {
  bool over = true;
  int plays = 0;
  for (size_t actor = 0; actor < left->size(); ++actor) {
    if ((*left)[actor] == 0) continue;
    over = false;
    --(*left)[actor];
    order->push_back(static_cast<int>(actor));
    plays += PlayAll(scene, size, left, order);
    order->pop_back();
    ++(*left)[actor];
  }
  if (!over) return plays;
  SCOPED_TRACE(absl::StrCat("order ", absl::StrJoin(*order, " ")));
  Play(scene, size).Run(*order);
  return 1;
}

int PlayAll(const Scene& scene, int size) {
  std::vector<int> left = Play(scene, size).Steps();
  std::vector<int> order;
  return PlayAll(scene, size, &left, &order);
}

class ExchangeEndTest : public testing::TestWithParam<Scene> {};

TEST_P(ExchangeEndTest, MayComeBetweenAnyStepsOfTwoRanks) {
  EXPECT_GE(PlayAll(GetParam(), 2), 180);
}

INSTANTIATE_TEST_SUITE_P(
    Scenes, ExchangeEndTest,
    testing::Values(Scene{"Sum", Reduction::kSum, 4, -1, -1, 4},
                    Scene{"Gather", Reduction::kConcat, 4, -1, -1, 4},
                    Scene{"Broadcast", Reduction::kSet, 4, 0, -1, 4},
                    Scene{"Message", Reduction::kSet, 4, 0, 1, 4},
                    Scene{"Barrier", Reduction::kSum, 0, -1, -1, 0},
                    Scene{"SumOfTwoChunks", Reduction::kSum,
                          kTensorChunkBytes + 1, -1, -1,
                          kTensorChunkBytes + 1}),
    [](const auto& tested) { return tested.param.name; });

TEST(ExchangeEndOfThreeTest, MayComeBetweenAnyStepsOfThreeRanks) {
  EXPECT_EQ(PlayAll({"Sum", Reduction::kSum, 4, -1, -1, 4}, 3), 16'800);
}

// Draws are a function of the seed, whatever the threads do.
class Draws {
 public:
  Draws(uint64_t seed, uint64_t stream) : random_(seed, stream) {}
  int Below(int count) {
    return static_cast<int>(random_.Bits(drawn_++) %
                            static_cast<uint64_t>(count));
  }

 private:
  const CounterRandom random_;
  uint64_t drawn_ = 0;
};

// Four ranks, each a thread, exchange; one of them ends the generation, another
// one may leave early, and deadlines may pass.
void PlayInThreads(uint64_t seed) {
  constexpr int kSize = 4;
  constexpr int kOperations = 12;
  SCOPED_TRACE(absl::StrCat("seed ", seed));
  FakeClock clock;
  ParameterStore parameters({}, &clock);
  std::vector<std::unique_ptr<Player>> players;
  for (int rank = 0; rank < kSize; ++rank) {
    players.push_back(
        std::make_unique<Player>(&parameters, MakeFence(), rank, kSize));
  }
  Draws plan(seed, kSize);
  const int ender = plan.Below(kSize);
  const int end_at = plan.Below(kOperations);
  const int leaver = plan.Below(2 * kSize);  // or none
  const int leave_at = plan.Below(kOperations);
  const bool late = plan.Below(4) == 0;
  std::atomic<int> ready{0};
  std::vector<std::thread> threads;
  for (int rank = 0; rank < kSize; ++rank) {
    threads.emplace_back([&, rank] {
      Player& player = *players[static_cast<size_t>(rank)];
      Draws draws(seed, static_cast<uint64_t>(rank));
      ++ready;
      while (ready < kSize) std::this_thread::yield();
      for (int i = 0; i < kOperations; ++i) {
        Scene scene = {"any", Reduction::kSum, 64, -1, -1, 64};
        // All ranks draw the same here.
        if (Draws(seed, 100 + static_cast<uint64_t>(i)).Below(2) == 1) {
          scene = {"any", Reduction::kSet, 64, i % kSize, -1, 64};
        }
        player.Begin(scene.Operation(static_cast<uint64_t>(i) + 1));
        if (rank == ender && i == end_at) EndGeneration(&parameters);
        if (rank == leaver && i == leave_at) return player.Leave();
        player.Give(0);
        if (draws.Below(3) == 0) std::this_thread::yield();
        player.Read();
      }
      if (rank % 2 == 0) player.Leave();
    });
  }
  if (late) {
    clock.Advance(kTimeout);
    parameters.Tick(clock.Now());
  }
  for (std::thread& thread : threads) thread.join();
  EndGeneration(&parameters);
  for (const auto& player : players) {
    player->Read();
    player->Leave();
  }
  EXPECT_EQ(parameters.bytes(), 0);
}

TEST(ExchangeEndInThreadsTest, MayComeWhileRanksAreAtWork) {
  // Those that broke something once come first.
  std::vector<uint64_t> seeds = {3, 17, 20261124};
  for (uint64_t i = 0; i < 300; ++i) seeds.push_back(Mix64(i));
  for (const uint64_t seed : seeds) PlayInThreads(seed);
}

}  // namespace
}  // namespace coxswain::server
