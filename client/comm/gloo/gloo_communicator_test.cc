#include "client/comm/gloo/gloo_communicator.h"

#include <netinet/in.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/store.h>
#include <gloo/transport/tcp/device.h>
#include <gloo/transport/unbound_buffer.h>
#include <gloo/types.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/cancel_signal.h"
#include "base/status_matchers.h"
#include "client/comm/collective_header.h"
#include "client/comm/communicator.h"
#include "client/comm/memory_store.h"
#include "client/comm/work.h"
#include "tests/conformance/communicator_conformance.h"
#include "tests/conformance/connected_group.h"

// Gloo does not free what it resolved when it then cannot bind to it. Read by
// LeakSanitizer where that is on.
extern "C" const char* __lsan_default_suppressions() {
  return "leak:gloo::transport::tcp::CreateDeviceAttr";
}

namespace coxswain {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

std::vector<std::unique_ptr<Communicator>> MakeGroup(int size,
                                                     absl::Duration timeout) {
  return ConnectGroup(size, timeout, ConnectGloo);
}

CommunicatorCase GlooCase() {
  CommunicatorCase result;
  result.name = "Gloo";
  result.make_group = MakeGroup;
  result.has_wire = true;
  return result;
}

INSTANTIATE_TEST_SUITE_P(Backends, CommunicatorConformance,
                         testing::Values(GlooCase()), CaseName);

// Long ones travel in parts, which must neither overlap nor leave a gap, nor be
// taken for those of the next one.
Span SpanOf(std::vector<float>* data) {
  Span span;
  span.data = data->data();
  span.count = static_cast<int64_t>(data->size());
  return span;
}

TEST(GlooCommunicatorTest, LongAllReducesSumUpEveryElement) {
  constexpr int kRanks = 3;
  constexpr int64_t kCount = (5 << 20) + 7;
  const auto group = MakeGroup(kRanks, absl::Seconds(60));
  std::vector<std::vector<int32_t>> values(2 * kRanks);
  std::vector<WorkPtr> works;
  for (int i = 0; i < 2 * kRanks; ++i) {
    for (int64_t k = 0; k < kCount; ++k) {
      values[i].push_back(static_cast<int32_t>(k) * (i % kRanks + 1) +
                          i / kRanks);
    }
    const Span span{values[i].data(), kCount, DType::kInt32, {}};
    works.push_back(group[i % kRanks]->AllReduce(span));
  }
  for (const WorkPtr& work : works) ASSERT_OK(work->Wait(absl::Seconds(60)));
  for (int i = 0; i < 2 * kRanks; ++i) {
    int64_t wrong = 0;
    for (int64_t k = 0; k < kCount; ++k) {
      const int64_t sum = 6 * k + kRanks * (i / kRanks);
      wrong += values[i][static_cast<size_t>(k)] != sum ? 1 : 0;
    }
    EXPECT_EQ(wrong, 0) << "values " << i;
  }
}

TEST(GlooCommunicatorTest, AMissingRankIsNamed) {
  auto store = std::make_shared<MemoryStore>();
  EXPECT_THAT(
      ConnectGloo(TestGroupOptions(0, 3, store, absl::Milliseconds(200))),
      StatusIs(absl::StatusCode::kDeadlineExceeded,
               AllOf(HasSubstr("rank 0 of 3 of communicator 'under-test'"),
                     HasSubstr("missing: rank 1, rank 2"))));
}

TEST(GlooCommunicatorTest, AnAddressThatIsNotOursIsAnError) {
  CommunicatorOptions options =
      TestGroupOptions(0, 2, std::make_shared<MemoryStore>(), absl::Seconds(5));
  options.address = "198.51.100.7";
  const auto connected = ConnectGloo(options);
  EXPECT_FALSE(connected.ok());
  EXPECT_THAT(std::string(connected.status().message()),
              HasSubstr("198.51.100.7"));
}

TEST(GlooCommunicatorTest, InvalidOptionsAreRefused) {
  auto store = std::make_shared<MemoryStore>();
  EXPECT_THAT(ConnectGloo(TestGroupOptions(2, 2, store, absl::Seconds(1))),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("rank")));
  EXPECT_THAT(ConnectGloo(TestGroupOptions(0, 2, nullptr, absl::Seconds(1))),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("store")));
  EXPECT_THAT(
      ConnectGloo(TestGroupOptions(0, 2, store, absl::ZeroDuration())),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("timeout")));
}

