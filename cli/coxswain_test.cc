// Scenarios with the real program: coordinator, launcher and status.
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/clock.h"
#include "base/status_matchers.h"
#include "base/version.h"
#include "client/rpc/stub_factory.h"
#include "httplib.h"
#include "nlohmann/json.hpp"
#include "proto/rendezvous.pb.h"
#include "tests/support/process.h"

namespace coxswain {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

constexpr absl::Duration kSoon = absl::Seconds(30);
constexpr char kCoxswain[] = "cli/coxswain";

std::unique_ptr<Process> Start(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), kCoxswain);
  auto process = Process::Start({std::move(arguments), {}});
  EXPECT_OK(process);
  return std::move(process).value();
}

// The Hello of a worker of a small program.
v1::JoinRequest JoinOf(const std::string& job, int world_size) {
  v1::JoinRequest join;
  join.set_job(job);
  join.mutable_identity()->set_node("n");
  join.set_incarnation(1);
  join.set_host("here");
  join.set_address("127.0.0.1");
  join.mutable_manifest()->set_world_size(world_size);
  join.mutable_manifest()->set_hook("allreduce");
  join.mutable_manifest()->set_accumulation_steps(1);
  join.set_timeout_ms(absl::ToInt64Milliseconds(absl::Hours(1)));
  return join;
}

class CoxswainTest : public testing::Test {
 protected:
  // Returns a path in this test's folder, which is kept until all tests end.
  std::string Path(const std::string& name) {
    if (folder_.empty()) {
      folder_ = testing::TempDir() + "/coxswain_test-XXXXXX";
      EXPECT_NE(mkdtemp(folder_.data()), nullptr);
    }
    return folder_ + "/" + name;
  }

  // Starts a coordinator on a free port.
  void Serve(const std::vector<std::string>& more = {}) {
    std::vector<std::string> command = {
        "serve",       "--listen",    "127.0.0.1:0", "--state-dir",
        Path("state"), "--port-file", Path("port")};
    command.insert(command.end(), more.begin(), more.end());
    server_ = Start(std::move(command));
    ASSERT_OK(server_->WaitForStdout("\n", kSoon));
    std::string line = server_->out();
    ASSERT_TRUE(absl::StrContains(line, "coxswain: listening on 127.0.0.1:"));
    address_ = line.substr(line.find("127.0.0.1:"));
    address_.pop_back();
  }

  // Starts a command that calls the coordinator.
  std::unique_ptr<Process> Ask(std::vector<std::string> arguments) {
    arguments.insert(arguments.end(), {"--coordinator", address_});
    return Start(std::move(arguments));
  }

  Process::Exit Finish(Process& process) {
    const auto exit = process.Wait(kSoon);
    EXPECT_OK(exit);
    return exit.ok() ? *exit : Process::Exit{-1, 0};
  }

  std::unique_ptr<Process> server_;
  std::string address_;

 private:
  std::string folder_;
};

TEST_F(CoxswainTest, ServeReportsItsPortAndEndsOnSigterm) {
  Serve();
  std::ifstream file(Path("port"));
  std::string port;
  ASSERT_TRUE(std::getline(file, port));
  EXPECT_EQ(address_, "127.0.0.1:" + port);
  server_->Signal(SIGTERM);
  EXPECT_EQ(Finish(*server_).Status(), 0);
}

TEST_F(CoxswainTest, ServeLeavesNoOrphanAZombie) {
  // Children of a shell are inherited by the program that the shell executes.
  const auto started = Process::Start(
      {{"/bin/sh", "-c",
        absl::StrCat("sleep 1000 & echo orphan=$!.; exec ", kCoxswain,
                     " serve --listen 127.0.0.1:0 --state-dir ",
                     Path("state"))},
       {}});
  ASSERT_OK(started);
  Process& server = **started;
  ASSERT_OK(server.WaitForStdout("listening on ", kSoon));
  const pid_t orphan =
      std::atoi(server.out().c_str() + server.out().find("orphan=") + 7);
  ASSERT_GT(orphan, 1);
  ASSERT_EQ(kill(orphan, SIGKILL), 0);
  const absl::Time deadline = Clock::Real()->Now() + kSoon;
  while (kill(orphan, 0) == 0 && Clock::Real()->Now() < deadline) {
    std::this_thread::yield();
  }
  EXPECT_EQ(kill(orphan, 0), -1) << "process " << orphan << " is a zombie";
  server.Signal(SIGTERM);
  EXPECT_EQ(Finish(server).Status(), 0);
}

