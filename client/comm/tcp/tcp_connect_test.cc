#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/cancel_signal.h"
#include "base/status_matchers.h"
#include "client/comm/memory_store.h"
#include "client/comm/tcp/hello.h"
#include "client/comm/tcp/lookup.h"
#include "client/comm/tcp/raw_tcp_peer_for_test.h"
#include "client/comm/tcp/tcp_communicator.h"
#include "client/comm/tcp/tcp_socket.h"
#include "tests/conformance/connected_group.h"

// Errors of connecting.

namespace coxswain {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr absl::Duration kConnected = absl::Minutes(1);

TEST(TcpConnectTest, AMissingRankIsNamed) {
  auto store = std::make_shared<MemoryStore>();
  EXPECT_THAT(
      ConnectTcp(TestGroupOptions(0, 3, store, absl::Milliseconds(200))),
      StatusIs(absl::StatusCode::kDeadlineExceeded,
               AllOf(HasSubstr("rank 0 of 3 of communicator 'under-test'"),
                     HasSubstr("missing: rank 1, rank 2"))));
  // Also by one that would call it.
  EXPECT_THAT(ConnectTcp(TestGroupOptions(1, 2, std::make_shared<MemoryStore>(),
                                          absl::Milliseconds(200))),
              StatusIs(absl::StatusCode::kDeadlineExceeded,
                       HasSubstr("missing: rank 0")));
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

TEST(TcpConnectTest, ErrorsOfTheStoreComeThrough) {
  EXPECT_THAT(ConnectTcp(TestGroupOptions(0, 2, std::make_shared<BrokenStore>(),
                                          absl::Seconds(5))),
              StatusIs(absl::StatusCode::kUnavailable,
                       HasSubstr("the coordinator is lost")));
}

TEST(TcpConnectTest, AnAddressThatIsNotOursIsAnError) {
  CommunicatorOptions options =
      TestGroupOptions(0, 2, std::make_shared<MemoryStore>(), absl::Seconds(5));
  options.address = "198.51.100.7";
  EXPECT_THAT(ConnectTcp(options), StatusIs(absl::StatusCode::kUnavailable,
                                            HasSubstr("198.51.100.7")));
}

TEST(TcpConnectTest, AnotherProcessAtThePlaceIsNotTakenForThePeer) {
  ASSERT_OK_AND_ASSIGN(const TcpListener other, ListenTcp("127.0.0.1"));
  auto store = std::make_shared<MemoryStore>();
  const CommunicatorOptions options = TestGroupOptions(1, 2, store, kConnected);
  TcpPlace place;
  place.address = other.address;
  place.answer_token = 7;
  ASSERT_OK(store->Set(PlaceLookup::Key(options, 0), EncodePlace(place)));
  std::thread answering([&] {
    UniqueFd caller;
    while (!caller.valid()) caller = *AcceptTcp(other.socket);
    const TcpAnswerBytes answer = EncodeAnswer(8);
    RawTcpPeer::Write(caller, absl::string_view(answer.data(), answer.size()));
    RawTcpPeer::Read(caller, 1000);
  });
  EXPECT_THAT(ConnectTcp(options),
              StatusIs(absl::StatusCode::kUnavailable,
                       AllOf(HasSubstr("rank 0 at 127.0.0.1:"),
                             HasSubstr("another process listens there"))));
  answering.join();
}

TEST(TcpConnectTest, APlaceWithoutAListenerIsAnError) {
  auto store = std::make_shared<MemoryStore>();
  const CommunicatorOptions options = TestGroupOptions(1, 2, store, kConnected);
  TcpPlace place;
  {
    ASSERT_OK_AND_ASSIGN(const TcpListener gone, ListenTcp("127.0.0.1"));
    place.address = gone.address;
  }
  ASSERT_OK(store->Set(PlaceLookup::Key(options, 0), EncodePlace(place)));
  EXPECT_THAT(ConnectTcp(options), StatusIs(absl::StatusCode::kUnavailable,
                                            HasSubstr("rank 0 at 127.0.0.1:")));
}

TEST(TcpConnectTest, ARaisedSignalEndsConnecting) {
  // Of a rank that is called, and of one that waits to call.
  for (const int rank : {0, 1}) {
    CancelSignal cancel;
    CommunicatorOptions options = TestGroupOptions(
        rank, 2, std::make_shared<MemoryStore>(), absl::Minutes(5));
    options.cancel = &cancel;
    absl::Status status;
    std::thread connecting([&] { status = ConnectTcp(options).status(); });
    // It has published its place, and waits.
    EXPECT_OK(options.store->Get(PlaceLookup::Key(options, rank), kConnected));
    cancel.Raise(absl::AbortedError("rank 1 was lost"));
    connecting.join();
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kAborted,
                                 HasSubstr("rank 1 was lost")));
  }
}

TEST(TcpConnectTest, OptionsThatMakeNoSenseAreRefused) {
  auto store = std::make_shared<MemoryStore>();
  EXPECT_THAT(ConnectTcp(TestGroupOptions(2, 2, store, absl::Seconds(1))),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("rank")));
  EXPECT_THAT(ConnectTcp(TestGroupOptions(0, 2, nullptr, absl::Seconds(1))),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("store")));
}

}  // namespace
}  // namespace coxswain
