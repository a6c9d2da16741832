#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_split.h"
#include "base/status_matchers.h"
#include "tests/support/network_host.h"
#include "tests/system/scenario.h"

namespace coxswain {
namespace {

using testing::DoubleNear;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Pointwise;
using testing::SizeIs;

// Two hosts with a cable between them.
class TwoNetworkNamespacesTest : public testing::Test {
 protected:
  void SetUp() override {
    for (NetworkHost* host : {&bow_, &stroke_}) {
      const absl::Status made = host->Make();
      if (!made.ok()) {
        GTEST_SKIP() << "cannot make a network namespace (that needs "
                        "CAP_SYS_ADMIN, CAP_NET_ADMIN and iproute2): "
                     << made;
      }
    }
    ASSERT_OK(NetworkHost::Connect(&bow_, "10.77.0.1", &stroke_, "10.77.0.2"));
  }

  std::unique_ptr<Process> StartOn(
      const NetworkHost& host, const std::vector<std::string>& run_options,
      const std::vector<std::string>& toy_options) {
    std::vector<std::string> command = host.prefix();
    for (const std::string& word : Launcher(run_options, toy_options)) {
      command.push_back(word);
    }
    return Start(command);
  }

  // Two ranks on each, with these options more; returns what the launchers
  // have printed.
  struct Output {
    std::string out;
    std::string err;
  };
  std::vector<Output> RunJob(const std::string& name,
                             const std::vector<std::string>& run_options,
                             const std::vector<std::string>& toy_options);

  NetworkHost bow_{"bow"};
  NetworkHost stroke_{"stroke"};
};

std::vector<TwoNetworkNamespacesTest::Output> TwoNetworkNamespacesTest::RunJob(
    const std::string& name, const std::vector<std::string>& run_options,
    const std::vector<std::string>& toy_options) {
  ServedCoordinator coordinator("10.77.0.1:0", bow_.prefix());
  const auto start = [&](const NetworkHost& host, const std::string& node) {
    std::vector<std::string> options = {"--nnodes",      "2",
                                        "--nproc",       "2",
                                        "--node",        node,
                                        "--job",         name,
                                        "--coordinator", coordinator.address()};
    options.insert(options.end(), run_options.begin(), run_options.end());
    return StartOn(host, options, toy_options);
  };
  const auto first = start(bow_, "bow");
  const auto second = start(stroke_, "stroke");
  std::vector<Output> outputs;
  for (Process* launcher : {first.get(), second.get()}) {
    const auto exit = launcher->Wait(kTimeout);
    EXPECT_OK(exit);
    EXPECT_TRUE(exit.ok() && exit->Status() == 0) << launcher->err();
    outputs.push_back({launcher->out(), launcher->err()});
  }
  coordinator.Stop();
  EXPECT_THAT(StrayProcesses(), IsEmpty());
  return outputs;
}

TEST_F(TwoNetworkNamespacesTest, TwoLaunchersMakeOneJob) {
  const auto outputs = RunJob(
      "rows", {"--backend", "tcp"},
      {"--hook", "powersgd(rank=2,start_step=3)", "--steps", "20", "--digest"});
  ASSERT_THAT(outputs, SizeIs(2));
  // Each side listens on the address that leads to the other one.
  EXPECT_THAT(outputs[0].err, HasSubstr("address=10.77.0.1"));
  EXPECT_THAT(outputs[1].err, HasSubstr("address=10.77.0.2"));
  EXPECT_THAT(LinesWith(outputs[0].out + outputs[1].out, "through tcp"),
              SizeIs(4));

  const auto digests = DigestsByRank(outputs[0].out + outputs[1].out);
  ASSERT_THAT(digests, SizeIs(4));
  ASSERT_THAT(digests.at(0), SizeIs(20));
  for (const auto& [rank, steps] : digests) {
    EXPECT_EQ(steps, digests.at(0)) << "rank " << rank;
  }
  EXPECT_THAT(DigestsByRank(outputs[0].out), SizeIs(2));
}

// What rank 0 has written of its averaged gradients: the header of each, and
// its elements.
struct Gradient {
  std::string header;
  std::vector<double> values;
};
std::vector<Gradient> ReadDump(const std::string& path) {
  std::vector<Gradient> gradients;
  std::ifstream file(path, std::ios::binary);
  for (std::string line; std::getline(file, line);) {
    Gradient gradient = {line, {}};
    const std::vector<std::string> words = absl::StrSplit(line, ' ');
    gradient.values.resize(std::stoul(words.back()));
    file.read(
        reinterpret_cast<char*>(gradient.values.data()),
        static_cast<std::streamsize>(gradient.values.size() * sizeof(double)));
    gradients.push_back(std::move(gradient));
  }
  return gradients;
}

TEST_F(TwoNetworkNamespacesTest, MemoryIsSharedWithinAndSocketsGoBetween) {
  const TemporaryFolder folder;
  const auto options = [&](const std::string& dump) {
    return std::vector<std::string>{"--steps",  "5",      "--replay",
                                    "--digest", "--dump", folder.path(dump)};
  };
  RunJob("flat", {"--backend", "tcp"}, options("flat"));
  const std::vector<Gradient> flat = ReadDump(folder.path("flat"));
  ASSERT_THAT(flat, SizeIs(5 * 4));

  const auto outputs = RunJob("levels", {}, options("levels"));
  ASSERT_THAT(outputs, SizeIs(2));
  const std::string out = outputs[0].out + outputs[1].out;
  EXPECT_THAT(LinesWith(out, "through two_level"), SizeIs(4)) << out;
  const auto digests = DigestsByRank(out);
  ASSERT_THAT(digests, SizeIs(4));
  for (const auto& [rank, steps] : digests) {
    EXPECT_EQ(steps, digests.at(0)) << "rank " << rank;
  }

  // The sums are those of the sockets alone, formed in another order.
  const std::vector<Gradient> sums = ReadDump(folder.path("levels"));
  ASSERT_THAT(sums, SizeIs(5 * 4));
  for (size_t i = 0; i < flat.size(); ++i) {
    EXPECT_EQ(sums[i].header, flat[i].header);
    EXPECT_THAT(sums[i].values, Pointwise(DoubleNear(1e-5), flat[i].values));
  }
}

TEST_F(TwoNetworkNamespacesTest, AJobInOneOfThemSharesMemory) {
  const auto launcher = StartOn(stroke_, {"--nproc", "3"}, {"--steps", "3"});
  ASSERT_OK_AND_ASSIGN(Process::Exit exit, launcher->Wait(kTimeout));
  EXPECT_EQ(exit.Status(), 0) << launcher->err();
  EXPECT_THAT(LinesWith(launcher->out(), "through shm"), SizeIs(3));
}

}  // namespace
}  // namespace coxswain