TEST_F(CoxswainTest, ServeShowsItselfOverHttp) {
  auto server =
      Start({"serve", "--listen", "127.0.0.1:0", "--state-dir", Path("state"),
             "--http", "127.0.0.1:0", "--http-port-file", Path("http-port")});
  ASSERT_OK(server->WaitForStdout("serving http://127.0.0.1:", kSoon));
  ASSERT_OK(server->WaitForStdout("listening on ", kSoon));
  std::ifstream file(Path("http-port"));
  int port = 0;
  ASSERT_TRUE(file >> port);
  httplib::Client client("127.0.0.1", port);
  client.set_read_timeout(20);
  const auto health = client.Get("/healthz");
  ASSERT_TRUE(health);
  EXPECT_EQ(health->status, 200);
  const auto metrics = client.Get("/metrics");
  ASSERT_TRUE(metrics);
  EXPECT_THAT(metrics->body, HasSubstr("coxswain_build_info"));
  server->Signal(SIGTERM);
  EXPECT_EQ(Finish(*server).Status(), 0);

  auto open = Start({"serve", "--listen", "127.0.0.1:0", "--state-dir",
                     Path("other"), "--http", "0.0.0.0:0"});
  EXPECT_EQ(Finish(*open).Status(), 2);
  EXPECT_THAT(open->err(), HasSubstr("--insecure"));
}

TEST_F(CoxswainTest, StatusOfAnIdleCoordinator) {
  Serve();
  auto status = Start({"status", "--coordinator", address_, "--json"});
  EXPECT_EQ(Finish(*status).Status(), 0) << status->err();
  const auto json = nlohmann::json::parse(status->out(), nullptr, false);
  ASSERT_TRUE(json.is_object()) << status->out();
  EXPECT_TRUE(json["jobs"].empty());
  EXPECT_NE(json["cluster_id"], "");

  auto table = Start({"status", "--coordinator", address_});
  EXPECT_EQ(Finish(*table).Status(), 0);
  EXPECT_THAT(table->out(), HasSubstr("0 jobs"));

  auto unknown = Start({"status", "--coordinator", address_, "--job", "none"});
  EXPECT_EQ(Finish(*unknown).Status(), 1);
  EXPECT_THAT(unknown->err(), HasSubstr("none"));
}

TEST_F(CoxswainTest, StatusWithoutACoordinatorIsAnErrorInTime) {
  auto status =
      Start({"status", "--coordinator", "127.0.0.1:1", "--timeout", "500ms"});
  EXPECT_EQ(Finish(*status).Status(), 1);
  EXPECT_THAT(status->err(), HasSubstr("127.0.0.1:1"));
}

TEST_F(CoxswainTest, TwoCoordinatorsOnOnePortAreAClearError) {
  Serve();
  auto second = Start(
      {"serve", "--listen", address_, "--state-dir", Path("other-state")});
  EXPECT_EQ(Finish(*second).Status(), 1);
  EXPECT_THAT(second->err(), HasSubstr(address_));
  EXPECT_EQ(second->out(), "");
}

TEST_F(CoxswainTest, TwoCoordinatorsOnOneStateAreAClearError) {
  Serve();
  auto second =
      Start({"serve", "--listen", "127.0.0.1:0", "--state-dir", Path("state")});
  EXPECT_EQ(Finish(*second).Status(), 1);
  EXPECT_THAT(second->err(), HasSubstr(Path("state")));
}

