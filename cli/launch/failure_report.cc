#include "cli/launch/failure_report.h"

#include <algorithm>
#include <csignal>
#include <cstddef>
#include <iterator>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/peer_text.h"

namespace coxswain {
namespace {

// How many consequences have a line of their own.
constexpr size_t kMaxLines = 16;

using Failures = std::vector<WorkerFailure>;

// Not SIGABRT: libraries abort themselves where a peer is gone.
bool IsOfItsOwn(const WorkerExit& exit) {
  constexpr int kSignals[] = {SIGKILL, SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGSYS};
  return !exit.stopped &&
         std::count(std::begin(kSignals), std::end(kSignals), exit.signal) > 0;
}

// Returns how the last generation ended in which one of them was a member; null
// if the coordinator has not answered that.
const v1::ReportExitResponse* LastEnd(const Failures& failures) {
  for (auto one = failures.rbegin(); one != failures.rend(); ++one) {
    if (!one->answer.ended().empty()) return &one->answer;
  }
  return nullptr;
}

// Returns the end if there is no such failure.
Failures::const_iterator FindLost(const v1::ReportExitResponse& end,
                                  const Failures& failures) {
  return std::find_if(
      failures.begin(), failures.end(), [&](const WorkerFailure& one) {
        return end.has_lost() && one.incarnation == end.lost().incarnation();
      });
}

Failures::const_iterator GuessCause(const Failures& failures) {
  const auto of_its_own = std::find_if(
      failures.begin(), failures.end(),
      [](const WorkerFailure& one) { return IsOfItsOwn(one.exit); });
  if (of_its_own != failures.end()) return of_its_own;
  return std::find_if(
      failures.begin(), failures.end(),
      [](const WorkerFailure& one) { return !one.exit.stopped; });
}

std::string Describe(const std::string& node, const WorkerExit& exit) {
  return absl::StrCat("worker ", node, "/", exit.slot, " (pid ", exit.pid, ") ",
                      exit.ToString(),
                      exit.stopped ? ", ended by this launcher" : "");
}

// Returns the cause in the coordinator's words, which a peer may have written.
std::string DescribeEnd(const v1::ReportExitResponse& end) {
  const std::string reason = OneLine(end.ended());
  if (!end.has_lost()) return reason;
  return absl::StrCat(reason, "; see the log of the launcher of node ",
                      OneLine(end.lost().identity().node()));
}

}  // namespace

std::vector<std::string> DescribeFailures(const std::string& node,
                                          const Failures& failures) {
  const v1::ReportExitResponse* const end = LastEnd(failures);
  const auto cause =
      end == nullptr ? GuessCause(failures) : FindLost(*end, failures);
  const bool is_here = cause != failures.end();
  if (end == nullptr && !is_here) return {};
  std::string text = is_here ? Describe(node, cause->exit) : DescribeEnd(*end);
  // What a launcher has reported is no more than what is known here.
  const bool adds =
      end != nullptr &&
      !absl::StrContains(end->ended(), "reported by its launcher");
  // One that this launcher has ended has failed because it was to stop.
  if (is_here && !adds && (failures.size() == 1 || cause->exit.stopped)) {
    return {};
  }
  if (is_here && adds) {
    absl::StrAppend(&text,
                    "; the coordinator's reason: ", OneLine(end->ended()));
  }
  std::vector<std::string> lines = {absl::StrCat("cause: ", text)};
  size_t left_out = 0;
  for (auto one = failures.begin(); one != failures.end(); ++one) {
    // Others failed in an earlier generation, which the job outlived.
    const bool same = end == nullptr || one->answer.ended().empty() ||
                      one->answer.ended() == end->ended();
    if (one == cause || !same) continue;
    if (lines.size() > kMaxLines) {
      ++left_out;
    } else {
      lines.push_back(absl::StrCat("consequence: ", Describe(node, one->exit)));
    }
  }
  if (left_out > 0) {
    lines.push_back(absl::StrCat("and ", left_out, " other consequences"));
  }
  return lines;
}

}  // namespace coxswain