// A store that fails, as one does whose coordinator is lost.
class BrokenStore : public RendezvousStore {
 public:
  absl::Status Set(absl::string_view, absl::string_view) override {
    return absl::UnavailableError("the coordinator is lost");
  }
  absl::StatusOr<std::string> Get(absl::string_view, absl::Duration) override {
    return absl::UnavailableError("the coordinator is lost");
  }
};

TEST(GlooCommunicatorTest, ErrorsOfTheStoreComeThrough) {
  EXPECT_THAT(ConnectGloo(TestGroupOptions(
                  0, 2, std::make_shared<BrokenStore>(), absl::Seconds(5))),
              StatusIs(absl::StatusCode::kUnavailable,
                       HasSubstr("the coordinator is lost")));
}

// A rank 1 that has published an address and then died: rank 0's own, with the
// highest port, which makes rank 0 the end that waits to be connected to.
class DeadPeerStore : public MemoryStore {
 public:
  absl::StatusOr<std::string> Get(absl::string_view key,
                                  absl::Duration timeout) override {
    if (absl::EndsWith(key, "/0")) return MemoryStore::Get(key, timeout);
    auto published = MemoryStore::Get("gloo/under-test/0", timeout);
    if (!published.ok()) return published;
    std::string& addresses = *published;
    // An address begins with a sockaddr_in; gloo puts two of them, of equal
    // size, one after the other, or publishes the one of the peer only.
    for (size_t at : {size_t{0}, addresses.size() / 2}) {
      addresses.replace(at + offsetof(sockaddr_in, sin_port), 2, "\xff\xff");
    }
    if (on_get) on_get();
    return addresses;
  }
  std::function<void()> on_get;
};

TEST(GlooCommunicatorTest, ARaisedSignalEndsConnectingToADeadPeer) {
  // Shared, because the connecting that is given up may still read the store.
  const auto cancel = std::make_shared<CancelSignal>();
  auto store = std::make_shared<DeadPeerStore>();
  store->on_get = [cancel] {
    cancel->Raise(absl::AbortedError("rank 1 was lost"));
  };
  CommunicatorOptions options = TestGroupOptions(0, 2, store, absl::Minutes(5));
  options.cancel = cancel.get();
  EXPECT_THAT(ConnectGloo(options), StatusIs(absl::StatusCode::kAborted,
                                             HasSubstr("rank 1 was lost")));
}

TEST(GlooCommunicatorTest, ADeadPeerIsNotWaitedForLongerThanTheTimeout) {
  auto store = std::make_shared<DeadPeerStore>();
  EXPECT_THAT(
      ConnectGloo(TestGroupOptions(0, 2, store, absl::Seconds(1))),
      StatusIs(absl::StatusCode::kDeadlineExceeded,
               AllOf(HasSubstr("rank 0 of 2 of communicator 'under-test'"),
                     HasSubstr("not all ranks have connected within 1s"))));
}

TEST(GlooCommunicatorTest, AnAbortIsSeenByThePeers) {
  const auto group = MakeGroup(2, absl::Minutes(1));
  const WorkPtr work = group[1]->Barrier();
  group[0]->Abort("the hook broke");
  EXPECT_THAT(work->Wait(absl::Seconds(20)),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("rank 0")));
}

// Connections are watched from the first collective on.
void MeetAll(const std::vector<std::unique_ptr<Communicator>>& group) {
  std::vector<WorkPtr> works;
  for (const auto& rank : group) works.push_back(rank->Barrier());
  for (const auto& work : works) ASSERT_OK(work->Wait(absl::Seconds(20)));
}

