#include "cli/job_words.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/peer_text.h"

namespace coxswain {
namespace {

constexpr absl::string_view kWorkersOutput =
    "read the end of that worker's output, which its launcher printed";
constexpr absl::string_view kItsHost =
    "look whether its host is up and its launcher runs there";
constexpr absl::string_view kItsProcess =
    "look where the process of that rank is: `gdb -p PID -batch -ex 'thread "
    "apply all bt'`, for Python `py-spy dump --pid PID`; if it is only slow, "
    "`coxswain plan set NAME progress_timeout=15m`, with the job's name";

// What the sentence of a failure contains, and what to do about it. The first
// that fits counts.
struct Advice {
  absl::string_view words;
  absl::string_view step;
};
constexpr Advice kAdvice[] = {
    {"killed by signal 9 ",
     "most often the kernel has killed it for want of memory: on its host, "
     "`dmesg -T | grep -i oom`; give it more memory, or a smaller batch"},
    {"killed by signal 15 ",
     "an operator or a scheduler has ended it: ask them, or start it again"},
    {"killed by signal ",
     "a fault in the program or in a library: read the end of that worker's "
     "output, which its launcher printed"},
    {"exited with code ", kWorkersOutput},
    {"no sign of life for ",
     "its process is stopped, or its host or network is gone: on its host, "
     "`ps -e -o pid,stat,wchan:20,args`, where T is stopped (kill -CONT PID) "
     "and D waits "
     "for a disk or a device"},
    {"joined but did not attach", kWorkersOutput},
    {"its connection broke", kItsHost},
    {"its connections to the coordinator and to its peers broke", kItsHost},
    {"did not come back", kItsHost},
    {"not announced it", kItsProcess},
    {"not announce it", kItsProcess},
    {"not voted on it", kItsProcess},
    {"no rank has made progress for ", kItsProcess},
    {" of them directly", kItsProcess},
    {"the job is stalled", kItsProcess},
    {"differ, and all must be alike",
     "start all workers with the same program and the same options"},
    {"did not become complete in time",
     "start the launchers that are missing, with the same --coordinator and "
     "--job"},
    {"before their work was done",
     "start its launchers again to go on, with the same --job"},
    {" failed: ", kWorkersOutput},
};

}  // namespace

std::string AgeText(int64_t milliseconds) {
  const absl::Duration age = absl::Milliseconds(milliseconds);
  return absl::FormatDuration(
      age < absl::Seconds(1) ? age : absl::Trunc(age, absl::Seconds(1)));
}

std::string MomentText(int64_t milliseconds, absl::Time now) {
  return absl::StrCat(absl::FormatTime("%Y-%m-%d %H:%M:%S",
                                       now - absl::Milliseconds(milliseconds),
                                       absl::UTCTimeZone()),
                      " UTC");
}

std::string AgoText(int64_t milliseconds, absl::Time now) {
  return absl::StrCat(AgeText(milliseconds), " ago (",
                      MomentText(milliseconds, now), ")");
}

std::string LastEndLine(const std::string& last_event, int64_t milliseconds,
                        absl::Time now) {
  if (last_event.empty()) return "";
  return absl::StrCat(
      "  last end",
      milliseconds > 0 ? absl::StrCat(", ", AgoText(milliseconds, now)) : "",
      ": ", OneLine(last_event), "\n");
}

std::string FormingLine(const std::string& forming) {
  if (forming.empty()) return "";
  return absl::StrCat("  the next generation has not begun: ", OneLine(forming),
                      "\n");
}

std::string WithoutForming(const std::string& last_event,
                           const std::string& forming) {
  if (forming.empty()) return last_event;
  return std::string(
      absl::StripSuffix(last_event, absl::StrCat("; ", forming)));
}

std::string NextStep(absl::string_view failure) {
  for (const Advice& advice : kAdvice) {
    if (absl::StrContains(failure, advice.words)) {
      return std::string(advice.step);
    }
  }
  return "";
}

bool EndedWell(absl::string_view last_event) {
  return absl::StrContains(last_event, "left cleanly") &&
         !absl::StrContains(last_event, "before their work was done");
}

}  // namespace coxswain