TEST_F(CoxswainTest, ServingTheNetworkIsWarnedAbout) {
  auto server = Start({"serve", "--listen", "0.0.0.0:0", "--insecure",
                       "--state-dir", Path("state")});
  EXPECT_OK(server->WaitForStdout("listening on 0.0.0.0:", kSoon));
  EXPECT_THAT(server->err(), HasSubstr("not_encrypted"));
  server->Signal(SIGINT);
  EXPECT_EQ(Finish(*server).Status(), 0);
}

TEST_F(CoxswainTest, OneNodeNeedsNoCoordinator) {
  auto run = Start({"run", "--nproc", "2", "--node", "n", "--", "/bin/sh", "-c",
                    "echo $COXSWAIN_COORDINATOR $COXSWAIN_JOB"});
  EXPECT_EQ(Finish(*run).Status(), 0) << run->err();
  EXPECT_THAT(run->out(),
              AllOf(HasSubstr("[n/0] 127.0.0.1:"),
                    HasSubstr("[n/1] 127.0.0.1:"), HasSubstr(" standalone\n")));
}

TEST_F(CoxswainTest, WorkersGetTheBoundsOfTheWorldSize) {
  auto run = Start({"run", "--nproc", "3", "--min-workers", "2", "--attempt",
                    "4", "--topology", "zone-1,rack-7", "--node", "n", "--",
                    "/bin/sh", "-c",
                    "echo $COXSWAIN_MIN_WORLD_SIZE $COXSWAIN_WORLD_SIZE "
                    "$COXSWAIN_ATTEMPT $COXSWAIN_TOPOLOGY"});
  EXPECT_EQ(Finish(*run).Status(), 0) << run->err();
  EXPECT_THAT(run->out(), HasSubstr("[n/2] 2 3 4 zone-1,rack-7\n"));
}

TEST_F(CoxswainTest, WorkersGetThePathOfTheirTraces) {
  const std::string trace = Path("trace.json");
  auto run = Start({"run", "--node", "n", "--trace", trace, "--", "/bin/sh",
                    "-c", "echo to $COXSWAIN_TRACE"});
  EXPECT_EQ(Finish(*run).Status(), 0) << run->err();
  EXPECT_EQ(run->out(), "[n/0] to " + trace + "\n");
}

TEST_F(CoxswainTest, TheDeathOfAWorkerReachesTheCoordinator) {
  Serve();
  // A worker joins a job of two; the second never joins, and the first's
  // process ends. Its launcher's report alone ends the wait, long before the
  // lease or the round would.
  const std::string script =
      "echo launcher=$COXSWAIN_LAUNCHER_ID; "
      "echo incarnation=$COXSWAIN_INCARNATION; echo ready; "
      "exec sleep 1000";
  auto run =
      Start({"run", "--nproc", "1", "--nnodes", "2", "--coordinator", address_,
             "--job", "j", "--node", "n", "--", "/bin/sh", "-c", script});
  ASSERT_OK(run->WaitForStdout("ready", kSoon));
  const auto number_after = [&](const std::string& label) {
    uint64_t number = 0;
    const std::string text =
        run->out().substr(run->out().find(label) + label.size());
    EXPECT_TRUE(absl::SimpleAtoi(text.substr(0, text.find('\n')), &number));
    return number;
  };
  v1::JoinRequest join = JoinOf("j", 2);
  join.set_incarnation(number_after("incarnation="));
  join.set_launcher_id(number_after("launcher="));
  CallOptions options;
  options.timeout = kSoon;
  options.retry = false;
  const auto stub = ConnectCoordinator(address_);
  absl::Status joined;
  std::thread worker([&] { joined = stub->Join(join, options).status(); });

  // Once the member is shown, its process ends.
  bool shown = false;
  const absl::Time deadline = Clock::Real()->Now() + kSoon;
  while (!shown && Clock::Real()->Now() < deadline) {
    v1::DescribeRequest request;
    const auto description = stub->Describe(request, options);
    ASSERT_OK(description);
    shown = description->jobs_size() == 1 &&
            description->jobs(0).members_size() == 1;
  }
  EXPECT_TRUE(shown);
  run->Signal(SIGTERM);
  EXPECT_EQ(Finish(*run).Status(), 128 + SIGTERM);
  worker.join();
  EXPECT_THAT(joined, Not(IsOk()));
  EXPECT_NE(joined.code(), absl::StatusCode::kDeadlineExceeded) << joined;
}

