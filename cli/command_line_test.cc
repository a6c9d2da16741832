#include "cli/command_line.h"

#include <cstdlib>
#include <fstream>
#include <map>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/status_matchers.h"
#include "schedule/terms.h"

namespace coxswain {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using Command = CommandLine::Command;

class CommandLineTest : public testing::Test {
 protected:
  ~CommandLineTest() override {
    for (const std::string& name : set_) unsetenv(name.c_str());
  }
  void Set(const std::string& name, const std::string& value) {
    setenv(name.c_str(), value.c_str(), 1);
    set_.push_back(name);
  }
  std::string ConfigFile(const std::string& text) {
    std::string path = testing::TempDir() + "/coxswain.toml";
    std::ofstream(path) << text;
    return path;
  }
  static testing::Matcher<absl::StatusOr<CommandLine>> IsUsageError(
      const std::string& text) {
    return StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(text));
  }

 private:
  std::vector<std::string> set_;
};

TEST_F(CommandLineTest, ServeHasSafeDefaults) {
  ASSERT_OK_AND_ASSIGN(CommandLine line, ParseCommandLine({"serve"}));
  EXPECT_EQ(line.command, Command::kServe);
  EXPECT_EQ(line.serve.listen, "127.0.0.1:7077");
  EXPECT_EQ(line.serve.state_dir, "coxswain-state");
  EXPECT_FALSE(line.serve.repair_state);
  EXPECT_EQ(line.serve.port_file, "");
  EXPECT_EQ(line.serve.log_level, "info");
}

TEST_F(CommandLineTest, WhereTheStateIsAndHowLongLeasesAre) {
  ASSERT_OK_AND_ASSIGN(
      CommandLine line,
      ParseCommandLine({"serve", "--state", "etcd://a:1,b:2/x",
                        "--repair-state", "--leader-lease", "7s", "--lease",
                        "6s", "--heartbeat-interval", "500ms",
                        "--reattach-grace", "1m", "--last-call", "3"}));
  EXPECT_EQ(line.serve.state, "etcd://a:1,b:2/x");
  EXPECT_TRUE(line.serve.repair_state);
  EXPECT_EQ(line.serve.leader_lease, absl::Seconds(7));
  EXPECT_EQ(line.serve.membership.lease, absl::Seconds(6));
  EXPECT_EQ(line.serve.membership.heartbeat_interval, absl::Milliseconds(500));
  EXPECT_EQ(line.serve.membership.reattach_grace, absl::Minutes(1));
  EXPECT_EQ(line.serve.membership.last_call, absl::Seconds(3));

  for (const std::vector<std::string>& wrong :
       std::vector<std::vector<std::string>>{{"--state", "http://a:1"},
                                             {"--state", "etcd://a"},
                                             {"--leader-lease", "500ms"},
                                             {"--lease", "0"},
                                             {"--last-call", "soon"}}) {
    EXPECT_THAT(ParseCommandLine({"serve", wrong[0], wrong[1]}),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         testing::HasSubstr(wrong[0])));
  }
}

TEST_F(CommandLineTest, HooksTakesANameAndAFormat) {
  ASSERT_OK_AND_ASSIGN(CommandLine all, ParseCommandLine({"hooks"}));
  EXPECT_EQ(all.command, Command::kHooks);
  EXPECT_EQ(all.hooks.name, "");
  EXPECT_FALSE(all.hooks.json);
  ASSERT_OK_AND_ASSIGN(CommandLine one,
                       ParseCommandLine({"hooks", "fp16", "--markdown"}));
  EXPECT_EQ(one.hooks.name, "fp16");
  EXPECT_TRUE(one.hooks.markdown);
  ASSERT_OK_AND_ASSIGN(CommandLine check,
                       ParseCommandLine({"hooks", "--check", "fp16(noop)"}));
  EXPECT_EQ(check.hooks.check, "fp16(noop)");
}

TEST_F(CommandLineTest, PlanScheduleAndCheckNeedNoCoordinator) {
  ASSERT_OK_AND_ASSIGN(
      CommandLine line,
      ParseCommandLine({"plan", "schedule", "--ranks", "4", "--accumulation",
                        "8", "--pipeline", "interleaved", "--chunks", "3",
                        "--capacity", "0", "--csv"}));
  EXPECT_EQ(line.command, Command::kPlanSchedule);
  EXPECT_EQ(line.plan_schedule.pipeline, "interleaved(chunks=3)");
  EXPECT_EQ(line.plan_schedule.ranks, 4);
  EXPECT_EQ(line.plan_schedule.accumulation, 8);
  EXPECT_EQ(line.plan_schedule.capacity, 0);
  EXPECT_TRUE(line.plan_schedule.csv);
  Set("COXSWAIN_RANKS", "2");
  ASSERT_OK_AND_ASSIGN(
      line, ParseCommandLine({"plan", "schedule", "--accumulation", "8"}));
  EXPECT_EQ(line.plan_schedule.pipeline, "1f1b");
  EXPECT_EQ(line.plan_schedule.ranks, 2);
  EXPECT_EQ(line.plan_schedule.capacity, -1);
  EXPECT_FALSE(line.plan_schedule.csv);
  ASSERT_OK_AND_ASSIGN(
      line, ParseCommandLine({"plan", "check", "a.csv", "--capacity", "2"}));
  EXPECT_EQ(line.command, Command::kPlanCheck);
  EXPECT_EQ(line.plan_check.file, "a.csv");
  EXPECT_EQ(line.plan_check.capacity, 2);
}

