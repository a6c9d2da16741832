#include "client/comm/gloo/gloo_communicator.h"

#include <netinet/in.h>

#include <atomic>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/cancel_signal.h"
#include "base/status_matchers.h"
#include "client/comm/memory_store.h"
#include "tests/conformance/communicator_conformance.h"

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

CommunicatorOptions Options(int rank, int size,
                            std::shared_ptr<RendezvousStore> store,
                            absl::Duration timeout) {
  CommunicatorOptions options;
  options.id = "under-test";
  options.rank = rank;
  options.size = size;
  options.store = std::move(store);
  options.timeout = timeout;
  return options;
}

// Connects all ranks at once, each on a thread, as it blocks.
std::vector<std::unique_ptr<Communicator>> MakeGroup(int size,
                                                     absl::Duration timeout) {
  auto store = std::make_shared<MemoryStore>();
  std::vector<std::unique_ptr<Communicator>> group(size);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      auto connected = ConnectGloo(Options(rank, size, store, timeout));
      EXPECT_OK(connected);
      if (connected.ok()) group[rank] = std::move(connected).value();
    });
  }
  for (auto& thread : threads) thread.join();
  return group;
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

TEST(GlooCommunicatorTest, AMissingRankIsNamed) {
  auto store = std::make_shared<MemoryStore>();
  EXPECT_THAT(
      ConnectGloo(Options(0, 3, store, absl::Milliseconds(200))),
      StatusIs(absl::StatusCode::kDeadlineExceeded,
               AllOf(HasSubstr("rank 0 of 3 of communicator 'under-test'"),
                     HasSubstr("missing: rank 1, rank 2"))));
}

TEST(GlooCommunicatorTest, AnAddressThatIsNotOursIsAnError) {
  CommunicatorOptions options =
      Options(0, 2, std::make_shared<MemoryStore>(), absl::Seconds(5));
  options.address = "198.51.100.7";
  const auto connected = ConnectGloo(options);
  EXPECT_FALSE(connected.ok());
  EXPECT_THAT(std::string(connected.status().message()),
              HasSubstr("198.51.100.7"));
}

TEST(GlooCommunicatorTest, OptionsThatMakeNoSenseAreRefused) {
  auto store = std::make_shared<MemoryStore>();
  EXPECT_THAT(ConnectGloo(Options(2, 2, store, absl::Seconds(1))),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("rank")));
  EXPECT_THAT(ConnectGloo(Options(0, 2, nullptr, absl::Seconds(1))),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("store")));
  EXPECT_THAT(
      ConnectGloo(Options(0, 2, store, absl::ZeroDuration())),
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
  EXPECT_THAT(ConnectGloo(Options(0, 2, std::make_shared<BrokenStore>(),
                                  absl::Seconds(5))),
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
  CommunicatorOptions options = Options(0, 2, store, absl::Minutes(5));
  options.cancel = cancel.get();
  EXPECT_THAT(ConnectGloo(options), StatusIs(absl::StatusCode::kAborted,
                                             HasSubstr("rank 1 was lost")));
}

TEST(GlooCommunicatorTest, ADeadPeerIsNotWaitedForLongerThanTheTimeout) {
  auto store = std::make_shared<DeadPeerStore>();
  EXPECT_THAT(
      ConnectGloo(Options(0, 2, store, absl::Seconds(1))),
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

TEST(GlooCommunicatorTest, ALostPeerIsNamedWithoutSourceLines) {
  auto group = MakeGroup(2, absl::Minutes(1));
  std::vector<float> data(1000);
  Span span;
  span.data = data.data();
  span.count = 1000;
  const WorkPtr work = group[0]->AllReduce(span);
  group[1].reset();
  EXPECT_THAT(work->Wait(absl::Seconds(20)),
              StatusIs(absl::StatusCode::kUnavailable,
                       AllOf(HasSubstr("rank 0 of communicator 'under-test'"),
                             HasSubstr("rank 1"), HasSubstr("127.0.0.1"),
                             Not(HasSubstr(".cc:")))));
}

}  // namespace
}  // namespace coxswain