TEST_F(CoxswainTest,
       WorkersOfANeighbouringVersionAreServedOrRefusedWithAdvice) {
  Serve();
  CallOptions options;
  options.timeout = kSoon;
  const auto stub = ConnectCoordinator(address_);
  const auto join = [&](const std::string& job, const std::string& version) {
    v1::JoinRequest request = JoinOf(job, 1);
    (*request.mutable_manifest()->mutable_settings())["library_version"] =
        version;
    return stub->Join(request, options).status();
  };
  std::vector<int> numbers;
  for (const auto part : absl::StrSplit(kVersion, '.')) {
    ASSERT_TRUE(absl::SimpleAtoi(part, &numbers.emplace_back()));
  }
  const std::string series = absl::StrCat(numbers[0], ".", numbers[1]);
  EXPECT_OK(join("a", series + ".99"));
  if (numbers[1] > 0) {
    EXPECT_OK(join("b", absl::StrCat(numbers[0], ".", numbers[1] - 1, ".0")));
  }
  EXPECT_THAT(join("c", absl::StrCat(numbers[0], ".", numbers[1] + 1, ".0")),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr(kVersion),
                             HasSubstr("upgrade the coordinator first"))));
}

TEST_F(CoxswainTest, ThePlanOfAJobIsShownAndChanged) {
  Serve();
  auto none = Ask({"plan", "show"});
  EXPECT_EQ(Finish(*none).Status(), 1);
  EXPECT_THAT(none->err(), HasSubstr("has no jobs"));

  v1::JoinRequest join = JoinOf("j", 1);
  (*join.mutable_manifest()->mutable_terms())["tail"] = "carry";
  CallOptions options;
  options.timeout = kSoon;
  ASSERT_OK(ConnectCoordinator(address_)->Join(join, options));

  auto show = Ask({"plan", "show"});
  EXPECT_EQ(Finish(*show).Status(), 0) << show->err();
  EXPECT_THAT(show->out(), AllOf(HasSubstr("job j: version 1 of its plan\n"),
                                 HasSubstr("*  tail "), HasSubstr(" carry\n")));
  auto status = Ask({"status"});
  EXPECT_EQ(Finish(*status).Status(), 0) << status->err();
  EXPECT_THAT(status->out(), HasSubstr("accumulation 1, tail=carry\n"));

  auto set = Ask({"plan", "set", "accumulation=8"});
  EXPECT_EQ(Finish(*set).Status(), 0) << set->err();
  EXPECT_EQ(set->out(),
            "version 2 of the plan of job j: accumulation 1 -> 8, from the "
            "next step\n");
  auto late = Ask({"plan", "set", "j", "accumulation=9", "--expect", "1"});
  EXPECT_EQ(Finish(*late).Status(), 1);
  EXPECT_THAT(late->err(), HasSubstr("has version 2, not 1"));
  auto wrong = Ask({"plan", "set", "j", "hook=powersgd(rank=0)"});
  EXPECT_EQ(Finish(*wrong).Status(), 2);
  EXPECT_THAT(wrong->err(), HasSubstr("rank must be between"));

  auto both = Ask({"plan", "show", "j", "--json"});
  EXPECT_EQ(Finish(*both).Status(), 0) << both->err();
  const auto json = nlohmann::json::parse(both->out(), nullptr, false);
  ASSERT_TRUE(json.is_object()) << both->out();
  EXPECT_EQ(json["plan"]["accumulation_steps"], 1);
  EXPECT_EQ(json["plan_next"]["accumulation_steps"], 8);
  EXPECT_EQ(json["plan_next"]["at_step"], -1);

  auto why = Ask({"why", "j"});
  EXPECT_EQ(Finish(*why).Status(), 0) << why->err();
  EXPECT_THAT(why->out(), AllOf(HasSubstr("job j: running, generation 1\n"),
                                HasSubstr("RANK  MEMBER")));
}

