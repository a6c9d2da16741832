#include "client/comm/two_level/two_level_communicator.h"

#include <atomic>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "base/status_matchers.h"
#include "client/comm/executor.h"
#include "client/comm/held/held_communicator.h"
#include "client/comm/in_process/in_process_world.h"
#include "client/comm/in_process/loopback_communicator.h"
#include "tests/conformance/communicator_conformance.h"
#include "tests/conformance/connected_group.h"
#include "tests/conformance/two_level_group.h"

namespace coxswain {
namespace {

std::vector<std::unique_ptr<Communicator>> MakeGroup(int size,
                                                     absl::Duration timeout) {
  return ConnectGroup(size, timeout, ConnectTwoLevel);
}

CommunicatorCase TwoLevelCase() {
  CommunicatorCase result;
  result.name = "TwoLevel";
  result.make_group = MakeGroup;
  result.sizes = {2, 4};
  result.mean = true;
  result.has_wire = true;
  return result;
}

INSTANTIATE_TEST_SUITE_P(Backends, CommunicatorConformance,
                         testing::Values(TwoLevelCase()), CaseName);

TEST(TwoLevelTest, LargeSumsAreRightWhateverTheirCount) {
  const auto group = MakeGroup(4, absl::Minutes(1));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 4; ++rank) {
    threads.emplace_back([&group, rank] {
      Communicator& comm = *group[static_cast<size_t>(rank)];
      // Several pieces, and a rest that does not divide by the local ranks.
      for (const int64_t count : {1, 2, 3, 1000001, 3 * (1 << 20) + 1}) {
        ASSERT_OK_AND_ASSIGN(const auto buffer,
                             comm.AllocateBuffer(count, DType::kFloat32));
        float* const data = static_cast<float*>(buffer->span().data);
        for (int64_t i = 0; i < count; ++i) {
          data[i] = static_cast<float>((i + rank) % 13);
        }
        ASSERT_OK(comm.AllReduce(buffer->span())->Wait(absl::Minutes(1)));
        for (int64_t i = 0; i < count; ++i) {
          const int64_t sum =
              i % 13 + (i + 1) % 13 + (i + 2) % 13 + (i + 3) % 13;
          ASSERT_EQ(data[i], static_cast<float>(sum)) << i << " of " << count;
        }
        ASSERT_OK(comm.Barrier()->Wait(absl::Minutes(1)));
      }
    });
  }
  for (auto& thread : threads) thread.join();
}

TEST(TwoLevelTest, AGroupOfOneHostSharesMemory) {
  const auto group = MakeGroup(4, absl::Minutes(1));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 4; ++rank) {
    threads.emplace_back([&group, rank] {
      Communicator& comm = *group[static_cast<size_t>(rank)];
      const std::vector<int> host =
          rank < 2 ? std::vector<int>{0, 1} : std::vector<int>{2, 3};
      ASSERT_OK_AND_ASSIGN(const auto local, comm.Split(host));
      EXPECT_EQ(local->backend(), "shm");
      const std::vector<int> place =
          rank % 2 == 0 ? std::vector<int>{0, 2} : std::vector<int>{1, 3};
      ASSERT_OK_AND_ASSIGN(const auto across, comm.Split(place));
      EXPECT_EQ(across->backend(), "tcp");
      ASSERT_OK(across->Barrier()->Wait(absl::Minutes(1)));
    });
  }
  for (auto& thread : threads) thread.join();
}

// A part that counts how often it was aborted.
class WatchedPart : public Communicator {
 public:
  WatchedPart(std::unique_ptr<Communicator> inner, std::atomic<int>* aborts)
      : Communicator(inner->rank(), inner->size()),
        inner_(std::move(inner)),
        aborts_(aborts) {}
  absl::string_view backend() const override { return inner_->backend(); }
  void Abort(absl::string_view reason) override {
    ++*aborts_;
    inner_->Abort(reason);
  }
  int64_t wire_bytes() const override { return 0; }

 protected:
  WorkPtr DoAllReduce(Span span, ReduceOp op) override {
    return inner_->AllReduce(span, op);
  }
  WorkPtr DoBroadcast(Span span, int root) override {
    return inner_->Broadcast(span, root);
  }
  WorkPtr DoAgree(const CollectiveHeader& header) override {
    return inner_->Agree(header);
  }
  WorkPtr DoReduceScatter(Span input, Span output, ReduceOp op) override {
    return inner_->ReduceScatter(input, output, op);
  }
  WorkPtr DoAllGather(Span input, Span output) override {
    return inner_->AllGather(input, output);
  }

 private:
  const std::unique_ptr<Communicator> inner_;
  std::atomic<int>* const aborts_;
};

