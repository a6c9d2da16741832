#include "tests/conformance/communicator_conformance.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <set>
#include <thread>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/status_matchers.h"
#include "client/comm/rank_values.h"
#include "client/comm/work.h"
#include "client/device/tensor.h"
#include "tests/conformance/elements.h"

namespace coxswain {
namespace {

using testing::_;
using testing::AnyOf;
using testing::ElementsAre;
using testing::HasSubstr;

using Group = std::vector<std::unique_ptr<Communicator>>;

// A bound for what must end soon; far above what it needs, so that a busy
// machine does not fail a test, and far below the back ends' own timeouts.
constexpr absl::Duration kSoon = absl::Seconds(20);
constexpr absl::Duration kTimeout = absl::Minutes(2);

constexpr DType kDTypes[] = {DType::kFloat32,  DType::kFloat64, DType::kFloat16,
                             DType::kBFloat16, DType::kInt8,    DType::kInt32,
                             DType::kInt64,    DType::kUInt8};
constexpr int64_t kCounts[] = {0, 1, 3, 1000, 100003};

bool IsInteger(DType dtype) {
  return dtype == DType::kInt8 || dtype == DType::kInt32 ||
         dtype == DType::kInt64 || dtype == DType::kUInt8;
}

// Returns the error that a sum of four values below 8 may have.
double Tolerance(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return 1e-5;
    case DType::kFloat64:
      return 1e-13;
    case DType::kFloat16:
      return 32 * std::ldexp(1, -10);
    case DType::kBFloat16:
      return 32 * std::ldexp(1, -7);
    default:
      return 0;
  }
}

// Element i of rank r: small, different everywhere, not exact in a float.
double Value(DType dtype, int rank, int64_t i) {
  if (IsInteger(dtype)) return static_cast<double>((i + 5 * rank) % 23);
  return std::sin(static_cast<double>(i) + 0.37 * rank) * (rank + 1.1);
}

Elements Filled(DType dtype, int64_t count, int rank) {
  Elements elements(dtype, count);
  for (int64_t i = 0; i < count; ++i) elements.Set(i, Value(dtype, rank, i));
  return elements;
}

std::vector<Elements> FilledForAll(DType dtype, int64_t count, int size) {
  std::vector<Elements> all;
  for (int rank = 0; rank < size; ++rank) {
    all.push_back(Filled(dtype, count, rank));
  }
  return all;
}

double Expected(const std::vector<Elements>& inputs, ReduceOp op, int64_t i) {
  double result = inputs[0].Get(i);
  for (size_t rank = 1; rank < inputs.size(); ++rank) {
    const double value = inputs[rank].Get(i);
    if (op == ReduceOp::kSum) result += value;
    if (op == ReduceOp::kMin) result = std::min(result, value);
    if (op == ReduceOp::kMax) result = std::max(result, value);
  }
  return result;
}

// Starts an operation on every rank, in rank order, and waits for all.
void RunAll(const Group& group,
            const std::function<WorkPtr(Communicator*, int)>& start) {
  std::vector<WorkPtr> works;
  for (size_t rank = 0; rank < group.size(); ++rank) {
    works.push_back(start(group[rank].get(), static_cast<int>(rank)));
  }
  for (const WorkPtr& work : works) ASSERT_OK(work->Wait(kSoon));
}

// Checks the elements of a reduction; reports the first that is wrong.
void ExpectReduced(const Elements& actual, const std::vector<Elements>& inputs,
                   ReduceOp op, DType dtype, int64_t offset, int64_t count) {
  const double tolerance = op == ReduceOp::kSum ? Tolerance(dtype) : 0;
  for (int64_t i = 0; i < count; ++i) {
    ASSERT_NEAR(actual.Get(i), Expected(inputs, op, offset + i), tolerance)
        << NameOf(dtype) << " element " << i;
  }
}

TEST_P(CommunicatorConformance, KnowsItsPlace) {
  for (int size : GetParam().sizes) {
    const Group group = GetParam().make_group(size, kTimeout);
    ASSERT_EQ(static_cast<int>(group.size()), size);
    for (int rank = 0; rank < size; ++rank) {
      EXPECT_EQ(group[rank]->rank(), rank);
      EXPECT_EQ(group[rank]->size(), size);
      EXPECT_FALSE(group[rank]->backend().empty());
    }
  }
}

TEST_P(CommunicatorConformance, AllReduceGivesAllRanksTheSameRightBits) {
  for (int size : GetParam().sizes) {
    const Group group = GetParam().make_group(size, kTimeout);
    for (DType dtype : kDTypes) {
      for (int64_t count : kCounts) {
        SCOPED_TRACE(
            absl::StrCat(size, " ranks, ", count, " x ", NameOf(dtype)));
        const auto inputs = FilledForAll(dtype, count, size);
        auto data = inputs;
        RunAll(group, [&](Communicator* comm, int rank) {
          return comm->AllReduce(data[rank].span());
        });
        ExpectReduced(data[0], inputs, ReduceOp::kSum, dtype, 0, count);
        for (int rank = 1; rank < size; ++rank) {
          ASSERT_EQ(data[rank].bytes(), data[0].bytes());
        }
      }
    }
  }
}

TEST_P(CommunicatorConformance, AllReduceFindsMinimumAndMaximum) {
  for (int size : GetParam().sizes) {
    const Group group = GetParam().make_group(size, kTimeout);
    for (DType dtype : kDTypes) {
      for (ReduceOp op : {ReduceOp::kMin, ReduceOp::kMax}) {
        const auto inputs = FilledForAll(dtype, 1000, size);
        auto data = inputs;
        RunAll(group, [&](Communicator* comm, int rank) {
          return comm->AllReduce(data[rank].span(), op);
        });
        for (int rank = 0; rank < size; ++rank) {
          ExpectReduced(data[rank], inputs, op, dtype, 0, 1000);
        }
      }
    }
  }
}

// What a rank divides its elements into, as many as it likes; some are empty.
std::vector<Span> InParts(const Span& span, int rank) {
  if (rank == 0) return {span};
  std::vector<Span> parts = {span.Slice(0, 0)};
  int64_t begin = 0;
  for (int64_t length = 0; begin < span.count; length = 3 * length + rank) {
    const int64_t count = std::min(length, span.count - begin);
    parts.push_back(span.Slice(begin, count));
    begin += count;
  }
  return parts;
}

// Parts that lie apart, the later ones in front.
struct Scattered {
  Scattered(const Elements& elements, DType dtype, int64_t count, int rank)
      : memory(dtype, 2 * count + 64) {
    Elements from = elements;
    Span free = memory.span();
    for (const Span& part : InParts(from.span(), rank)) {
      const int64_t after = free.count - part.count - 1;
      parts.push_back(free.Slice(after, part.count));
      free = free.Slice(0, after);
      if (part.count == 0) continue;
      std::memcpy(parts.back().data, part.data,
                  static_cast<size_t>(part.bytes()));
    }
  }
  std::vector<char> bytes() const {
    std::vector<char> all;
    for (const Span& part : parts) {
      const char* const data = static_cast<const char*>(part.data);
      all.insert(all.end(), data, data + part.bytes());
    }
    return all;
  }

