// A real coordinator, workers that exchange gradients, and what HTTP returns of
// them: the data, the metrics, and the dashboard and the alerts that are made
// of these.
#include <algorithm>
#include <fstream>
#include <memory>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/clock.h"
#include "base/mutex.h"
#include "base/status_matchers.h"
#include "cli/checkpoint.h"
#include "cli/commands.h"
#include "cli/job_query.h"
#include "cli/status.h"
#include "client/comm/communicator.h"
#include "client/reduce/reducer.h"
#include "client/rpc/coordinator_stub.h"
#include "client/rpc/journal_stub.h"
#include "client/rpc/stub_factory.h"
#include "client/session/session.h"
#include "gtest/gtest.h"
#include "hooks/registry/registry.h"
#include "httplib.h"
#include "nlohmann/json.hpp"
#include "schedule/ticket.h"
#include "server/coordinator.h"
#include "server/describe/json.h"
#include "server/http/http_server.h"
#include "server/http/site.h"
#include "tests/support/in_threads.h"

namespace coxswain {
namespace {

using nlohmann::json;
using testing::HasSubstr;

constexpr absl::Duration kTimeout = absl::Seconds(30);
constexpr int kRanks = 2;
constexpr int kSteps = 12;

// A moment between two questions. Nothing else happens in this thread.
void Pause() {
  Mutex mutex;
  CondVar never;
  MutexLock lock(&mutex);
  never.WaitFor(&mutex, absl::Milliseconds(20), [] { return false; });
}

std::string ReadFile(const std::string& path) {
  std::ifstream file(path);
  EXPECT_TRUE(file) << path;
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

// A rank: steps of two parameters, through the hook of the plan.
void Train(Session* session) {
  const auto world = session->World();
  ASSERT_OK(world);
  const auto hook = MakeHook(session->plan().hook);
  ASSERT_OK(hook);
  ReducerOptions options;
  const auto gate = session->schedule().Gate();
  ASSERT_OK(gate);
  options.gate = *gate;
  FollowPlan(session->plan(), session->world_size(), &options);
  std::vector<ParameterSpec> parameters(2);
  parameters[0].name = "a";
  parameters[0].shape = {1000};
  parameters[1].name = "b";
  parameters[1].shape = {50, 20};
  auto reducer = Reducer::Create(options, parameters, hook->get(),
                                 &(*world)->communicator());
  ASSERT_OK(reducer);
  for (int64_t step = 0; step < kSteps; ++step) {
    schedule::Ticket ticket;
    ticket.step = step;
    ASSERT_OK((*reducer)->BeginStep(ticket, 1));
    ASSERT_OK((*reducer)->MarkZeros(0));
    ASSERT_OK((*reducer)->MarkZeros(1));
    ASSERT_OK((*reducer)->Finish());
    ASSERT_OK((*reducer)->Decide());
    ASSERT_OK((*reducer)->Commit());
    session->ReportProgress(step + 1);
  }
  const auto saved = session->checkpoints().Save(
      kSteps, session->rank(), session->world_size(), {}, "weights");
  ASSERT_OK(saved);
  ASSERT_OK(session->Barrier("", "saved", kTimeout));
  if (session->rank() != 0) return;
  ASSERT_OK(session->checkpoints().Commit(*saved));
}

class ObservabilityTest : public testing::Test {
 protected:
  void SetUp() override {
    server::CoordinatorOptions options;
    options.state_dir = absl::StrCat(
        testing::TempDir(), "/",
        testing::UnitTest::GetInstance()->current_test_info()->name());
    options.membership.heartbeat_interval = absl::Milliseconds(20);
    options.count_calls = true;
    auto coordinator = server::Coordinator::Start(options);
    ASSERT_OK(coordinator);
    coordinator_ = *std::move(coordinator);
    auto http = server::HttpServer::Start(
        {}, [this](const server::HttpRequest& request) {
          return site_.Answer(request);
        });
    ASSERT_OK(http);
    http_ = *std::move(http);
    client_ = std::make_unique<httplib::Client>("127.0.0.1", http_->port());
  }
  void TearDown() override {
    sessions_.clear();
    site_.Hide();
  }

  // Joins and trains, in as many threads as there are ranks.
  void RunJob() {
    site_.Show(coordinator_->view());
    sessions_.resize(kRanks);
    InThreads(kRanks, [this](int slot) {
      SessionOptions options;
      options.coordinator = absl::StrCat("127.0.0.1:", coordinator_->port());
      options.job = "mnist";
      options.identity = {"node-a", slot};
      options.host = "host-a";
      options.world_size = kRanks;
      options.join_timeout = kTimeout;
      options.backend = "tcp";
      JobManifest manifest;
      manifest.hook = "allreduce";
      auto session = Session::Join(options, manifest);
      ASSERT_OK(session);
      sessions_[static_cast<size_t>(slot)] = *std::move(session);
      Train(sessions_[static_cast<size_t>(slot)].get());
    });
  }

  httplib::Result Get(const std::string& path,
                      const httplib::Headers& headers = {}) {
    auto got = client_->Get(path, headers);
    EXPECT_TRUE(got) << path;
    return got;
  }
  json GetJson(const std::string& path) {
    const auto got = Get(path);
    json parsed = json::parse(got->body, nullptr, false);
    EXPECT_EQ(got->status, 200) << path << ": " << got->body;
    EXPECT_TRUE(parsed.is_object()) << got->body;
    EXPECT_TRUE(parsed["now"].is_number());
    return parsed;
  }
  // Returns whether the last heartbeats of all ranks have come.
  bool AllStepsAreKnown(const json& steps) {
    const auto& rows = steps["steps"];
    if (rows.empty() || rows.back()["step"] != kSteps - 1) return false;
    if (rows.back()["reported"] != kRanks) return false;
    const json job = GetJson("/api/v1/jobs/mnist");
    return std::all_of(
        job["members"].begin(), job["members"].end(),
        [](const json& member) { return member["step"] == kSteps; });
  }
  // Once the heartbeats have reported all steps.
  json AwaitSteps() {
    const absl::Time until = Clock::Real()->Now() + kTimeout;
    json steps;
    while (Clock::Real()->Now() < until) {
      steps = GetJson("/api/v1/jobs/mnist/steps?last=8");
      if (AllStepsAreKnown(steps)) return steps;
      Pause();
    }
    ADD_FAILURE() << "the last step was not reported: " << steps.dump();
    return steps;
  }

  std::unique_ptr<server::Coordinator> coordinator_;
  server::Site site_;
  std::unique_ptr<server::HttpServer> http_;
  std::unique_ptr<httplib::Client> client_;
  std::vector<std::unique_ptr<Session>> sessions_;
};

TEST_F(ObservabilityTest, OneThatStandsByIsAliveAndNotReady) {
  EXPECT_EQ(Get("/healthz")->status, 200);
  EXPECT_EQ(Get("/readyz")->status, 503);
  EXPECT_EQ(Get("/api/v1/jobs")->status, 503);
  EXPECT_THAT(Get("/metrics")->body, HasSubstr("coxswain_coordinator_leads 0"));
  site_.Show(coordinator_->view());
  EXPECT_EQ(Get("/healthz")->status, 200);
  EXPECT_EQ(Get("/readyz")->status, 200);
  const json version = GetJson("/api/v1/version");
  EXPECT_EQ(version["term"], 1);
  EXPECT_EQ(version["leader"], true);
  EXPECT_NE(version["cluster_id"], "");
}

TEST_F(ObservabilityTest, ErrorsAreJsonWithAMessage) {
  site_.Show(coordinator_->view());
  const auto expect = [this](const std::string& path, int status,
                             const std::string& message) {
    const auto got = Get(path);
    const json parsed = json::parse(got->body, nullptr, false);
    EXPECT_EQ(got->status, status) << path;
    ASSERT_TRUE(parsed.is_object()) << got->body;
    EXPECT_THAT(parsed["error"]["message"].get<std::string>(),
                HasSubstr(message));
  };
  expect("/api/v1/jobs/none", 404, "none");
  expect("/api/v1/jobs/none/steps", 404, "none");
  expect("/api/v1/nonsense", 404, "/api/v1/nonsense");
  expect("/nonsense", 404, "/nonsense");
  expect("/api/v1/events?limit=0", 400, "'limit'");
  expect("/api/v1/events?after=-1", 400, "'after'");
}

TEST_F(ObservabilityTest, AJobIsShownWithHowItsRanksSpendTheirSteps) {
  RunJob();
  const json steps = AwaitSteps();
  EXPECT_EQ(steps["world_size"], kRanks);
  ASSERT_EQ(steps["steps"].size(), 8u);
  ASSERT_EQ(steps["ranks"].size(), static_cast<size_t>(kRanks));
  for (const json& row : steps["ranks"]) {
    EXPECT_EQ(row["host"], "host-a");
    for (const char* part :
         {"compute_seconds", "wait_seconds", "exchange_seconds"}) {
      ASSERT_EQ(row[part].size(), 8u);
      EXPECT_GE(row[part].back().get<double>(), 0);
      EXPECT_LT(row[part].back().get<double>(), 60);
    }
    // Two parameters of 1,000 floats each.
    EXPECT_GE(row["payload_bytes"].back().get<int64_t>(), 8000);
  }

  const json job = GetJson("/api/v1/jobs/mnist");
  EXPECT_EQ(job["state"], "running");
  EXPECT_EQ(job["step"], kSteps);
  EXPECT_EQ(job["members"].size(), static_cast<size_t>(kRanks));
  EXPECT_EQ(job["members"][1]["rank"], 1);
  EXPECT_EQ(job["members"][1]["state"], "attached");
  EXPECT_EQ(job["plan"]["hook"], "allreduce");
  EXPECT_EQ(job["plan_history"].size(), 1u);
  EXPECT_FALSE(job["report"]["history"].empty());
  EXPECT_GT(job["steps_per_second"].get<double>(), 0);
  ASSERT_EQ(job["checkpoints"].size(), 1u);
  EXPECT_EQ(job["checkpoints"][0]["state"], "complete");
  EXPECT_EQ(job["checkpoints"][0]["step"], kSteps);
  EXPECT_EQ(job["checkpoints"][0]["bytes"], 14);
  EXPECT_GE(job["traffic"]["payload_bytes"].get<int64_t>(),
            kRanks * kSteps * 8000);
  EXPECT_EQ(job["traffic"]["hooks"][0]["hook"], "allreduce");

  const json first = GetJson("/api/v1/jobs/mnist/events?limit=1");
  ASSERT_EQ(first["events"].size(), 1u);
  EXPECT_EQ(first["events"][0]["job"], "mnist");
  EXPECT_EQ(first["last"], first["events"][0]["sequence"]);
  const json rest = GetJson(absl::StrCat("/api/v1/jobs/mnist/events?after=",
                                         first["last"].get<int64_t>()));
  ASSERT_FALSE(rest["events"].empty());
  EXPECT_GT(rest["events"][0]["sequence"], first["last"]);

  const json jobs = GetJson("/api/v1/jobs");
  ASSERT_EQ(jobs["jobs"].size(), 1u);
  EXPECT_EQ(jobs["jobs"][0]["job"], "mnist");
  EXPECT_EQ(jobs["jobs"][0]["live"], kRanks);
  EXPECT_EQ(jobs["jobs"][0]["attached"], kRanks);

  const json page =
      GetJson("/api/v1/jobs/mnist/steps?last=2&rank_list=1&order=slowest");
  ASSERT_EQ(page["ranks"].size(), 1u);
  EXPECT_EQ(page["ranks"][0]["rank"], 1);
  EXPECT_EQ(Get("/api/v1/jobs/mnist/steps?last=256&ranks=1024")->status, 400);
  EXPECT_EQ(Get("/api/v1/jobs/mnist/steps?last=257")->status, 400);
  EXPECT_EQ(Get("/api/v1/jobs/mnist?ranks=1&first_rank=1")->status, 200);
}

// Compares an object of the command line with one of HTTP: fields that both
// have, and that no others are in one alone.
void ExpectSame(const json& cli, const json& http,
                const std::set<std::string>& cli_only,
                const std::set<std::string>& http_only,
                const std::string& place) {
  if (cli.is_array() && http.is_array() && !cli.empty() && cli[0].is_object()) {
    ASSERT_EQ(cli.size(), http.size()) << place;
    for (size_t i = 0; i < cli.size(); ++i) {
      ExpectSame(cli[i], http[i], cli_only, http_only,
                 absl::StrCat(place, "[", i, "]"));
    }
    return;
  }
  if (!cli.is_object() || !http.is_object()) {
    const bool moment = absl::EndsWith(place, "_at");
    const bool length = absl::EndsWith(place, "_seconds");
    if (cli.is_number() && (moment || length)) {
      // The command line gets milliseconds, and ages.
      ASSERT_TRUE(http.is_number()) << place << ": " << http;
      EXPECT_NEAR(cli.get<double>(), http.get<double>(), moment ? 20 : 0.001)
          << place;
      return;
    }
    EXPECT_EQ(cli, http) << place;
    return;
  }
  for (const auto& [name, value] : cli.items()) {
    if (cli_only.count(name) > 0) continue;
    const std::string inner = absl::StrCat(place, ".", name);
    ASSERT_TRUE(http.contains(name)) << inner << " is not in " << http;
    ExpectSame(value, http[name], cli_only, http_only, inner);
  }
  for (const auto& [name, value] : http.items()) {
    EXPECT_TRUE(cli.contains(name) || http_only.count(name) > 0)
        << place << "." << name << " is not in " << cli;
  }
}

class SameJsonTest : public ObservabilityTest {
 protected:
  // Returns what the commands print with --json.
  json Status() {
    v1::DescribeRequest request;
    request.set_job("mnist");
    const auto response = stub_->Describe(request, Soon());
    EXPECT_OK(response);
    return json::parse(FormatJson(*response, Clock::Real()->WallTime()));
  }
  json Why() {
    v1::WhyRequest request;
    request.set_job("mnist");
    const auto response = stub_->Why(request, Soon());
    EXPECT_OK(response);
    return json::parse(
        FormatWhyJson("mnist", *response, Clock::Real()->WallTime()));
  }
  json Plans() {
    v1::GetPlanRequest request;
    request.set_job("mnist");
    const auto response = stub_->GetPlan(request, Soon());
    EXPECT_OK(response);
    return json::parse(FormatPlansJson("mnist", *response));
  }
  json Checkpoints() {
    const auto response = ListCheckpoints(*stub_, "mnist", kTimeout);
    EXPECT_OK(response);
    return json::parse(FormatCheckpointsJson("mnist", *response));
  }
  json Logs() {
    v1::JournalRequest request;
    request.set_job("mnist");
    const auto page = ConnectJournal(address_)->Read(request, Soon());
    EXPECT_OK(page);
    json events = json::array();
    for (const v1::JournalEvent& event : page->events()) {
      events.push_back(json::parse(server::EventLine(event, LogFormat::kJson)));
    }
    return events;
  }

  void CompareAll() {
    const json job = GetJson("/api/v1/jobs/mnist");
    const json status = Status();
    ExpectSame(status["jobs"][0], job, {"silent_ms"},
               {"now", "checkpoints", "checkpoint_count", "plan_next",
                "plan_history", "report", "steps_per_second", "traffic",
                // Of members.
                "progressed_at", "odd", "straggler",
                // Of an earlier version.
                "name", "collectives"},
               "job");
    ExpectSame(Why(), job["report"],
               {"now", "job", "state", "generation", "last_event",
                "last_event_at", "forming", "ranks", "age_ms", "tickets_ms"},
               {"at", "rounds"}, "report");
    const json plans = Plans();
    ExpectSame(plans["plan"], job["plan"], {}, {}, "plan");
    ExpectSame(plans["plan"], job["plan_history"][0], {},
               {"seen_at", "seen_step"}, "plan_history");
    ExpectSame(Checkpoints()["checkpoints"], job["checkpoints"],
               {"metadata", "created_unix_ms"}, {}, "checkpoints");
    // The rank of a report is the member of the job.
    for (const json& rank : Why()["ranks"]) {
      const json& member = job["members"][rank["rank"].get<size_t>()];
      for (const char* name : {"rank", "state", "odd", "collective_sequence",
                               "bucket", "micro_batches", "activity"}) {
        EXPECT_EQ(rank[name], member[name]) << name;
      }
    }
    const json jobs = GetJson("/api/v1/jobs");
    EXPECT_EQ(jobs["cluster_id"], status["cluster_id"]);
    EXPECT_EQ(jobs["term"], status["term"]);
    for (const char* name :
         {"job", "state", "generation", "attempt", "world_size",
          "min_world_size", "step", "last_event", "steps_per_second"}) {
      EXPECT_EQ(jobs["jobs"][0][name], job[name]) << name;
    }
    const json events = GetJson("/api/v1/jobs/mnist/events?limit=128");
    ExpectSame(Logs(), events["events"], {},
               {"at", "fields", "generation", "rank", "step"}, "events");
  }

  CallOptions Soon() {
    CallOptions options;
    options.timeout = kTimeout;
    return options;
  }
  void SetUp() override {
    ObservabilityTest::SetUp();
    address_ = absl::StrCat("127.0.0.1:", coordinator_->port());
    stub_ = ConnectCoordinator(address_);
    RunJob();
    AwaitSteps();
  }

  std::string address_;
  std::shared_ptr<CoordinatorStub> stub_;
};

TEST_F(SameJsonTest, HttpAndTheCommandLineAgree) {
  {
    SCOPED_TRACE("while the job runs");
    CompareAll();
  }
  sessions_.clear();
  SCOPED_TRACE("after its end");
  EXPECT_EQ(Status()["jobs"][0]["state"], "ended");
  EXPECT_TRUE(Why()["ended_at"].is_number());
  CompareAll();
}

TEST_F(SameJsonTest, AnEarlierVersionsNamesAreThereToo) {
  const json job = GetJson("/api/v1/jobs/mnist");
  EXPECT_EQ(job["name"], "mnist");
  EXPECT_GT(job["members"][0]["collectives"], 0);
  EXPECT_EQ(job["members"][0]["collectives"],
            job["members"][0]["collective_sequence"]);
  EXPECT_TRUE(job["report"]["at"].is_null());
  EXPECT_EQ(job["report"]["rounds"], job["report"]["history"]);
  EXPECT_EQ(GetJson("/api/v1/jobs/mnist/steps")["name"], "mnist");
  const json row = GetJson("/api/v1/jobs")["jobs"][0];
  EXPECT_EQ(row["name"], "mnist");
  EXPECT_EQ(row["members"], kRanks);
  EXPECT_EQ(row["spares"], 0);

  bool found = false;
  const json events = GetJson("/api/v1/events")["events"];
  for (const json& event : events) {
    if (event["event"] != "generation_began") continue;
    found = true;
    EXPECT_NEAR(
        event["at"].get<double>(),
        absl::ToDoubleSeconds(Clock::Real()->WallTime() - absl::UnixEpoch()),
        600);
    EXPECT_EQ(event["fields"]["plan"], event["plan_version"]);
    EXPECT_EQ(event["fields"]["plan_version"], event["plan_version"]);
    EXPECT_TRUE(event.contains("rank"));
    EXPECT_TRUE(event["rank"].is_null());
  }
  EXPECT_TRUE(found) << events;
}

TEST_F(ObservabilityTest, ARepeatedRequestIsAnsweredAsUnchanged) {
  site_.Show(coordinator_->view());
  const auto first = Get("/api/v1/jobs");
  const std::string tag = first->get_header_value("ETag");
  ASSERT_NE(tag, "");
  EXPECT_EQ(Get("/api/v1/jobs", {{"If-None-Match", tag}})->status, 304);
  EXPECT_EQ(Get("/api/v1/jobs", {{"If-None-Match", "\"other\""}})->status, 200);
}

// Returns the metrics of a page of text; fails where the page breaks a rule of
// the format. Those of a histogram by its own name.
std::set<std::string> CheckMetrics(const std::string& text) {
  static const std::regex name("[a-zA-Z_:][a-zA-Z0-9_:]*");
  static const std::regex sample(
      R"(([a-zA-Z_:][a-zA-Z0-9_:]*))"
      R"re((\{([a-zA-Z_][a-zA-Z0-9_]*="([^"\\\n]|\\.)*",?)*\})?)re"
      R"( (\S+))");
  std::set<std::string> known, seen, series;
  std::string family, type;
  EXPECT_TRUE(absl::EndsWith(text, "\n"));
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    if (line.empty()) continue;
    const std::vector<std::string> words =
        absl::StrSplit(line, absl::MaxSplits(' ', 3));
    if (line[0] == '#') {
      if (words.size() < 4 || (words[1] != "HELP" && words[1] != "TYPE")) {
        ADD_FAILURE() << line;
        continue;
      }
      EXPECT_TRUE(std::regex_match(words[2], name)) << line;
      if (words[1] == "HELP") continue;
      family = words[2];
      type = words[3];
      EXPECT_TRUE(known.insert(family).second) << family << " comes twice";
      EXPECT_TRUE(absl::StartsWith(family, "coxswain_")) << family;
      EXPECT_EQ(type == "counter", absl::EndsWith(family, "_total")) << family;
      continue;
    }
    std::smatch match;
    const std::string copy(line);
    if (!std::regex_match(copy, match, sample)) {
      ADD_FAILURE() << "no sample: " << line;
      continue;
    }
    EXPECT_TRUE(series.insert(copy.substr(0, copy.rfind(' '))).second) << line;
    double value = 0;
    EXPECT_TRUE(absl::SimpleAtod(match[5].str(), &value)) << line;
    std::string own = match[1];
    if (type == "histogram") {
      for (const char* suffix : {"_bucket", "_sum", "_count"}) {
        if (absl::EndsWith(own, suffix)) {
          own = std::string(absl::StripSuffix(own, suffix));
          break;
        }
      }
    }
    EXPECT_EQ(own, family) << line;
    seen.insert(family);
  }
  EXPECT_EQ(known, seen) << "a metric without a sample";
  return seen;
}

