#include "client/elastic/elastic_run.h"

#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/exception_status.h"
#include "base/logging.h"
#include "base/mesh.h"
#include "base/status_macros.h"
#include "base/status_prefix.h"
#include "client/elastic/catch_up/receiver.h"
#include "client/elastic/recovery.h"
#include "client/session/job.h"
#include "client/session/join.h"
#include "client/session/session.h"

namespace coxswain {
namespace {

// Of the ranks that end the same step, for each other.
constexpr absl::Duration kRegroupTimeout = absl::Seconds(5);

// What it never looks like, also where a generation has just ended: this worker
// would meet it again, when others are gone because of it.
bool NeverComesFromPeers(const absl::Status& error) {
  return absl::IsInvalidArgument(error) || absl::IsUnimplemented(error) ||
         absl::IsOutOfRange(error) || absl::IsDataLoss(error);
}

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

// Returns the sentence of RecoveryReport::lost.
std::string DescribeLoss(const LostPeer& peer) {
  std::string text = absl::StrCat(
      "rank ", peer.member.rank, " (",
      WithCoordinates(peer.member.coordinates, peer.member.identity.ToString()),
      " on ", peer.member.host, ") ", peer.left ? "has left" : "was lost");
  if (!peer.reason.empty()) absl::StrAppend(&text, ": ", peer.reason);
  if (peer.error_step > 0) {
    absl::StrAppend(&text, "; with it went an error of norm ", peer.error_norm,
                    ", as of step ", peer.error_step);
  }
  return text;
}

// All but how long it took.
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
  report.caught_up = recovered.caught_up;
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
                        {"caught_up", report.caught_up ? "yes" : "no"},
                        {"error_scale", report.error_scale},
                        {"ms", absl::ToInt64Milliseconds(report.took)},
                        {"lost", absl::StrJoin(report.lost, "; ")}});
  for (const std::string& warning : report.warnings) {
    LogWarning(
        "recovery_warning",
        {{"job", job}, {"generation", report.generation}, {"reason", warning}});
  }
}

// By which an operator finds the machine.
std::string DescribeMember(Session& session, int rank) {
  const auto members = session.Members();
  if (!members.ok() || static_cast<size_t>(rank) >= members->size()) return "";
  const JobMember& member = (*members)[static_cast<size_t>(rank)];
  return absl::StrCat(member.identity.ToString(), " on ", member.host);
}

void LogReplay(Session& session, const ReplayResult& result) {
  const std::string steps =
      absl::StrCat("all ranks went back from step ", result.step, " to step ",
                   result.from_step, " and took the steps again");
  for (const int rank : result.wrong) {
    LogWarning("replay_named",
               {{"job", session.job()},
                {"generation", session.generation()},
                {"rank", rank},
                {"step", result.step},
                {"worker", DescribeMember(session, rank)},
                {"reason", absl::StrCat(steps,
                                        ", and gave other bits than this rank "
                                        "had: its memory or its arithmetic "
                                        "was wrong, once")},
                {"next", "test the memory and the processor of its host"}});
  }
  if (!result.wrong.empty()) return;
  LogWarning("replay_named_none",
             {{"job", session.job()},
              {"generation", session.generation()},
              {"step", result.step},
              {"reason", absl::StrCat(steps,
                                      ", and gave the same bits on all ranks, "
                                      "but no rank's of the first time: other "
                                      "members or another plan, or steps that "
                                      "do not give the same bits twice")}});
}

class Runner {
 public:
  Runner(const ElasticRun::Options& options, ElasticState* state,
         const ElasticRun::Train& train)
      : options_(options), state_(*state), train_(train) {}

  // Once.
  absl::Status Run();
  // After OK.
  ElasticRun::Ending ending() const { return ending_; }

 private:
  enum class Next { kRejoin, kLeft };