  Elements memory;
  std::vector<Span> parts;
};

TEST_P(CommunicatorConformance, AMeanHasTheBitsOfADivisionAndASum) {
  if (!GetParam().mean) GTEST_SKIP();
  for (int size : GetParam().sizes) {
    const Group group = GetParam().make_group(size, kTimeout);
    for (DType dtype : kDTypes) {
      for (int64_t count : kCounts) {
        if (IsInteger(dtype)) continue;
        SCOPED_TRACE(
            absl::StrCat(size, " ranks, ", count, " x ", NameOf(dtype)));
        auto divided = FilledForAll(dtype, count, size);
        std::vector<Scattered> scattered;
        scattered.reserve(static_cast<size_t>(size));
        for (int rank = 0; rank < size; ++rank) {
          scattered.emplace_back(divided[rank], dtype, count, rank);
          for (int64_t i = 0; i < count; ++i) {
            divided[rank].Set(i, divided[rank].Get(i) / size);
          }
        }
        RunAll(group, [&](Communicator* comm, int rank) {
          return comm->AllReduce(divided[rank].span());
        });
        RunAll(group, [&](Communicator* comm, int rank) {
          EXPECT_TRUE(comm->has_mean());
          return comm->AllReduceMean(scattered[rank].parts);
        });
        for (int rank = 0; rank < size; ++rank) {
          ASSERT_EQ(scattered[rank].bytes(), divided[0].bytes()) << rank;
        }
      }
    }
  }
}

TEST_P(CommunicatorConformance, AMeanCountsOnceAndRefusesWhatHasNone) {
  if (!GetParam().mean) GTEST_SKIP();
  const Group group = GetParam().make_group(GetParam().sizes.back(), kTimeout);
  const auto refused = StatusIs(absl::StatusCode::kInvalidArgument, _);
  for (const auto& comm : group) {
    Elements floats(DType::kFloat32, 4);
    Elements doubles(DType::kFloat64, 4);
    Elements integers(DType::kInt32, 4);
    Span nothing;
    nothing.count = 5;
    Span elsewhere = floats.span();
    elsewhere.device = GetParam().elsewhere;
    EXPECT_THAT(comm->AllReduceMean({integers.span()})->Wait(kSoon), refused);
    EXPECT_THAT(
        comm->AllReduceMean({floats.span(), doubles.span()})->Wait(kSoon),
        refused);
    EXPECT_THAT(comm->AllReduceMean({floats.span(), nothing})->Wait(kSoon),
                refused);
    EXPECT_THAT(comm->AllReduceMean({floats.span(), elsewhere})->Wait(kSoon),
                refused);
  }
  std::vector<Elements> data(group.size(), Elements(DType::kFloat16, 1000));
  RunAll(group, [&](Communicator* comm, int rank) {
    const Span all = data[rank].span();
    return comm->AllReduceMean({all.Slice(0, 400), all.Slice(400, 600)});
  });
  for (const auto& comm : group) {
    EXPECT_EQ(comm->sequence(), 1);
    EXPECT_EQ(comm->payload_bytes(), 2000);
  }
}

TEST_P(CommunicatorConformance, BroadcastCopiesTheRoot) {
  for (int size : GetParam().sizes) {
    const Group group = GetParam().make_group(size, kTimeout);
    for (DType dtype : kDTypes) {
      for (int64_t count : kCounts) {
        const int root = static_cast<int>(count) % size;
        const auto inputs = FilledForAll(dtype, count, size);
        auto data = inputs;
        RunAll(group, [&](Communicator* comm, int rank) {
          return comm->Broadcast(data[rank].span(), root);
        });
        for (int rank = 0; rank < size; ++rank) {
          ASSERT_EQ(data[rank].bytes(), inputs[root].bytes());
        }
      }
    }
  }
}

TEST_P(CommunicatorConformance, AllGatherOrdersByRank) {
  if (!GetParam().all_gather) GTEST_SKIP();
  for (int size : GetParam().sizes) {
    const Group group = GetParam().make_group(size, kTimeout);
    for (DType dtype : kDTypes) {
      for (int64_t count : kCounts) {
        auto inputs = FilledForAll(dtype, count, size);
        std::vector<Elements> outputs(size, Elements(dtype, count * size));
        RunAll(group, [&](Communicator* comm, int rank) {
          return comm->AllGather(inputs[rank].span(), outputs[rank].span());
        });
        std::vector<char> expected;
        for (const Elements& input : inputs) {
          expected.insert(expected.end(), input.bytes().begin(),
                          input.bytes().end());
        }
        for (const Elements& output : outputs) {
          ASSERT_EQ(output.bytes(), expected);
        }
      }
    }
  }
}

TEST_P(CommunicatorConformance, ReduceScatterGivesEachRankItsSlice) {
  if (!GetParam().reduce_scatter) GTEST_SKIP();
  for (int size : GetParam().sizes) {
    const Group group = GetParam().make_group(size, kTimeout);
    for (DType dtype : kDTypes) {
      for (int64_t count : kCounts) {
        const auto inputs = FilledForAll(dtype, count * size, size);
        auto data = inputs;
        std::vector<Elements> outputs(size, Elements(dtype, count));
        RunAll(group, [&](Communicator* comm, int rank) {
          return comm->ReduceScatter(data[rank].span(), outputs[rank].span());
        });
        for (int rank = 0; rank < size; ++rank) {
          ExpectReduced(outputs[rank], inputs, ReduceOp::kSum, dtype,
                        rank * count, count);
          EXPECT_EQ(data[rank].bytes(), inputs[rank].bytes())
              << "the input has changed";
        }
      }
    }
  }
}

// Slices that lie in their buckets are exchanged without copies.
TEST_P(CommunicatorConformance, ReduceScatterMayWriteToItsSliceOfTheInput) {
  if (!GetParam().reduce_scatter) GTEST_SKIP();
  for (int size : GetParam().sizes) {
    const Group group = GetParam().make_group(size, kTimeout);
    for (DType dtype : kDTypes) {
      for (int64_t count : kCounts) {
        const auto inputs = FilledForAll(dtype, count * size, size);
        auto data = inputs;
        RunAll(group, [&](Communicator* comm, int rank) {
          const Span all = data[rank].span();
          return comm->ReduceScatter(all, all.Slice(rank * count, count));
        });
        for (int rank = 0; rank < size; ++rank) {
          const size_t width = SizeOf(dtype);
          const char* own = data[rank].bytes().data() + rank * count * width;
          Elements output(dtype, count);
          std::copy_n(own, count * width,
                      static_cast<char*>(output.span().data));
          ExpectReduced(output, inputs, ReduceOp::kSum, dtype, rank * count,
                        count);
        }
      }
    }
  }
}

TEST_P(CommunicatorConformance, AllGatherMayTakeItsSliceOfTheOutput) {
  if (!GetParam().all_gather) GTEST_SKIP();
  for (int size : GetParam().sizes) {
    const Group group = GetParam().make_group(size, kTimeout);
    for (DType dtype : kDTypes) {
      for (int64_t count : kCounts) {
        auto data = FilledForAll(dtype, count * size, size);
        std::vector<char> expected;
        for (int rank = 0; rank < size; ++rank) {
          const int64_t bytes = count * static_cast<int64_t>(SizeOf(dtype));
          const auto own = data[rank].bytes().begin() + rank * bytes;
          expected.insert(expected.end(), own, own + bytes);
        }
        RunAll(group, [&](Communicator* comm, int rank) {
          const Span all = data[rank].span();
          return comm->AllGather(all.Slice(rank * count, count), all);
        });
        for (int rank = 0; rank < size; ++rank) {
          ASSERT_EQ(data[rank].bytes(), expected);
        }
      }
    }
  }
}

TEST_P(CommunicatorConformance, AllToAllTransposesTheSlices) {
  if (!GetParam().all_to_all) GTEST_SKIP();
  for (int size : GetParam().sizes) {
    const Group group = GetParam().make_group(size, kTimeout);
    for (DType dtype : kDTypes) {
      for (int64_t count : kCounts) {
        auto inputs = FilledForAll(dtype, count * size, size);
        std::vector<Elements> outputs(size, Elements(dtype, count * size));
        RunAll(group, [&](Communicator* comm, int rank) {
          return comm->AllToAll(inputs[rank].span(), outputs[rank].span());
        });
        const size_t bytes = static_cast<size_t>(count) * SizeOf(dtype);
        for (int to = 0; to < size; ++to) {
          for (int from = 0; from < size; ++from) {
            ASSERT_TRUE(
                std::equal(outputs[to].bytes().begin() + from * bytes,
                           outputs[to].bytes().begin() + (from + 1) * bytes,
                           inputs[from].bytes().begin() + to * bytes));
          }
        }
      }
    }
  }
}

TEST_P(CommunicatorConformance, MessagesPairByPeerAndTag) {
  if (!GetParam().messages) GTEST_SKIP();
  for (int size : GetParam().sizes) {
    if (size < 2) continue;
    const Group group = GetParam().make_group(size, kTimeout);
    // All ranks send two messages to all others before anyone receives, and
    // receive them in the other order.
    struct Exchange {
      Elements sent;
      Elements received;
      int from;
      int to;
      uint32_t tag;
    };
    std::vector<Exchange> exchanges;
    for (int from = 0; from < size; ++from) {
      for (int to = 0; to < size; ++to) {
        for (uint32_t tag : {7u, 8u}) {
          if (from == to) continue;
          exchanges.push_back(
              {Filled(DType::kFloat32, 5000, from * 9 + to * 3 + tag),
               Elements(DType::kFloat32, 5000), from, to, tag});
        }
      }
    }
    std::vector<WorkPtr> works;
    for (auto& exchange : exchanges) {
      works.push_back(group[exchange.from]->Send(exchange.sent.span(),
                                                 exchange.to, exchange.tag));
    }
    std::reverse(exchanges.begin(), exchanges.end());
    for (auto& exchange : exchanges) {
      works.push_back(group[exchange.to]->Receive(exchange.received.span(),
                                                  exchange.from, exchange.tag));
    }
    for (const WorkPtr& work : works) ASSERT_OK(work->Wait(kSoon));
    for (const auto& exchange : exchanges) {
      EXPECT_EQ(exchange.received.bytes(), exchange.sent.bytes());
    }
  }
}

TEST_P(CommunicatorConformance, MessagesOfOneTagArriveInOrder) {
  if (!GetParam().messages || !GetParam().waits) GTEST_SKIP();
  const Group group = GetParam().make_group(2, kTimeout);
  constexpr int kMessages = 20;
  auto sent = FilledForAll(DType::kInt32, 100, kMessages);
  std::vector<Elements> received(kMessages, Elements(DType::kInt32, 100));
  std::vector<WorkPtr> works;
  for (int i = 0; i < kMessages; ++i) {
    works.push_back(group[1]->Receive(received[i].span(), 0, 3));
  }
  for (int i = 0; i < kMessages; ++i) {
    works.push_back(group[0]->Send(sent[i].span(), 1, 3));
  }
  for (const WorkPtr& work : works) ASSERT_OK(work->Wait(kSoon));
  for (int i = 0; i < kMessages; ++i) {
    EXPECT_EQ(received[i].bytes(), sent[i].bytes()) << "message " << i;
  }
}

TEST_P(CommunicatorConformance, AMessageDoesNotHoldUpACollective) {
  if (!GetParam().messages || !GetParam().waits) GTEST_SKIP();
  const Group group = GetParam().make_group(2, kTimeout);
  Elements out(DType::kFloat32, 10);
  Elements in = Filled(DType::kFloat32, 10, 4);
  const WorkPtr receive = group[0]->Receive(out.span(), 1, 0);
  RunAll(group, [](Communicator* comm, int) { return comm->Barrier(); });
  EXPECT_FALSE(receive->Done());
  const WorkPtr send = group[1]->Send(in.span(), 0, 0);
  EXPECT_OK(receive->Wait(kSoon));
  EXPECT_OK(send->Wait(kSoon));
  EXPECT_EQ(out.bytes(), in.bytes());
}

TEST_P(CommunicatorConformance, LackingAbilitiesAreUnimplemented) {
  const Group group = GetParam().make_group(GetParam().sizes.back(), kTimeout);
  Communicator& comm = *group[0];
  Elements small(DType::kFloat32, 4);
  Elements large(DType::kFloat32, 4 * comm.size());
  const auto unimplemented =
      StatusIs(absl::StatusCode::kUnimplemented, HasSubstr(comm.backend()));
  if (!GetParam().all_gather) {
    EXPECT_THAT(comm.AllGather(small.span(), large.span())->Wait(kSoon),
                unimplemented);
  }
  if (!GetParam().reduce_scatter) {
    EXPECT_THAT(comm.ReduceScatter(large.span(), small.span())->Wait(kSoon),
                unimplemented);
  }
  if (!GetParam().all_to_all) {
    EXPECT_THAT(comm.AllToAll(large.span(), large.span())->Wait(kSoon),
                unimplemented);
  }
  if (!GetParam().mean) {
    EXPECT_FALSE(comm.has_mean());
    EXPECT_THAT(comm.AllReduceMean({small.span()})->Wait(kSoon), unimplemented);
  }
  if (!GetParam().messages && comm.size() > 1) {
    EXPECT_THAT(comm.Send(small.span(), 1, 0)->Wait(kSoon), unimplemented);
    EXPECT_THAT(comm.Receive(small.span(), 1, 0)->Wait(kSoon), unimplemented);
  }
  if (!GetParam().channels && comm.size() > 1) {
    const ChannelOptions options = {1, 0, small.span().bytes(), 1};
    EXPECT_THAT(comm.OpenSender(options), unimplemented);
    EXPECT_THAT(comm.OpenReceiver(options), unimplemented);
  }
}

TEST_P(CommunicatorConformance, BadArgumentsAreRefusedAndHarmless) {
  for (int size : GetParam().sizes) {
    const Group group = GetParam().make_group(size, kTimeout);
    std::vector<Elements> some(size, Elements(DType::kFloat32, 4));
    std::vector<Elements> others(size, Elements(DType::kFloat64, 4 * size));
    const auto refused = StatusIs(absl::StatusCode::kInvalidArgument, _);
    // Alike on all ranks, as refused collectives have their place in the order.
    for (int rank = 0; rank < size; ++rank) {
      Communicator& comm = *group[rank];
      Span nothing;
      nothing.count = 5;
      Span negative;
      negative.count = -size;
      Span elsewhere = some[rank].span();
      elsewhere.device = GetParam().elsewhere;
      EXPECT_THAT(comm.AllReduce(nothing)->Wait(kSoon), refused);
      EXPECT_THAT(comm.AllReduce(elsewhere)->Wait(kSoon), refused);
      EXPECT_THAT(comm.Broadcast(some[rank].span(), size)->Wait(kSoon),
                  refused);
      EXPECT_THAT(comm.Broadcast(some[rank].span(), -1)->Wait(kSoon), refused);
      EXPECT_THAT(
          comm.AllGather(some[rank].span(), others[rank].span())->Wait(kSoon),
          refused);
      EXPECT_THAT(comm.AllToAll(negative, negative)->Wait(kSoon), refused);
      EXPECT_THAT(comm.Send(some[rank].span(), rank, 0)->Wait(kSoon), refused);
      EXPECT_THAT(comm.Receive(some[rank].span(), size, 0)->Wait(kSoon),
                  refused);
    }
    RunAll(group, [](Communicator* each, int) { return each->Barrier(); });
  }
}

TEST_P(CommunicatorConformance, EmptyCollectivesEndWell) {
  for (int size : GetParam().sizes) {
    const Group group = GetParam().make_group(size, kTimeout);
    Elements none(DType::kFloat32, 0);
    RunAll(group, [&](Communicator* comm, int) {
      return comm->AllReduce(none.span());
    });
    RunAll(group, [&](Communicator* comm, int) {
      return comm->Broadcast(none.span(), size - 1);
    });
    if (GetParam().all_gather) {
      RunAll(group, [&](Communicator* comm, int) {
        return comm->AllGather(none.span(), none.span());
      });
    }
    if (GetParam().reduce_scatter) {
      RunAll(group, [&](Communicator* comm, int) {
        return comm->ReduceScatter(none.span(), none.span());
      });
    }
    if (GetParam().all_to_all) {
      RunAll(group, [&](Communicator* comm, int) {
        return comm->AllToAll(none.span(), none.span());
      });
    }
    RunAll(group, [](Communicator* comm, int) { return comm->Barrier(); });
  }
}

// What one rank begins where the others begin an all-reduce of `kOurs`.
constexpr int64_t kOurs = 1000;
struct MismatchedCollective {
  std::string name;
  // Its name in the error of all ranks.
  std::string description;
  std::function<WorkPtr(Communicator*, Elements*)> begin;
};

std::vector<MismatchedCollective> MismatchedCollectives(
    const CommunicatorCase& param) {
  std::vector<MismatchedCollective> mismatched = {
      {"another kind", "broadcast",
       [](Communicator* comm, Elements* data) {
         return comm->Broadcast(data->span(), 0);
       }},
      {"a barrier", "barrier",
       [](Communicator* comm, Elements*) { return comm->Barrier(); }},
      {"another type", "float64",
       [](Communicator* comm, Elements* data) {
         Span span = data->span();
         span.dtype = DType::kFloat64;
         span.count /= 2;
         return comm->AllReduce(span);
       }},
      {"another type of this width", "int32",
       [](Communicator* comm, Elements* data) {
         Span span = data->span();
         span.dtype = DType::kInt32;
         return comm->AllReduce(span);
       }},
      {"fewer elements", "all-reduce",
       [](Communicator* comm, Elements* data) {
         return comm->AllReduce(data->span().Slice(0, kOurs - 1));
       }},
      {"more elements", "all-reduce",
       [](Communicator* comm, Elements* data) {
         Span span = data->span();
         span.count = 2 * kOurs;
         return comm->AllReduce(span);
       }},
      {"no element", "all-reduce",
       [](Communicator* comm, Elements* data) {
         return comm->AllReduce(data->span().Slice(0, 0));
       }},
      {"another reduction", "max",
       [](Communicator* comm, Elements* data) {
         return comm->AllReduce(data->span(), ReduceOp::kMax);
       }},
      {"a call that is refused", "refused call of all-reduce",
       [](Communicator* comm, Elements*) {
         Span nothing;
         nothing.count = kOurs;
         return comm->AllReduce(nothing);
       }},
      {"memory that is refused", "refused call of all-reduce",
       [elsewhere = param.elsewhere](Communicator* comm, Elements* data) {
         Span span = data->span();
         span.device = elsewhere;
         return comm->AllReduce(span);
       }},
  };
  if (param.mean) {
    mismatched.push_back({"a mean", "mean of 1000 x float32",
                          [](Communicator* comm, Elements* data) {
                            return comm->AllReduceMean(
                                {data->span().Slice(0, kOurs)});
                          }});
  }
  return mismatched;
}

TEST_P(CommunicatorConformance, DifferentCollectivesAreAnErrorThatNamesThem) {
  if (!GetParam().compares || !GetParam().waits) GTEST_SKIP();
  for (int size : GetParam().sizes) {
    if (size < 2) continue;
    const Group group = GetParam().make_group(size, kTimeout);
    for (const MismatchedCollective& mismatched :
         MismatchedCollectives(GetParam())) {
      for (const int one : {0, size - 1}) {
        SCOPED_TRACE(absl::StrCat("rank ", one, " of ", size, " begins ",
                                  mismatched.name));
        // Space for ranks that take it for longer.
        std::vector<Elements> data(size, Elements(DType::kFloat32, 4 * kOurs));
        std::vector<WorkPtr> works;
        for (int rank = 0; rank < size; ++rank) {
          Communicator* const comm = group[rank].get();
          works.push_back(
              rank == one ? mismatched.begin(comm, &data[rank])
                          : comm->AllReduce(data[rank].span().Slice(0, kOurs)));
        }
        for (int rank = 0; rank < size; ++rank) {
          const absl::Status status = works[rank]->Wait(kSoon);
          EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument)
              << "rank " << rank << ": " << status;
          // A rank whose own call was refused has learnt why already.
          if (rank == one && absl::StrContains(mismatched.name, "refused"))
            continue;
          const std::string message(status.message());
          EXPECT_THAT(message, HasSubstr("different collectives"));
          EXPECT_THAT(message, HasSubstr(absl::StrCat("rank ", one)));
          EXPECT_THAT(message, HasSubstr("all-reduce"));
          EXPECT_THAT(message, HasSubstr(mismatched.description));
        }
        // Not a byte has moved.
        for (int rank = 0; rank < size; ++rank) {
          EXPECT_EQ(data[rank].bytes(),
                    Elements(DType::kFloat32, 4 * kOurs).bytes());
        }
      }
    }
    // The group is of use as before.
    RunAll(group, [](Communicator* comm, int) { return comm->Barrier(); });
  }
}

