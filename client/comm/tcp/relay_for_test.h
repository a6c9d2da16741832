#ifndef COXSWAIN_CLIENT_COMM_TCP_RELAY_FOR_TEST_H_
#define COXSWAIN_CLIENT_COMM_TCP_RELAY_FOR_TEST_H_

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "base/clock.h"
#include "base/mutex.h"
#include "base/status_matchers.h"
#include "client/comm/communicator.h"
#include "client/comm/tcp/hello.h"
#include "client/comm/tcp/tcp_socket.h"

namespace coxswain {

// The network between two ranks: passes on what they send, keeps a copy, and
// changes it when asked to.
class Relay {
 public:
  explicit Relay(TcpAddress target) : target_(std::move(target)) {
    auto listener = ListenTcp("127.0.0.1");
    EXPECT_OK(listener);
    listener_ = *std::move(listener);
    thread_ = std::thread([this] { Run(); });
  }
  ~Relay() {
    stop_.Raise();
    thread_.join();
  }

  const TcpAddress& address() const { return listener_.address; }

  std::string seen() {
    MutexLock lock(&mutex_);
    return seen_;
  }
  // Flips a bit of what comes next.
  void Garble() { garble_.store(true); }

 private:
  struct Way {
    int from = 0;
    int to = 0;
    std::string waiting = {};
    bool ended = false;
  };

  void Accept() {
    auto caller = AcceptTcp(listener_.socket);
    if (!caller.ok() || !caller->valid()) return;
    auto called = BeginConnectTcp(target_);
    if (!called.ok()) return;
    ways_.push_back({caller->get(), called->get()});
    ways_.push_back({called->get(), caller->get()});
    sockets_.push_back(*std::move(caller));
    sockets_.push_back(*std::move(called));
  }

  void Move(Way* way) {
    char bytes[65536];
    if (way->waiting.empty() && !way->ended) {
      const ssize_t got = recv(way->from, bytes, sizeof(bytes), MSG_DONTWAIT);
      if (got == 0) {
        way->ended = true;
        shutdown(way->to, SHUT_WR);
      }
      if (got > 0) {
        MutexLock lock(&mutex_);
        if (garble_.exchange(false)) bytes[got / 2] ^= 1;
        way->waiting.assign(bytes, static_cast<size_t>(got));
        seen_ += way->waiting;
      }
    }
    const ssize_t sent = send(way->to, way->waiting.data(), way->waiting.size(),
                              MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent > 0) way->waiting.erase(0, static_cast<size_t>(sent));
  }

  void Run() {
    while (true) {
      std::vector<pollfd> entries = {{stop_.get(), POLLIN, 0},
                                     {listener_.socket.get(), POLLIN, 0}};
      for (const Way& way : ways_) {
        if (!way.waiting.empty()) {
          entries.push_back({way.to, POLLOUT, 0});
        } else if (!way.ended) {
          entries.push_back({way.from, POLLIN, 0});
        }
      }
      PollUntil(&entries, Clock::Real()->Now() + absl::Minutes(1));
      if (entries[0].revents != 0) return;
      if (entries[1].revents != 0) Accept();
      for (Way& way : ways_) Move(&way);
    }
  }

  const TcpAddress target_;
  TcpListener listener_;
  const WakeFd stop_;
  std::vector<UniqueFd> sockets_;
  std::vector<Way> ways_;
  std::atomic<bool> garble_{false};
  Mutex mutex_;
  std::string seen_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;
};

// A store in which the places of ranks are those of relays to them.
class RelayedStore : public RendezvousStore {
 public:
  explicit RelayedStore(std::shared_ptr<RendezvousStore> store)
      : store_(std::move(store)) {}

  absl::Status Set(absl::string_view key, absl::string_view value) override {
    auto place = DecodePlace(value);
    EXPECT_OK(place);
    MutexLock lock(&mutex_);
    relays_.push_back(std::make_unique<Relay>(place->address));
    place->address = relays_.back()->address();
    return store_->Set(key, EncodePlace(*place));
  }
  absl::StatusOr<std::string> Get(absl::string_view key,
                                  absl::Duration timeout) override {
    return store_->Get(key, timeout);
  }

  // All that has travelled.
  std::string seen() {
    MutexLock lock(&mutex_);
    std::string all;
    for (const auto& relay : relays_) all += relay->seen();
    return all;
  }
  void Garble() {
    MutexLock lock(&mutex_);
    for (const auto& relay : relays_) relay->Garble();
  }

 private:
  const std::shared_ptr<RendezvousStore> store_;
  Mutex mutex_;
  std::vector<std::unique_ptr<Relay>> relays_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_COMM_TCP_RELAY_FOR_TEST_H_