TEST_F(CommandLineTest, PlanMemoryTakesTheWordsOfThePlan) {
  ASSERT_OK_AND_ASSIGN(
      CommandLine line,
      ParseCommandLine(
          {"plan",   "memory",   "m.json",         "--mesh",      "pp=2,dp=2",
           "--zero", "1",        "--accumulation", "8",           "--pipeline",
           "zb_h1",  "--stages", "parameters",     "--optimizer", "sgd",
           "--hook", "fp16",     "--bucket-mib",   "5",           "--json"}));
  EXPECT_EQ(line.command, Command::kPlanMemory);
  EXPECT_EQ(line.plan_memory.model, "m.json");
  EXPECT_EQ(line.plan_memory.mesh, "pp=2,dp=2");
  EXPECT_EQ(line.plan_memory.zero, 1);
  EXPECT_EQ(line.plan_memory.accumulation, 8);
  EXPECT_EQ(line.plan_memory.pipeline, "zb_h1");
  EXPECT_EQ(line.plan_memory.stages, "parameters");
  EXPECT_EQ(line.plan_memory.optimizer, "sgd");
  EXPECT_EQ(line.plan_memory.hook, "fp16");
  EXPECT_EQ(line.plan_memory.bucket_mib, 5);
  EXPECT_TRUE(line.plan_memory.json);
  EXPECT_FALSE(line.plan_memory.offload);
  EXPECT_FALSE(line.plan_memory.force_zero);
  EXPECT_FALSE(line.plan_memory.sequence);
  EXPECT_FALSE(line.plan_memory.sync_each_batch);
  EXPECT_FALSE(line.plan_memory.gradient_as_bucket_view);
  EXPECT_FALSE(ParseCommandLine({"plan", "memory"}).ok());
}

TEST_F(CommandLineTest, PlanCommandsTakeAJobOrLeaveItOut) {
  Set("COXSWAIN_COORDINATOR", "head:7077");
  ASSERT_OK_AND_ASSIGN(CommandLine show,
                       ParseCommandLine({"plan", "show", "x", "--json"}));
  EXPECT_EQ(show.command, Command::kPlanShow);
  EXPECT_EQ(show.plan_show.job, "x");
  EXPECT_TRUE(show.plan_show.json);
  ASSERT_OK_AND_ASSIGN(CommandLine set,
                       ParseCommandLine({"plan", "set", "x", "accumulation=8",
                                         "at=next", "--expect", "3"}));
  EXPECT_EQ(set.command, Command::kPlanSet);
  EXPECT_EQ(set.plan_set.job, "x");
  EXPECT_EQ(set.plan_set.expect, 3);
  EXPECT_THAT(set.plan_set.changes, ElementsAre("accumulation=8", "at=next"));
  ASSERT_OK_AND_ASSIGN(
      set, ParseCommandLine({"plan", "set", "accumulation=8", "at=next"}));
  EXPECT_EQ(set.plan_set.job, "");
  EXPECT_THAT(set.plan_set.changes, ElementsAre("accumulation=8", "at=next"));
  ASSERT_OK_AND_ASSIGN(CommandLine why,
                       ParseCommandLine({"why", "--job", "x"}));
  EXPECT_EQ(why.command, Command::kWhy);
  EXPECT_EQ(why.why.job, "x");
}

TEST_F(CommandLineTest, PlanCommandsReadTheEnvironmentAndTheFile) {
  Set("COXSWAIN_CONFIG",
      ConfigFile("[plan.set]\ncoordinator = \"127.0.0.1:1\"\njob = \"f\"\n"
                 "[why]\ntimeout = \"9s\"\n"));
  ASSERT_OK_AND_ASSIGN(CommandLine set,
                       ParseCommandLine({"plan", "set", "tail=drop"}));
  EXPECT_EQ(set.plan_set.coordinator, "127.0.0.1:1");
  EXPECT_EQ(set.plan_set.job, "f");
  Set("COXSWAIN_COORDINATOR", "127.0.0.1:2");
  Set("COXSWAIN_JOB", "e");
  ASSERT_OK_AND_ASSIGN(set, ParseCommandLine({"plan", "set", "tail=drop"}));
  EXPECT_EQ(set.plan_set.coordinator, "127.0.0.1:2");
  EXPECT_EQ(set.plan_set.job, "e");
  ASSERT_OK_AND_ASSIGN(set,
                       ParseCommandLine({"plan", "set", "x", "tail=drop"}));
  EXPECT_EQ(set.plan_set.job, "x");
  ASSERT_OK_AND_ASSIGN(CommandLine why, ParseCommandLine({"why"}));
  EXPECT_EQ(why.why.job, "e");
  EXPECT_EQ(why.why.timeout, absl::Seconds(9));
}

TEST_F(CommandLineTest, RunTakesWhatThePlanBeginsWith) {
  ASSERT_OK_AND_ASSIGN(
      CommandLine line,
      ParseCommandLine({"run", "--plan", "tail=drop max_steps=9", "--plan",
                        "on_stall=warn", "--", "true"}));
  EXPECT_THAT(line.run.plan,
              ElementsAre("max_steps=9 on_stall=warn tail=drop"));
  Set("COXSWAIN_PLAN", "tail=carry");
  ASSERT_OK_AND_ASSIGN(line, ParseCommandLine({"run", "--", "true"}));
  EXPECT_THAT(line.run.plan, ElementsAre("tail=carry"));
}

