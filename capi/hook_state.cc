#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "capi/call.h"
#include "capi/exchange.h"
#include "capi/open_session.h"
#include "client/comm/rank_values.h"
#include "client/elastic/hook_recovery.h"
#include "client/elastic/load_hook_state.h"
#include "client/reduce/hook_state.h"

namespace coxswain::capi {
namespace {

// What a hook's state may have at most, as RecoveryOptions has it.
constexpr int64_t kMaxBytes = int64_t{16} << 30;
// An exchange that is aborted ends at once, unless this process was stopped.
constexpr absl::Duration kReleaseTimeout = absl::Seconds(30);

absl::StatusOr<HookState> Merged(const cx_bytes* parts, size_t count) {
  if (count > 0) COXSWAIN_RETURN_IF_ERROR(CheckPresent(parts, "parts"));
  std::vector<HookState> parsed;
  for (size_t i = 0; i < count; ++i) {
    const std::string where = absl::StrCat("parts[", i, "]");
    COXSWAIN_RETURN_IF_ERROR(CheckPresent(parts[i].data, where));
    COXSWAIN_ASSIGN_OR_RETURN(
        parsed.emplace_back(),
        ParseHookState(
            {static_cast<const char*>(parts[i].data), parts[i].size}));
  }
  if (parsed.empty()) return InvalidArgument("parts", "has none");
  return MergeHookStates(std::move(parsed));
}

// Of the calling rank, in the order in which they travel.
std::vector<int64_t> NumbersOf(const HookFacts& facts) {
  return {facts.world, facts.step, facts.shared, facts.behind, facts.took_part};
}

std::vector<HookFacts> FactsFrom(const std::vector<int64_t>& numbers) {
  constexpr size_t kNumbers = 5;
  std::vector<HookFacts> facts(numbers.size() / kNumbers);
  for (size_t i = 0; i < facts.size(); ++i) {
    const int64_t* const of = &numbers[i * kNumbers];
    facts[i] = HookFacts{of[0], of[1], of[2], of[3], of[4]};
  }
  return facts;
}

// What a rank brings to a generation.
struct Standing {
  std::optional<HookState> own;
  int world = 0;
  uint64_t flags = 0;
};

absl::StatusOr<Standing> StandingOf(const cx_hook_standing& given) {
  constexpr uint64_t kFlags = CX_HOOK_BEHIND | CX_HOOK_TOOK_PART;
  if ((given.flags & ~kFlags) != 0) {
    return InvalidArgument("standing.flags", "has one that does not exist");
  }
  Standing standing;
  standing.flags = given.flags;
  if (given.state_size == 0) return standing;
  COXSWAIN_RETURN_IF_ERROR(CheckPresent(given.state, "standing.state"));
  if (given.world_size < 1) {
    return InvalidArgument("standing.world_size",
                           absl::StrCat("is ", given.world_size));
  }
  standing.world = given.world_size;
  COXSWAIN_ASSIGN_OR_RETURN(
      standing.own, ParseHookState({static_cast<const char*>(given.state),
                                    given.state_size}));
  return standing;
}

// Returns what this rank's errors were multiplied by. Collective.
absl::StatusOr<double> Recover(OpenSession& open, StreamExchange& exchange,
                               const Standing& standing) {
  COXSWAIN_ASSIGN_OR_RETURN(Hook* const hook, exchange.SettledHook());
  Communicator& communicator = exchange.communicator();
  HookFacts mine = HookFactsOf(standing.own, standing.world);
  mine.behind = (standing.flags & CX_HOOK_BEHIND) != 0 ? 1 : 0;
  mine.took_part = (standing.flags & CX_HOOK_TOOK_PART) != 0 ? 1 : 0;
  const auto all =
      GatherValues(communicator, NumbersOf(mine), open.collective_timeout);
  if (!all.ok()) return Explained(*open.session, all.status());
  HookRecovery recovery;
  recovery.plan = PlanHookRecovery(FactsFrom(*all));
  recovery.own = &standing.own;
  recovery.own_world = standing.world;
  recovery.max_bytes = kMaxBytes;
  recovery.timeout = open.collective_timeout;
  const auto recovered = RecoverHook(communicator, recovery);
  if (!recovered.ok()) return Explained(*open.session, recovered.status());
  if (!recovered->state) return 1;
  COXSWAIN_RETURN_IF_ERROR(LoadHookState(*recovered->state,
                                         recovered->error_scale,
                                         exchange.stream().plan(), hook)
                               .status());
  return recovered->error_scale;
}

// How a stream's hook state is made for a caller.
struct MakeState {
  std::function<absl::StatusOr<HookState>(OpenSession&, StreamExchange&)> make;
  // Whether an abort of the exchange ends it early, when the call is cancelled.
  bool ends_by_abort = false;
};

// Makes a state, which the exchange keeps, and points the caller to it.
Answer ReturnState(cx_session session, const char* stream,
                   const MakeState& making, const void** state,
                   size_t* state_size, cx_call* call) {
  COXSWAIN_ASSIGN_OR_RETURN(const auto open, Find(session));
  COXSWAIN_RETURN_IF_ERROR(CheckPresent(state, "state"));
  COXSWAIN_RETURN_IF_ERROR(CheckPresent(state_size, "state_size"));
  COXSWAIN_ASSIGN_OR_RETURN(const auto exchange, FindExchange(*open, stream));
  const auto made = std::make_shared<std::string>();
  Work work;
  work.run = [open, exchange, make = making.make, made]() -> absl::Status {
    COXSWAIN_ASSIGN_OR_RETURN(const HookState of, make(*open, *exchange));
    *made = SerializeHookState(of);
    return absl::OkStatus();
  };
  work.deliver = [exchange, made, state, state_size]() {
    const std::string& kept = exchange->KeepState(std::move(*made));
    *state = kept.data();
    *state_size = kept.size();
    return absl::OkStatus();
  };
  if (making.ends_by_abort) {
    work.cancel = [exchange](const absl::Status& why) {
      exchange->stream().Abort(why);
      return false;
    };
  }
  return Do(call, std::move(work));
}

}  // namespace
}  // namespace coxswain::capi

