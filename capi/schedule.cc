#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/mesh.h"
#include "base/status_macros.h"
#include "capi/call.h"
#include "capi/open_session.h"
#include "hooks/hook_list.h"
#include "hooks/registry/planned_hook.h"
#include "hooks/registry/registry.h"
#include "hooks/registry/yaml_spec.h"
#include "schedule/plan_words.h"
#include "schedule/step_gate.h"
#include "schedule/ticket.h"

namespace coxswain::capi {

absl::StatusOr<std::string> StreamOf(const char* stream) {
  return TextOf(stream == nullptr ? schedule::kTrainStream : stream, "stream");
}

namespace {

constexpr uint64_t kTicketFlags = CX_TICKET_END_OF_DATA | CX_TICKET_WEIGHT |
                                  CX_TICKET_CHECKSUM |
                                  CX_TICKET_REPLICATED_CHECKSUM;

absl::StatusOr<schedule::StepGate*> GateOf(const OpenSession& open,
                                           const char* stream) {
  COXSWAIN_ASSIGN_OR_RETURN(const std::string name, StreamOf(stream));
  return open.session->schedule().Gate(name);
}

int WindowOf(const OpenSession& open, const schedule::Plan& plan) {
  const Session& session = *open.session;
  const DataPlace data =
      DataPlaceOf(session.mesh(), session.rank(), session.world_size());
  return plan.WindowOf(data.index, data.count);
}

bool IsStrict(const OpenSession& open) {
  return open.plan().terms.enforcement == schedule::Enforcement::kStrict;
}

absl::StatusOr<schedule::Ticket> TicketOf(const cx_ticket& given,
                                          const OpenSession& open) {
  if ((given.flags & ~kTicketFlags) != 0) {
    return InvalidArgument("ticket", "sets a flag that does not exist");
  }
  if (given.step < 0 || given.step > schedule::kMaxStep) {
    return InvalidArgument("ticket", absl::StrCat("has the step ", given.step));
  }
  if (given.micro_batches < 0 || given.window < 0 || given.micro < 0) {
    return InvalidArgument(
        "ticket", absl::StrCat("has ", given.micro_batches,
                               " micro_batches in a window of ", given.window,
                               " at ", given.micro, "; none may be below 0"));
  }
  const schedule::Plan plan = open.plan();
  schedule::Ticket ticket;
  ticket.step = given.step;
  ticket.micro = given.micro;
  ticket.micro_batches = given.micro_batches;
  ticket.window = given.window > 0 ? given.window : WindowOf(open, plan);
  ticket.weight = (given.flags & CX_TICKET_WEIGHT) != 0
                      ? given.weight
                      : static_cast<double>(given.micro_batches);
  ticket.end_of_data = (given.flags & CX_TICKET_END_OF_DATA) != 0;
  ticket.plan_version = plan.version;
  COXSWAIN_ASSIGN_OR_RETURN(ticket.hook, given.hook == nullptr
                                             ? PlannedSpec(plan)
                                             : TextOf(given.hook, "hook"));
  ticket.layout = given.layout;
  ticket.digest = given.digest;
  if ((given.flags & CX_TICKET_CHECKSUM) != 0) ticket.checksum = given.checksum;
  if ((given.flags & CX_TICKET_REPLICATED_CHECKSUM) != 0) {
    ticket.replicated_checksum = given.replicated_checksum;
  }
  ticket.pipeline = given.pipeline;
  COXSWAIN_ASSIGN_OR_RETURN(ticket.skip, TextOf(given.skip, "skip"));
  return ticket;
}

// What a cx_decision points to, kept for the caller's thread.
struct DecisionTexts {
  std::string reason, stop, regroup, checkpoint, hook;
};

void FillDecision(schedule::Decision decision, const OpenSession& open,
                  const Result<cx_decision>& result) {
  const schedule::Plan plan = open.plan();
  thread_local DecisionTexts texts;
  texts = {std::move(decision.reason), std::move(decision.stop),
           std::move(decision.regroup), std::move(decision.checkpoint),
           PlannedSpec(plan).value_or(plan.hook)};
  cx_decision filled{};
  filled.commit = decision.commit ? 1 : 0;
  filled.plan_changed = decision.plan.has_value() ? 1 : 0;
  filled.reason = texts.reason.c_str();
  filled.stop = texts.stop.c_str();
  filled.regroup = texts.regroup.c_str();
  filled.checkpoint = texts.checkpoint.c_str();
  filled.plan_version = plan.version;
  filled.accumulation = WindowOf(open, plan);
  filled.hook = texts.hook.c_str();
  result.Fill(filled);
}

// `exchange` is the stream's; null: it has none.
Answer Decide(const std::shared_ptr<OpenSession>& open,
              schedule::StepGate* gate,
              const std::shared_ptr<StreamExchange>& exchange,
              schedule::Vote vote, const Result<cx_decision>& result,
              cx_call* call) {
  const auto decision = std::make_shared<schedule::Decision>();
  Work work;
  work.run = [open, gate, vote = std::move(vote), decision]() -> absl::Status {
    COXSWAIN_ASSIGN_OR_RETURN(*decision, gate->Decide(vote));
    return absl::OkStatus();
  };
  work.deliver = [open, exchange, decision, result]() -> absl::Status {
    if (decision->plan.has_value()) open->Follow(*decision->plan);
    open->source.NoteNewcomers(decision->newcomers);
    if (exchange != nullptr) {
      COXSWAIN_RETURN_IF_ERROR(exchange->NoteDecision(decision->commit));
    }
    FillDecision(std::move(*decision), *open, result);
    return absl::OkStatus();
  };
  work.cancel = [open, gate](const absl::Status& why) {
    gate->Abort(why);
    return false;
  };
  return Do(call, std::move(work));
}

}  // namespace
}  // namespace coxswain::capi