  // The next generation's session; null: there is none, and nothing is wrong.
  absl::StatusOr<std::unique_ptr<Session>> Join();
  // Of this process, which may take the members' state meanwhile.
  absl::StatusOr<std::unique_ptr<Session>> JoinFirst();
  absl::StatusOr<std::unique_ptr<catch_up::Receiver>> ListenForState() const;
  // Ends that, if it has not ended: see Receiver::Finish.
  absl::Status FinishCatchUp(absl::Duration timeout);
  // One generation, up to its end.
  absl::StatusOr<Next> Generation();
  absl::Status Prepare(ElasticGeneration* generation);
  absl::Status Train(ElasticGeneration& generation,
                     ElasticRun::Trained* trained);
  absl::StatusOr<Next> AfterTraining(const ElasticRun::Trained& trained);
  absl::StatusOr<Next> AfterRegroup();
  absl::StatusOr<Next> AfterFinish();
  absl::StatusOr<Next> AfterError(const absl::Status& error);
  absl::StatusOr<Next> Leave(absl::string_view reason,
                             ElasticRun::Ending ending);
  absl::Status CheckFruitful(const absl::Status& last);
  void AfterStep(int64_t step);
  void WarnLeftBeforeOthers(const absl::Status& why) const {
    LogWarning("left_before_others",
               {{"job", options_.session.job}, {"reason", why.message()}});
  }
  bool draining() const {
    return options_.drain_requested && options_.drain_requested();
  }
  absl::Time Now() const { return options_.session.clock->Now(); }

  const ElasticRun::Options& options_;
  ElasticState& state_;
  const ElasticRun::Train& train_;
  RankStanding standing_;
  int fruitless_ = 0;
  absl::Status last_error_;  // of a generation, since the last step
  absl::Time ended_;         // the last generation
  absl::Time joined_;        // this one
  std::unique_ptr<Session> session_;
  std::shared_ptr<ProcessGroup> world_;
  // Until FinishCatchUp the state is its own.
  std::unique_ptr<catch_up::Receiver> receiver_;
  bool drain_notified_ = false;
  std::vector<std::string> damage_;  // of what this worker has taken
  // `train` has returned so, and has not been called since.
  bool finished_ = false;
  ElasticRun::Ending ending_ = ElasticRun::Ending::kFinished;
};

absl::Status Runner::Run() {
  ended_ = Now();
  while (true) {
    if (draining()) {
      ending_ = ElasticRun::Ending::kDrained;
      if (session_ == nullptr) return absl::OkStatus();
      return Leave(options_.drain_reason, ending_).status();
    }
    COXSWAIN_ASSIGN_OR_RETURN(std::unique_ptr<Session> next, Join());
    joined_ = Now();
    if (next == nullptr) return absl::OkStatus();
    // Peers may have read from the old one's communicators until now.
    world_.reset();
    session_ = std::move(next);
    drain_notified_ = false;
    COXSWAIN_ASSIGN_OR_RETURN(const Next after, Generation());
    if (after == Next::kLeft) return absl::OkStatus();
  }
}

absl::StatusOr<std::unique_ptr<Session>> Runner::Join() {
  while (true) {
    auto joined = session_ == nullptr ? JoinFirst() : session_->Rejoin();
    if (joined.ok()) return joined;
    if (IsJobFinished(joined.status())) {
      LogInfo("not_needed", {{"job", options_.session.job},
                             {"reason", joined.status().message()}});
      ending_ = finished_ ? ElasticRun::Ending::kFinished
                          : ElasticRun::Ending::kNotNeeded;
      return std::unique_ptr<Session>();
    }
    // It has all that the others would need it for, and they do not come.
    if (finished_ && absl::IsDeadlineExceeded(joined.status())) {
      WarnLeftBeforeOthers(joined.status());
      return std::unique_ptr<Session>();
    }
    // The round ended because a worker that had joined was lost.
    if (!absl::IsAborted(joined.status())) return joined.status();
    ++fruitless_;
    COXSWAIN_RETURN_IF_ERROR(CheckFruitful(joined.status()));
  }
}

absl::StatusOr<std::unique_ptr<catch_up::Receiver>> Runner::ListenForState()
    const {
  const SessionOptions& session = options_.session;
  if (options_.catch_up == nullptr || EncryptsData(session) ||
      !session.mesh.empty() || !options_.manifest.mesh.empty()) {
    return std::unique_ptr<catch_up::Receiver>();
  }
  return catch_up::Receiver::ListenFor(session, options_.catch_up);
}