// Returns all names of ours in a file, those of a histogram by its own name.
std::set<std::string> NamesIn(const std::string& text,
                              const std::set<std::string>& known) {
  static const std::regex name("coxswain_[a-z0-9_]+");
  std::set<std::string> names;
  for (auto i = std::sregex_iterator(text.begin(), text.end(), name);
       i != std::sregex_iterator(); ++i) {
    std::string found = i->str();
    for (const char* suffix : {"_bucket", "_sum", "_count"}) {
      const std::string base(absl::StripSuffix(found, suffix));
      if (base != found && known.count(base) > 0) found = base;
    }
    names.insert(found);
  }
  return names;
}

TEST_F(ObservabilityTest, DashboardAndAlertsAskForMetricsThatThereAre) {
  RunJob();
  AwaitSteps();
  const auto page = Get("/metrics");
  EXPECT_THAT(page->get_header_value("Content-Type"),
              HasSubstr("version=0.0.4"));
  const std::set<std::string> metrics = CheckMetrics(page->body);
  for (const char* file :
       {"deploy/observability/dashboard.json",
        "deploy/observability/alerts.yml", "docs/observability.md"}) {
    const auto names = NamesIn(ReadFile(file), metrics);
    EXPECT_GT(names.size(), 5u) << file;
    for (const std::string& name : names) {
      EXPECT_EQ(metrics.count(name), 1u) << file << " names " << name;
    }
  }
  // And the table has all of them.
  const auto documented = NamesIn(ReadFile("docs/observability.md"), metrics);
  for (const std::string& name : metrics) {
    EXPECT_EQ(documented.count(name), 1u) << name << " is not documented";
  }
  const json dashboard = json::parse(
      ReadFile("deploy/observability/dashboard.json"), nullptr, false);
  ASSERT_TRUE(dashboard.is_object());
  EXPECT_GT(dashboard["panels"].size(), 5u);

  EXPECT_THAT(page->body,
              HasSubstr(absl::StrCat("coxswain_job_steps_total{job=\"mnist\"} ",
                                     kSteps)));
  EXPECT_THAT(page->body,
              HasSubstr("coxswain_job_members{job=\"mnist\",state=\"attached\"}"
                        " 2"));
  EXPECT_THAT(page->body,
              HasSubstr("coxswain_rpc_handled_total{method=\"Rendezvous/Join\","
                        "code=\"OK\"} 2"));
  EXPECT_THAT(page->body,
              HasSubstr("coxswain_attach_messages_total{kind=\"ticket\"}"));
}

}  // namespace
}  // namespace coxswain