namespace capi = coxswain::capi;

cx_code cx_announce(cx_session session, const cx_ticket* ticket) {
  return capi::Guarded([&]() -> capi::Answer {
    COXSWAIN_ASSIGN_OR_RETURN(const auto open, capi::Find(session));
    COXSWAIN_ASSIGN_OR_RETURN(const cx_ticket given,
                              capi::ReadStruct(ticket, "ticket"));
    COXSWAIN_ASSIGN_OR_RETURN(auto announced, capi::TicketOf(given, *open));
    COXSWAIN_ASSIGN_OR_RETURN(const std::string stream,
                              capi::StreamOf(given.stream));
    COXSWAIN_ASSIGN_OR_RETURN(const auto gate,
                              capi::GateOf(*open, given.stream));
    if (const auto exchange = open->ExchangeOf(stream)) {
      COXSWAIN_RETURN_IF_ERROR(exchange->Begin(open->plan(), &announced));
    } else if (announced.layout == 0) {
      announced.layout = open->layout.load();
    }
    COXSWAIN_RETURN_IF_ERROR(gate->Announce(announced));
    // Without a grant to wait for this sends the ticket, while the exchange
    // goes on.
    return capi::IsStrict(*open) ? absl::OkStatus() : gate->AwaitGrant();
  });
}

cx_code cx_grant(cx_session session, const char* stream, cx_call* call) {
  return capi::Guarded(call, [&]() -> capi::Answer {
    COXSWAIN_ASSIGN_OR_RETURN(const auto open, capi::Find(session));
    COXSWAIN_ASSIGN_OR_RETURN(const auto gate, capi::GateOf(*open, stream));
    if (!capi::IsStrict(*open)) return gate->AwaitGrant();
    capi::Work work;
    work.run = [open, gate]() { return gate->AwaitGrant(); };
    work.cancel = [open, gate](const absl::Status& why) {
      gate->Abort(why);
      return false;
    };
    return capi::Do(call, std::move(work));
  });
}

cx_code cx_decide(cx_session session, const char* stream, const cx_vote* vote,
                  cx_decision* decision, cx_call* call) {
  return capi::Guarded(call, [&]() -> capi::Answer {
    COXSWAIN_ASSIGN_OR_RETURN(const auto open, capi::Find(session));
    coxswain::schedule::Vote given;
    if (vote != nullptr) {
      COXSWAIN_ASSIGN_OR_RETURN(const cx_vote read,
                                capi::ReadStruct(vote, "vote"));
      given.commit = read.refuse == 0;
      COXSWAIN_ASSIGN_OR_RETURN(given.reason,
                                capi::TextOf(read.reason, "vote.reason"));
    }
    COXSWAIN_ASSIGN_OR_RETURN(
        const auto result, capi::Result<cx_decision>::Of(decision, "decision"));
    COXSWAIN_ASSIGN_OR_RETURN(const auto gate, capi::GateOf(*open, stream));
    COXSWAIN_ASSIGN_OR_RETURN(const std::string name, capi::StreamOf(stream));
    return capi::Decide(open, gate, open->ExchangeOf(name), std::move(given),
                        result, call);
  });
}