TEST_P(CommunicatorConformance, DifferentBroadcastsAreAnErrorThatNamesThem) {
  if (!GetParam().compares || !GetParam().waits) GTEST_SKIP();
  for (int size : GetParam().sizes) {
    if (size < 2) continue;
    const Group group = GetParam().make_group(size, kTimeout);
    for (const int64_t count : {1000, 100003}) {
      for (const int64_t other : {count - 1, count + 1}) {
        // The root has another count, and then a receiver.
        for (const int one : {0, size - 1}) {
          std::vector<Elements> data(size,
                                     Elements(DType::kFloat32, count + 1));
          std::vector<WorkPtr> works;
          for (int rank = 0; rank < size; ++rank) {
            const int64_t own = rank == one ? other : count;
            works.push_back(
                group[rank]->Broadcast(data[rank].span().Slice(0, own), 0));
          }
          for (const WorkPtr& work : works) {
            EXPECT_THAT(work->Wait(kSoon),
                        StatusIs(absl::StatusCode::kInvalidArgument,
                                 HasSubstr(absl::StrCat("rank ", one))));
          }
        }
      }
    }
    // Roots that differ.
    std::vector<Elements> data(size, Elements(DType::kFloat32, 10));
    std::vector<WorkPtr> works;
    for (int rank = 0; rank < size; ++rank) {
      works.push_back(group[rank]->Broadcast(data[rank].span(), rank % 2));
    }
    for (const WorkPtr& work : works) {
      EXPECT_THAT(work->Wait(kSoon),
                  StatusIs(absl::StatusCode::kInvalidArgument,
                           testing::AllOf(HasSubstr("from rank 0"),
                                          HasSubstr("from rank 1"))));
    }
    RunAll(group, [](Communicator* comm, int) { return comm->Barrier(); });
  }
}

