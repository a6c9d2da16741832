#include "client/comm/gloo/transport.h"

#include <chrono>
#include <cstdint>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/hash_store.h>
#include <gloo/transport/tcp/device.h>
#include <gloo/transport/unbound_buffer.h>

#include "client/comm/gloo/transport_control.h"
#include "gtest/gtest.h"

namespace coxswain {
namespace {

constexpr uint64_t kSlot = 7;

// Rank 0 of a group, watched by `control`, and the others.
struct WatchedGroup {
  WatchedGroup(int size, std::shared_ptr<TransportControl> control)
      : watched(0, size) {
    ::gloo::rendezvous::HashStore store;
    const ::gloo::transport::tcp::attr attributes("127.0.0.1");
    std::vector<std::thread> connecting;
    for (int rank = 1; rank < size; ++rank) {
      peers.push_back(
          std::make_unique<::gloo::rendezvous::Context>(rank, size));
      connecting.emplace_back([&store, attributes, peer = peers.back().get()] {
        auto device = ::gloo::transport::tcp::CreateDevice(attributes);
        peer->connectFullMesh(store, device);
      });
    }
    auto device = WatchDevice(::gloo::transport::tcp::CreateDevice(attributes),
                              std::move(control));
    watched.connectFullMesh(store, device);
    for (auto& thread : connecting) thread.join();
  }

  ::gloo::rendezvous::Context watched;
  std::vector<std::unique_ptr<::gloo::rendezvous::Context>> peers;
};

void AwaitLoss(const TransportControl& control, int peer) {
  const auto start = std::chrono::steady_clock::now();
  while (!control.LossAmong({peer}).has_value()) {
    ASSERT_LT(std::chrono::steady_clock::now() - start,
              std::chrono::seconds(20));
    std::this_thread::yield();
  }
}

TEST(TransportTest, DataSentBeforeAPeerLeftIsReceived) {
  const auto control = std::make_shared<TransportControl>();
  WatchedGroup group(2, control);
  int arriving = 0;
  int sent = 42;
  auto buffer = group.watched.createUnboundBuffer(&arriving, sizeof(arriving));
  buffer->recv(1, kSlot);
  auto other = group.peers[0]->createUnboundBuffer(&sent, sizeof(sent));
  other->send(0, kSlot);
  ASSERT_TRUE(other->waitSend());
  other.reset();
  group.peers[0].reset();
  AwaitLoss(*control, 1);
  EXPECT_TRUE(buffer->waitRecv());
  EXPECT_EQ(arriving, 42);
  EXPECT_THROW(buffer->recv(1, kSlot), PeerFailure);
}

TEST(TransportTest, APeerThatHasItsDataMayLeaveBeforeTheOthersHaveTheirs) {
  const auto control = std::make_shared<TransportControl>();
  WatchedGroup group(3, control);
  int sent = 42;
  auto buffer = group.watched.createUnboundBuffer(&sent, sizeof(sent));
  buffer->send(1, kSlot);
  buffer->send(2, kSlot);
  const auto receive = [&](size_t peer) {
    int arriving = 0;
    auto other =
        group.peers[peer]->createUnboundBuffer(&arriving, sizeof(arriving));
    other->recv(0, kSlot);
    EXPECT_TRUE(other->waitRecv());
    EXPECT_EQ(arriving, 42);
  };
  receive(0);
  group.peers[0].reset();
  AwaitLoss(*control, 1);
  EXPECT_TRUE(buffer->waitSend());
  std::thread late([&] { receive(1); });
  EXPECT_NO_THROW(buffer->waitSend());
  late.join();
}

}  // namespace
}  // namespace coxswain
