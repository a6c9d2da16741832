#include "client/elastic/recovery_report.h"

#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/logging.h"

namespace coxswain {
namespace {

// Of members that may live, and were not there in time: see Rendezvous.
bool MayHaveState(const LostPeer& peer) {
  return !peer.left && absl::StrContains(peer.reason, "did not join again");
}

// What the coordinator knows of a training that seems to begin.
void WarnOfBeginning(const PreviousGeneration& previous,
                     RecoveryReport* report) {
  std::vector<std::string> peers;
  for (const LostPeer& peer : previous.lost) {
    if (MayHaveState(peer)) peers.push_back(peer.member.identity.ToString());
  }
  if (peers.empty()) return;
  report->warnings.push_back(absl::StrCat(
      "training begins at step ", report->step, ", as no worker of generation ",
      report->generation, " has a state; but those of generation ",
      previous.generation,
      " that did not join again in time may still have one: ",
      absl::StrJoin(peers, ", "),
      "; if they come, the state with more steps counts"));
}

}  // namespace

std::string DescribeLoss(const LostPeer& peer) {
  std::string text = absl::StrCat(
      "rank ", peer.member.rank, " (", peer.member.identity.ToString(), " on ",
      peer.member.host, ") ", peer.left ? "has left" : "was lost");
  if (!peer.reason.empty()) absl::StrAppend(&text, ": ", peer.reason);
  if (peer.error_step > 0) {
    absl::StrAppend(&text, "; with it went an error of norm ", peer.error_norm,
                    ", as of step ", peer.error_step);
  }
  return text;
}

RecoveryReport ReportOf(const Session& session, const Recovered& recovered) {
  RecoveryReport report;
  report.generation = session.generation();
  report.rank = session.rank();
  report.world_size = session.world_size();
  report.previous_generation = session.previous().generation;
  report.previous_world_size = session.previous().world_size;
  report.step = recovered.step;
  report.source = recovered.source;
  report.copied = recovered.copied;
  report.error_scale = recovered.error_scale;
  for (const LostPeer& peer : session.previous().lost) {
    report.lost.push_back(DescribeLoss(peer));
  }
  report.warnings = recovered.warnings;
  if (recovered.began) WarnOfBeginning(session.previous(), &report);
  return report;
}

void LogRecovery(absl::string_view job, const RecoveryReport& report) {
  LogInfo("recovered", {{"job", job},
                        {"generation", report.generation},
                        {"rank", report.rank},
                        {"world_size", report.world_size},
                        {"previous_world_size", report.previous_world_size},
                        {"step", report.step},
                        {"source", report.source},
                        {"copied", report.copied ? "yes" : "no"},
                        {"error_scale", report.error_scale},
                        {"ms", absl::ToInt64Milliseconds(report.took)},
                        {"lost", absl::StrJoin(report.lost, "; ")}});
  for (const std::string& warning : report.warnings) {
    LogWarning(
        "recovery_warning",
        {{"job", job}, {"generation", report.generation}, {"reason", warning}});
  }
}

}  // namespace coxswain