cx_code cx_request(cx_session session, int32_t request, const char* reason) {
  return capi::Guarded([&]() -> capi::Answer {
    COXSWAIN_ASSIGN_OR_RETURN(const auto open, capi::Find(session));
    COXSWAIN_ASSIGN_OR_RETURN(const std::string why,
                              capi::TextOf(reason, "reason"));
    coxswain::ScheduleClient& schedule = open->session->schedule();
    switch (request) {
      case CX_REQUEST_STOP:
        schedule.RequestStop(why);
        return absl::OkStatus();
      case CX_REQUEST_DRAIN:
        schedule.RequestDrain(why);
        return absl::OkStatus();
      case CX_REQUEST_CHECKPOINT:
        schedule.RequestCheckpoint(why);
        return absl::OkStatus();
      default:
        return capi::InvalidArgument(
            "request", absl::StrCat("is ", request, ", not a CX_REQUEST_..."));
    }
  });
}

cx_code cx_plan(cx_session session, cx_plan_info* plan) {
  return capi::Guarded([&]() -> capi::Answer {
    COXSWAIN_ASSIGN_OR_RETURN(const auto open, capi::Find(session));
    COXSWAIN_ASSIGN_OR_RETURN(const auto result,
                              capi::Result<cx_plan_info>::Of(plan, "plan"));
    const coxswain::schedule::Plan current = open->plan();
    const coxswain::schedule::Terms& terms = current.terms;
    thread_local std::string hook, words;
    COXSWAIN_ASSIGN_OR_RETURN(hook, coxswain::PlannedSpec(current));
    words = coxswain::schedule::FormatPlanWords(
        coxswain::schedule::PlanWordsOf(current));
    using coxswain::schedule::Enforcement;
    cx_plan_info filled{};
    if (terms.sync_each_batch) filled.flags |= CX_PLAN_SYNC_EACH_BATCH;
    if (terms.commit_vote) filled.flags |= CX_PLAN_COMMIT_VOTE;
    if (terms.enforcement == Enforcement::kStrict) {
      filled.flags |= CX_PLAN_STRICT;
    }
    if (terms.enforcement == Enforcement::kOff) {
      filled.flags |= CX_PLAN_NOT_ENFORCED;
    }
    filled.version = current.version;
    filled.accumulation = capi::WindowOf(*open, current);
    filled.max_steps = terms.max_steps;
    filled.progress_timeout_ms =
        absl::ToInt64Milliseconds(terms.progress_timeout);
    filled.hook = hook.c_str();
    filled.words = words.c_str();
    result.Fill(filled);
    return absl::OkStatus();
  });
}

cx_code cx_canonical_hook(const char* text, int32_t form, const char** spec) {
  return capi::Guarded([&]() -> capi::Answer {
    COXSWAIN_RETURN_IF_ERROR(capi::CheckPresent(text, "text"));
    COXSWAIN_RETURN_IF_ERROR(capi::TextOf(text, "text").status());
    COXSWAIN_RETURN_IF_ERROR(capi::CheckPresent(spec, "spec"));
    if (form != CX_HOOK_SPEC && form != CX_HOOK_YAML) {
      return capi::InvalidArgument(
          "form", absl::StrCat("is ", form, ", not a CX_HOOK_..."));
    }
    thread_local std::string canonical;
    COXSWAIN_ASSIGN_OR_RETURN(
        canonical, form == CX_HOOK_SPEC ? coxswain::CanonicalSpec(text)
                                        : coxswain::HookSpecFromYaml(text));
    *spec = canonical.c_str();
    return absl::OkStatus();
  });
}

cx_code cx_hooks(const char** json) {
  return capi::Guarded([&]() -> capi::Answer {
    COXSWAIN_RETURN_IF_ERROR(capi::CheckPresent(json, "json"));
    thread_local std::string list;
    list = coxswain::HooksAsJson(coxswain::ListHooks());
    *json = list.c_str();
    return absl::OkStatus();
  });
}