TEST_P(CommunicatorConformance, AnotherOrderIsAnErrorThatNamesTheRanks) {
  if (!GetParam().compares || !GetParam().waits) GTEST_SKIP();
  for (int size : GetParam().sizes) {
    if (size < 2) continue;
    const Group group = GetParam().make_group(size, kTimeout);
    std::vector<Elements> data(size, Elements(DType::kFloat32, 500));
    std::vector<Elements> more(size, Elements(DType::kFloat32, 700));
    std::vector<WorkPtr> works;
    for (int rank = 0; rank < size; ++rank) {
      const auto first = [&] {
        works.push_back(group[rank]->AllReduce(data[rank].span()));
      };
      if (rank + 1 < size) first();
      works.push_back(group[rank]->AllReduce(more[rank].span()));
      if (rank + 1 == size) first();
    }
    for (const WorkPtr& work : works) {
      EXPECT_THAT(work->Wait(kSoon),
                  StatusIs(absl::StatusCode::kInvalidArgument,
                           HasSubstr(absl::StrCat("rank ", size - 1))));
    }
    RunAll(group, [](Communicator* comm, int) { return comm->Barrier(); });
  }
}

// A message whose ends differ is an error at the receiver at least, and never
// the end of a process.
TEST_P(CommunicatorConformance, MessagesOfDifferentSizesAreRefused) {
  if (!GetParam().messages || !GetParam().waits) GTEST_SKIP();
  const Group group = GetParam().make_group(2, kTimeout);
  for (const int64_t sent : {99, 101}) {
    Elements from(DType::kFloat32, sent);
    Elements to(DType::kFloat32, 100);
    const WorkPtr send = group[0]->Send(from.span(), 1, 4);
    EXPECT_THAT(group[1]->Receive(to.span(), 0, 4)->Wait(kSoon),
                StatusIs(absl::StatusCode::kInvalidArgument, _));
    const absl::Status status = send->Wait(kSoon);
    EXPECT_TRUE(status.ok() || absl::IsInvalidArgument(status)) << status;
  }
  // Later ones of the tag pair as before.
  Elements from = Filled(DType::kFloat32, 100, 3);
  Elements to(DType::kFloat32, 100);
  const WorkPtr send = group[0]->Send(from.span(), 1, 4);
  EXPECT_OK(group[1]->Receive(to.span(), 0, 4)->Wait(kSoon));
  EXPECT_OK(send->Wait(kSoon));
  EXPECT_EQ(to.bytes(), from.bytes());
}