TEST_F(CoxswainTest, WorkersGetWhatTheirPlanBeginsWith) {
  auto run =
      Start({"run", "--node", "n", "--plan", "tail=drop max_steps=9", "--plan",
             "hook=fp16( )", "--", "/bin/sh", "-c", "echo $COXSWAIN_PLAN"});
  EXPECT_EQ(Finish(*run).Status(), 0) << run->err();
  EXPECT_EQ(run->out(), "[n/0] hook=fp16 max_steps=9 tail=drop\n");
}

TEST_F(CoxswainTest, RunReturnsTheFirstFailureAlsoWithoutItsCoordinator) {
  auto run = Start({"run", "--nproc", "2", "--coordinator", "127.0.0.1:1",
                    "--job", "j", "--", "/bin/sh", "-c", "exit 7"});
  EXPECT_EQ(Finish(*run).Status(), 7);
  EXPECT_THAT(run->err(), AllOf(HasSubstr("first failure: worker"),
                                HasSubstr("exited with code 7")));
}

TEST_F(CoxswainTest, RunNamesTheCauseAlsoWithoutAnAnswer) {
  // They join no job: the coordinator knows nothing of them.
  auto run = Start({"run", "--nproc", "2", "--node", "n", "--", "/bin/sh", "-c",
                    "test $COXSWAIN_LOCAL_RANK = 0 && exit 7; kill -SEGV $$"});
  Finish(*run);
  EXPECT_THAT(run->err(),
              AllOf(HasSubstr("coxswain: cause: worker n/1 (pid "),
                    HasSubstr("was killed by signal 11 (SIGSEGV)\n"),
                    HasSubstr("coxswain: consequence: worker n/0 (pid ")));
}

TEST_F(CoxswainTest, AProgramThatIsMissingIsStatus127) {
  auto run = Start({"run", "--", "/nonexistent/train"});
  EXPECT_EQ(Finish(*run).Status(), 127);
  EXPECT_THAT(run->err(), HasSubstr("/nonexistent/train"));
}

TEST_F(CoxswainTest, WrongCommandLinesAreStatus2) {
  auto run = Start({"run", "--nproc", "0", "--", "true"});
  EXPECT_EQ(Finish(*run).Status(), 2);
  EXPECT_THAT(run->err(), HasSubstr("--nproc"));
}

TEST_F(CoxswainTest, MissingGpusAreReportedBeforeAWorkerStarts) {
  auto run = Start({"run", "--gpus", "4000", "--", "/bin/echo", "started"});
  EXPECT_EQ(Finish(*run).Status(), 1);
  EXPECT_THAT(run->err(), HasSubstr("GPU"));
  EXPECT_THAT(run->out(), Not(HasSubstr("started")));
}

TEST_F(CoxswainTest, WorkersWithoutGpusAreShownNone) {
  auto run = Start({"run", "--gpus", "none", "--no-prefix", "--", "/bin/sh",
                    "-c", "echo $CUDA_VISIBLE_DEVICES $COXSWAIN_LOCAL_DEVICE"});
  EXPECT_EQ(Finish(*run).Status(), 0) << run->err();
  EXPECT_EQ(run->out(), "-1 cpu\n");
}

