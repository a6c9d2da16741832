// The world's part that is workers, their launchers, and the network.
#include <algorithm>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/simulation/membership_world.h"
#include "transport/error_detail.h"

namespace coxswain::simulation {
namespace {

// The longest time until a coordinator notices that a client has died.
constexpr absl::Duration kNotices = absl::Seconds(15);
// A report that is not answered by then is made again.
constexpr absl::Duration kReportTimeout = absl::Seconds(5);

}  // namespace

std::string MembershipWorld::Process::address() const {
  return absl::StrCat("host-", number, ":1234");
}

void MembershipWorld::ToCoordinator(std::function<void()> bring,
                                    std::function<void()> fail) {
  In(Delay(), [this, bring = std::move(bring), fail = std::move(fail)] {
    BringNow(bring, fail);
  });
}

void MembershipWorld::BringNow(const std::function<void()>& bring,
                               const std::function<void()>& fail) {
  if (coordinator_ == nullptr) return In(Delay(), fail);
  const absl::Duration left = stands_still_until_ - now();
  if (left <= absl::ZeroDuration()) return bring();
  In(left, [this, bring, fail] { BringNow(bring, fail); });
}

// Loses it, or repeats it, or neither.
void MembershipWorld::Send(const std::function<void(bool received)>& bring,
                           const std::function<void()>& again) {
  const auto nothing = [] {};
  const auto undelivered = [bring] { bring(false); };
  if (dice_.Chance(lost_)) {
    if (dice_.Chance(0.5)) ToCoordinator(undelivered, nothing);
    return again();
  }
  if (dice_.Chance(doubled_)) ToCoordinator(undelivered, nothing);
  ToCoordinator([bring] { bring(true); }, again);
}

bool MembershipWorld::Acts(const Process& process) const {
  return process.stalled_until <= now();
}

void MembershipWorld::StartLater(int place, uint64_t launcher,
                                 absl::Duration delay) {
  ++places_[static_cast<size_t>(place)].starting;
  In(delay, [this, place, launcher] { Start(place, launcher); });
}

void MembershipWorld::Start(int place, uint64_t launcher) {
  Place& here = places_[static_cast<size_t>(place)];
  --here.starting;
  // A launcher ends one before it starts the next.
  for (Process* const other : here.processes) {
    if (launcher == 0 || other->launcher != launcher || other->ended()) {
      continue;
    }
    other->state = Process::State::kDead;
    Break(other->stream);
    Forget(*other);
  }
  Process& process = processes_.emplace_back();
  process.number = static_cast<int>(processes_.size());
  process.place = place;
  process.incarnation = Incarnation(processes_.size());
  process.launcher = launcher;
  here.process = &process;
  here.processes.push_back(&process);
  Ask(&process);
}

// Its connections are broken: the coordinator notices some time.
void MembershipWorld::Forget(const Process& process) {
  if (process.join_id == 0) return;
  WithdrawLater(process.join_id, process.join_term);
}

void MembershipWorld::WithdrawLater(uint64_t join_id, Term term) {
  In(dice_.Between(absl::ZeroDuration(), kNotices), [this, join_id, term] {
    if (coordinator_ != nullptr && coordinator_->term() == term) {
      coordinator_->Withdraw(join_id);
    }
  });
}

void MembershipWorld::Kill(Process* process) {
  process->state = Process::State::kDead;
  Break(process->stream);
  Forget(*process);
  if (!dice_.Chance(history_.unreported)) ReportExit(*process);
  Replace(*process);
}

void MembershipWorld::End(Process* process) {
  process->state = Process::State::kDone;
  Break(process->stream);
  if (dice_.Chance(0.5)) ReportExit(*process);
  Place& place = places_[static_cast<size_t>(process->place)];
  for (Process* const other : place.processes) {
    if (other->ended()) continue;
    place.process = other;
    return;
  }
  Replace(*process);
}

void MembershipWorld::Replace(const Process& process) {
  if (phase_ == Phase::kAllLeave || phase_ == Phase::kEpilogue) return;
  if (places_[static_cast<size_t>(process.place)].starting > 0) return;
  const bool other = dice_.Chance(history_.other_launchers);
  StartLater(process.place, other ? launchers_++ : process.launcher,
             dice_.Between(absl::Milliseconds(100), history_.slowest_start));
}

void MembershipWorld::ReportExit(const Process& process) {
  if (process.launcher == 0) return;
  server::ExitReport report;
  report.job = "job";
  report.launcher_id = process.launcher;
  report.identity = places_[static_cast<size_t>(process.place)].identity;
  report.incarnation = process.incarnation;
  report.signal = 9;
  In(Pause(),
     [this, report] { SendReport(report, std::make_shared<bool>(false)); });
}

void MembershipWorld::SendReport(const server::ExitReport& report,
                                 const std::shared_ptr<bool>& known) {
  if (*known) return;
  const auto bring = [this, report, known](bool received) {
    coordinator_->ReportExit(report,
                             [known, received](const absl::Status& status) {
                               if (received && status.ok()) *known = true;
                             });
  };
  Send(bring, [] {});
  In(kReportTimeout, [this, report, known] { SendReport(report, known); });
}

void MembershipWorld::Ask(Process* process) {
  if (process->ended()) return;
  if (!Acts(*process)) {
    return In(process->stalled_until - now(),
              [this, process] { Ask(process); });
  }
  process->state = Process::State::kAsking;
  const int call = ++process->calls;
  server::JoinRequest request;
  request.job = "job";
  request.identity = places_[static_cast<size_t>(process->place)].identity;
  request.incarnation = process->incarnation;
  request.launcher_id = process->launcher;
  request.host = request.identity.node;
  request.address = process->address();
  request.manifest.world_size = history_.max;
  request.manifest.min_world_size = history_.min;
  request.manifest.hook = "allreduce";
  request.timeout = history_.join_timeout;
  request.after_generation = process->generation;
  if (process->generation == Generation(0) &&
      process->incarnation.value() % 2 == 0) {
    request.catch_up_address = request.address;
  }
  const auto bring = [this, process, call, request](bool received) {
    BringJoin(process, call, request, received);
  };
  Send(bring, [this, process, call] { AskLater(process, call); });
}

void MembershipWorld::AskLater(Process* process, int call) {
  In(Pause(), [this, process, call] {
    if (process->state == Process::State::kAsking && process->calls == call) {
      Ask(process);
    }
  });
}

void MembershipWorld::BringJoin(Process* process, int call,
                                const server::JoinRequest& request,
                                bool received) {
  const auto answer = [this, process, call, received](
                          const absl::StatusOr<server::JoinResult>& result) {
    if (!received) return;
    In(Delay(),
       [this, process, call, result] { OnAnswer(process, call, result); });
  };
  const uint64_t join_id = coordinator_->Join(request, answer);
  if (!received || process->ended()) {
    return WithdrawLater(join_id, coordinator_->term());
  }
  process->join_id = join_id;
  process->join_term = coordinator_->term();
}

void MembershipWorld::OnAnswer(
    Process* process, int call,
    const absl::StatusOr<server::JoinResult>& result) {
  if (process->state != Process::State::kAsking || process->calls != call) {
    return;
  }
  if (!Acts(*process)) {
    return In(process->stalled_until - now(), [this, process, call, result] {
      OnAnswer(process, call, result);
    });
  }
  process->join_id = 0;
  if (!result.ok()) return OnRefused(process, result.status());
  process->generation = result->generation;
  process->rank = result->rank;
  process->state = Process::State::kMember;
  process->for_good = false;
  Attach(process);
  if (phase_ == Phase::kAllLeave || phase_ == Phase::kEpilogue) {
    In(Pause(), [this, process, generation = result->generation] {
      MakeWay(process, generation);
    });
  }
}

void MembershipWorld::OnRefused(Process* process, const absl::Status& status) {
  const bool over = phase_ == Phase::kAllLeave || phase_ == Phase::kEpilogue;
  switch (status.code()) {
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kResourceExhausted:
      return AskLater(process, process->calls);
    case absl::StatusCode::kCancelled:
      if (!DetailOf(status).has_job_finished()) {
        return AskLater(process, process->calls);
      }
      // The job is done. Others may begin it anew.
      process->state = Process::State::kDone;
      Break(process->stream);
      if (phase_ == Phase::kCalm) {
        StartLater(process->place, launchers_++, Pause());
      }
      return;
    case absl::StatusCode::kAlreadyExists: {
      const Place& place = places_[static_cast<size_t>(process->place)];
      const bool alone =
          std::none_of(place.processes.begin(), place.processes.end(),
                       [process](const Process* other) {
                         return other != process && !other->ended();
                       });
      if (alone && !over && process->generation == Generation(0)) {
        return AskLater(process, process->calls);
      }
      return End(process);
    }
    case absl::StatusCode::kDeadlineExceeded:
    case absl::StatusCode::kAborted:
      if (!over && dice_.Chance(0.5)) {
        return AskLater(process, process->calls);
      }
      return End(process);
    default:
      return End(process);
  }
}

void MembershipWorld::Leave(Process* process, bool failed, bool rejoin) {
  process->state = Process::State::kLeaving;
  process->notice = server::LeaveNotice();
  process->notice.reason = failed ? "failed" : rejoin ? "regroup" : "done";
  process->notice.failed = failed;
  process->notice.rejoin = rejoin;
  SendLeave(process);
}

void MembershipWorld::SendLeave(Process* process) {
  if (process->state != Process::State::kLeaving) return;
  const int call = ++process->calls;
  const Generation generation = process->generation;
  const server::LeaveNotice notice = process->notice;
  const auto bring = [this, process, call, generation, notice](bool received) {
    coordinator_->Leave(
        generation, process->incarnation, notice,
        [this, process, call, received](const absl::Status& status) {
          if (!received) return;
          In(Delay(),
             [this, process, call, status] { OnLeft(process, call, status); });
        });
  };
  Send(bring, [this, process, call] { LeaveAgain(process, call); });
}

void MembershipWorld::LeaveAgain(Process* process, int call) {
  In(Pause(), [this, process, call] {
    if (process->calls == call) SendLeave(process);
  });
}

void MembershipWorld::OnLeft(Process* process, int call,
                             const absl::Status& status) {
  if (process->state != Process::State::kLeaving || process->calls != call) {
    return;
  }
  if (!status.ok() && !absl::IsNotFound(status)) {
    return LeaveAgain(process, call);
  }
  if (process->notice.rejoin) return Ask(process);
  if (process->notice.failed) return End(process);
  process->state = Process::State::kDone;
  Break(process->stream);
  if (dice_.Chance(0.5)) Replace(*process);
}

void MembershipWorld::GoOn(Process* process, Generation generation) {
  if (process->state == Process::State::kMember &&
      process->generation == generation) {
    Ask(process);
  }
}

void MembershipWorld::MakeWay(Process* process, Generation generation) {
  if (process->state != Process::State::kMember ||
      process->generation != generation) {
    return;
  }
  if (!Acts(*process)) {
    return In(process->stalled_until - now(),
              [this, process, generation] { MakeWay(process, generation); });
  }
  if (process->for_good || phase_ == Phase::kAllLeave ||
      phase_ == Phase::kEpilogue) {
    return Leave(process, false, false);
  }
  // Its Join has the same effect.
  if (dice_.Chance(0.3)) return Ask(process);
  Leave(process, false, true);
}

}  // namespace coxswain::simulation