TEST(GlooCommunicatorTest, TheRankWhoseConnectionBrokeIsReported) {
  auto group = MakeGroup(3, absl::Minutes(1));
  MeetAll(group);
  Work lost_by_0, lost_by_2;
  const auto watch = [&](int rank, Work* lost) {
    auto* const source = dynamic_cast<PeerLossSource*>(group[rank].get());
    ASSERT_NE(source, nullptr);
    source->WatchPeerLosses([lost](int peer) {
      lost->Complete(absl::UnknownError(absl::StrCat("peer ", peer)));
    });
  };
  watch(0, &lost_by_0);
  group[1].reset();
  EXPECT_THAT(lost_by_0.Wait(absl::Seconds(20)),
              StatusIs(absl::StatusCode::kUnknown, "peer 1"));
  // Also who asks afterwards.
  watch(2, &lost_by_2);
  EXPECT_THAT(lost_by_2.Wait(absl::Seconds(20)),
              StatusIs(absl::StatusCode::kUnknown, "peer 1"));
}

TEST(GlooCommunicatorTest, ALostPeerIsReportedBeforeTheCollectiveFails) {
  auto group = MakeGroup(2, absl::Minutes(1));
  MeetAll(group);
  std::atomic<int> told{0};
  dynamic_cast<PeerLossSource&>(*group[0]).WatchPeerLosses(
      [&told](int peer) { told += peer; });
  std::vector<float> data(1000);
  const WorkPtr work = group[0]->AllReduce(SpanOf(&data));
  group[1].reset();
  EXPECT_THAT(work->Wait(absl::Seconds(20)),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("rank 1")));
  EXPECT_GE(told, 1);
}

TEST(GlooCommunicatorTest, ConnectionsOfAnAbortedCommunicatorAreNotReported) {
  auto group = MakeGroup(2, absl::Minutes(1));
  MeetAll(group);
  std::atomic<int> told{0};
  dynamic_cast<PeerLossSource&>(*group[0]).WatchPeerLosses(
      [&told](int) { ++told; });
  group[0]->Abort("enough");
  group[1].reset();
  group[0].reset();
  EXPECT_EQ(told, 0);
}

TEST(GlooCommunicatorTest, ALostPeerIsNamedWithoutSourceLines) {
  auto group = MakeGroup(2, absl::Minutes(1));
  std::vector<float> data(1000);
  const WorkPtr work = group[0]->AllReduce(SpanOf(&data));
  group[1].reset();
  EXPECT_THAT(work->Wait(absl::Seconds(20)),
              StatusIs(absl::StatusCode::kUnavailable,
                       AllOf(HasSubstr("rank 0 of communicator 'under-test'"),
                             HasSubstr("rank 1"), HasSubstr("127.0.0.1"),
                             Not(HasSubstr(".cc:")))));
}

// Rank 1 of two, by gloo alone, so that it can misbehave.
class RawPeer {
 public:
  explicit RawPeer(std::shared_ptr<RendezvousStore> store)
      : store_(std::move(store)),
        context_(std::make_shared<::gloo::rendezvous::Context>(1, 2)) {
    context_->setTimeout(std::chrono::minutes(1));
    ::gloo::transport::tcp::attr attributes("127.0.0.1");
    auto device = ::gloo::transport::tcp::CreateDevice(attributes);
    context_->connectFullMesh(store_, device);
  }
  // Announces what it expects of rank 0, which then sends the data.
  void Expect(uint32_t tag, std::vector<float>* data) {
    Span span;
    span.count = static_cast<int64_t>(data->size());
    CollectiveHeaderBytes own = Encode(
        HeaderOf(CollectiveKind::kMessage, span, ReduceOp::kSum, /*root=*/0));
    CollectiveHeaderBytes arriving;
    auto from = context_->createUnboundBuffer(arriving.data(), arriving.size());
    auto to = context_->createUnboundBuffer(own.data(), own.size());
    // The slots of a message's sender, receiver and data.
    from->recv(0, ::gloo::Slot::build(0x44, tag));
    to->send(0, ::gloo::Slot::build(0x45, tag));
    from->waitRecv();
    to->waitSend();
    EXPECT_EQ(arriving, own);
  }
  // Asks for a message's data, and then does not read on when it comes.
  void AskAndStop(uint32_t tag, std::vector<float>* data) {
    context_->createUnboundBuffer(data->data(), data->size() * sizeof(float))
        ->recv(0, ::gloo::Slot::build(0x41, tag));
  }
  void Close() { context_->closeConnections(); }

