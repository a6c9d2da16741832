#include "tests/security/haproxy.h"

#include <filesystem>
#include <fstream>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "tests/system/scenario.h"

namespace coxswain {
namespace {

constexpr char kProxyConfig[] = "deploy/haproxy/haproxy.cfg";
constexpr char kMakeMaps[] = "deploy/haproxy/make_maps.sh";

std::string ContentsOf(const std::string& path) {
  std::ifstream in(path);
  return {std::istreambuf_iterator<char>(in), {}};
}

}  // namespace

std::unique_ptr<Process> StartHaproxy(
    const std::string& config,
    const std::map<std::string, std::string>& environment) {
  // -W: a master that takes SIGUSR2 for a reload.
  auto process =
      Process::Start({{"haproxy", "-W", "-db", "-f", config}, environment});
  COXSWAIN_CHECK(process.ok());
  EXPECT_OK((*process)->WaitForStderr(kHaproxyLoaded, kTimeout));
  return *std::move(process);
}

FrontFiles::FrontFiles(std::string certs, const std::string& tokens,
                       std::string maps)
    : certs_(std::move(certs)), maps_(std::move(maps)) {
  std::filesystem::create_directory(maps_);
  const Ended made = RunToEnd({kMakeMaps, tokens, maps_});
  EXPECT_EQ(made.status, 0) << made.err;
  std::ofstream(certs_ + "/front.pem")
      << ContentsOf(certs_ + "/coordinator.crt")
      << ContentsOf(certs_ + "/coordinator.key");
}

std::unique_ptr<Process> FrontFiles::Start(int front_port, int behind_port,
                                           bool one_of_several) const {
  return StartHaproxy(
      kProxyConfig,
      {{"COXSWAIN_FRONT", absl::StrCat("127.0.0.1:", front_port)},
       {"COXSWAIN_BEHIND", absl::StrCat("127.0.0.1:", behind_port)},
       {"COXSWAIN_CERTS", certs_},
       {"COXSWAIN_MAPS", maps_},
       {"COXSWAIN_ONE_OF_SEVERAL", one_of_several ? "yes" : "no"}});
}

}  // namespace coxswain
