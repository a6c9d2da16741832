#ifndef COXSWAIN_BASE_LOGGING_H_
#define COXSWAIN_BASE_LOGGING_H_

#include <initializer_list>
#include <string>
#include <type_traits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"

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

// The least level that is printed: "debug", "info", "warning", "error" or
// "off". False if the name is none of these. Before the first call, in programs
// that link this library as well, it is as COXSWAIN_LOG_LEVEL says, "info" for
// anything else.
bool SetLogLevel(absl::string_view level);

enum class LogFormat { kText, kJson };
// How lines are printed from now on. Before the first call, in programs that
// link this library as well, it is as COXSWAIN_LOG_FORMAT says: "json", or text
// for anything else.
void SetLogFormat(LogFormat format);
// The same by name: "text" or "json". False if the name is neither.
bool SetLogFormat(absl::string_view format);
LogFormat GetLogFormat();

struct LogLine {
  absl::Time time;
  absl::string_view level;  // a name as of SetLogLevel
  absl::string_view event;
  absl::Span<const LogField> fields;
};
// A line as it is printed, without its end. Text has local time, JSON UTC as
// RFC 3339 has it; bytes that are no UTF-8 become U+FFFD in JSON.
std::string FormatLogLine(LogFormat format, const LogLine& line);

// Is told of each line of level info or above as it is logged, whichever level
// is printed. Lines that are logged from within OnLine are printed only.
class LogSink {
 public:
  virtual ~LogSink() = default;
  // On the thread that logs, which may hold any lock: quick, and takes no lock
  // that is held while something is logged.
  virtual void OnLine(const LogLine& line) = 0;
};
// Each sink is told of all lines of the process.
void AddLogSink(LogSink* sink);
// Once this has returned, OnLine does not run, nor will it.
void RemoveLogSink(LogSink* sink);

// Prints at most the first event of each key in this process: for errors that
// a peer could repeat as fast as it likes. Remembers at most 4096 keys, past
// which it prints no new ones.
void LogWarningOnce(absl::string_view key, absl::string_view event,
                    LogFields fields = {});

}  // namespace coxswain

#endif  // COXSWAIN_BASE_LOGGING_H_