 private:
  class Store : public ::gloo::rendezvous::Store {
   public:
    explicit Store(std::shared_ptr<RendezvousStore> store)
        : store_(std::move(store)) {}
    void set(const std::string& key, const std::vector<char>& data) override {
      EXPECT_OK(store_->Set("gloo/under-test/" + key,
                            absl::string_view(data.data(), data.size())));
    }
    std::vector<char> get(const std::string& key) override {
      auto value = store_->Get("gloo/under-test/" + key, absl::Minutes(1));
      EXPECT_OK(value);
      return {value->begin(), value->end()};
    }
    void wait(const std::vector<std::string>& keys) override {
      for (const std::string& key : keys) get(key);
    }
    void wait(const std::vector<std::string>& keys,
              const std::chrono::milliseconds&) override {
      wait(keys);
    }

   private:
    const std::shared_ptr<RendezvousStore> store_;
  };

  Store store_;
  const std::shared_ptr<::gloo::rendezvous::Context> context_;
};

TEST(GlooCommunicatorTest, APeerThatIsLostAmidASendIsNoticed) {
  auto store = std::make_shared<MemoryStore>();
  std::unique_ptr<RawPeer> peer;
  std::thread connecting([&] { peer = std::make_unique<RawPeer>(store); });
  auto rank_0 = ConnectGloo(TestGroupOptions(0, 2, store, absl::Minutes(1)));
  connecting.join();
  ASSERT_OK(rank_0);
  std::vector<float> huge(16 << 20), other_huge(16 << 20);  // past any socket
  const WorkPtr sent = (*rank_0)->Send(SpanOf(&huge), 1, 5);
  peer->Expect(5, &other_huge);
  const int64_t bytes = SpanOf(&huge).bytes();
  while ((*rank_0)->wire_bytes() < bytes) std::this_thread::yield();
  // The send waits to be asked for its data. Rank 0 reads the question before
  // it can see the end of the connection, and so has begun to write by then.
  peer->AskAndStop(5, &other_huge);
  peer->Close();
  EXPECT_THAT(sent->Wait(absl::Seconds(10)),
              StatusIs(absl::StatusCode::kUnavailable,
                       AllOf(HasSubstr("send"), HasSubstr("with rank 1"))));
}

TEST(GlooCommunicatorTest, AnAbortAmidALongAllReduceIsSeenByThePeers) {
  constexpr int kRounds = 20;
  for (int round = 0; round < kRounds; ++round) {
    std::vector<std::vector<float>> data(3, std::vector<float>(2 << 20));
    const auto group = MakeGroup(3, absl::Minutes(1));
    std::vector<WorkPtr> works;
    for (size_t rank = 0; rank < 3; ++rank) {
      works.push_back(group[rank]->AllReduce(SpanOf(&data[rank])));
    }
    const int64_t bytes = SpanOf(&data[2]).bytes();
    while (group[2]->wire_bytes() < bytes * round / kRounds / 2) {
      std::this_thread::yield();
    }
    group[2]->Abort("enough");
    for (size_t rank = 0; rank < 2; ++rank) {
      const absl::Status status = works[rank]->Wait(absl::Seconds(10));
      // Well, if this thread was too slow.
      EXPECT_TRUE(status.ok() || absl::IsUnavailable(status))
          << "round " << round << ", rank " << rank << ": " << status;
    }
    (void)works[2]->Wait(absl::Seconds(10));
  }
}

TEST(GlooCommunicatorTest, RanksThatLeaveAfterABarrierDisturbNoOther) {
  for (int round = 0; round < 30; ++round) {
    auto group = MakeGroup(4, absl::Minutes(1));
    std::vector<std::thread> threads;
    for (auto& communicator : group) {
      threads.emplace_back([&communicator] {
        EXPECT_OK(communicator->Barrier()->Wait(absl::Seconds(20)));
        communicator.reset();
      });
    }
    for (auto& thread : threads) thread.join();
  }
}

}  // namespace
}  // namespace coxswain