// Runs an operation on each rank, on a thread of its own, and destroys its
// communicator at once.
void RunAndLeave(Group group,
                 const std::function<WorkPtr(Communicator*, int)>& start) {
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < group.size(); ++rank) {
    threads.emplace_back([&, rank] {
      EXPECT_OK(start(group[rank].get(), static_cast<int>(rank))->Wait(kSoon))
          << "rank " << rank;
      group[rank].reset();
    });
  }
  for (auto& thread : threads) thread.join();
}

TEST_P(CommunicatorConformance, ARankThatLeavesAfterABroadcastDisturbsNoOther) {
  const int size = GetParam().sizes.back();
  for (int round = 0; round < 60; ++round) {
    for (const int64_t count : {16, 40000}) {
      auto data = FilledForAll(DType::kFloat32, count, size);
      const int root = round % size;
      const Elements sent = data[root];
      RunAndLeave(GetParam().make_group(size, kTimeout),
                  [&](Communicator* comm, int rank) {
                    return comm->Broadcast(data[rank].span(), root);
                  });
      for (const Elements& one : data) ASSERT_EQ(one.bytes(), sent.bytes());
    }
  }
}

TEST_P(CommunicatorConformance,
       ARankThatLeavesAfterAnAllReduceDisturbsNoOther) {
  const int size = GetParam().sizes.back();
  for (int round = 0; round < 30; ++round) {
    auto data = FilledForAll(DType::kFloat32, 40000, size);
    RunAndLeave(GetParam().make_group(size, kTimeout),
                [&](Communicator* comm, int rank) {
                  return comm->AllReduce(data[rank].span());
                });
    for (const Elements& one : data) ASSERT_EQ(one.bytes(), data[0].bytes());
  }
}

TEST_P(CommunicatorConformance, ABarrierWaitsForAll) {
  if (!GetParam().waits) GTEST_SKIP();
  for (int size : GetParam().sizes) {
    const Group group = GetParam().make_group(size, kTimeout);
    std::vector<WorkPtr> works;
    for (int rank = 0; rank + 1 < size; ++rank) {
      works.push_back(group[rank]->Barrier());
    }
    for (const WorkPtr& work : works) EXPECT_FALSE(work->Done());
    works.push_back(group[size - 1]->Barrier());
    for (const WorkPtr& work : works) ASSERT_OK(work->Wait(kSoon));
  }
}

TEST_P(CommunicatorConformance, WhoWaitsForACollectiveCounts) {
  if (!GetParam().waits) GTEST_SKIP();
  const Group group = GetParam().make_group(2, kTimeout);
  const auto waits = std::make_shared<WaitCount>();
  group[0]->CountWaitsIn(waits);
  const WorkPtr first = group[0]->Barrier();
  EXPECT_FALSE(waits->any()) << "it has begun, and is not waited for";
  ASSERT_OK(group[1]->Barrier()->Wait(kSoon));
  EXPECT_EQ(waits->ended(), 0);
  ASSERT_OK(first->Wait(kSoon));
  EXPECT_FALSE(waits->any());
  EXPECT_EQ(waits->ended(), 1);
}

TEST_P(CommunicatorConformance, ManyOutstandingOperationsEndInOrder) {
  for (int size : GetParam().sizes) {
    const Group group = GetParam().make_group(size, kTimeout);
    constexpr int kOperations = 60;
    // Each rank's operations, in the order in which they end there.
    std::vector<std::vector<int>> ended(size);
    std::vector<std::vector<Elements>> data(size);
    std::vector<WorkPtr> works;
    for (int rank = 0; rank < size; ++rank) {
      for (int i = 0; i < kOperations; ++i) {
        data[rank].push_back(
            Filled(DType::kFloat32, 1 + (i * 977) % 5000, rank + i));
      }
    }
    const auto inputs = data;
    for (int rank = 0; rank < size; ++rank) {
      for (int i = 0; i < kOperations; ++i) {
        Communicator& comm = *group[rank];
        const Span span = data[rank][i].span();
        works.push_back(i % 3 == 2 ? comm.Broadcast(span, i % size)
                                   : comm.AllReduce(span));
        works.back()->OnDone([&ended, rank, i](const absl::Status&) {
          ended[rank].push_back(i);
        });
      }
    }
    for (const WorkPtr& work : works) ASSERT_OK(work->Wait(kSoon));
    // A callback runs after waiters are woken: let the threads get past it.
    RunAll(group, [](Communicator* comm, int) { return comm->Barrier(); });
    for (int rank = 0; rank < size; ++rank) {
      ASSERT_EQ(ended[rank].size(), static_cast<size_t>(kOperations));
      EXPECT_TRUE(std::is_sorted(ended[rank].begin(), ended[rank].end()));
      for (int i = 0; i < kOperations; ++i) {
        ASSERT_EQ(data[rank][i].bytes(), data[0][i].bytes());
        if (i % 3 == 2) {
          ASSERT_EQ(data[rank][i].bytes(), inputs[i % size][i].bytes());
        }
      }
    }
  }
}

