#include "tests/bench/schedule/light_workers.h"

#include <poll.h>
#include <sys/socket.h>

#include <memory>
#include <string>
#include <thread>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "base/unique_fd.h"
#include "gtest/gtest.h"
#include "server/coordinator.h"
#include "tests/support/loopback.h"

namespace coxswain::bench {
namespace {

constexpr int kTimeoutMs = 20'000;

// Listens on a free port, in the place of a coordinator.
class Impostor {
 public:
  Impostor() : listener_(ListenOnLoopback(&port_)) {}

  int port() const { return port_; }
  // Takes the next connection, and ends it.
  void EndOne() {
    pollfd ready = {listener_.get(), POLLIN, 0};
    ASSERT_EQ(poll(&ready, 1, kTimeoutMs), 1) << "no connection comes";
    const UniqueFd connection(accept(listener_.get(), nullptr, nullptr));
    EXPECT_TRUE(connection.valid());
  }

 private:
  int port_ = 0;
  UniqueFd listener_;
};

TEST(LightWorkersTest, ConnectionsThatFailAtFirstAreMadeAgain) {
  constexpr int kWorkers = 2;
  auto impostor = std::make_unique<Impostor>();
  const std::string address = absl::StrCat("127.0.0.1:", impostor->port());
  absl::StatusOr<std::unique_ptr<LightWorkers>> workers;
  std::thread joining(
      [&] { workers = LightWorkers::Join(address, "job", kWorkers); });
  for (int i = 0; i < kWorkers; ++i) impostor->EndOne();
  impostor.reset();
  server::CoordinatorOptions options;
  options.listen = address;
  options.state_dir = testing::TempDir() + "/state";
  const auto coordinator = server::Coordinator::Start(options);
  EXPECT_OK(coordinator);
  joining.join();
  ASSERT_OK(workers);
  EXPECT_OK((*workers)->Round());
  workers->reset();  // leaves while the coordinator runs
}

}  // namespace
}  // namespace coxswain::bench
