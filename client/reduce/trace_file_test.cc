#include "client/reduce/trace_file.h"

#include <sys/resource.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <limits>
#include <map>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "nlohmann/json.hpp"

namespace coxswain::trace_file_test {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using Json = nlohmann::json;

const absl::Time kBegun = absl::UnixEpoch() + absl::Seconds(100);
absl::Time At(int64_t milliseconds) {
  return kBegun + absl::Milliseconds(milliseconds);
}

// Two buckets, of which the second waits for the first one.
StepReport Step(int64_t step) {
  StepReport report;
  report.step = step;
  report.begun = At(0);
  report.finished = At(30);
  report.waited = absl::Milliseconds(9);
  report.total_weight = 3.5;
  report.live_ranks = 3;
  report.gradient_norm = 0.25;
  report.buckets.resize(2);
  BucketTiming& first = report.buckets[0];
  first.ready = At(10);
  first.launched = At(11);
  first.compressed = At(13);
  first.exchanged = At(17);
  first.done = At(25);
  first.in_hook = absl::Microseconds(1500);
  first.waited = absl::Milliseconds(3);
  first.gradient_bytes = 4000;
  first.payload_bytes = 1000;
  BucketTiming& second = report.buckets[1];
  second.ready = At(20);
  second.launched = At(24);
  second.compressed = At(24);
  second.exchanged = At(28);
  second.done = At(29);
  return report;
}

class TraceFileTest : public testing::Test {
 protected:
  TraceFileTest()
      : folder_(absl::StrCat(
            testing::TempDir(), "/trace_",
            testing::UnitTest::GetInstance()->current_test_info()->name())) {
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
  }
  ~TraceFileTest() override { std::filesystem::remove_all(folder_); }

  // What is asked for, and what rank 2 gets.
  std::string path() const { return folder_ + "/trace.json"; }
  std::string file() const { return folder_ + "/trace.rank2.json"; }

  std::string Text() const {
    std::ifstream in(file());
    std::stringstream text;
    text << in.rdbuf();
    return text.str();
  }