namespace capi = coxswain::capi;

cx_code cx_hook_save(cx_session session, const char* stream, int32_t whole,
                     const void** state, size_t* state_size, cx_call* call) {
  return capi::Guarded(call, [&]() -> capi::Answer {
    capi::MakeState save;
    save.make = [whole](capi::OpenSession& open, capi::StreamExchange& exchange)
        -> absl::StatusOr<coxswain::HookState> {
      COXSWAIN_ASSIGN_OR_RETURN(const coxswain::Hook* const hook,
                                exchange.SettledHook());
      if (whole == CX_HOOK_OWN) return hook->SaveOwn();
      coxswain::BucketStream& of = exchange.stream();
      auto made = whole != 0 ? of.SaveWhole() : of.SaveShard();
      if (!made.ok()) return capi::Explained(*open.session, made.status());
      return made;
    };
    save.ends_by_abort = true;
    return capi::ReturnState(session, stream, save, state, state_size, call);
  });
}

cx_code cx_hook_load(cx_session session, const char* stream,
                     const cx_bytes* parts, size_t part_count) {
  return capi::Guarded([&]() -> capi::Answer {
    COXSWAIN_ASSIGN_OR_RETURN(const auto open, capi::Find(session));
    COXSWAIN_ASSIGN_OR_RETURN(const auto exchange,
                              capi::FindExchange(*open, stream));
    COXSWAIN_ASSIGN_OR_RETURN(const auto state,
                              capi::Merged(parts, part_count));
    COXSWAIN_RETURN_IF_ERROR(exchange->Settle());
    return exchange->stream().LoadState(state);
  });
}

cx_code cx_hook_release(cx_session session, const char* stream,
                        int32_t undo_last, const void** state,
                        size_t* state_size, cx_call* call) {
  return capi::Guarded(call, [&]() -> capi::Answer {
    capi::MakeState release;
    release.make = [undo_last](capi::OpenSession&,
                               capi::StreamExchange& exchange) {
      return exchange.Release(undo_last != 0, capi::kReleaseTimeout);
    };
    return capi::ReturnState(session, stream, release, state, state_size, call);
  });
}

cx_code cx_hook_recover(cx_session session, const char* stream,
                        const cx_hook_standing* standing, double* error_scale,
                        cx_call* call) {
  return capi::Guarded(call, [&]() -> capi::Answer {
    COXSWAIN_ASSIGN_OR_RETURN(const auto open, capi::Find(session));
    COXSWAIN_ASSIGN_OR_RETURN(const cx_hook_standing given,
                              capi::ReadStruct(standing, "standing"));
    COXSWAIN_RETURN_IF_ERROR(capi::CheckPresent(error_scale, "error_scale"));
    COXSWAIN_ASSIGN_OR_RETURN(const auto exchange,
                              capi::FindExchange(*open, stream));
    COXSWAIN_ASSIGN_OR_RETURN(auto parsed, capi::StandingOf(given));
    const auto mine = std::make_shared<capi::Standing>(std::move(parsed));
    const auto scale = std::make_shared<double>(1);
    capi::Work work;
    work.run = [open, exchange, mine, scale]() -> absl::Status {
      COXSWAIN_ASSIGN_OR_RETURN(*scale, capi::Recover(*open, *exchange, *mine));
      return absl::OkStatus();
    };
    work.deliver = [scale, error_scale]() {
      *error_scale = *scale;
      return absl::OkStatus();
    };
    work.cancel = [exchange](const absl::Status& why) {
      exchange->stream().Abort(why);
      return false;
    };
    return capi::Do(call, std::move(work));
  });
}