TEST_F(CommandLineTest, RunTakesTheProgramAsItIs) {
  ASSERT_OK_AND_ASSIGN(
      CommandLine line,
      ParseCommandLine({"run", "--nnodes", "2", "--nproc=3", "--coordinator",
                        "head:7077", "--job", "j", "--join-timeout", "90",
                        "--no-prefix", "--", "./train", "--nproc", "9", "--",
                        "[1,2]", "status"}));
  EXPECT_EQ(line.command, Command::kRun);
  EXPECT_EQ(line.run.nnodes.most, 2);
  EXPECT_EQ(line.run.nnodes.least, 2);
  EXPECT_EQ(line.run.nproc, 3);
  EXPECT_EQ(line.run.coordinator, "head:7077");
  EXPECT_EQ(line.run.job, "j");
  EXPECT_EQ(line.run.join_timeout, absl::Seconds(90));
  EXPECT_FALSE(line.run.prefix);
  EXPECT_FALSE(line.run.follow);
  EXPECT_THAT(line.run.program,
              ElementsAre("./train", "--nproc", "9", "--", "[1,2]", "status"));
}

TEST_F(CommandLineTest, AnElasticRunNamesItsFewestAndItsMost) {
  ASSERT_OK_AND_ASSIGN(
      CommandLine line,
      ParseCommandLine({"run", "--nnodes", "2:5", "--nproc", "4",
                        "--max-restarts", "3", "--attempt", "7", "--topology",
                        "zone-1,rack-7", "--coordinator", "head:1", "--job",
                        "j", "--", "true"}));
  EXPECT_EQ(line.run.MinWorkers(), 8);
  EXPECT_EQ(line.run.MaxWorkers(), 20);
  EXPECT_EQ(line.run.max_restarts, 3);
  EXPECT_EQ(line.run.attempt, 7);
  EXPECT_EQ(line.run.topology, "zone-1,rack-7");

  ASSERT_OK_AND_ASSIGN(
      line, ParseCommandLine(
                {"run", "--nproc", "3", "--min-workers", "2", "--", "true"}));
  EXPECT_EQ(line.run.MinWorkers(), 2);
  EXPECT_EQ(line.run.MaxWorkers(), 3);
  ASSERT_OK_AND_ASSIGN(line,
                       ParseCommandLine({"run", "--nproc", "3", "--", "true"}));
  EXPECT_EQ(line.run.MinWorkers(), 3);
  EXPECT_EQ(line.run.max_restarts, 0);
}

TEST_F(CommandLineTest, AMeshFitsTheWorkersOfAllNodes) {
  ASSERT_OK_AND_ASSIGN(
      CommandLine line,
      ParseCommandLine({"run", "--nnodes", "2", "--nproc", "4", "--mesh",
                        "dp=*,shard=4", "--coordinator", "head:1", "--job", "j",
                        "--", "true"}));
  EXPECT_EQ(line.run.mesh, "dp=*,shard=4");
  Set("COXSWAIN_MESH", "pp=1,dp=02");
  ASSERT_OK_AND_ASSIGN(line,
                       ParseCommandLine({"run", "--nproc", "2", "--", "true"}));
  EXPECT_EQ(line.run.mesh, "pp=1,dp=2");
  Set("COXSWAIN_MESH", "pp=2");
  EXPECT_OK(ParseCommandLine({"run", "--nproc", "2", "--", "true"}));
}

TEST_F(CommandLineTest, ElasticRunsReadTheEnvironmentAndTheFile) {
  Set("COXSWAIN_CONFIG", ConfigFile("[run]\nnnodes = \"1:2\"\n"
                                    "max-restarts = 4\nmin-workers = 3\n"
                                    "coordinator = \"h:1\"\njob = \"j\"\n"));
  Set("COXSWAIN_NPROC", "3");
  ASSERT_OK_AND_ASSIGN(CommandLine line,
                       ParseCommandLine({"run", "--", "true"}));
  EXPECT_EQ(line.run.nnodes.least, 1);
  EXPECT_EQ(line.run.nnodes.most, 2);
  EXPECT_EQ(line.run.max_restarts, 4);
  Set("COXSWAIN_NNODES", "2:4");
  Set("COXSWAIN_ATTEMPT", "5");
  ASSERT_OK_AND_ASSIGN(line, ParseCommandLine({"run", "--", "true"}));
  EXPECT_EQ(line.run.MaxWorkers(), 12);
  EXPECT_EQ(line.run.MinWorkers(), 3);
  EXPECT_EQ(line.run.attempt, 5);
  ASSERT_OK_AND_ASSIGN(
      line, ParseCommandLine({"run", "--nnodes", "3", "--", "true"}));
  EXPECT_EQ(line.run.nnodes.least, 3);
  EXPECT_EQ(line.run.nnodes.most, 3);
}

