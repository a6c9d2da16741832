#include "base/logging.h"

#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace coxswain {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::string Logged(const std::string& value) {
  testing::internal::CaptureStderr();
  LogInfo("event", {{"key", value}});
  return testing::internal::GetCapturedStderr();
}

TEST(LoggingTest, PlainValuesAreNotQuoted) {
  EXPECT_THAT(Logged("host-a/0"), HasSubstr("event key=host-a/0\n"));
  EXPECT_THAT(Logged("'mnist'"), HasSubstr("key='mnist'\n"));
}

TEST(LoggingTest, OnlyQuotesBackslashesAndControlCharactersAreEscaped) {
  EXPECT_THAT(Logged("job 'mnist' of J\xc3\xbcrgen"),
              HasSubstr("key=\"job 'mnist' of J\xc3\xbcrgen\"\n"));
  EXPECT_THAT(Logged(R"(say "a\b")"), HasSubstr(R"(key="say \"a\\b\"")"));
  EXPECT_THAT(Logged("a\nb\x01"), HasSubstr("key=\"a\\nb\\001\"\n"));
}

std::string Json(LogFields fields) {
  const absl::Time time =
      absl::FromUnixSeconds(1'700'000'000) + absl::Microseconds(1500);
  return FormatLogLine(LogFormat::kJson, {time, "info", "joined", fields});
}

TEST(LoggingTest, JsonHasTimeLevelAndEventFirstAndTypedFields) {
  EXPECT_EQ(
      Json({{"job", "mnist"}, {"rank", 3}, {"ratio", 0.5}, {"again", true}}),
      R"({"time":"2023-11-14T22:13:20.001500Z","level":"info",)"
      R"("event":"joined","job":"mnist","rank":3,"ratio":0.5,"again":true})");
}

TEST(LoggingTest, JsonEscapesAndReplacesWhatIsNoUtf8) {
  const std::string line = Json({{"a", "\"q\" \\ \n\x01"},
                                 {"b", "J\xc3\xbcrgen"},
                                 {"c", "\xff\xfe half \xc3"},
                                 {"\xff", "key"}});
  EXPECT_EQ(line.find('\n'), std::string::npos);
  const auto json = nlohmann::json::parse(line);
  EXPECT_EQ(json["a"], "\"q\" \\ \n\x01");
  EXPECT_EQ(json["b"], "J\xc3\xbcrgen");
  EXPECT_EQ(json["c"], "\xef\xbf\xbd\xef\xbf\xbd half \xef\xbf\xbd");
  EXPECT_EQ(json["\xef\xbf\xbd"], "key");
}

TEST(LoggingTest, JsonNumbersThatReadersWouldLoseAreText) {
  const auto json = nlohmann::json::parse(
      Json({{"nan", std::numeric_limits<double>::quiet_NaN()},
            {"inf", -std::numeric_limits<double>::infinity()},
            {"id", std::numeric_limits<uint64_t>::max()},
            {"least", std::numeric_limits<int64_t>::min()},
            {"step", int64_t{-1}},
            {"huge", 1e300}}));
  EXPECT_EQ(json["nan"], "nan");
  EXPECT_EQ(json["inf"], "-inf");
  EXPECT_EQ(json["id"], "18446744073709551615");
  EXPECT_EQ(json["least"], "-9223372036854775808");
  EXPECT_EQ(json["step"], -1);
  EXPECT_EQ(json["huge"], 1e300);
}

TEST(LoggingTest, JsonNeverHasAKeyTwice) {
  const std::string line = Json({{"time", "noon"}, {"rank", 1}, {"rank", 2}});
  EXPECT_THAT(line, HasSubstr(R"("time_":"noon","rank":1,"rank_":2})"));
}

TEST(LoggingTest, TheFormatIsSetByName) {
  EXPECT_FALSE(SetLogFormat("xml"));
  ASSERT_TRUE(SetLogFormat("json"));
  EXPECT_EQ(nlohmann::json::parse(Logged("a b"))["key"], "a b");
  ASSERT_TRUE(SetLogFormat("text"));
  EXPECT_THAT(Logged("a b"), HasSubstr(" I event key=\"a b\"\n"));
}

// Returns how many of format and level a program has set that sets the
// environment, which both are read from, as it begins.
int ReadAfterLoad() {
  setenv("COXSWAIN_LOG_FORMAT", "json", /*overwrite=*/1);
  setenv("COXSWAIN_LOG_LEVEL", "off", /*overwrite=*/1);
  testing::internal::CaptureStderr();
  LogError("printed");
  const std::string printed = testing::internal::GetCapturedStderr();
  return (GetLogFormat() == LogFormat::kJson ? 1 : 0) +
         (printed.empty() ? 1 : 0);
}

// What is made by the first line of a thread cannot be used by a process that
// is forked meanwhile.
TEST(LoggingTest, AllThatALineNeedsIsMadeAtLoad) {
  // In a process of its own, which has logged nothing yet.
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_EXIT(_exit(ReadAfterLoad()), testing::ExitedWithCode(0), "");
}

class RecordingSink : public LogSink {
 public:
  RecordingSink() { AddLogSink(this); }
  ~RecordingSink() override { RemoveLogSink(this); }
  void OnLine(const LogLine& line) override {
    LogWarning("seen_by_sink");  // Printed, and not sent to sinks.
    lines.push_back(FormatLogLine(LogFormat::kJson, line));
  }
  std::vector<std::string> lines;
};

TEST(LoggingTest, SinksReceiveAllLinesButTheirOwn) {
  ASSERT_TRUE(SetLogLevel("warning"));
  testing::internal::CaptureStderr();
  {
    RecordingSink sink;
    RecordingSink second;
    LogDebug("fine_grained");
    LogInfo("joined", {{"job", "a"}});
    EXPECT_THAT(sink.lines,
                ElementsAre(HasSubstr(R"("event":"joined","job":"a"})")));
    EXPECT_EQ(second.lines.size(), 1);
  }
  LogInfo("nobody_is_told");
  const std::string printed = testing::internal::GetCapturedStderr();
  ASSERT_TRUE(SetLogLevel("info"));
  EXPECT_THAT(printed, HasSubstr("W seen_by_sink\n"));
  EXPECT_EQ(printed.find("joined"), std::string::npos);
}

// Fails a fork of the process that has added it.
class SinkOfOneProcess : public LogSink {
 public:
  SinkOfOneProcess() { AddLogSink(this); }
  ~SinkOfOneProcess() override { RemoveLogSink(this); }
  void OnLine(const LogLine& line) override {
    if (getpid() != process_) _exit(1);
    FormatLogLine(LogFormat::kJson, line);  // takes its time
  }

 private:
  const pid_t process_ = getpid();
};

// As a program's data loaders are, while its threads log: they inherit locks as
// these have them.
TEST(LoggingTest, AForkBesideThreadsThatLogWaitsForNoneOfThem) {
  ASSERT_TRUE(SetLogLevel("error"));
  const auto log = [](int i) {
    LogInfo("to_sinks");
    LogWarningOnce(absl::StrCat("key ", i), "once");
    // Not absl::Now(), whose own lock a fork may inherit held.
    return FormatLogLine(LogFormat::kText,
                         {absl::UnixEpoch(), "info", "text", {}});
  };
  const SinkOfOneProcess sink;
  log(0);
  std::atomic<bool> done{false};
  std::thread other([&] {
    for (int i = 0; !done.load(); ++i) log(i);
  });
  constexpr int kForks = 50;
  for (int i = 0; i < kForks; ++i) {
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      alarm(60);
      log(-1);
      _exit(0);
    }
    int status = -1;
    EXPECT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
  }
  done.store(true);
  other.join();
  ASSERT_TRUE(SetLogLevel("info"));
}

}  // namespace
}  // namespace coxswain
