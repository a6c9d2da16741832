#include "client/comm/gloo/transport.h"

#include <chrono>
#include <cstdint>
#include <memory>
#include <thread>

#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/hash_store.h>
#include <gloo/transport/tcp/device.h>
#include <gloo/transport/unbound_buffer.h>

#include "client/comm/gloo/transport_control.h"
#include "gtest/gtest.h"

namespace coxswain {
namespace {

constexpr uint64_t kSlot = 7;

TEST(TransportTest, DataSentBeforeAPeerLeftIsReceived) {
  const auto control = std::make_shared<TransportControl>();
  ::gloo::rendezvous::HashStore store;
  ::gloo::rendezvous::Context watched(0, 2);
  auto peer = std::make_unique<::gloo::rendezvous::Context>(1, 2);
  ::gloo::transport::tcp::attr attributes("127.0.0.1");
  std::thread connecting([&] {
    auto device = ::gloo::transport::tcp::CreateDevice(attributes);
    peer->connectFullMesh(store, device);
  });
  auto device =
      WatchDevice(::gloo::transport::tcp::CreateDevice(attributes), control);
  watched.connectFullMesh(store, device);
  connecting.join();

  int arriving = 0;
  int sent = 42;
  auto buffer = watched.createUnboundBuffer(&arriving, sizeof(arriving));
  buffer->recv(1, kSlot);
  auto other = peer->createUnboundBuffer(&sent, sizeof(sent));
  other->send(0, kSlot);
  ASSERT_TRUE(other->waitSend());
  other.reset();
  peer.reset();
  const auto start = std::chrono::steady_clock::now();
  while (!control->LossAmong({1}).has_value()) {
    ASSERT_LT(std::chrono::steady_clock::now() - start,
              std::chrono::seconds(20));
    std::this_thread::yield();
  }
  EXPECT_TRUE(buffer->waitRecv());
  EXPECT_EQ(arriving, 42);
  EXPECT_THROW(buffer->recv(1, kSlot), PeerFailure);
}

}  // namespace
}  // namespace coxswain