TEST_F(CommandLineTest, ATraceGoesToAFolderThatExists) {
  const std::string folder = testing::TempDir();
  ASSERT_OK_AND_ASSIGN(CommandLine line,
                       ParseCommandLine({"run", "--", "true"}));
  EXPECT_EQ(line.run.trace, "");
  for (const std::string& file :
       {folder + "/trace.json", std::string("trace")}) {
    ASSERT_OK_AND_ASSIGN(
        line, ParseCommandLine({"run", "--trace", file, "--", "true"}));
    EXPECT_EQ(line.run.trace, file);
  }
  Set("COXSWAIN_TRACE", folder + "/other.json");
  ASSERT_OK_AND_ASSIGN(line, ParseCommandLine({"run", "--", "true"}));
  EXPECT_EQ(line.run.trace, folder + "/other.json");

  const std::vector<std::pair<std::string, std::string>> wrong = {
      {"", "must name a file"},
      {folder, "must name a file, not a folder"},
      {folder + "/missing/", "must name a file, not a folder"},
      {folder + "/missing/t.json", "the folder '" + folder + "/miss"},
  };
  for (const auto& [file, expected] : wrong) {
    SCOPED_TRACE(file);
    EXPECT_THAT(ParseCommandLine({"run", "--trace", file, "--", "true"}),
                AllOf(IsUsageError("--trace"), IsUsageError(expected)));
  }
}

TEST_F(CommandLineTest, LogsAreOfAJobOrOfAll) {
  ASSERT_OK_AND_ASSIGN(
      CommandLine line,
      ParseCommandLine({"logs", "mnist", "--follow", "--since", "10m", "--json",
                        "--coordinator", "127.0.0.1:1"}));
  EXPECT_EQ(line.command, CommandLine::Command::kLogs);
  EXPECT_EQ(line.logs.job, "mnist");
  EXPECT_TRUE(line.logs.follow);
  EXPECT_TRUE(line.logs.json);
  EXPECT_EQ(line.logs.since, absl::Minutes(10));
  ASSERT_OK_AND_ASSIGN(
      line, ParseCommandLine({"logs", "--coordinator", "127.0.0.1:1"}));
  EXPECT_EQ(line.logs.job, "");
  EXPECT_EQ(line.logs.since, absl::ZeroDuration());
  EXPECT_THAT(ParseCommandLine({"logs", "a b", "--coordinator", "h:1"}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       testing::HasSubstr("not a valid job name")));
  EXPECT_THAT(ParseCommandLine({"logs"}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       testing::HasSubstr("no coordinator")));
}

TEST_F(CommandLineTest, LogFormatsAreTextAndJson) {
  ASSERT_OK_AND_ASSIGN(CommandLine line,
                       ParseCommandLine({"serve", "--log-format", "json"}));
  EXPECT_EQ(line.serve.log_format, "json");
  Set("COXSWAIN_LOG_FORMAT", "json");
  ASSERT_OK_AND_ASSIGN(line, ParseCommandLine({"run", "--", "true"}));
  EXPECT_EQ(line.run.log_format, "json");
  EXPECT_THAT(ParseCommandLine({"serve", "--log-format", "xml"}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       testing::HasSubstr("must be text or json, not 'xml'")));
}

TEST_F(CommandLineTest, StatusIsWatchedOrJson) {
  ASSERT_OK_AND_ASSIGN(
      CommandLine line,
      ParseCommandLine({"status", "--watch", "--interval", "2s",
                        "--coordinator", "127.0.0.1:1"}));
  EXPECT_TRUE(line.status.watch);
  EXPECT_EQ(line.status.interval, absl::Seconds(2));
  EXPECT_THAT(ParseCommandLine({"status", "--watch", "--json", "--coordinator",
                                "127.0.0.1:1"}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       testing::HasSubstr("--json and --watch")));
}

TEST_F(CommandLineTest, AFlagWinsOverTheEnvironmentAndThatOverTheFile) {
  const std::string file = ConfigFile(
      "[serve]\nlisten = \"127.0.0.1:1\"\nlog-level = \"error\"\n"
      "state-dir = \"from-file\"\n");
  ASSERT_OK_AND_ASSIGN(CommandLine line,
                       ParseCommandLine({"serve", "--config", file}));
  EXPECT_EQ(line.serve.listen, "127.0.0.1:1");
  EXPECT_EQ(line.serve.log_level, "error");

  Set("COXSWAIN_LISTEN", "127.0.0.1:2");
  Set("COXSWAIN_LOG_LEVEL", "debug");
  ASSERT_OK_AND_ASSIGN(line, ParseCommandLine({"serve", "--config", file}));
  EXPECT_EQ(line.serve.listen, "127.0.0.1:2");
  EXPECT_EQ(line.serve.log_level, "debug");
  EXPECT_EQ(line.serve.state_dir, "from-file");

  ASSERT_OK_AND_ASSIGN(line, ParseCommandLine({"serve", "--config", file,
                                               "--listen", "127.0.0.1:3"}));
  EXPECT_EQ(line.serve.listen, "127.0.0.1:3");
  EXPECT_EQ(line.serve.log_level, "debug");
}

