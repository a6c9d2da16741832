// The part of a session that goes on to the next generation, and what a Leave
// meanwhile does to it.

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/logging.h"
#include "base/status_macros.h"
#include "client/session/session_core.h"

namespace coxswain {
namespace {

// What a Rejoin has asked for may have been granted when this worker leaves,
// and be on its way: so long it is waited for, to be left, too.
constexpr absl::Duration kAnswerOnItsWay = absl::Seconds(2);

absl::Status LeftMeanwhile(absl::string_view reason) {
  return absl::CancelledError(absl::StrCat(
      "this worker has left the job while it joined again: ", reason));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Session>> Session::Core::Rejoin() {
  COXSWAIN_ASSIGN_OR_RETURN(const std::shared_ptr<CancelSignal> stop,
                            BeginRejoin());
  CancelSignal* const given_up = request.options.cancel.get();
  uint64_t link = 0;
  if (given_up != nullptr) {
    link = given_up->OnRaise(
        [stop, given_up] { stop->Raise(given_up->status()); });
  }
  LeaveForNext();
  Request next = request;
  next.options.after_generation = entered;
  next.options.after_world_size = members.world_size();
  std::unique_ptr<Core> unbegun;
  absl::StatusOr<std::unique_ptr<Session>> joined = LeftMeanwhile("");
  if (!leaves()) joined = Join(std::move(next), stop, &entered, &unbegun);
  if (given_up != nullptr) given_up->Forget(link);
  joined = EndRejoin(std::move(joined), std::move(unbegun));
  if (!joined.ok() && given_up != nullptr && !given_up->status().ok()) {
    // The others need not wait for a worker that has given up.
    ShowLifeNoLonger();
  }
  return joined;
}

absl::StatusOr<std::shared_ptr<CancelSignal>> Session::Core::BeginRejoin() {
  MutexLock lock(&mutex_);
  if (left_for_good_) {
    return absl::FailedPreconditionError(
        absl::StrCat("rank ", rank, " has left the job '", request.options.job,
                     "' for good, and cannot join its next generation"));
  }
  if (rejoining_ != nullptr) {
    return absl::FailedPreconditionError(absl::StrCat(
        "another thread of rank ", rank, " joins the next generation of job '",
        request.options.job, "': use the session that it returns"));
  }
  rejoining_ = std::make_shared<CancelSignal>();
  return rejoining_;
}

void Session::Core::LeaveForNext() {
  Departure departure;
  departure.reason = "to join the next generation";
  departure.rejoin = true;
  departure.timeout = request.options.reattach_grace;
  const absl::Status left = Leave(departure);
  if (left.ok()) return;
  // It may have ended meanwhile. The next Join returns what is wrong.
  LogWarning("not_left", {{"job", request.options.job},
                          {"rank", rank},
                          {"generation", generation},
                          {"error", left.message()}});
}

bool Session::Core::leaves() const {
  MutexLock lock(&mutex_);
  return farewell_.has_value();
}

absl::StatusOr<std::unique_ptr<Session>> Session::Core::EndRejoin(
    absl::StatusOr<std::unique_ptr<Session>> joined,
    std::unique_ptr<Core> unbegun) {
  // No program has seen it: its end is not one to be noticed.
  if (unbegun != nullptr) unbegun->attachment_->Leaving(/*rejoins=*/true);
  // Once there is one, no other Leave does anything.
  std::optional<Departure> farewell;
  std::unique_ptr<Core> before;  // its end waits for a thread
  {
    MutexLock lock(&mutex_);
    farewell.swap(farewell_);
    if (!farewell.has_value()) {
      rejoining_.reset();
      if (joined.ok()) {
        // No Leave is needed from here.
        left_for_good_ = true;
        before = std::move(unbegun_);
      } else if (unbegun != nullptr) {
        before = std::exchange(unbegun_, std::move(unbegun));
      }
    }
  }
  if (!farewell.has_value()) {
    if (joined.ok()) attachment_->Leaving();
    return joined;
  }
  Core* const newest = joined.ok() ? (*joined)->core_.get() : unbegun.get();
  if (newest != nullptr) newest->Leave(*farewell).IgnoreError();
  MutexLock lock(&mutex_);
  rejoining_.reset();
  rejoined_.NotifyAll();
  return LeftMeanwhile(farewell->reason);
}

void Session::Core::EndRejoining(const Departure& departure) {
  std::shared_ptr<CancelSignal> stop;
  {
    MutexLock lock(&mutex_);
    rejoined_.WaitFor(&mutex_, kAnswerOnItsWay,
                      [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
                        return rejoining_ == nullptr;
                      });
    stop = rejoining_;
  }
  if (stop != nullptr) stop->Raise(LeftMeanwhile(departure.reason));
}

void Session::Core::ShowLifeNoLonger() {
  attachment_->Leaving();
  MutexLock lock(&mutex_);
  if (unbegun_ != nullptr) unbegun_->attachment_->Leaving();
}

}  // namespace coxswain
