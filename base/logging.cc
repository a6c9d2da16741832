#include "base/logging.h"

#include <algorithm>
#include <memory>
#include <set>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "base/mutex.h"
#include "spdlog/sinks/stdout_sinks.h"
#include "spdlog/spdlog.h"

namespace coxswain {
namespace {

constexpr size_t kMaxOnceKeys = 4096;

spdlog::logger& Logger() {
  // Never destroyed: threads may log while the process ends.
  static spdlog::logger* const logger = [] {
    auto* created = new spdlog::logger(
        "coxswain", std::make_shared<spdlog::sinks::stderr_sink_mt>());
    created->set_pattern("%Y-%m-%dT%H:%M:%S.%e %^%L%$ %v");
    created->flush_on(spdlog::level::debug);
    return created;
  }();
  return *logger;
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

std::string Line(absl::string_view event, LogFields fields) {
  std::string line(event);
  for (const LogField& field : fields) {
    absl::StrAppend(
        &line, " ", field.key, "=",
        NeedsQuotes(field.value) ? Quoted(field.value) : field.value);
  }
  return line;
}

void Log(spdlog::level::level_enum level, absl::string_view event,
         LogFields fields) {
  if (!Logger().should_log(level)) return;
  Logger().log(level, "{}", Line(event, fields));
}

}  // namespace

void LogDebug(absl::string_view event, LogFields fields) {
  Log(spdlog::level::debug, event, fields);
}
void LogInfo(absl::string_view event, LogFields fields) {
  Log(spdlog::level::info, event, fields);
}
void LogWarning(absl::string_view event, LogFields fields) {
  Log(spdlog::level::warn, event, fields);
}
void LogError(absl::string_view event, LogFields fields) {
  Log(spdlog::level::err, event, fields);
}

bool SetLogLevel(absl::string_view level) {
  const std::string name(level);
  const auto parsed = spdlog::level::from_str(name);
  if (parsed == spdlog::level::off && name != "off") return false;
  Logger().set_level(parsed);
  return true;
}

void LogWarningOnce(absl::string_view key, absl::string_view event,
                    LogFields fields) {
  static Mutex* const mutex = new Mutex;
  static auto* const seen = new std::set<std::string>;
  {
    MutexLock lock(mutex);
    if (seen->size() >= kMaxOnceKeys) return;
    if (!seen->insert(std::string(key)).second) return;
  }
  LogWarning(event, fields);
}

}  // namespace coxswain