TEST_F(CommandLineTest, PrecedenceHoldsForNumbersDurationsAndSwitches) {
  const std::string file = ConfigFile(
      "[run]\nnproc = 2\nprefix = false\nexit-grace = \"1s\"\n"
      "[status]\njson = true\ncoordinator = \"head:7077\"\n");
  Set("COXSWAIN_CONFIG", file);
  ASSERT_OK_AND_ASSIGN(CommandLine line,
                       ParseCommandLine({"run", "--", "true"}));
  EXPECT_EQ(line.run.nproc, 2);
  EXPECT_FALSE(line.run.prefix);
  EXPECT_EQ(line.run.exit_grace, absl::Seconds(1));
  ASSERT_OK_AND_ASSIGN(CommandLine status, ParseCommandLine({"status"}));
  EXPECT_TRUE(status.status.json);

  Set("COXSWAIN_NPROC", "3");
  Set("COXSWAIN_PREFIX", "true");
  Set("COXSWAIN_EXIT_GRACE", "2s");
  ASSERT_OK_AND_ASSIGN(line, ParseCommandLine({"run", "--", "true"}));
  EXPECT_EQ(line.run.nproc, 3);
  EXPECT_TRUE(line.run.prefix);
  EXPECT_EQ(line.run.exit_grace, absl::Seconds(2));

  ASSERT_OK_AND_ASSIGN(line,
                       ParseCommandLine({"run", "--nproc", "4", "--no-prefix",
                                         "--exit-grace", "3s", "--", "true"}));
  EXPECT_EQ(line.run.nproc, 4);
  EXPECT_FALSE(line.run.prefix);
  EXPECT_EQ(line.run.exit_grace, absl::Seconds(3));
}

TEST_F(CommandLineTest, TheFileIsCheckedToo) {
  EXPECT_THAT(ParseCommandLine({"serve", "--config", "/nonexistent.toml"}),
              IsUsageError("/nonexistent.toml"));
  EXPECT_THAT(ParseCommandLine({"serve", "--config",
                                ConfigFile("[serve]\nlissten = \"a:1\"\n")}),
              IsUsageError("serve.lissten"));
  EXPECT_THAT(
      ParseCommandLine({"serve", "--config", ConfigFile("listen = \"a:1\"\n")}),
      IsUsageError("listen"));
  EXPECT_THAT(ParseCommandLine({"serve", "--config",
                                ConfigFile("[serve]\nlisten = \"a\"\n")}),
              IsUsageError("has no port"));
}

TEST_F(CommandLineTest, WithoutNprocThereIsAWorkerPerGpu) {
  const auto nproc = [](std::vector<std::string> options) {
    options.insert(options.begin(), "run");
    options.insert(options.end(), {"--", "true"});
    const auto line = ParseCommandLine(options);
    EXPECT_OK(line);
    return line.ok() ? line->run.nproc : -1;
  };
  EXPECT_EQ(nproc({}), 1);
  EXPECT_EQ(nproc({"--gpus", "4"}), 4);
  EXPECT_EQ(nproc({"--gpus", "2,0"}), 2);
  EXPECT_EQ(nproc({"--gpus", "4,"}), 1);
  EXPECT_EQ(nproc({"--gpus", "none"}), 1);
  EXPECT_EQ(nproc({"--gpus", "2", "--nproc", "3"}), 3);
  Set("COXSWAIN_GPUS", "0,1,2");
  EXPECT_EQ(nproc({}), 3);
  ASSERT_OK_AND_ASSIGN(
      const CommandLine file,
      ParseCommandLine({"run", "--gpus", "GPU-8a5c,GPU-77aa", "--", "true"}));
  EXPECT_EQ(file.run.gpus, "GPU-8a5c,GPU-77aa");
}

TEST_F(CommandLineTest, PlainTextBeyondTheLoopbackNeedsAFlag) {
  for (const char* const listen : {"127.9.9.9:1", "[::1]:1", "localhost:1"}) {
    EXPECT_OK(ParseCommandLine({"serve", "--listen", listen})) << listen;
  }
  for (const char* const listen :
       {"0.0.0.0:1", "[::]:1", "10.0.0.1:1", "127.evil.example:1"}) {
    EXPECT_THAT(ParseCommandLine({"serve", "--listen", listen}),
                AllOf(IsUsageError(listen), IsUsageError("--tls-cert"),
                      IsUsageError("--insecure")));
    EXPECT_OK(ParseCommandLine({"serve", "--listen", listen, "--insecure"}))
        << listen;
  }
  Set("COXSWAIN_INSECURE", "true");
  EXPECT_OK(ParseCommandLine({"serve", "--listen", "0.0.0.0:1"}));
}

// On a port that requires no certificate, a caller can stop the coordinator
// before it shows a token.
TEST_F(CommandLineTest, TokensStayOnTheLoopbackUnlessItIsInsecure) {
  const std::string tokens = testing::TempDir() + "/tokens_of_serve";
  std::ofstream(tokens) << "operator " << std::string(64, 'a') << "\n";
  const std::vector<std::string> serve = {"serve", "--tokens", tokens,
                                          "--listen"};
  const auto with = [&serve](std::vector<std::string> more) {
    more.insert(more.begin(), serve.begin(), serve.end());
    return ParseCommandLine(more);
  };
  EXPECT_OK(with({"127.0.0.1:1"}));
  EXPECT_THAT(with({"0.0.0.0:1"}),
              AllOf(IsUsageError("0.0.0.0:1"), IsUsageError("haproxy"),
                    IsUsageError("--tls-ca"), IsUsageError("--insecure")));
  EXPECT_OK(with({"0.0.0.0:1", "--insecure"}));
}