TEST_P(CommunicatorConformance, CountsSequenceAndPayload) {
  for (int size : GetParam().sizes) {
    const Group group = GetParam().make_group(size, kTimeout);
    Elements reduced(DType::kFloat16, 1000);  // 2000 bytes
    std::vector<Elements> data(size, reduced);
    std::vector<Elements> large(size, Elements(DType::kFloat16, 1000 * size));
    RunAll(group, [&](Communicator* comm, int rank) {
      return comm->AllReduce(data[rank].span());
    });
    RunAll(group, [&](Communicator* comm, int rank) {
      return comm->Broadcast(data[rank].span(), size - 1);
    });
    RunAll(group, [&](Communicator* comm, int) { return comm->Barrier(); });
    int64_t expected = 2000;
    int64_t operations = 3;
    if (GetParam().all_gather) {
      RunAll(group, [&](Communicator* comm, int rank) {
        return comm->AllGather(data[rank].span(), large[rank].span());
      });
      expected += 2000;
      ++operations;
    }
    if (GetParam().reduce_scatter) {
      RunAll(group, [&](Communicator* comm, int rank) {
        return comm->ReduceScatter(large[rank].span(), data[rank].span());
      });
      expected += 2000 * size;
      ++operations;
    }
    for (int rank = 0; rank < size; ++rank) {
      EXPECT_EQ(group[rank]->sequence(), operations);
      EXPECT_EQ(group[rank]->payload_bytes(),
                expected + (rank == size - 1 ? 2000 : 0));
    }
  }
}

TEST_P(CommunicatorConformance, WireBytesAreThoseOfTheBackEnd) {
  if (GetParam().has_unequal_wire) GTEST_SKIP();
  for (int size : GetParam().sizes) {
    const Group group = GetParam().make_group(size, kTimeout);
    std::vector<Elements> data(size, Elements(DType::kFloat32, 1 << 20));
    RunAll(group, [&](Communicator* comm, int rank) {
      return comm->AllReduce(data[rank].span());
    });
    for (const auto& comm : group) {
      const double payload = static_cast<double>(comm->payload_bytes());
      double share = GetParam().has_wire ? 2.0 * (size - 1) / size : 0;
      if (GetParam().wire_share) share = GetParam().wire_share(size);
      EXPECT_NEAR(static_cast<double>(comm->wire_bytes()), share * payload,
                  0.01 * payload);
    }
  }
}

TEST_P(CommunicatorConformance, AllocatesZeroedMemoryThatItMoves) {
  const Group group = GetParam().make_group(GetParam().sizes.back(), kTimeout);
  std::vector<std::unique_ptr<BufferOwner>> buffers;
  for (const auto& comm : group) {
    ASSERT_OK_AND_ASSIGN(auto buffer,
                         comm->AllocateBuffer(1000, DType::kFloat32));
    ASSERT_EQ(buffer->span().count, 1000);
    ASSERT_EQ(static_cast<float*>(buffer->span().data)[999], 0.0f);
    static_cast<float*>(buffer->span().data)[999] = 1.0f;
    buffers.push_back(std::move(buffer));
  }
  RunAll(group, [&](Communicator* comm, int rank) {
    return comm->AllReduce(buffers[rank]->span());
  });
  EXPECT_EQ(static_cast<float*>(buffers[0]->span().data)[999],
            static_cast<float>(group.size()));
}

TEST_P(CommunicatorConformance, RanksAgreeByAFewNumbers) {
  const Group group = GetParam().make_group(GetParam().sizes.back(), kTimeout);
  const auto size = static_cast<int64_t>(group.size());
  std::vector<std::thread> ranks;
  for (const auto& comm : group) {
    ranks.emplace_back([&comm = *comm, size] {
      const int64_t rank = comm.rank();
      const std::vector<int64_t> own = {rank, -rank, int64_t{1} << 60};
      const auto most = ReduceValues(comm, own, ReduceOp::kMax, kTimeout);
      ASSERT_OK(most);
      EXPECT_THAT(*most, ElementsAre(size - 1, 0, int64_t{1} << 60));
      const auto all = GatherValues(comm, {rank, rank + 10}, kTimeout);
      ASSERT_OK(all);
      ASSERT_EQ(static_cast<int64_t>(all->size()), 2 * size);
      for (int64_t i = 0; i < size; ++i) {
        EXPECT_EQ((*all)[2 * i], i);
        EXPECT_EQ((*all)[2 * i + 1], i + 10);
      }
    });
  }
  for (std::thread& rank : ranks) rank.join();
}

TEST_P(CommunicatorConformance, AbortEndsWhatWaitsAndWhatComes) {
  for (int size : GetParam().sizes) {
    const Group group = GetParam().make_group(size, kTimeout);
    Communicator& comm = *group[0];
    Elements data(DType::kFloat32, 1000);
    Elements message(DType::kFloat32, 1000);
    const auto aborted =
        StatusIs(absl::StatusCode::kAborted, HasSubstr("the first reason"));
    std::vector<WorkPtr> works;
    if (GetParam().waits && size > 1) {
      works.push_back(comm.AllReduce(data.span()));
      works.push_back(comm.Barrier());
      if (GetParam().messages) {
        works.push_back(comm.Receive(message.span(), 1, 0));
      }
    }
    std::thread aborter([&] {
      comm.Abort("the first reason");
      comm.Abort("another reason");
    });
    for (const WorkPtr& work : works) EXPECT_THAT(work->Wait(kSoon), aborted);
    aborter.join();
    EXPECT_THAT(comm.AllReduce(data.span())->Wait(kSoon), aborted);
    EXPECT_THAT(comm.Barrier()->Wait(kSoon), aborted);
    if (GetParam().messages && size > 1) {
      EXPECT_THAT(comm.Send(data.span(), 1, 0)->Wait(kSoon), aborted);
    }
  }
}

TEST_P(CommunicatorConformance, AbortReachesAnOperationAtAnyMoment) {
  // Aborts while all ranks exchange at full speed; where it strikes differs
  // from round to round.
  const int size = GetParam().sizes.back();
  for (int round = 0; round < 10; ++round) {
    const Group group = GetParam().make_group(size, kTimeout);
    std::vector<std::vector<Elements>> data(
        size, std::vector<Elements>(20, Elements(DType::kFloat32, 20000)));
    std::vector<WorkPtr> works;
    for (int i = 0; i < 20; ++i) {
      for (int rank = 0; rank < size; ++rank) {
        works.push_back(group[rank]->AllReduce(data[rank][i].span()));
      }
    }
    works[round * size]->Wait(kSoon).IgnoreError();
    for (const auto& comm : group) comm->Abort("enough");
    for (const WorkPtr& work : works) {
      const absl::Status status = work->Wait(kSoon);
      EXPECT_TRUE(status.ok() || absl::IsAborted(status) ||
                  absl::IsUnavailable(status))
          << status;
    }
  }
}