// A group of one rank, whose flat communicator is held.
struct LoneRank {
  LoneRank() {
    TwoLevelParts parts = {Watched(std::make_unique<LoopbackCommunicator>()),
                           nullptr,
                           {},
                           Hosts({0})};
    parts.bridges.push_back(Watched(std::make_unique<LoopbackCommunicator>()));
    auto owned = std::make_unique<HeldCommunicator>(
        std::make_unique<LoopbackCommunicator>());
    held = owned.get();
    parts.flat = Watched(std::move(owned));
    comm = MakeTwoLevel(std::move(parts), absl::Minutes(1));
  }
  std::unique_ptr<Communicator> Watched(std::unique_ptr<Communicator> part) {
    return std::make_unique<WatchedPart>(std::move(part), &aborts);
  }

  std::atomic<int> aborts{0};
  HeldCommunicator* held = nullptr;
  std::unique_ptr<Communicator> comm;
};

constexpr absl::Duration kSoon = absl::Seconds(20);

TEST(TwoLevelTest, ARankThatLeavesCleanlyAbortsNoPart) {
  LoneRank rank;
  rank.held->Open();
  std::vector<float> data(100);
  const Span span{data.data(), 100, DType::kFloat32, {}};
  ASSERT_OK(rank.comm->AllReduce(span)->Wait(kSoon));
  ASSERT_OK(rank.comm->Broadcast(span, 0)->Wait(kSoon));
  ASSERT_OK(rank.comm->Barrier()->Wait(kSoon));
  rank.comm.reset();
  EXPECT_EQ(rank.aborts, 0);
}

TEST(TwoLevelTest, ARankThatLeavesAmidAnOperationAbortsItsParts) {
  LoneRank rank;
  const WorkPtr work = rank.comm->Barrier();
  ASSERT_TRUE(rank.held->AwaitLaunches(1, kSoon));
  rank.comm.reset();
  EXPECT_GE(rank.aborts, 3);
  EXPECT_THAT(work->Wait(kSoon), StatusIs(absl::StatusCode::kAborted,
                                          testing::HasSubstr("destroyed")));
}

TEST(TwoLevelTest, AMessageThatIsRefusedHasNotBegun) {
  // Rank 0 of two, without the other.
  const auto world = InProcessWorld::Create(2, absl::Minutes(1));
  auto owned = std::make_unique<HeldCommunicator>(world->MakeRank(0));
  HeldCommunicator* const held = owned.get();
  TwoLevelParts parts = {std::make_unique<LoopbackCommunicator>(),
                         std::move(owned),
                         {},
                         Hosts({0, 1})};
  parts.bridges.push_back(std::make_unique<LoopbackCommunicator>());
  const auto comm = MakeTwoLevel(std::move(parts), absl::Minutes(1));
  std::vector<float> data(Executor::kMaxMessages + 1);
  WorkPtr last;
  for (size_t i = 0; i < data.size(); ++i) {
    const Span span{&data[i], 1, DType::kFloat32, {}};
    last = comm->Receive(span, 1, static_cast<uint32_t>(i));
  }
  EXPECT_THAT(last->Wait(kSoon),
              StatusIs(absl::StatusCode::kResourceExhausted, testing::_));
  // It would use memory that the caller has back.
  EXPECT_EQ(held->launches().size(),
            static_cast<size_t>(Executor::kMaxMessages));
}

TEST(TwoLevelTest, AnAbortOfOneRankEndsWhatAllOthersWaitFor) {
  for (int one = 0; one < 4; ++one) {
    const auto group = MakeGroup(4, absl::Minutes(2));
    std::vector<std::vector<float>> data(4, std::vector<float>(100000));
    std::vector<WorkPtr> works;
    for (int rank = 0; rank < 4; ++rank) {
      if (rank == one) continue;
      const Span span{data[rank].data(), 100000, DType::kFloat32, {}};
      works.push_back(group[rank]->AllReduce(span));
    }
    group[one]->Abort("the hook broke");
    for (const WorkPtr& work : works) {
      EXPECT_THAT(work->Wait(kSoon), StatusIs(absl::StatusCode::kUnavailable,
                                              testing::HasSubstr("rank ")));
    }
  }
}

TEST(TwoLevelTest, ARankThatIsLostAmidItsDataIsNoticedByAllOthers) {
  for (int one = 0; one < 4; ++one) {
    auto group = MakeGroup(4, absl::Minutes(2));
    std::vector<std::vector<float>> data(4, std::vector<float>(8 << 20));
    std::vector<WorkPtr> works;
    for (int rank = 0; rank < 4; ++rank) {
      const Span span{data[rank].data(), 8 << 20, DType::kFloat32, {}};
      works.push_back(group[rank]->AllReduce(span));
    }
    while (group[one]->wire_bytes() < 4 << 20) std::this_thread::yield();
    group[one].reset();
    for (int rank = 0; rank < 4; ++rank) {
      const absl::Status status = works[rank]->Wait(kSoon);
      // Well, if this thread was too slow.
      EXPECT_TRUE(status.ok() || absl::IsUnavailable(status) ||
                  (rank == one && absl::IsAborted(status)))
          << "rank " << rank << " of " << one << ": " << status;
    }
  }
}

}  // namespace
}  // namespace coxswain
