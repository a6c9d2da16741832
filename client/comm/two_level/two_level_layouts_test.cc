#include <algorithm>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/random.h"
#include "base/status_matchers.h"
#include "client/comm/work.h"
#include "tests/conformance/communicator_conformance.h"
#include "tests/conformance/connected_group.h"
#include "tests/conformance/elements.h"
#include "tests/conformance/two_level_group.h"

// Groups of which hosts have different numbers of ranks: the conformance suite,
// and collectives over hosts at random against what one process computes of the
// same data.

namespace coxswain {
namespace {

using Group = std::vector<std::unique_ptr<Communicator>>;

constexpr absl::Duration kLong = absl::Minutes(1);
constexpr DType kDTypes[] = {DType::kFloat32, DType::kFloat16, DType::kBFloat16,
                             DType::kFloat64, DType::kInt64};

// Numbers of one seed, one after the other.
class Draws {
 public:
  explicit Draws(uint64_t seed) : random_(seed, 0) {}
  int64_t Below(int64_t bound) {
    return static_cast<int64_t>(random_.Bits(next_++) %
                                static_cast<uint64_t>(bound));
  }

 private:
  const CounterRandom random_;
  uint64_t next_ = 0;
};

CommunicatorCase UnevenCase() {
  CommunicatorCase result;
  result.name = "Uneven";
  result.make_group = [](int size, absl::Duration timeout) {
    return MakeLevels(size, UnevenTestHosts(size), timeout);
  };
  result.sizes = {2, 3, 6};
  result.mean = true;
  result.has_wire = true;
  result.has_unequal_wire = true;
  return result;
}

// Hosts of which one has most of the ranks.
CommunicatorCase LayoutCase(const std::string& name,
                            const std::vector<int>& host_of) {
  CommunicatorCase result = UnevenCase();
  result.name = name;
  result.make_group = [host_of](int size, absl::Duration timeout) {
    return MakeLevels(size, Hosts({host_of.begin(), host_of.begin() + size}),
                      timeout);
  };
  result.sizes = {static_cast<int>(host_of.size())};
  return result;
}

INSTANTIATE_TEST_SUITE_P(
    Backends, CommunicatorConformance,
    testing::Values(UnevenCase(), LayoutCase("ThreeAndOne", {0, 1, 0, 0}),
                    LayoutCase("OneOneAndTwo", {0, 2, 1, 2})),
    CaseName);

// Integers of which a sum is exact in 32 bits, and is rounded in 16.
std::vector<Elements> RandomInputs(Draws* draws, DType dtype, int64_t count,
                                   size_t ranks) {
  std::vector<Elements> inputs;
  for (size_t rank = 0; rank < ranks; ++rank) {
    inputs.emplace_back(dtype, count);
    const int64_t shift = draws->Below(1000);
    for (int64_t i = 0; i < count; ++i) {
      const auto bits = Mix64(static_cast<uint64_t>(i + shift) * 64 + rank);
      inputs.back().Set(i, static_cast<double>(bits % 4001) - 2000);
    }
  }
  return inputs;
}

// Returns the reduction of `count` elements of all inputs, rounded once.
Elements Reduced(const std::vector<Elements>& inputs, DType dtype, ReduceOp op,
                 int64_t begin, int64_t count) {
  Elements result(dtype, count);
  for (int64_t i = 0; i < count; ++i) {
    double value = inputs[0].Get(begin + i);
    for (size_t rank = 1; rank < inputs.size(); ++rank) {
      const double next = inputs[rank].Get(begin + i);
      value = op == ReduceOp::kSum   ? value + next
              : op == ReduceOp::kMin ? std::min(value, next)
                                     : std::max(value, next);
    }
    result.Set(i, value);
  }
  return result;
}

void RunAll(const Group& group,
            const std::function<WorkPtr(Communicator&, size_t rank)>& start) {
  std::vector<WorkPtr> works;
  for (size_t rank = 0; rank < group.size(); ++rank) {
    works.push_back(start(*group[rank], rank));
  }
  for (const WorkPtr& work : works) ASSERT_OK(work->Wait(kLong));
}

// From less than one element for each rank to several pieces.
int64_t RandomCount(Draws* draws) {
  constexpr int64_t kMost[] = {8, 100, 5000, 5000, 400000, 2600000};
  return 1 + draws->Below(kMost[draws->Below(6)]);
}

void CheckReductions(const Group& group, Draws* draws) {
  const size_t ranks = group.size();
  const DType dtype = kDTypes[draws->Below(5)];
  const ReduceOp op = draws->Below(3) > 0 ? ReduceOp::kSum : ReduceOp::kMax;
  const int64_t count = RandomCount(draws);
  SCOPED_TRACE(absl::StrCat(count, " x ", NameOf(dtype)));
  const auto inputs = RandomInputs(draws, dtype, count, ranks);
  auto data = inputs;
  RunAll(group, [&](Communicator& comm, size_t rank) {
    return comm.AllReduce(data[rank].span(), op);
  });
  const Elements sum = Reduced(inputs, dtype, op, 0, count);
  for (const Elements& one : data) ASSERT_EQ(one.bytes(), sum.bytes());

  const int64_t slice = count / static_cast<int64_t>(ranks);
  data = inputs;
  std::vector<Elements> outputs(ranks, Elements(dtype, slice));
  RunAll(group, [&](Communicator& comm, size_t rank) {
    const Span input = data[rank].span().Slice(0, slice * comm.size());
    return comm.ReduceScatter(input, outputs[rank].span(), op);
  });
  for (size_t rank = 0; rank < ranks; ++rank) {
    const auto begin = static_cast<int64_t>(rank) * slice;
    ASSERT_EQ(outputs[rank].bytes(),
              Reduced(inputs, dtype, op, begin, slice).bytes());
    ASSERT_EQ(data[rank].bytes(), inputs[rank].bytes());
  }
}

void CheckCopies(const Group& group, Draws* draws) {
  const size_t ranks = group.size();
  const DType dtype = kDTypes[draws->Below(5)];
  const int64_t count = RandomCount(draws);
  const auto root = static_cast<size_t>(draws->Below(group[0]->size()));
  SCOPED_TRACE(absl::StrCat(count, " x ", NameOf(dtype), " from ", root));
  const auto inputs = RandomInputs(draws, dtype, count, ranks);
  auto data = inputs;
  RunAll(group, [&](Communicator& comm, size_t rank) {
    return comm.Broadcast(data[rank].span(), static_cast<int>(root));
  });
  for (const Elements& one : data) ASSERT_EQ(one.bytes(), inputs[root].bytes());

  const int64_t part = std::min<int64_t>(count, 400000);
  std::vector<char> expected;
  data = inputs;
  for (Elements& one : data) {
    const Span span = one.span().Slice(0, part);
    const auto* const bytes = static_cast<const char*>(span.data);
    expected.insert(expected.end(), bytes, bytes + span.bytes());
  }
  std::vector<Elements> outputs(
      ranks, Elements(dtype, part * static_cast<int64_t>(ranks)));
  RunAll(group, [&](Communicator& comm, size_t rank) {
    return comm.AllGather(data[rank].span().Slice(0, part),
                          outputs[rank].span());
  });
  for (const Elements& one : outputs) ASSERT_EQ(one.bytes(), expected);
}

// Copies elements between one run of memory and parts that lie apart.
void CopyParts(const Span& whole, const std::vector<Span>& parts, bool apart) {
  char* at = static_cast<char*>(whole.data);
  for (const Span& part : parts) {
    const auto bytes = static_cast<size_t>(part.bytes());
    if (bytes > 0)
      std::memcpy(apart ? part.data : at, apart ? at : part.data, bytes);
    at += bytes;
  }
}

// Where ranks have their elements in parts, each in others, with gaps.
void CheckMeans(const Group& group, Draws* draws) {
  const size_t ranks = group.size();
  const DType dtype = kDTypes[draws->Below(4)];
  const int64_t count = RandomCount(draws);
  SCOPED_TRACE(absl::StrCat("mean of ", count, " x ", NameOf(dtype)));
  auto divided = RandomInputs(draws, dtype, count, ranks);
  std::vector<Elements> apart;
  std::vector<std::vector<Span>> parts(ranks);
  for (size_t rank = 0; rank < ranks; ++rank) {
    const int64_t gaps = draws->Below(4);
    apart.emplace_back(dtype, count + gaps);
    int64_t begin = 0;
    for (int64_t gap = 0; gap <= gaps; ++gap) {
      const int64_t left = count - begin;
      const int64_t length = gap == gaps ? left : draws->Below(left + 1);
      parts[rank].push_back(apart[rank].span().Slice(begin + gap, length));
      begin += length;
    }
    CopyParts(divided[rank].span(), parts[rank], /*apart=*/true);
    for (int64_t i = 0; i < count; ++i) {
      divided[rank].Set(i, divided[rank].Get(i) / static_cast<double>(ranks));
    }
  }
  RunAll(group, [&](Communicator& comm, size_t rank) {
    return comm.AllReduceMean(parts[rank]);
  });
  RunAll(group, [&](Communicator& comm, size_t rank) {
    return comm.AllReduce(divided[rank].span());
  });
  for (size_t rank = 0; rank < ranks; ++rank) {
    Elements mean(dtype, count);
    CopyParts(mean.span(), parts[rank], /*apart=*/false);
    ASSERT_EQ(mean.bytes(), divided[0].bytes()) << "rank " << rank;
  }
}

TEST(TwoLevelLayoutsTest, AnyLayoutGivesWhatOneProcessComputes) {
  constexpr int kRounds = 24;
  for (int round = 0; round < kRounds; ++round) {
    Draws draws(static_cast<uint64_t>(round));
    std::vector<int> host_of(static_cast<size_t>(1 + draws.Below(7)));
    const int64_t hosts = 1 + draws.Below(4);
    for (int& host : host_of) host = static_cast<int>(draws.Below(hosts));
    if (round % 4 == 3) host_of = {0, 1, 0, 1, 2, 2};
    // Ranks whose place has no bridge.
    if (round % 4 == 2) host_of = {0, 0, 0, 1, 0, 0, 0};
    SCOPED_TRACE(
        absl::StrCat("round ", round, ": hosts ", absl::StrJoin(host_of, ",")));
    const Group group =
        MakeLevels(static_cast<int>(host_of.size()), Hosts(host_of), kLong);
    for (int i = 0; i < 2; ++i) {
      ASSERT_NO_FATAL_FAILURE(CheckReductions(group, &draws));
      ASSERT_NO_FATAL_FAILURE(CheckCopies(group, &draws));
    }
    ASSERT_NO_FATAL_FAILURE(CheckMeans(group, &draws));
    RunAll(group, [](Communicator& comm, size_t) { return comm.Barrier(); });
  }
}

// What a layout's ranks send between hosts for a large collective, by rank, for
// each byte of its input.
std::vector<double> WireShares(const std::vector<int>& host_of, DType dtype,
                               CollectiveKind kind) {
  const auto size = static_cast<int>(host_of.size());
  const int64_t count = int64_t{size} << 19;
  std::vector<Communicator*> flat(host_of.size());
  const Group group =
      ConnectGroup(size, kLong, [&](const CommunicatorOptions& options) {
        return ConnectLevels(options, Hosts(host_of),
                             &flat[static_cast<size_t>(options.rank)]);
      });
  std::vector<Elements> data(group.size(), Elements(dtype, count));
  RunAll(group, [&](Communicator& comm, size_t rank) {
    const Span all = data[rank].span();
    const Span own = all.Slice(comm.rank() * count / size, count / size);
    if (kind == CollectiveKind::kAllGather) return comm.AllGather(own, all);
    if (kind == CollectiveKind::kReduceScatter) {
      return comm.ReduceScatter(all, own);
    }
    return comm.AllReduce(all);
  });
  std::vector<double> shares;
  for (const Communicator* one : flat) {
    shares.push_back(static_cast<double>(one->wire_bytes()) /
                     static_cast<double>(data[0].span().bytes()));
  }
  return shares;
}

TEST(TwoLevelLayoutsTest, EachByteLeavesAHostOnceSpreadOverItsRanks) {
  constexpr auto kAllReduce = CollectiveKind::kAllReduce;
  const auto are = [](const std::vector<double>& shares) {
    return testing::Pointwise(testing::DoubleNear(0.01), shares);
  };
  EXPECT_THAT(WireShares({0, 0, 1, 1}, DType::kFloat32, kAllReduce),
              are({0.5, 0.5, 0.5, 0.5}));
  EXPECT_THAT(WireShares({0, 1, 1}, DType::kFloat32, kAllReduce),
              are({1, 0.5, 0.5}));
  // Half of it in 32 bits, to be summed.
  EXPECT_THAT(WireShares({0, 1}, DType::kBFloat16, kAllReduce),
              are({1.5, 1.5}));
  // Halves of all-reduces.
  for (const auto kind :
       {CollectiveKind::kReduceScatter, CollectiveKind::kAllGather}) {
    EXPECT_THAT(WireShares({0, 0, 1, 1}, DType::kFloat32, kind),
                are({0.25, 0.25, 0.25, 0.25}));
    // As if the smaller hosts had as many ranks as the largest one.
    EXPECT_THAT(WireShares({0, 0, 0, 1, 1}, DType::kFloat32, kind),
                are({0.2, 0.2, 0.2, 0.4, 0.2}));
    // Flat: in a ring no host sends as much as with an empty slot.
    EXPECT_THAT(WireShares({0, 1, 2, 2}, DType::kFloat32, kind),
                are({0.75, 0.75, 0.75, 0.75}));
  }
  // Flat, which would send less than in 32 bits.
  EXPECT_THAT(
      WireShares({0, 1, 1}, DType::kBFloat16, CollectiveKind::kReduceScatter),
      are({2. / 3, 2. / 3, 2. / 3}));
}

// The pieces of 16-bit sums cross twice, and ranks 4 and 5 wait for others to
// take them there.
TEST(TwoLevelLayoutsTest, RanksWithoutABridgeFollowThePiecesOfTheirHost) {
  const std::vector<int> host_of = {0, 0, 0, 1, 0, 0, 0};
  constexpr int64_t kCount = 5 << 20;
  const Group group =
      MakeLevels(static_cast<int>(host_of.size()), Hosts(host_of), kLong);
  std::vector<Elements> data(group.size(), Elements(DType::kBFloat16, kCount));
  for (Elements& one : data) one.Set(kCount - 1, 1);
  RunAll(group, [&](Communicator& comm, size_t rank) {
    return comm.AllReduce(data[rank].span());
  });
  for (Elements& one : data) {
    EXPECT_EQ(one.Get(0), 0);
    EXPECT_EQ(one.Get(kCount - 1), 7);
  }
}

// While 16-bit sums cross twice, with several bridges on one rank.
TEST(TwoLevelLayoutsTest, ARankThatEndsAmidItsPiecesIsNoticedByAllOthers) {
  constexpr int kSize = 4;
  constexpr int64_t kCount = 8 << 20;
  for (size_t one = 0; one < kSize; ++one) {
    for (const bool aborts : {false, true}) {
      Group group = MakeLevels(kSize, UnevenTestHosts(kSize), kLong);
      std::vector<Elements> data(kSize, Elements(DType::kBFloat16, kCount));
      std::vector<WorkPtr> works;
      for (size_t rank = 0; rank < kSize; ++rank) {
        works.push_back(group[rank]->AllReduce(data[rank].span()));
      }
      while (group[one]->wire_bytes() < 1 << 20) std::this_thread::yield();
      if (aborts) {
        group[one]->Abort("the hook broke");
      } else {
        group[one].reset();
      }
      for (size_t rank = 0; rank < kSize; ++rank) {
        const absl::Status status = works[rank]->Wait(kLong / 2);
        // Well, if this thread was too slow.
        EXPECT_TRUE(status.ok() || absl::IsUnavailable(status) ||
                    (rank == one && absl::IsAborted(status)))
            << "rank " << rank << " of " << one << ": " << status;
      }
    }
  }
}

}  // namespace
}  // namespace coxswain