absl::StatusOr<std::unique_ptr<Session>> Runner::JoinFirst() {
  SessionOptions session = options_.session;
  auto listens = ListenForState();
  if (!listens.ok()) {
    LogWarning("does_not_catch_up",
               {{"job", session.job},
                {"reason", listens.status().ToString()},
                {"next", "it copies the state once it is a member"}});
  }
  receiver_ = listens.ok() ? *std::move(listens) : nullptr;
  if (receiver_ != nullptr) {
    session.catch_up_address = receiver_->address();
    session.catch_up_secret = receiver_->secret();
  }
  auto joined = Session::Join(std::move(session), options_.manifest);
  // It takes the members' last steps while it connects to them.
  if (joined.ok()) return joined;
  COXSWAIN_RETURN_IF_ERROR(FinishCatchUp(absl::ZeroDuration()));
  if (!standing_.caught_up) return joined;
  // The members had ended their generation, and the round failed.
  standing_.caught_up.reset();
  COXSWAIN_RETURN_IF_ERROR(UndoCatchUp(options_.catch_up));
  return joined;
}

absl::Status Runner::FinishCatchUp(absl::Duration timeout) {
  const auto receiver = std::move(receiver_);
  if (receiver == nullptr) return absl::OkStatus();
  COXSWAIN_ASSIGN_OR_RETURN(standing_.caught_up, receiver->Finish(timeout));
  standing_.catch_up = options_.catch_up;
  damage_ = receiver->damage();
  return absl::OkStatus();
}

absl::StatusOr<Runner::Next> Runner::Generation() {
  ElasticGeneration generation;
  ElasticRun::Trained trained;
  absl::Status status = WithoutExceptions([&] { return Prepare(&generation); });
  if (status.ok()) {
    status = WithoutExceptions([&] { return Train(generation, &trained); });
  } else {
    ++fruitless_;
  }
  ended_ = Now();
  if (status.ok()) return AfterTraining(trained);
  return AfterError(status);
}

absl::Status Runner::Prepare(ElasticGeneration* generation) {
  auto world = session_->World();
  const absl::Time connected = Now();
  if (world.ok()) world_ = *world;
  COXSWAIN_RETURN_IF_ERROR(FinishCatchUp(world.ok() ? options_.last_step_timeout
                                                    : absl::ZeroDuration()));
  COXSWAIN_RETURN_IF_ERROR(world.status());
  RecoveryOptions options = options_.recovery;
  options.mesh = session_->mesh();
  COXSWAIN_ASSIGN_OR_RETURN(
      Recovered recovered,
      Recover(world_->communicator(), session_->generation(), options, &state_,
              &standing_));
  generation->session = session_.get();
  generation->communicator = &world_->communicator();
  generation->recovery = ReportOf(*session_, recovered);
  generation->recovery.took = Now() - ended_;
  generation->recovery.joining = joined_ - ended_;
  generation->recovery.connecting = connected - joined_;
  for (std::string& damage : damage_) {
    generation->recovery.warnings.push_back(std::move(damage));
  }
  damage_.clear();
  generation->hook_state = std::move(recovered.hook_state);
  generation->error_scale = recovered.error_scale;
  generation->trained = standing_.trained;
  generation->before_step = [this](const Hook& hook,
                                   const schedule::Plan& plan) {
    standing_.replay.BeforeStep(plan.terms.checksum_every, &state_,
                                [&hook] { return hook.SaveOwn(); });
  };
  generation->lineage = standing_.lineage;
  generation->after_step = [this](int64_t step) { AfterStep(step); };
  LogRecovery(session_->job(), generation->recovery);
  if (options_.on_recovery) options_.on_recovery(generation->recovery);
  AfterStep(state_.step());
  return absl::OkStatus();
}

absl::Status Runner::Train(ElasticGeneration& generation,
                           ElasticRun::Trained* trained) {
  finished_ = false;
  const int64_t begun = state_.progress();
  const absl::Status status =
      WithoutExceptions([&] { return train_(generation, trained); });
  if (!status.ok()) state_.Rollback();
  if (trained->hook_state) {
    standing_.hook_state = std::move(trained->hook_state);
    standing_.hook_world = session_->world_size();
  }
  const bool fruitful =
      state_.progress() != trained->went_back_to.value_or(begun);
  if (fruitful || trained->went_back_to) {
    standing_.trained = session_->generation();
  }
  if (fruitful) {
    fruitless_ = 0;
    last_error_ = absl::OkStatus();
  } else {
    ++fruitless_;
  }
  return status;
}

