#ifndef COXSWAIN_BASE_LOGGING_H_
#define COXSWAIN_BASE_LOGGING_H_

#include <initializer_list>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace coxswain {

// One line per event on stderr: time, level, event, then key=value fields
// (values with spaces are quoted; in them, quotes, backslashes and control
// characters are escaped). Thread-safe.
//
//   LogInfo("member_lost", {{"job", job}, {"rank", rank}, {"reason", why}});
struct LogField {
  template <typename T>
  LogField(absl::string_view key_in, const T& value_in)
      : key(key_in), value(absl::StrCat(value_in)) {}
  absl::string_view key;
  std::string value;
};
using LogFields = std::initializer_list<LogField>;

void LogDebug(absl::string_view event, LogFields fields = {});
void LogInfo(absl::string_view event, LogFields fields = {});
void LogWarning(absl::string_view event, LogFields fields = {});
void LogError(absl::string_view event, LogFields fields = {});

// The least level that is printed: "debug", "info" (default), "warning",
// "error" or "off". False if the name is none of these.
bool SetLogLevel(absl::string_view level);

// Prints at most the first event of each key in this process: for errors that
// a peer could repeat as fast as it likes. Remembers at most 4096 keys, past
// which it prints no new ones.
void LogWarningOnce(absl::string_view key, absl::string_view event,
                    LogFields fields = {});

}  // namespace coxswain

#endif  // COXSWAIN_BASE_LOGGING_H_
