#ifndef COXSWAIN_BASE_LOGGING_H_
#define COXSWAIN_BASE_LOGGING_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <set>
#include <string>
#include <type_traits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/clock.h"
#include "base/mutex.h"

namespace coxswain {

// One line per event on stderr: time, level, event, then fields. As text they
// are key=value (values with spaces are quoted; in them, quotes, backslashes
// and control characters are escaped); as JSON each line is one object, in
// which numbers are numbers. Thread-safe.
//
//   LogInfo("member_lost", {{"job", job}, {"rank", rank}, {"reason", why}});
//
// What happens to a job carries `job`, and `generation`, `rank` and `step`
// where they are known, under these names.
struct LogField {
  enum class Kind { kText, kNumber, kBool };
  template <typename T>
  LogField(absl::string_view key_in, const T& value_in)
      : key(key_in), value(absl::StrCat(value_in)), kind(KindOf<T>()) {}
  template <typename T>
  static constexpr Kind KindOf() {
    if (std::is_same_v<T, bool>) return Kind::kBool;
    return std::is_arithmetic_v<T> ? Kind::kNumber : Kind::kText;
  }
  absl::string_view key;
  std::string value;
  Kind kind;
};
using LogFields = std::initializer_list<LogField>;

void LogDebug(absl::string_view event, LogFields fields = {});
void LogInfo(absl::string_view event, LogFields fields = {});
void LogWarning(absl::string_view event, LogFields fields = {});
void LogError(absl::string_view event, LogFields fields = {});

// Sets the lowest level that is printed: "debug", "info", "warning", "error" or
// "off". Returns false if the name is none of these. Until the first call it is
// the value that COXSWAIN_LOG_LEVEL has when this library is loaded, or "info"
// if that is none of these.
bool SetLogLevel(absl::string_view level);

enum class LogFormat { kText, kJson };
// Sets how lines are printed from now on. Until the first call it is the value
// that COXSWAIN_LOG_FORMAT has when this library is loaded: "json", or text for
// anything else.
void SetLogFormat(LogFormat format);
// The same by name: "text" or "json". Returns false if the name is neither.
bool SetLogFormat(absl::string_view format);
LogFormat GetLogFormat();

struct LogLine {
  absl::Time time;
  absl::string_view level;  // a name as of SetLogLevel
  absl::string_view event;
  absl::Span<const LogField> fields;
};
// Returns a line as it is printed, without its line break. Text has local time,
// JSON UTC as RFC 3339 has it; bytes that are no UTF-8 become U+FFFD in JSON.
std::string FormatLogLine(LogFormat format, const LogLine& line);

// Receives each line of level info or above as it is logged, whichever level is
// printed. Lines that are logged from within OnLine are printed only.
class LogSink {
 public:
  virtual ~LogSink() = default;
  // Called on the thread that logs, which may hold any lock: must be quick, and
  // take no lock that is held while something is logged.
  virtual void OnLine(const LogLine& line) = 0;
};
// Adds a sink for all lines of the process.
void AddLogSink(LogSink* sink);
// Removes a sink. Once this has returned, its OnLine does not run, nor will it.
void RemoveLogSink(LogSink* sink);

// Prints at most the first event of each key in this process: for errors that
// a peer could repeat as fast as it likes. Remembers at most 4096 keys, past
// which it prints no new ones.
void LogWarningOnce(absl::string_view key, absl::string_view event,
                    LogFields fields = {});

// Logs an event that peers can cause as often as they like: one line for each
// peer in a period, and a bounded number for all peers together. Counts the
// other lines, and logs the count once the period is over, with the next line
// or when it is destroyed. Owned by the component that logs the event.
// Thread-safe.
//
// A peer that floods the log uses up its own line only. Peers without number,
// such as one host with many addresses, use up those of all, until the next
// period: the memory is bounded by the lines of one period, and no peer can
// silence the event for good.
class LogRate {
 public:
  static constexpr absl::Duration kPeriod = absl::Minutes(1);
  static constexpr size_t kLines = 100;  // of all peers in a period

  using Log = void (*)(absl::string_view event, LogFields fields);

  // `clock` outlives it.
  explicit LogRate(absl::string_view event, const Clock* clock = Clock::Real(),
                   Log log = LogWarning);
  ~LogRate();
  LogRate(const LogRate&) = delete;
  LogRate& operator=(const LogRate&) = delete;

  // `peer` identifies the peer that caused the event, by something that it
  // cannot choose: an address, a verified identity, a job. It may be followed
  // by the kind of the event where there are few.
  void Line(absl::string_view peer, LogFields fields);

 private:
  // Begins a period if the last one is over; returns the lines that were left
  // out in that one.
  int64_t TurnLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void LogLeftOut(int64_t lines);

  const std::string event_;
  const Clock* const clock_;
  const Log log_;
  Mutex mutex_;
  absl::Time period_end_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
  // Of this period: peers that have had their line, and lines left out.
  std::set<std::string, std::less<>> peers_ ABSL_GUARDED_BY(mutex_);
  int64_t left_out_ ABSL_GUARDED_BY(mutex_) = 0;
};

// Returns the address in gRPC's text of a peer ("ipv4:10.0.0.1:1234"), without
// the port, which differs with each connection.
absl::string_view HostOfPeer(absl::string_view peer);

}  // namespace coxswain

#endif  // COXSWAIN_BASE_LOGGING_H_
