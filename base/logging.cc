#include "base/logging.h"

#include <sys/types.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <iterator>
#include <memory>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "base/log_writer.h"
#include "nlohmann/json.hpp"

namespace coxswain {
namespace {

constexpr size_t kMaxOnceKeys = 4096;
// The largest whole number that all readers of JSON keep exactly.
constexpr uint64_t kMaxJsonInteger = uint64_t{1} << 53;

LogFormat FormatOfEnvironment() {
  const char* const format = std::getenv("COXSWAIN_LOG_FORMAT");
  return format != nullptr && absl::string_view(format) == "json"
             ? LogFormat::kJson
             : LogFormat::kText;
}

// Made at load, as is what follows like it: where one thread makes it while
// another one forks, the fork would wait for it without end.
std::atomic<LogFormat>& Format() {
  static std::atomic<LogFormat> format{FormatOfEnvironment()};
  return format;
}

enum Level { kDebug, kInfo, kWarning, kError, kOff };
constexpr absl::string_view kLevels[] = {"debug", "info", "warning", "error",
                                         "off"};

// Past kOff: none.
int LevelOf(absl::string_view name) {
  const auto* const found =
      std::find(std::begin(kLevels), std::end(kLevels), name);
  return static_cast<int>(found - std::begin(kLevels));
}

int LevelOfEnvironment() {
  const char* const name = std::getenv("COXSWAIN_LOG_LEVEL");
  const int level = name == nullptr ? kInfo : LevelOf(name);
  return level > kOff ? kInfo : level;
}

std::atomic<int>& LeastLevel() {
  static std::atomic<int> level{LevelOfEnvironment()};
  return level;
}

bool IsControl(char c) { return absl::ascii_iscntrl(c); }

bool NeedsQuotes(absl::string_view value) {
  return value.empty() ||
         value.find_first_of(" \"\\=") != absl::string_view::npos ||
         std::any_of(value.begin(), value.end(), IsControl);
}

// Nothing else is escaped: a sentence with an apostrophe stays readable, and
// so does UTF-8.
std::string Quoted(absl::string_view value) {
  std::string text = "\"";
  for (const char c : value) {
    if (c == '"' || c == '\\') {
      text += '\\';
      text += c;
    } else if (IsControl(c)) {
      text += absl::CEscape(absl::string_view(&c, 1));
    } else {
      text += c;
    }
  }
  return text + '"';
}

// Looked up once, at load: that takes a lock, which a fork would inherit held
// where another thread logs.
absl::TimeZone LocalZone() {
  static const absl::TimeZone zone = absl::LocalTimeZone();
  return zone;
}

std::string TextLine(const LogLine& line) {
  const std::string time =
      absl::FormatTime("%Y-%m-%dT%H:%M:%E3S", line.time, LocalZone());
  const char level =
      absl::ascii_toupper(line.level.empty() ? '?' : line.level[0]);
  std::string text =
      absl::StrCat(time, " ", absl::string_view(&level, 1), " ", line.event);
  for (const LogField& field : line.fields) {
    absl::StrAppend(
        &text, " ", field.key, "=",
        NeedsQuotes(field.value) ? Quoted(field.value) : field.value);
  }
  return text;
}

std::string JsonString(absl::string_view value) {
  return nlohmann::json(std::string(value))
      .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

bool IsJsonNumber(absl::string_view value) {
  uint64_t magnitude = 0;
  const absl::string_view digits =
      absl::StartsWith(value, "-") ? value.substr(1) : value;
  if (std::all_of(digits.begin(), digits.end(), absl::ascii_isdigit)) {
    return absl::SimpleAtoi(digits, &magnitude) && magnitude <= kMaxJsonInteger;
  }
  double number = 0;
  return absl::SimpleAtod(value, &number) && std::isfinite(number);
}

std::string JsonValue(const LogField& field) {
  if (field.kind == LogField::Kind::kBool) {
    return field.value == "0" ? "false" : "true";
  }
  const bool bare =
      field.kind == LogField::Kind::kNumber && IsJsonNumber(field.value);
  return bare ? field.value : JsonString(field.value);
}

std::string JsonLine(const LogLine& line) {
  std::string text = absl::StrCat(
      R"({"time":")",
      absl::FormatTime("%Y-%m-%dT%H:%M:%E6SZ", line.time, absl::UTCTimeZone()),
      R"(","level":)", JsonString(line.level), R"(,"event":)",
      JsonString(line.event));
  std::set<std::string> used = {"time", "level", "event"};
  for (const LogField& field : line.fields) {
    std::string key(field.key);
    while (!used.insert(key).second) key += '_';
    absl::StrAppend(&text, ",", JsonString(key), ":", JsonValue(field));
  }
  return text + "}";
}

// What belongs to one process. A fork has its own, without sinks: threads that
// it does not have may have held the locks of the former one, and those of its
// sinks.
struct ProcessLog {
  ProcessLog(pid_t of, ProcessLog* former) : process(of), former(former) {}

