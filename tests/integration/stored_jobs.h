#ifndef COXSWAIN_TESTS_INTEGRATION_STORED_JOBS_H_
#define COXSWAIN_TESTS_INTEGRATION_STORED_JOBS_H_

#include <unistd.h>

#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/status_matchers.h"
#include "client/session/session.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/coordinator.h"
#include "server/open_state.h"
#include "tests/support/etcd_server.h"

namespace coxswain {

// Coordinators that are started one after the other on one state, in the store
// that the parameter names ("sqlite" or "etcd"), under real sessions of two
// jobs. What a test does to the records it does while none runs.
class StoredJobsTest : public ::testing::TestWithParam<std::string> {
 protected:
  static constexpr absl::Duration kTimeout = absl::Seconds(20);

  StoredJobsTest() {
    static int count = 0;
    folder_ = absl::StrCat(::testing::TempDir(), "/stored-jobs-", getpid(), "-",
                           count);
    location_ = absl::StrCat("sqlite:", folder_);
    if (GetParam() == "etcd") {
      location_ = absl::StrCat("etcd://", Etcd().endpoint(), "/s", count);
    }
    ++count;
  }

  static EtcdServer& Etcd() {
    static auto* const server = new std::unique_ptr<EtcdServer>(new EtcdServer);
    static const bool registered = std::atexit([] { server->reset(); }) == 0;
    EXPECT_TRUE(registered);
    return **server;
  }

  // Returns the state; calls `on_wait` if another coordinator has it.
  std::shared_ptr<server::OwnedState> Acquire(
      const std::function<void()>& on_wait = nullptr) {
    const auto location = server::ParseStateLocation(location_);
    EXPECT_OK(location);
    server::AcquireOptions options;
    options.name = "test";
    options.on_wait = [&on_wait](const std::string& leader,
                                 const absl::Status& /*trouble*/) {
      if (on_wait && !leader.empty()) on_wait();
    };
    auto state = server::AcquireState(*location, options);
    EXPECT_OK(state);
    return state.ok() ? std::move(*state) : nullptr;
  }

  absl::Status Start(bool repair = false,
                     const std::function<void()>& on_wait = nullptr) {
    server::CoordinatorOptions options;
    options.listen = absl::StrCat("127.0.0.1:", port_);
    options.state_dir = folder_;
    options.state = Acquire(on_wait);
    options.repair_state = repair;
    options.membership.reattach_grace = grace_;
    auto started = server::Coordinator::Start(options);
    if (!started.ok()) return started.status();
    coordinator_ = *std::move(started);
    port_ = coordinator_->port();
    return absl::OkStatus();
  }

  std::unique_ptr<Session> Join(const std::string& job) {
    SessionOptions options;
    options.coordinator = absl::StrCat("127.0.0.1:", port_);
    options.job = job;
    options.identity = {"host-a", 0};
    options.host = "host-a";
    options.world_size = 1;
    options.join_timeout = kTimeout;
    options.collective_timeout = kTimeout;
    options.retry_base = absl::Milliseconds(5);
    options.retry_cap = absl::Milliseconds(20);
    auto session = Session::Join(options, {});
    EXPECT_OK(session);
    return session.ok() ? *std::move(session) : nullptr;
  }
  // Runs two jobs, with records in every table that they can have.
  void RunJobs() {
    other_ = Join("other");
    hit_ = Join("hit");
    ASSERT_NE(other_, nullptr);
    ASSERT_NE(hit_, nullptr);
    for (Session* session : {other_.get(), hit_.get()}) {
      ASSERT_OK(session->store().Set("kept", "value"));
      ASSERT_OK(session->CreateMesh("grid", {{"dp", 1}}));
      ASSERT_OK(session->Barrier("", "tag", kTimeout));
    }
  }

  // Expects that the session has found the next coordinator, and goes on as if
  // nothing had happened.
  static void ExpectGoesOn(Session* session) {
    while (true) {
      const auto event = session->events().Next(kTimeout);
      ASSERT_OK(event);
      ASSERT_NE(event->kind, SessionEvent::Kind::kGenerationEnded)
          << session->status();
      if (event->kind == SessionEvent::Kind::kReattached) break;
    }
    const auto kept = session->store().Get("kept", kTimeout);
    ASSERT_OK(kept);
    EXPECT_EQ(*kept, "value");
    EXPECT_OK(session->Barrier("", "tag", kTimeout));
    EXPECT_OK(session->CreateMesh("grid", {{"dp", 1}}));
    EXPECT_OK(session->status());
  }
  void LeaveAll() {
    EXPECT_OK(other_->Leave("done"));
    EXPECT_OK(hit_->Leave("done"));
  }

  std::string folder_;
  std::string location_;
  absl::Duration grace_ = absl::Seconds(10);
  int port_ = 0;
  std::unique_ptr<server::Coordinator> coordinator_;
  std::unique_ptr<Session> other_;
  std::unique_ptr<Session> hit_;
};

}  // namespace coxswain

#endif  // COXSWAIN_TESTS_INTEGRATION_STORED_JOBS_H_