  const std::string folder_;
};

// Events of one kind as "track name begin+duration", in milliseconds since the
// step began.
std::vector<std::string> Spans(const Json& events, int track) {
  std::vector<std::string> spans;
  for (const Json& event : events) {
    if (event["ph"] != "X" || event["tid"] != track) continue;
    const int64_t begin =
        event["ts"].get<int64_t>() - absl::ToUnixMicros(kBegun);
    spans.push_back(absl::StrCat(event["name"].get<std::string>(), " ",
                                 begin / 1000.0, "+",
                                 event["dur"].get<int64_t>() / 1000.0));
  }
  return spans;
}

// Returns what processes and tracks are called.
std::vector<std::string> Names(const Json& events) {
  std::vector<std::string> names;
  for (const Json& event : events) {
    if (event["ph"] != "M") continue;
    names.push_back(absl::StrCat(event["name"].get<std::string>(), " ",
                                 event["tid"].get<int>(), " ",
                                 event["args"]["name"].get<std::string>()));
  }
  return names;
}

TEST_F(TraceFileTest, AStepHasATrackForTheTrainingThreadAndOnePerBucket) {
  ASSERT_OK_AND_ASSIGN(auto trace, TraceFile::Open(path(), 2, "node-7"));
  ASSERT_OK(trace->Add(Step(5)));
  trace.reset();
  const Json events = Json::parse(Text());
  EXPECT_THAT(
      Names(events),
      ElementsAre("process_name 0 rank 2 (node-7)", "thread_name 0 training",
                  "thread_name 1 bucket 0", "thread_name 2 bucket 1"));
  EXPECT_THAT(Spans(events, 0), ElementsAre("gradients 0+20", "wait 21+9"));
  EXPECT_THAT(Spans(events, 1),
              ElementsAre("queue 10+1", "compress 11+2", "exchange 13+4",
                          "decompress 17+8"));
  EXPECT_THAT(Spans(events, 2),
              ElementsAre("queue 20+4", "compress 24+0", "exchange 24+4",
                          "decompress 28+1"));
  for (const Json& event : events) EXPECT_EQ(event["pid"], 2);
}

TEST_F(TraceFileTest, APipelineHasATrackOfItsOwn) {
  ASSERT_OK_AND_ASSIGN(auto trace, TraceFile::Open(path(), 2));
  ASSERT_OK(trace->AddPipeline(
      3, {{"0F0", At(0), At(5)}, {"0SEND_F0", At(5), At(6)}}));
  ASSERT_OK(trace->AddPipeline(4, {{"0F0", At(10), At(15)}}));
  trace.reset();
  const Json events = Json::parse(Text());
  EXPECT_THAT(Names(events),
              ElementsAre("process_name 0 rank 2", "thread_name 0 training",
                          "thread_name 1073741824 pipeline"));
  EXPECT_THAT(Spans(events, 1 << 30),
              ElementsAre("0F0 0+5", "0SEND_F0 5+1", "0F0 10+5"));
  EXPECT_EQ(events.back()["args"]["step"], 4);
}

TEST_F(TraceFileTest, EventsHaveTheStepsNumbers) {
  ASSERT_OK_AND_ASSIGN(auto trace, TraceFile::Open(path(), 2));
  StepReport report = Step(5);
  report.gradient_norm = std::numeric_limits<double>::quiet_NaN();
  ASSERT_OK(trace->Add(report));
  trace.reset();
  std::map<std::string, Json> args;
  for (const Json& event : Json::parse(Text())) {
    if (event["tid"] < 2) args[event["name"]] = event["args"];
  }
  EXPECT_EQ(args["process_name"]["name"], "rank 2");
  for (const char* name :
       {"gradients", "wait", "queue", "compress", "exchange", "decompress"}) {
    EXPECT_EQ(args[name]["step"], 5) << name;
  }
  EXPECT_EQ(args["wait"]["total_weight"], 3.5);
  EXPECT_EQ(args["wait"]["live_ranks"], 3);
  // JSON has no such number.
  EXPECT_TRUE(args["wait"]["gradient_norm"].is_null());
  EXPECT_EQ(args["compress"]["in_hook_us"], 1500);
  EXPECT_EQ(args["exchange"]["waited_us"], 3000);
  EXPECT_EQ(args["exchange"]["gradient_bytes"], 4000);
  EXPECT_EQ(args["exchange"]["payload_bytes"], 1000);
}

TEST_F(TraceFileTest, CanBeReadWhileItGrows) {
  ASSERT_OK_AND_ASSIGN(auto trace, TraceFile::Open(path(), 2));
  size_t before = 0;
  for (int step = 0; step < 3; ++step) {
    ASSERT_OK(trace->Add(Step(step)));
    const Json events = Json::parse(Text() + "]");
    EXPECT_GT(events.size(), before);
    before = events.size();
    // Names are written once.
    EXPECT_EQ(Names(events).size(), 4);
  }
  trace.reset();
  EXPECT_EQ(Json::parse(Text()).size(), before);
}

TEST_F(TraceFileTest, ABucketThatCameLaterIsNamedThen) {
  ASSERT_OK_AND_ASSIGN(auto trace, TraceFile::Open(path(), 2));
  StepReport report = Step(0);
  report.buckets.resize(1);
  ASSERT_OK(trace->Add(report));
  ASSERT_OK(trace->Add(Step(1)));
  trace.reset();
  const Json events = Json::parse(Text());
  EXPECT_EQ(Names(events).size(), 4);
  EXPECT_EQ(Names(events).back(), "thread_name 2 bucket 1");
}

TEST_F(TraceFileTest, AnEmptyStepHasNoExchange) {
  ASSERT_OK_AND_ASSIGN(auto trace, TraceFile::Open(path(), 2));
  StepReport report = Step(0);
  report.empty = true;
  report.buckets.assign(2, BucketTiming());
  ASSERT_OK(trace->Add(report));
  trace.reset();
  const Json events = Json::parse(Text());
  EXPECT_THAT(Spans(events, 0), ElementsAre("gradients 0+21", "wait 21+9"));
  EXPECT_TRUE(Spans(events, 1).empty());
}

TEST_F(TraceFileTest, SpansOfATrackDoNotOverlap) {
  ASSERT_OK_AND_ASSIGN(auto trace, TraceFile::Open(path(), 2));
  StepReport report = Step(0);
  // Marked by Finish itself, when it had begun to wait by the clock.
  report.buckets[1].ready = At(22);
  report.buckets[1].launched = At(21);
  ASSERT_OK(trace->Add(report));
  trace.reset();
  const Json events = Json::parse(Text());
  EXPECT_THAT(Spans(events, 0), ElementsAre("gradients 0+21", "wait 21+9"));
  EXPECT_EQ(Spans(events, 2)[0], "queue 22+0");
}

TEST_F(TraceFileTest, WithoutAStepItIsATraceToo) {
  { ASSERT_OK(TraceFile::Open(path(), 2)); }
  EXPECT_THAT(Names(Json::parse(Text())),
              ElementsAre("process_name 0 rank 2", "thread_name 0 training"));
}

TEST_F(TraceFileTest, AnOlderFileIsReplaced) {
  std::ofstream(file()) << std::string(100000, 'x');
  ASSERT_OK_AND_ASSIGN(auto trace, TraceFile::Open(path(), 2));
  ASSERT_OK(trace->Add(Step(0)));
  EXPECT_TRUE(Json::accept(Text() + "]"));
}

TEST_F(TraceFileTest, AHostsNameNeedNotBeText) {
  ASSERT_OK(TraceFile::Open(path(), 2, "a\"b\n\xff"));
  EXPECT_EQ(Names(Json::parse(Text()))[0],
            "process_name 0 rank 2 (a\"b\n\xef\xbf\xbd)");
}

TEST_F(TraceFileTest, AFileThatCannotBeMadeIsAnErrorWithItsPath) {
  EXPECT_THAT(TraceFile::Open(folder_ + "/missing/trace.json", 2),
              StatusIs(absl::StatusCode::kNotFound,
                       HasSubstr(folder_ + "/missing/trace.rank2.json")));
}

TEST_F(TraceFileTest, AFullDiskIsAnError) {
  std::filesystem::create_symlink("/dev/full", file());
  ASSERT_OK_AND_ASSIGN(auto trace, TraceFile::Open(path(), 2));
  const absl::Status error = trace->Add(Step(0));
  EXPECT_THAT(error,
              StatusIs(absl::StatusCode::kResourceExhausted,
                       AllOf(HasSubstr("cannot write"), HasSubstr(file()))));
  EXPECT_EQ(trace->Add(Step(1)), error);
}

TEST_F(TraceFileTest, AfterAnErrorNothingMoreIsWritten) {
  ASSERT_OK_AND_ASSIGN(auto trace, TraceFile::Open(path(), 2));
  ASSERT_OK(trace->Add(Step(0)));
  // No file of this process may grow beyond what this one has.
  rlimit before;
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  rlimit limit = before;
  limit.rlim_cur = Text().size() + 100;
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
  const absl::Status error = trace->Add(Step(1));
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  std::signal(SIGXFSZ, handler);
  EXPECT_FALSE(error.ok());
  const std::string text = Text();
  EXPECT_EQ(trace->Add(Step(2)), error);
  trace.reset();
  EXPECT_EQ(Text(), text);
}

TEST(TracePathTest, TheRankIsBeforeTheExtension) {
  EXPECT_EQ(TracePath("runs/trace.json", 2), "runs/trace.rank2.json");
  EXPECT_EQ(TracePath("trace", 2), "trace.rank2");
  EXPECT_EQ(TracePath("a.b.json", 0), "a.b.rank0.json");
  // Dots that begin no extension.
  EXPECT_EQ(TracePath("runs.d/trace", 11), "runs.d/trace.rank11");
  EXPECT_EQ(TracePath("runs/.trace", 1), "runs/.trace.rank1");
  EXPECT_EQ(TracePath("../trace", 1), "../trace.rank1");
}

}  // namespace
}  // namespace coxswain::trace_file_test