TEST_F(CommandLineTest, CertificatesAreLookedAtAtOnce) {
  const std::string absent = testing::TempDir() + "/absent.crt";
  const std::vector<std::vector<std::string>> commands = {
      {"serve"},
      {"run", "--coordinator", "h:1", "--job", "a"},
      {"status", "--coordinator", "h:1"},
      {"plan", "show", "--coordinator", "h:1"},
      {"plan", "set", "accumulation=2", "--coordinator", "h:1"},
      {"why", "--coordinator", "h:1"},
      {"checkpoint", "list", "--coordinator", "h:1"}};
  for (std::vector<std::string> command : commands) {
    SCOPED_TRACE(command.front());
    command.insert(command.end(), {"--tls-ca", absent});
    if (command.front() == "run") command.insert(command.end(), {"--", "true"});
    EXPECT_THAT(ParseCommandLine(command), IsUsageError(absent));
  }
  EXPECT_THAT(ParseCommandLine(
                  {"status", "--coordinator", "h:1", "--tls-cert", absent}),
              IsUsageError("--tls-key is missing"));
  EXPECT_THAT(ParseCommandLine({"serve", "--health-listen", "here"}),
              IsUsageError("--health-listen"));
  Set("COXSWAIN_TLS_CA", absent);
  EXPECT_THAT(ParseCommandLine({"status", "--coordinator", "h:1"}),
              IsUsageError(absent));
  // Without a coordinator there is no server to connect to.
  EXPECT_OK(ParseCommandLine({"run", "--", "true"}));
}

TEST_F(CommandLineTest, KeysOfTokensAreLookedAtAtOnce) {
  const std::string absent = testing::TempDir() + "/absent.json";
  EXPECT_THAT(ParseCommandLine({"serve", "--token-keys", absent}),
              IsUsageError("--token-issuer"));
  EXPECT_THAT(ParseCommandLine({"serve", "--token-issuer", "https://i"}),
              IsUsageError("--token-keys"));
  const std::string tokens = testing::TempDir() + "/bound-tokens";
  std::ofstream(tokens) << "job/a subject:system:serviceaccount:space:a\n";
  EXPECT_THAT(ParseCommandLine({"serve", "--tokens", tokens}),
              IsUsageError("--token-keys"));
  Set("COXSWAIN_TOKEN_KEYS", absent);
  Set("COXSWAIN_TOKEN_ISSUER", "https://i");
  EXPECT_THAT(ParseCommandLine({"serve", "--tokens", tokens}),
              IsUsageError(absent));
  EXPECT_OK(ParseCommandLine({"status", "--coordinator", "h:1"}));
}

TEST_F(CommandLineTest, AProgramNeedsNoDashes) {
  const auto program = [](std::vector<std::string> args) {
    const auto line = ParseCommandLine(std::move(args));
    EXPECT_OK(line);
    return line.ok() ? line->run.program : std::vector<std::string>();
  };
  EXPECT_THAT(program({"run", "true"}), testing::ElementsAre("true"));
  EXPECT_THAT(program({"run", "--nproc", "2", "./train", "--epochs", "3"}),
              testing::ElementsAre("./train", "--epochs", "3"));
  EXPECT_THAT(program({"run", "--nproc=2", "--insecure", "./train", "--nproc"}),
              testing::ElementsAre("./train", "--nproc"));
  EXPECT_THAT(program({"run", "--plan", "tail=drop", "./train", "status"}),
              testing::ElementsAre("./train", "status"));
  // The program's own dashes stay.
  EXPECT_THAT(program({"run", "python3", "x.py", "--", "-v"}),
              testing::ElementsAre("python3", "x.py", "--", "-v"));
  EXPECT_THAT(program({"run", "--", "sh", "-c", "exit"}),
              testing::ElementsAre("sh", "-c", "exit"));
  EXPECT_THAT(program({"run", "status"}), testing::ElementsAre("status"));
}