TEST_F(CoxswainTest, HooksAreListedWithoutACoordinator) {
  auto all = Start({"hooks"});
  EXPECT_EQ(Finish(*all).Status(), 0);
  EXPECT_THAT(all->out(),
              AllOf(HasSubstr("allreduce\n"), HasSubstr("\nfp16 (also "),
                    HasSubstr("\n  rank=1 [1 to 1024]\n"),
                    HasSubstr("\n  collectives  ")));
  auto one = Start({"hooks", "power_sgd", "--json"});
  EXPECT_EQ(Finish(*one).Status(), 0);
  const auto json = nlohmann::json::parse(one->out(), nullptr, false);
  ASSERT_TRUE(json.is_object()) << one->out();
  ASSERT_EQ(json["hooks"].size(), 1u);
  EXPECT_EQ(json["hooks"][0]["name"], "powersgd");
  auto markdown = Start({"hooks", "noop", "--markdown"});
  EXPECT_EQ(Finish(*markdown).Status(), 0);
  EXPECT_THAT(markdown->out(), HasSubstr("### `noop`\n"));
  auto unknown = Start({"hooks", "powresgd"});
  EXPECT_EQ(Finish(*unknown).Status(), 1);
  EXPECT_THAT(unknown->err(), HasSubstr("there is no hook 'powresgd'"));
}

TEST_F(CoxswainTest, HooksCheckPrintsTheCanonicalSpecOrTheError) {
  auto good = Start({"hooks", "--check", "power_sgd( start_powerSGD_iter=7 )"});
  EXPECT_EQ(Finish(*good).Status(), 0);
  EXPECT_EQ(good->out(), "powersgd(start_step=7)\n");
  auto bad = Start({"hooks", "--check", "powersgd(rank=0)"});
  EXPECT_EQ(Finish(*bad).Status(), 1);
  EXPECT_EQ(bad->out(), "");
  EXPECT_THAT(bad->err(), HasSubstr("rank must be between 1 and 1024, got 0"));
  std::ofstream(Path("hook.yaml")) << "comm_wrapper: fp16\n";
  auto file = Start({"hooks", "--check", "@" + Path("hook.yaml")});
  EXPECT_EQ(Finish(*file).Status(), 1);
  EXPECT_THAT(file->err(), HasSubstr("hook.yaml: hook YAML, line 1"));
}

// A worker of the one-rank job "j", with a launcher's id.
void JoinAndDie(const std::string& address) {
  const auto stub = ConnectCoordinator(address);
  CallOptions options;
  options.timeout = kSoon;
  v1::JoinRequest join = JoinOf("j", 1);
  join.set_launcher_id(5);
  ASSERT_OK(stub->Join(join, options));
  v1::ReportExitRequest exit;
  exit.set_job("j");
  exit.set_launcher_id(5);
  exit.mutable_identity()->set_node("n");
  exit.set_incarnation(1);
  exit.set_exit_code(7);
  ASSERT_OK(stub->ReportExit(exit, options));
}

TEST_F(CoxswainTest, EveryLineOfAJsonLogIsAnObject) {
  Serve({"--log-format", "json", "--log-level", "debug"});
  JoinAndDie(address_);
  server_->Signal(SIGTERM);
  EXPECT_EQ(Finish(*server_).Status(), 0);
  bool lost = false;
  for (const std::string& line : std::vector<std::string>(
           absl::StrSplit(server_->err(), '\n', absl::SkipEmpty()))) {
    const auto json = nlohmann::json::parse(line, nullptr, false);
    ASSERT_TRUE(json.is_object()) << line;
    EXPECT_TRUE(json["time"].is_string()) << line;
    EXPECT_TRUE(json["level"].is_string()) << line;
    EXPECT_TRUE(json["event"].is_string()) << line;
    if (json["event"] != "member_lost") continue;
    lost = true;
    EXPECT_EQ(json["job"], "j");
    EXPECT_EQ(json["rank"], 0);
    EXPECT_EQ(json["generation"], 1);
    EXPECT_TRUE(json["step"].is_number());
  }
  EXPECT_TRUE(lost) << server_->err();

  auto second = Start({"serve", "--log-format", "json", "--listen",
                       "127.0.0.1:0", "--state-dir", "/proc/none"});
  EXPECT_EQ(Finish(*second).Status(), 1);
  const std::string err = second->err();
  const std::string last = err.substr(err.rfind('\n', err.size() - 2) + 1);
  const auto failed = nlohmann::json::parse(last, nullptr, false);
  ASSERT_TRUE(failed.is_object()) << last;
  EXPECT_EQ(failed["event"], "failed");
}

