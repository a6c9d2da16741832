#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "tests/scenarios/scenario.h"

namespace coxswain {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

constexpr char kIp[] = "/sbin/ip";  // not in every user's PATH

absl::Status Ip(const std::vector<std::string>& arguments) {
  std::vector<std::string> command = {kIp};
  command.insert(command.end(), arguments.begin(), arguments.end());
  COXSWAIN_ASSIGN_OR_RETURN(auto process, Process::Start({command, {}}));
  COXSWAIN_ASSIGN_OR_RETURN(Process::Exit exit, process->Wait(kPatience));
  if (exit.Status() == 0) return absl::OkStatus();
  return absl::PermissionDeniedError(process->err());
}

// A network namespace: what a host of its own looks like to the programs in
// it. Removed with the object, and its end of a cable with it.
class Host {
 public:
  explicit Host(const std::string& name)
      : name_(absl::StrCat("coxswain-", getpid(), "-", name)) {}
  ~Host() {
    if (!made_) return;
    EXPECT_OK(Ip({"netns", "del", name_}));
  }
  Host(const Host&) = delete;
  Host& operator=(const Host&) = delete;

  absl::Status Make() {
    COXSWAIN_RETURN_IF_ERROR(Ip({"netns", "add", name_}));
    made_ = true;
    return Ip({"-n", name_, "link", "set", "lo", "up"});
  }

  absl::Status SetAddress(const std::string& device,
                          const std::string& address) {
    COXSWAIN_RETURN_IF_ERROR(
        Ip({"-n", name_, "addr", "add", address + "/24", "dev", device}));
    return Ip({"-n", name_, "link", "set", device, "up"});
  }

  const std::string& name() const { return name_; }
  // What to put before a command to run it there.
  std::vector<std::string> prefix() const {
    return {kIp, "netns", "exec", name_};
  }

 private:
  const std::string name_;
  bool made_ = false;
};

absl::Status Connect(Host* a, Host* b) {
  // Not more than 15 characters, and both begin their lives in this namespace.
  const std::string end_a = absl::StrCat("cxa", getpid());
  const std::string end_b = absl::StrCat("cxb", getpid());
  COXSWAIN_RETURN_IF_ERROR(
      Ip({"link", "add", end_a, "netns", a->name(), "type", "veth", "peer",
          "name", end_b, "netns", b->name()}));
  COXSWAIN_RETURN_IF_ERROR(a->SetAddress(end_a, "10.77.0.1"));
  return b->SetAddress(end_b, "10.77.0.2");
}

std::unique_ptr<Process> StartLauncher(const Host& host,
                                       const std::string& node,
                                       const std::string& coordinator) {
  std::vector<std::string> command = host.prefix();
  for (const std::string& word :
       Launcher({"--nnodes", "2", "--nproc", "2", "--node", node, "--job",
                 "rows", "--backend", "gloo", "--coordinator", coordinator},
                {"--hook", "powersgd(rank=2,start_step=3)", "--steps", "20",
                 "--digest"})) {
    command.push_back(word);
  }
  return Start(command);
}

TEST(TwoNetworkNamespacesTest, TwoLaunchersMakeOneJob) {
  Host bow("bow");
  Host stroke("stroke");
  for (Host* host : {&bow, &stroke}) {
    const absl::Status made = host->Make();
    if (!made.ok()) {
      GTEST_SKIP() << "cannot make a network namespace (that needs "
                      "CAP_SYS_ADMIN, CAP_NET_ADMIN and iproute2): "
                   << made;
    }
  }
  ASSERT_OK(Connect(&bow, &stroke));

  ServedCoordinator coordinator("10.77.0.1:0", bow.prefix());
  auto first = StartLauncher(bow, "bow", coordinator.address());
  auto second = StartLauncher(stroke, "stroke", coordinator.address());
  for (Process* launcher : {first.get(), second.get()}) {
    ASSERT_OK_AND_ASSIGN(Process::Exit exit, launcher->Wait(kPatience));
    EXPECT_EQ(exit.Status(), 0) << launcher->err();
  }
  // Each side listens on the address that leads to the other one.
  EXPECT_THAT(first->err(), HasSubstr("address=10.77.0.1"));
  EXPECT_THAT(second->err(), HasSubstr("address=10.77.0.2"));

  const auto digests = DigestsByRank(first->out() + second->out());
  ASSERT_THAT(digests, SizeIs(4));
  ASSERT_THAT(digests.at(0), SizeIs(20));
  for (const auto& [rank, steps] : digests) {
    EXPECT_EQ(steps, digests.at(0)) << "rank " << rank;
  }
  EXPECT_THAT(DigestsByRank(first->out()), SizeIs(2));
  coordinator.Stop();
  EXPECT_THAT(StrayProcesses(), IsEmpty());
}

}  // namespace
}  // namespace coxswain