TEST_F(CommandLineTest, WrongFlagsAreNamed) {
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases = {
      {{}, "no command"},
      {{"row"}, "no such command: row"},
      {{"serve", "--listen", "localhost"}, "has no port"},
      {{"serve", "--listen", "localhost:70000"}, "--listen"},
      {{"serve", "--listen"}, "--listen"},
      {{"serve", "--lissten", "a:1"}, "--lissten"},
      {{"serve", "--lissten=a:1"}, "did you mean '--listen'?"},
      {{"run", "--nprco", "2", "--", "true"}, "did you mean '--nproc'?"},
      {{"run", "--nprco", "2", "true"}, "did you mean '--nproc'?"},
      {{"statsu", "--json"}, "such command: statsu; did you mean 'status'?"},
      {{"plan", "shwo"}, "no such command: plan shwo; did you mean 'show'?"},
      {{"serve", "--log-level", "loud"}, "must be debug, info"},
      {{"serve", "--", "true"}, "only `coxswain run`"},
      {{"run", "--nproc", "0", "--", "true"}, "whole number from 1"},
      {{"run", "--nproc", "two", "--", "true"}, "--nproc"},
      {{"run", "--nproc", "1.5", "--", "true"}, "--nproc"},
      {{"run", "--nnodes", "-1", "--", "true"}, "--nnodes"},
      {{"run", "--nnodes", "3:2", "--", "true"}, "the smaller one first"},
      {{"run", "--nnodes", "0:2", "--", "true"}, "--nnodes"},
      {{"run", "--nnodes", "1:2:3", "--", "true"}, "--nnodes"},
      {{"run", "--nnodes", ":2", "--", "true"}, "--nnodes"},
      {{"run", "--nnodes", "1:5000", "--", "true"}, "from 1 to 4096"},
      {{"run", "--nnodes", "1:2", "--", "true"}, "no coordinator for 2 nodes"},
      {{"run", "--nproc", "3", "--min-workers", "4", "--", "true"},
       "--min-workers 4 is more than --nnodes and --nproc allow, which is "
       "3"},
      {{"run", "--min-workers", "0", "--", "true"}, "--min-workers"},
      {{"run", "--nnodes", "1:64", "--nproc", "65", "--coordinator", "h:1",
        "--job", "j", "--", "true"},
       "are 4160 workers; a job has at most 4096"},
      {{"run", "--nproc", "4", "--mesh", "dp=3", "--", "true"},
       "--mesh: the mesh dp=3 does not fit 4 workers"},
      {{"run", "--nproc", "4", "--min-workers", "2", "--mesh", "dp=2,shard=2",
        "--", "true"},
       "the job may run with 2 to 4"},
      {{"run", "--mesh", "data=1", "--", "true"}, "has an axis 'data'"},
      {{"run", "--max-restarts", "-1", "--", "true"}, "--max-restarts"},
      {{"run", "--attempt", "-1", "--", "true"}, "--attempt"},
      {{"run", "--topology", "zone-1,", "--", "true"}, "as in zone-1,rack-7"},
      {{"run", "--gpus", "0;1", "--", "true"}, "must be how many GPUs"},
      {{"run", "--gpus", "0", "--", "true"}, "give none for the CPU"},
      {{"run", "--backend", "gloo", "--", "true"}, "was replaced by 'tcp'"},
      {{"run", "--backend", "tpc", "--", "true"}, "did you mean 'tcp'?"},
      {{"run", "--gpus", "1,2,1", "--", "true"}, "would share GPU 1"},
      {{"run", "--topology", "zone 1", "--", "true"}, "--topology"},
      {{"run", "--join-timeout", "soon", "--", "true"}, "is not a duration"},
      {{"run", "--stop-grace", "-1s", "--", "true"}, "must be at least 0"},
      {{"run", "--stop-status", "256", "--", "true"}, "255"},
      {{"run", "--job", "a/b", "--", "true"}, "is not a valid job name"},
      {{"run", "--node", "a b", "--", "true"}, "is not a valid node name"},
      {{"run", "--coordinator", "head:0", "--job", "j", "--", "true"},
       "port 0"},
      {{"run"}, "no program"},
      {{"run", "--"}, "no program"},
      {{"run", "--nnodes", "2", "--", "true"}, "no coordinator for 2 nodes"},
      {{"run", "--coordinator", "head:1", "--", "true"}, "no job"},
      {{"run", "--plan", "tial=drop", "--", "true"},
       "--plan: a plan has nothing"},
      {{"run", "--plan", "tail=cut", "--", "true"}, "flush|carry|drop"},
      {{"run", "--plan", "tail", "--", "true"}, "'tail' is not NAME=VALUE"},
      {{"status"}, "no coordinator"},
      {{"plan"}, "no command"},
      {{"plan", "list"}, "no such command: plan list"},
      {{"plan", "show"}, "no coordinator"},
      {{"why"}, "no coordinator"},
      {{"why", "a/b", "--coordinator", "h:1"}, "is not a valid job name"},
      {{"plan", "show", "a", "b", "--coordinator", "h:1"}, "b"},
      {{"plan", "set", "--coordinator", "h:1"}, "nothing to change"},
      {{"plan", "set", "x", "--coordinator", "h:1"}, "nothing to change"},
      {{"plan", "set", "at=next", "--coordinator", "h:1"}, "nothing to change"},
      {{"plan", "set", "a/b", "tail=drop", "--coordinator", "h:1"},
       "is not a valid job name"},
      {{"plan", "set", "tial=drop", "--coordinator", "h:1"}, "\"tial\""},
      {{"plan", "set", "x", "y", "--coordinator", "h:1"}, "'y' is not NAME="},
      {{"plan", "set", "tail=drop", "--expect", "0", "--coordinator", "h:1"},
       "must be a version"},
      {{"plan", "schedule", "--ranks", "4"}, "give --ranks and --accumulation"},
      {{"plan", "schedule", "--ranks", "0", "--accumulation", "8"},
       "whole number from 1 to 4096"},
      {{"plan", "schedule", "--pipeline", "1f1d"}, "did you mean '1f1b'?"},
      {{"plan", "schedule", "--ranks", "4", "--accumulation", "8", "--chunks",
        "2"},
       "--chunks is for --pipeline interleaved, not for 1f1b"},
      {{"plan", "schedule", "--chunks", "1"}, "whole number from 2 to 64"},
      {{"plan", "check"}, "FILE"},
      {{"plan", "check", "a.csv", "b.csv"}, "b.csv"},
      {{"plan", "check", "a.csv", "--capacity", "-1"}, "--capacity"},
      {{"hooks", "--json", "--markdown"}, "give only one of"},
      {{"hooks", "--json", "--check", "fp16"}, "give only one of"},
      {{"hooks", "--check", ""}, "must be a spec or @FILE"},
      {{"hooks", "--check", "fp16", "bf16"}, "leave out 'bf16'"},
      {{"hooks", "fp16", "bf16"}, "bf16"},
  };
  for (const auto& [args, expected] : cases) {
    SCOPED_TRACE(testing::PrintToString(args));
    EXPECT_THAT(ParseCommandLine(args),
                AllOf(IsUsageError(expected), IsUsageError("--help`")));
  }
}