TEST_P(CommunicatorConformance, ALostPeerIsNoticedByTheRankThatWaitsForIt) {
  if (!GetParam().waits) GTEST_SKIP();
  for (int size : GetParam().sizes) {
    if (size < 2) continue;
    Group group = GetParam().make_group(size, kTimeout);
    std::vector<Elements> data(size, Elements(DType::kFloat32, 1000));
    std::vector<WorkPtr> works;
    for (int rank = 0; rank + 1 < size; ++rank) {
      works.push_back(group[rank]->AllReduce(data[rank].span()));
    }
    group.back().reset();
    // The ranks that wait for the lost one notice; when they fail, so do their
    // neighbours. Their owner ends them: here, by destruction.
    std::set<absl::StatusCode> codes;
    for (int rank = size - 2; rank >= 0; --rank) {
      if (rank != 0 && rank != size - 2) continue;
      const absl::Status status = works[rank]->Wait(kSoon);
      EXPECT_THAT(status.code(), AnyOf(absl::StatusCode::kUnavailable,
                                       absl::StatusCode::kDeadlineExceeded))
          << status;
      EXPECT_THAT(std::string(status.message()),
                  HasSubstr(absl::StrCat("rank ", rank)));
      EXPECT_THAT(group[rank]->Barrier()->Wait(kSoon),
                  StatusIs(absl::StatusCode::kAborted,
                           HasSubstr("an earlier operation failed")));
    }
    group.clear();
    for (const WorkPtr& work : works) {
      EXPECT_NE(work->Wait(kSoon).code(), absl::StatusCode::kOk);
    }
  }
}

TEST_P(CommunicatorConformance, ASilentPeerMakesADeadline) {
  if (!GetParam().waits) GTEST_SKIP();
  const Group group = GetParam().make_group(2, absl::Seconds(1));
  Elements data(DType::kFloat32, 1000);
  EXPECT_THAT(
      group[0]->AllReduce(data.span())->Wait(kSoon),
      StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("all-reduce")));
  EXPECT_THAT(group[0]->Barrier()->Wait(kSoon),
              StatusIs(absl::StatusCode::kAborted, _));
}

TEST_P(CommunicatorConformance, DestructionEndsWhatIsInFlight) {
  if (!GetParam().waits) GTEST_SKIP();
  Group group = GetParam().make_group(2, kTimeout);
  Elements data(DType::kFloat32, 1000);
  const WorkPtr first = group[0]->AllReduce(data.span());
  const WorkPtr second = group[0]->Barrier();
  group[0].reset();
  ASSERT_TRUE(first->Done());
  ASSERT_TRUE(second->Done());
  EXPECT_THAT(first->Wait(kSoon),
              StatusIs(absl::StatusCode::kAborted, HasSubstr("destroyed")));
}

TEST_P(CommunicatorConformance, OverlappingGroupsDoNotDisturbEachOther) {
  if (!GetParam().waits) GTEST_SKIP();
  // Ranks 0, 1, 2 of the outer group; 1 and 2 are 0 and 1 of the inner one.
  const Group outer = GetParam().make_group(3, kTimeout);
  const Group inner = GetParam().make_group(2, kTimeout);
  for (int round = 0; round < 10; ++round) {
    auto outer_data = FilledForAll(DType::kFloat32, 3000, 3);
    auto inner_data = FilledForAll(DType::kFloat32, 500, 2);
    const auto outer_inputs = outer_data;
    const auto inner_inputs = inner_data;
    // Rank 1 starts the inner one first, rank 2 the outer one.
    std::vector<WorkPtr> works;
    works.push_back(inner[0]->AllReduce(inner_data[0].span()));
    works.push_back(outer[1]->AllReduce(outer_data[1].span()));
    works.push_back(outer[2]->AllReduce(outer_data[2].span()));
    works.push_back(inner[1]->AllReduce(inner_data[1].span()));
    works.push_back(outer[0]->AllReduce(outer_data[0].span()));
    for (const WorkPtr& work : works) ASSERT_OK(work->Wait(kSoon));
    ExpectReduced(outer_data[0], outer_inputs, ReduceOp::kSum, DType::kFloat32,
                  0, 3000);
    ExpectReduced(inner_data[0], inner_inputs, ReduceOp::kSum, DType::kFloat32,
                  0, 500);
  }
}

using Split = absl::StatusOr<std::unique_ptr<Communicator>>;

// Splits each list off, in this order, on a thread per rank; result [i][r] is
// rank r's part of list i, null where the rank is not listed.
std::vector<Group> SplitAll(const Group& group,
                            const std::vector<std::vector<int>>& lists) {
  std::vector<Group> children(lists.size());
  for (Group& child : children) child.resize(group.size());
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < group.size(); ++rank) {
    threads.emplace_back([&, rank] {
      for (size_t i = 0; i < lists.size(); ++i) {
        const auto& list = lists[i];
        if (std::count(list.begin(), list.end(), static_cast<int>(rank)) == 0) {
          continue;
        }
        Split child = group[rank]->Split(list);
        EXPECT_OK(child);
        if (child.ok()) children[i][rank] = *std::move(child);
      }
    });
  }
  for (auto& thread : threads) thread.join();
  return children;
}

// Returns the ranks' parts of one list, in the order of the list.
Group InListOrder(Group parts, const std::vector<int>& list) {
  Group ordered;
  for (const int rank : list) ordered.push_back(std::move(parts[rank]));
  return ordered;
}

// Checks that the list's communicator knows its places and exchanges.
void ExpectConnected(const Group& child) {
  const int size = static_cast<int>(child.size());
  const auto inputs = FilledForAll(DType::kFloat32, 700, size);
  auto reduced = inputs;
  auto copied = inputs;
  for (int rank = 0; rank < size; ++rank) {
    ASSERT_NE(child[rank], nullptr);
    EXPECT_EQ(child[rank]->rank(), rank);
    EXPECT_EQ(child[rank]->size(), size);
  }
  RunAll(child, [&](Communicator* comm, int rank) {
    return comm->AllReduce(reduced[rank].span());
  });
  RunAll(child, [&](Communicator* comm, int rank) {
    return comm->Broadcast(copied[rank].span(), size - 1);
  });
  ExpectReduced(reduced[0], inputs, ReduceOp::kSum, DType::kFloat32, 0, 700);
  for (int rank = 0; rank < size; ++rank) {
    EXPECT_EQ(reduced[rank].bytes(), reduced[0].bytes());
    EXPECT_EQ(copied[rank].bytes(), inputs[size - 1].bytes());
  }
}

std::vector<int> AllRanks(int size) {
  std::vector<int> ranks;
  for (int rank = 0; rank < size; ++rank) ranks.push_back(rank);
  return ranks;
}

TEST_P(CommunicatorConformance, SplitsOffAllRanksAndSingleOnes) {
  for (int size : GetParam().sizes) {
    const Group group = GetParam().make_group(size, kTimeout);
    std::vector<int> reversed = AllRanks(size);
    std::reverse(reversed.begin(), reversed.end());
    std::vector<std::vector<int>> lists = {AllRanks(size), reversed};
    for (int rank = 0; rank < size; ++rank) lists.push_back({rank});
    std::vector<Group> children = SplitAll(group, lists);
    for (size_t i = 0; i < lists.size(); ++i) {
      ExpectConnected(InListOrder(std::move(children[i]), lists[i]));
    }
    RunAll(group, [](Communicator* comm, int) { return comm->Barrier(); });
  }
}

