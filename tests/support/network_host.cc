#include "tests/support/network_host.h"

#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/status_macros.h"
#include "tests/support/process.h"

namespace coxswain {
namespace {

constexpr char kIp[] = "/sbin/ip";  // not in every user's PATH
constexpr absl::Duration kCommandTimeout = absl::Seconds(60);

absl::Status Ip(const std::vector<std::string>& arguments) {
  std::vector<std::string> command = {kIp};
  command.insert(command.end(), arguments.begin(), arguments.end());
  COXSWAIN_ASSIGN_OR_RETURN(auto process, Process::Start({command, {}}));
  COXSWAIN_ASSIGN_OR_RETURN(Process::Exit exit, process->Wait(kCommandTimeout));
  if (exit.Status() == 0) return absl::OkStatus();
  return absl::PermissionDeniedError(process->err());
}

}  // namespace

NetworkHost::NetworkHost(const std::string& name)
    : name_(absl::StrCat("coxswain-", getpid(), "-", name)) {}

NetworkHost::~NetworkHost() {
  if (made_) Ip({"netns", "del", name_}).IgnoreError();
}

absl::Status NetworkHost::Make() {
  COXSWAIN_RETURN_IF_ERROR(Ip({"netns", "add", name_}));
  made_ = true;
  return Ip({"-n", name_, "link", "set", "lo", "up"});
}

absl::Status NetworkHost::SetAddress(const std::string& device,
                                     const std::string& address) {
  device_ = device;
  COXSWAIN_RETURN_IF_ERROR(
      Ip({"-n", name_, "addr", "add", address + "/24", "dev", device}));
  return SetCable(true);
}

absl::Status NetworkHost::SetCable(bool in) {
  return Ip({"-n", name_, "link", "set", device_, in ? "up" : "down"});
}

absl::Status NetworkHost::Connect(NetworkHost* a, const std::string& address_a,
                                  NetworkHost* b,
                                  const std::string& address_b) {
  // Not more than 15 characters, and both begin their lives in this namespace.
  const std::string end_a = absl::StrCat("cxa", getpid());
  const std::string end_b = absl::StrCat("cxb", getpid());
  COXSWAIN_RETURN_IF_ERROR(
      Ip({"link", "add", end_a, "netns", a->name_, "type", "veth", "peer",
          "name", end_b, "netns", b->name_}));
  COXSWAIN_RETURN_IF_ERROR(a->SetAddress(end_a, address_a));
  return b->SetAddress(end_b, address_b);
}

std::vector<std::string> NetworkHost::prefix() const {
  return {kIp, "netns", "exec", name_};
}

}  // namespace coxswain