  const pid_t process;
  ProcessLog* const former;  // of a process that this one was forked from
  std::atomic<bool> any_sinks{false};
  Mutex mutex;
  std::vector<LogSink*> sinks ABSL_GUARDED_BY(mutex);
  Mutex once_mutex;
  std::set<std::string> once ABSL_GUARDED_BY(once_mutex);
};

// Whether this process or one that it was forked from has ever had a sink.
std::atomic<bool>& SinkWasAdded() {
  static std::atomic<bool> added{false};
  return added;
}

// Never destroyed: threads may log while the process ends.
ProcessLog& OwnLog() {
  static std::atomic<ProcessLog*> own{nullptr};
  ProcessLog* found = own.load();
  const pid_t process = getpid();
  if (found != nullptr && found->process == process) return *found;
  auto made = std::make_unique<ProcessLog>(process, found);
  // Another thread of this process may be faster.
  if (own.compare_exchange_strong(found, made.get())) return *made.release();
  return *found;
}

void NotifySinks(ProcessLog* own, const LogLine& line) {
  static thread_local bool notifying = false;
  if (notifying) return;
  notifying = true;
  {
    MutexLock lock(&own->mutex);
    for (LogSink* const sink : own->sinks) sink->OnLine(line);
  }
  notifying = false;
}

// Without the lock that absl::Now may take, which a fork would inherit held.
absl::Time TimeNow() {
  return absl::FromChrono(std::chrono::system_clock::now());
}

std::string LeftOutLine(int64_t lines) {
  const std::initializer_list<LogField> fields = {
      {"of", "all"},
      {"lines", lines},
      {"reason",
       "stderr was not read, and they were more than are kept for it"}};
  return FormatLogLine(Format(), {TimeNow(), kLevels[kWarning],
                                  "log_lines_left_out", fields}) +
         "\n";
}

// How long the end of the process waits for who reads its last lines.
constexpr absl::Duration kLastLines = absl::Seconds(1);

// Never destroyed: threads may log while the process ends, and what they log
// need not be read.
LogWriter& Stderr() {
  static LogWriter* const writer = [] {
    std::atexit([] { Stderr().Flush(kLastLines); });
    return new LogWriter(STDERR_FILENO, LeftOutLine);
  }();
  return *writer;
}

// At load, when there is one thread: in a fork, what another one had only begun
// to make would be waited for without end.
[[maybe_unused]] const bool kMadeAtLoad = [] {
  (void)Format();
  (void)LeastLevel();
  (void)LocalZone();
  (void)absl::UTCTimeZone();
  (void)Stderr();
  return true;
}();

void Log(Level level, absl::string_view event, LogFields fields) {
  const bool printed = level >= LeastLevel();
  // First what costs no system call: most programs have no sink.
  const bool may_have_sinks = level >= kInfo && SinkWasAdded();
  if (!printed && !may_have_sinks) return;
  ProcessLog* const own = may_have_sinks ? &OwnLog() : nullptr;
  const bool to_sinks = own != nullptr && own->any_sinks;
  if (!printed && !to_sinks) return;
  const LogLine line{TimeNow(), kLevels[level], event, fields};
  if (printed) {
    Stderr().Write(FormatLogLine(Format(), line) + "\n");
  }
  if (to_sinks) NotifySinks(own, line);
}

}  // namespace