TEST_F(CommandLineTest, WrongVariablesAreErrors) {
  Set("COXSWAIN_NPROC", "0");
  EXPECT_THAT(ParseCommandLine({"run", "--", "true"}), IsUsageError("--nproc"));
}

TEST_F(CommandLineTest, HelpOfEveryCommandListsTheThreeWays) {
  const std::map<std::string, std::string> variables = {
      {"serve", "COXSWAIN_LISTEN"},        {"run", "COXSWAIN_NPROC"},
      {"status", "COXSWAIN_COORDINATOR"},  {"plan.show", "COXSWAIN_JOB"},
      {"plan.set", "COXSWAIN_EXPECT"},     {"why", "COXSWAIN_JSON"},
      {"plan.schedule", "COXSWAIN_RANKS"}, {"plan.check", "COXSWAIN_CAPACITY"},
      {"hooks", "COXSWAIN_CHECK"}};
  for (const auto& [command, variable] : variables) {
    std::vector<std::string> words = absl::StrSplit(command, '.');
    words.push_back("--help");
    ASSERT_OK_AND_ASSIGN(CommandLine line, ParseCommandLine(words));
    EXPECT_EQ(line.command, Command::kPrint);
    EXPECT_THAT(line.text,
                AllOf(HasSubstr(variable), HasSubstr("--config FILE"),
                      HasSubstr("[" + command + "]"),
                      HasSubstr("A flag wins over the environment"),
                      HasSubstr("Exit status")));
  }
  ASSERT_OK_AND_ASSIGN(CommandLine line, ParseCommandLine({"--help"}));
  EXPECT_THAT(line.text,
              AllOf(HasSubstr("serve"), HasSubstr("run"), HasSubstr("status"),
                    HasSubstr("plan"), HasSubstr("why"), HasSubstr("hooks"),
                    HasSubstr("version")));
}

TEST_F(CommandLineTest, HelpOfPlanSetListsTheTerms) {
  ASSERT_OK_AND_ASSIGN(CommandLine line,
                       ParseCommandLine({"plan", "set", "--help"}));
  for (const schedule::SettingInfo& setting : schedule::SettingList()) {
    EXPECT_THAT(line.text,
                HasSubstr("\n  " + setting.name + "=" + setting.values + "\n"));
  }
}

TEST_F(CommandLineTest, VersionIsACommandAndAFlag) {
  for (const char* word : {"version", "--version"}) {
    ASSERT_OK_AND_ASSIGN(CommandLine line, ParseCommandLine({word}));
    EXPECT_EQ(line.command, Command::kVersion);
  }
}

TEST_F(CommandLineTest, CheckpointCommandsAreRead) {
  const auto parse = [](std::vector<std::string> args) {
    args.insert(args.begin(), "checkpoint");
    args.insert(args.end(), {"--coordinator", "h:1"});
    return ParseCommandLine(args);
  };
  using Action = CheckpointOptions::Action;
  auto line = parse({"export", "120", "--to", "/x", "--job", "j"});
  ASSERT_OK(line);
  EXPECT_EQ(line->command, CommandLine::Command::kCheckpoint);
  EXPECT_EQ(line->checkpoint.action, Action::kExport);
  EXPECT_EQ(line->checkpoint.which, "120");
  EXPECT_EQ(line->checkpoint.folder, "/x");
  EXPECT_EQ(line->checkpoint.job, "j");
  line = parse({"list", "--json"});
  ASSERT_OK(line);
  EXPECT_EQ(line->checkpoint.action, Action::kList);
  EXPECT_TRUE(line->checkpoint.json);
  line = parse({"verify"});
  ASSERT_OK(line);
  EXPECT_EQ(line->checkpoint.which, "newest");
  EXPECT_FALSE(parse({"delete"}).ok());
  EXPECT_FALSE(parse({"import"}).ok());
  EXPECT_OK(parse({"delete", "newest", "--yes"}));
  EXPECT_OK(parse({"now", "--reason", "an upgrade"}));
  EXPECT_FALSE(ParseCommandLine({"checkpoint", "list"}).ok());
}

TEST_F(CommandLineTest, RetentionOfTheCoordinator) {
  const auto line = ParseCommandLine({"serve", "--checkpoint-keep-last", "3",
                                      "--checkpoint-keep-every", "1000"});
  ASSERT_OK(line);
  EXPECT_EQ(line->serve.checkpoint_keep_last, 3);
  EXPECT_EQ(line->serve.checkpoint_keep_every, 1000);
  EXPECT_FALSE(
      ParseCommandLine({"serve", "--checkpoint-keep-last", "-1"}).ok());
}

TEST_F(CommandLineTest, WhatCallersMayHaveItHoldIsStillAccepted) {
  const auto line = ParseCommandLine({"serve", "--max-held-mib", "4096"});
  ASSERT_OK(line);
  EXPECT_EQ(line->serve.max_held_mib, 4096);
  EXPECT_THAT(ParseCommandLine({"serve", "--max-held-mib", "-1"}),
              IsUsageError("--max-held-mib"));
}

}  // namespace
}  // namespace coxswain