absl::StatusOr<Runner::Next> Runner::AfterTraining(
    const ElasticRun::Trained& trained) {
  return trained.outcome == ElasticRun::Outcome::kRegroup ? AfterRegroup()
                                                          : AfterFinish();
}

absl::StatusOr<Runner::Next> Runner::AfterRegroup() {
  // Peers may still be reading the step's last data from this rank, and one
  // that drains takes its memory and connections along. The next round finds
  // out who does not come.
  session_->Barrier("", "elastic/regroup", kRegroupTimeout).IgnoreError();
  if (!draining()) return Next::kRejoin;
  return Leave(options_.drain_reason, ElasticRun::Ending::kDrained);
}

absl::StatusOr<Runner::Next> Runner::AfterFinish() {
  finished_ = true;
  // Decided in one place: either all leave now, or all find the last step with
  // each other once more.
  const absl::Status all =
      session_->Barrier("", "elastic/finished", options_.finish_timeout);
  if (!all.ok()) {
    // The report of a lost rank may come a moment after the barrier's error.
    if (!absl::IsDeadlineExceeded(all)) {
      Explain(*session_, all, options_.reason_timeout).IgnoreError();
    }
    if (!session_->status().ok()) return Next::kRejoin;
    WarnLeftBeforeOthers(all);
  }
  return Leave("done", ElasticRun::Ending::kFinished);
}

absl::StatusOr<Runner::Next> Runner::AfterError(const absl::Status& error) {
  // Peers that wait for this rank's data need not wait for their timeouts.
  if (world_ != nullptr) world_->communicator().Abort(error.message());
  const absl::Status explained = Explain(
      *session_, error,
      MayComeFromPeers(error) ? options_.reason_timeout : absl::ZeroDuration());
  // So is one that comes again by itself, whatever ended the generation.
  const bool own = NeverComesFromPeers(error) ||
                   (!MayComeFromPeers(error) && error == last_error_);
  last_error_ = error;
  absl::Status final = own ? error : explained;
  // Where no rank is lost, and yet no data pass, the next one connects anew.
  const bool ended = !session_->status().ok() || MayComeFromPeers(error);
  if (ended && !own) {
    final = CheckFruitful(explained);
    if (final.ok()) return Next::kRejoin;
  }
  session_->Leave(final.message(), /*failed=*/true).IgnoreError();
  return final;
}

absl::StatusOr<Runner::Next> Runner::Leave(absl::string_view reason,
                                           ElasticRun::Ending ending) {
  ending_ = ending;
  const absl::Status left = session_->Leave(reason);
  // Training is over for this worker, even if the coordinator was not notified.
  if (!left.ok()) {
    LogWarning("leave_not_heard",
               {{"job", session_->job()}, {"reason", left.message()}});
  }
  return Next::kLeft;
}

absl::Status Runner::CheckFruitful(const absl::Status& last) {
  if (fruitless_ <= options_.max_fruitless) return absl::OkStatus();
  return WithPrefix(
      absl::StrCat("no step was committed in ", fruitless_,
                   " generations in a row, so something ends every one of "
                   "them; the last: "),
      last);
}

void Runner::AfterStep(int64_t step) {
  session_->ReportProgress(step);
  const auto replayed = standing_.replay.AfterStep(step);
  if (replayed) LogReplay(*session_, *replayed);
  if (drain_notified_ || !draining()) return;
  drain_notified_ = true;
  if (options_.on_drain) options_.on_drain(*session_);
  session_->schedule().RequestDrain(options_.drain_reason);
}

}  // namespace

absl::Status ElasticRun::Run(const Options& options, ElasticState* state,
                             const Train& train, Ending* ending) {
  Runner runner(options, state, train);
  COXSWAIN_RETURN_IF_ERROR(WithoutExceptions([&] { return runner.Run(); }));
  if (ending != nullptr) *ending = runner.ending();
  return absl::OkStatus();
}

}  // namespace coxswain