TEST_P(CommunicatorConformance, SplitsOffHalvesAndOverlappingSubsets) {
  if (!GetParam().waits) GTEST_SKIP();
  const Group group = GetParam().make_group(4, kTimeout);
  // Halves, pairs across them, a list twice, and lists that share ranks.
  const std::vector<std::vector<int>> lists = {
      {0, 1}, {2, 3}, {2, 0}, {3, 1}, {0, 1}, {0, 3, 1}, {1, 2, 3}};
  std::vector<Group> children = SplitAll(group, lists);
  for (size_t i = 0; i < lists.size(); ++i) {
    children[i] = InListOrder(std::move(children[i]), lists[i]);
  }
  for (const Group& child : children) ExpectConnected(child);
  // A child can be split as well.
  const Group nested =
      InListOrder(std::move(SplitAll(children[5], {{2, 0}})[0]), {2, 0});
  ExpectConnected(nested);
}

TEST_P(CommunicatorConformance, ChildrenAndParentExchangeIndependently) {
  if (!GetParam().waits) GTEST_SKIP();
  const Group group = GetParam().make_group(2, kTimeout);
  group[0]->CountWaitsIn(std::make_shared<WaitCount>());
  const Group child = std::move(SplitAll(group, {{0, 1}})[0]);
  Elements mine = Filled(DType::kFloat32, 100, 0);
  Elements yours = Filled(DType::kFloat32, 100, 1);
  // The parent's barrier waits while the child goes on.
  const WorkPtr waiting = group[0]->Barrier();
  const WorkPtr first = child[0]->AllReduce(mine.span());
  EXPECT_EQ(child[0]->waits(), group[0]->waits());
  const WorkPtr second = child[1]->AllReduce(yours.span());
  EXPECT_OK(first->Wait(kSoon));
  EXPECT_OK(second->Wait(kSoon));
  EXPECT_FALSE(waiting->Done());
  EXPECT_OK(group[1]->Barrier()->Wait(kSoon));
  EXPECT_OK(waiting->Wait(kSoon));
}

TEST_P(CommunicatorConformance, ParentsCountWhatTheirChildrenSend) {
  for (int size : GetParam().sizes) {
    const Group group = GetParam().make_group(size, kTimeout);
    std::vector<Elements> data(size, Elements(DType::kFloat32, 1 << 18));
    RunAll(group, [&](Communicator* comm, int rank) {
      return comm->AllReduce(data[rank].span());
    });
    const int64_t bytes = data[0].span().bytes();
    const int64_t wire = group[0]->wire_bytes();
    Group child = std::move(SplitAll(group, {AllRanks(size)})[0]);
    RunAll(child, [&](Communicator* comm, int rank) {
      return comm->AllReduce(data[rank].span());
    });
    EXPECT_EQ(child[0]->payload_bytes(), bytes);
    EXPECT_EQ(child[0]->sequence(), 1);
    child.clear();
    EXPECT_EQ(group[0]->payload_bytes(), 2 * bytes);
    EXPECT_EQ(group[0]->sequence(), 1);
    EXPECT_NEAR(static_cast<double>(group[0]->wire_bytes()),
                static_cast<double>(2 * wire),
                0.01 * static_cast<double>(bytes));
  }
}

TEST_P(CommunicatorConformance, ListsThatMakeNoSenseAreNotSplitOff) {
  for (int size : GetParam().sizes) {
    const Group group = GetParam().make_group(size, kTimeout);
    Communicator& comm = *group[0];
    const auto refused = StatusIs(absl::StatusCode::kInvalidArgument, _);
    EXPECT_THAT(comm.Split({}), refused);
    EXPECT_THAT(comm.Split({0, 0}), refused);
    EXPECT_THAT(comm.Split({0, size}), refused);
    EXPECT_THAT(comm.Split({0, -1}), refused);
    if (size > 1) {
      EXPECT_THAT(comm.Split({1}), refused);
    }
    RunAll(group, [](Communicator* each, int) { return each->Barrier(); });
  }
}

TEST_P(CommunicatorConformance, AMemberThatNeverComesMakesADeadline) {
  if (!GetParam().waits) GTEST_SKIP();
  const Group group = GetParam().make_group(3, absl::Seconds(1));
  EXPECT_THAT(group[0]->Split({2, 0}),
              StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("rank")));
  // The parent is as it was.
  RunAll(group, [](Communicator* comm, int) { return comm->Barrier(); });
}

TEST_P(CommunicatorConformance, AbortEndsASplitThatWaits) {
  if (!GetParam().waits) GTEST_SKIP();
  const Group group = GetParam().make_group(2, kTimeout);
  std::thread aborter([&] { group[0]->Abort("no more of this"); });
  EXPECT_THAT(group[0]->Split({0, 1}), StatusIs(absl::StatusCode::kAborted,
                                                HasSubstr("no more of this")));
  aborter.join();
  EXPECT_THAT(group[0]->Split({0}), StatusIs(absl::StatusCode::kAborted,
                                             HasSubstr("no more of this")));
}

TEST_P(CommunicatorConformance, AbortOfTheParentReachesItsChildren) {
  for (int size : GetParam().sizes) {
    const Group group = GetParam().make_group(size, kTimeout);
    const Group child = std::move(SplitAll(group, {AllRanks(size)})[0]);
    const Group grandchild = std::move(SplitAll(child, {AllRanks(size)})[0]);
    const auto aborted =
        StatusIs(absl::StatusCode::kAborted, HasSubstr("the reason"));
    Elements data(DType::kFloat32, 1000);
    std::vector<WorkPtr> works;
    if (size > 1) {
      works.push_back(child[0]->AllReduce(data.span()));
      works.push_back(grandchild[0]->Barrier());
    }
    std::thread aborter([&] { group[0]->Abort("the reason"); });
    for (const WorkPtr& work : works) EXPECT_THAT(work->Wait(kSoon), aborted);
    aborter.join();
    EXPECT_THAT(child[0]->Barrier()->Wait(kSoon), aborted);
    EXPECT_THAT(grandchild[0]->Barrier()->Wait(kSoon), aborted);
  }
}

TEST_P(CommunicatorConformance, AbortOfAChildLeavesTheParentAlone) {
  for (int size : GetParam().sizes) {
    const Group group = GetParam().make_group(size, kTimeout);
    const Group child = std::move(SplitAll(group, {AllRanks(size)})[0]);
    child[0]->Abort("only the child");
    EXPECT_THAT(child[0]->Barrier()->Wait(kSoon),
                StatusIs(absl::StatusCode::kAborted, "only the child"));
    RunAll(group, [](Communicator* comm, int) { return comm->Barrier(); });
  }
}

TEST_P(CommunicatorConformance, AChildOutlivesItsParentAndFails) {
  for (int size : GetParam().sizes) {
    Group group = GetParam().make_group(size, kTimeout);
    const Group child = std::move(SplitAll(group, {AllRanks(size)})[0]);
    Elements data(DType::kFloat32, 1000);
    const WorkPtr work = size > 1 ? child[0]->AllReduce(data.span()) : nullptr;
    group.clear();
    const auto ended =
        StatusIs(absl::StatusCode::kAborted, HasSubstr("destroyed"));
    if (work != nullptr) {
      EXPECT_THAT(work->Wait(kSoon), ended);
    }
    EXPECT_THAT(child[0]->Barrier()->Wait(kSoon), ended);
  }
}

TEST_P(CommunicatorConformance, ChildrenMayEndWhileTheParentIsAborted) {
  const int size = GetParam().sizes.back();
  for (int round = 0; round < 10; ++round) {
    const Group group = GetParam().make_group(size, kTimeout);
    Group child = std::move(SplitAll(group, {AllRanks(size)})[0]);
    std::thread aborter([&] {
      for (const auto& comm : group) comm->Abort("enough");
    });
    child.clear();
    aborter.join();
  }
}

}  // namespace
}  // namespace coxswain