void LogDebug(absl::string_view event, LogFields fields) {
  Log(kDebug, event, fields);
}
void LogInfo(absl::string_view event, LogFields fields) {
  Log(kInfo, event, fields);
}
void LogWarning(absl::string_view event, LogFields fields) {
  Log(kWarning, event, fields);
}
void LogError(absl::string_view event, LogFields fields) {
  Log(kError, event, fields);
}

bool SetLogLevel(absl::string_view name) {
  const int level = LevelOf(name);
  if (level > kOff) return false;
  LeastLevel() = level;
  return true;
}

void SetLogFormat(LogFormat format) { Format() = format; }

bool SetLogFormat(absl::string_view format) {
  if (format != "text" && format != "json") return false;
  SetLogFormat(format == "json" ? LogFormat::kJson : LogFormat::kText);
  return true;
}

LogFormat GetLogFormat() { return Format(); }

std::string FormatLogLine(LogFormat format, const LogLine& line) {
  return format == LogFormat::kJson ? JsonLine(line) : TextLine(line);
}

void AddLogSink(LogSink* sink) {
  ProcessLog& own = OwnLog();
  MutexLock lock(&own.mutex);
  own.sinks.push_back(sink);
  own.any_sinks = true;
  SinkWasAdded() = true;
}

void RemoveLogSink(LogSink* sink) {
  ProcessLog& own = OwnLog();
  MutexLock lock(&own.mutex);
  own.sinks.erase(std::remove(own.sinks.begin(), own.sinks.end(), sink),
                  own.sinks.end());
  own.any_sinks = !own.sinks.empty();
}

void LogWarningOnce(absl::string_view key, absl::string_view event,
                    LogFields fields) {
  ProcessLog& own = OwnLog();
  {
    MutexLock lock(&own.once_mutex);
    if (own.once.size() >= kMaxOnceKeys) return;
    if (!own.once.insert(std::string(key)).second) return;
  }
  LogWarning(event, fields);
}

LogRate::LogRate(absl::string_view event, const Clock* clock, Log log)
    : event_(event), clock_(clock), log_(log) {}

LogRate::~LogRate() {
  int64_t left_out = 0;
  {
    MutexLock lock(&mutex_);
    left_out = left_out_;
  }
  LogLeftOut(left_out);
}

int64_t LogRate::TurnLocked() {
  const absl::Time now = clock_->Now();
  if (now < period_end_) return 0;
  period_end_ = now + kPeriod;
  peers_.clear();
  return std::exchange(left_out_, 0);
}

void LogRate::LogLeftOut(int64_t lines) {
  if (lines == 0) return;
  log_("log_lines_left_out", {{"of", event_},
                              {"lines", lines},
                              {"reason",
                               "one is logged for each peer and "
                               "minute, and 100 for all peers"}});
}

void LogRate::Line(absl::string_view peer, LogFields fields) {
  int64_t left_out = 0;
  bool logged = false;
  {
    MutexLock lock(&mutex_);
    left_out = TurnLocked();
    logged = peers_.size() < kLines && peers_.emplace(peer).second;
    if (!logged) ++left_out_;
  }
  // A sink of the log must not be called under a lock.
  LogLeftOut(left_out);
  if (logged) log_(event_, fields);
}

absl::string_view HostOfPeer(absl::string_view peer) {
  return peer.substr(0, peer.rfind(':'));
}

}  // namespace coxswain