TEST_F(CoxswainTest, LogsFollowAMembersLossAndARestart) {
  Serve();
  auto follow = Ask({"logs", "j", "--follow"});
  ASSERT_OK(follow->WaitForStderr("no such events of job j", kSoon));
  JoinAndDie(address_);
  ASSERT_OK(follow->WaitForStdout("generation_ended", kSoon));
  EXPECT_THAT(follow->out(),
              AllOf(HasSubstr(" W member_lost job=j generation=1 rank=0 "),
                    HasSubstr("exited with code 7")));
  auto all = Ask({"logs", "--json", "--since", "1h"});
  EXPECT_EQ(Finish(*all).Status(), 0) << all->err();
  EXPECT_THAT(all->out(), HasSubstr(R"("event":"member_lost","sequence":)"));

  server_->Signal(SIGKILL);
  Finish(*server_);
  ASSERT_OK(follow->WaitForStderr("cannot be reached", kSoon));
  server_ =
      Start({"serve", "--listen", address_, "--state-dir", Path("state")});
  ASSERT_OK(follow->WaitForStderr("was started again (term 2)", kSoon));
  follow->Signal(SIGINT);
  EXPECT_EQ(Finish(*follow).Status(), 0) << follow->err();
}

TEST_F(CoxswainTest, StatusIsWatchedUntilASignal) {
  Serve();
  CallOptions options;
  options.timeout = kSoon;
  ASSERT_OK(ConnectCoordinator(address_)->Join(JoinOf("j", 1), options));
  auto watch = Ask({"status", "--watch", "--interval", "100ms"});
  ASSERT_OK(
      watch->WaitForStdout("job j: running, generation 1, 1 members, "
                           "step 0, 0.00 steps/s\n",
                           kSoon));
  watch->Signal(SIGTERM);
  EXPECT_EQ(Finish(*watch).Status(), 0) << watch->err();
  EXPECT_THAT(watch->out(), Not(HasSubstr("\x1b")));
  auto wrong = Ask({"status", "--watch", "--json"});
  EXPECT_EQ(Finish(*wrong).Status(), 2);
}

TEST_F(CoxswainTest, JsonLinesOfWorkersStayObjects) {
  auto run = Start({"run", "--node", "n", "--log-format", "json", "--",
                    "/bin/sh", "-c",
                    "echo '{\"event\":\"x\"}' >&2; echo in "
                    "$COXSWAIN_LOG_FORMAT; exit 3"});
  EXPECT_EQ(Finish(*run).Status(), 3);
  EXPECT_EQ(run->out(), "[n/0] in json\n");
  EXPECT_THAT(run->err(),
              HasSubstr("{\"node\":\"n\",\"slot\":0,\"event\":\"x\"}\n"));
  for (const std::string& line : std::vector<std::string>(
           absl::StrSplit(run->err(), '\n', absl::SkipEmpty()))) {
    EXPECT_TRUE(nlohmann::json::accept(line)) << line;
  }
}

TEST_F(CoxswainTest, VersionNamesTheLibraries) {
  auto version = Start({"version"});
  EXPECT_EQ(Finish(*version).Status(), 0);
  EXPECT_THAT(version->out(),
              AllOf(HasSubstr(absl::StrCat("coxswain ", kVersion, "\n")),
                    HasSubstr("gRPC "), HasSubstr("protobuf ")));
}

}  // namespace
}  // namespace coxswain
