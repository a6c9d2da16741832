#include "capi/newcomer.h"

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "capi/call.h"
#include "capi/errors.h"
#include "capi/hook_calls.h"
#include "capi/join.h"
#include "capi/open_session.h"
#include "capi/parts.h"
#include "client/session/join.h"

namespace coxswain::capi {
namespace {

// What Receiver::Finish has returned, and its damage.
struct Finished {
  std::optional<CaughtUp> caught_up;
  std::vector<std::string> damage;
};

absl::Status CheckCalls(const cx_newcomer_calls& calls) {
  const auto check = [](bool present, absl::string_view name) {
    return present ? absl::OkStatus()
                   : InvalidArgument(absl::StrCat("calls.", name), "is NULL");
  };
  COXSWAIN_RETURN_IF_ERROR(check(calls.begin != nullptr, "begin"));
  COXSWAIN_RETURN_IF_ERROR(check(calls.state != nullptr, "state"));
  COXSWAIN_RETURN_IF_ERROR(check(calls.averages != nullptr, "averages"));
  COXSWAIN_RETURN_IF_ERROR(check(calls.step != nullptr, "step"));
  return check(calls.undo != nullptr, "undo");
}

absl::StatusOr<uint64_t> Listen(const cx_join_options& given,
                                const cx_newcomer_calls& calls) {
  COXSWAIN_RETURN_IF_ERROR(CheckProcess());
  COXSWAIN_RETURN_IF_ERROR(CheckCalls(calls));
  COXSWAIN_ASSIGN_OR_RETURN(const SessionOptions session,
                            SessionOptionsOf(given));
  if (EncryptsData(session)) {
    return absl::FailedPreconditionError(
        "workers encrypt what they exchange, and a state would travel in "
        "plain text: this worker copies it once it is a member");
  }
  if (!session.mesh.empty()) {
    return absl::FailedPreconditionError(
        "the job has a mesh: this worker copies the state once it is a member");
  }
  NoteProcess();
  auto newcomer = std::make_shared<Newcomer>(calls);
  COXSWAIN_ASSIGN_OR_RETURN(
      newcomer->receiver,
      catch_up::Receiver::ListenFor(session, &newcomer->target));
  return Newcomers().Add(std::move(newcomer));
}

void FillCaughtUp(const Finished& finished,
                  const Result<cx_caught_up>& result) {
  thread_local std::string damage;
  damage = absl::StrJoin(finished.damage, "\n");
  cx_caught_up filled{};
  if (finished.caught_up) {
    filled.caught_up = 1;
    filled.lineage = finished.caught_up->lineage;
    filled.trained = finished.caught_up->trained;
    filled.progress = finished.caught_up->progress;
  }
  filled.damage = damage.c_str();
  result.Fill(filled);
}

absl::StatusOr<std::vector<CatchUpTarget::Part>> CallForParts(
    absl::string_view function, cx_parts_fn parts_fn, void* data,
    absl::string_view rest) {
  const cx_part* parts = nullptr;
  size_t count = 0;
  COXSWAIN_RETURN_IF_ERROR(CallHook(function, [&]() {
    return parts_fn(data, rest.data(), rest.size(), &parts, &count);
  }));
  return PartsOf(parts, count, function);
}

}  // namespace

absl::Status ProgramTarget::Begin(absl::string_view rest) {
  return CallHook("begin", [&]() {
    return calls_.begin(calls_.data, rest.data(), rest.size());
  });
}

absl::StatusOr<std::vector<CatchUpTarget::Part>> ProgramTarget::State() {
  return CallForParts("state", calls_.state, calls_.data, "");
}

absl::StatusOr<std::vector<CatchUpTarget::Part>> ProgramTarget::Averages(
    absl::string_view rest) {
  return CallForParts("averages", calls_.averages, calls_.data, rest);
}

absl::Status ProgramTarget::Step(absl::string_view rest, bool applied) {
  return CallHook("step", [&]() {
    return calls_.step(calls_.data, rest.data(), rest.size(), applied ? 1 : 0);
  });
}

absl::Status ProgramTarget::Undo() {
  const absl::Status undone =
      CallHook("undo", [&]() { return calls_.undo(calls_.data); });
  // Whatever its code: this worker holds half of a state.
  return undone.ok() ? undone : absl::DataLossError(undone.message());
}

Table<Newcomer>& Newcomers() {
  static auto* const newcomers = new Table<Newcomer>("cx_newcomer");
  return *newcomers;
}

}  // namespace coxswain::capi

namespace capi = coxswain::capi;

cx_code cx_newcomer_listen(const cx_join_options* options,
                           const cx_newcomer_calls* calls,
                           cx_newcomer* newcomer) {
  return capi::Guarded([&]() -> capi::Answer {
    COXSWAIN_RETURN_IF_ERROR(capi::CheckPresent(newcomer, "newcomer"));
    *newcomer = 0;
    cx_join_options given{};
    if (options != nullptr) {
      COXSWAIN_ASSIGN_OR_RETURN(given, capi::ReadStruct(options, "options"));
    }
    COXSWAIN_ASSIGN_OR_RETURN(const cx_newcomer_calls functions,
                              capi::ReadStruct(calls, "calls"));
    COXSWAIN_ASSIGN_OR_RETURN(*newcomer, capi::Listen(given, functions));
    return absl::OkStatus();
  });
}

cx_code cx_newcomer_finish(cx_newcomer newcomer, int64_t timeout_ms,
                           cx_caught_up* caught_up, cx_call* call) {
  return capi::Guarded(call, [&]() -> capi::Answer {
    // First, so that whatever is wrong with the other arguments, no function of
    // the program runs once this has returned.
    COXSWAIN_ASSIGN_OR_RETURN(const auto taken,
                              capi::Newcomers().Take(newcomer));
    COXSWAIN_ASSIGN_OR_RETURN(const auto result, capi::Result<cx_caught_up>::Of(
                                                     caught_up, "caught_up"));
    COXSWAIN_RETURN_IF_ERROR(capi::CheckTimeout(timeout_ms));
    const auto finished = std::make_shared<capi::Finished>();
    capi::Work work;
    work.run = [taken, finished, timeout_ms]() -> absl::Status {
      COXSWAIN_ASSIGN_OR_RETURN(
          finished->caught_up,
          taken->receiver->Finish(absl::Milliseconds(timeout_ms)));
      finished->damage = taken->receiver->damage();
      return absl::OkStatus();
    };
    work.deliver = [finished, result]() {
      capi::FillCaughtUp(*finished, result);
      return absl::OkStatus();
    };
    // It calls functions of the program until it has ended.
    work.cancel = [taken](const absl::Status&) {
      taken->receiver->Cancel();
      return true;
    };
    return capi::Do(call, std::move(work));
  });
}
