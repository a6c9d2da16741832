#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/cancel_signal.h"
#include "base/clock.h"
#include "base/random.h"
#include "base/status_macros.h"
#include "base/version.h"
#include "capi/call.h"
#include "capi/open_session.h"
#include "capi/table.h"
#include "hooks/registry/registry.h"
#include "schedule/plan_words.h"

namespace coxswain::capi {
namespace {

constexpr int kMaxDimensions = 64;

Table<OpenSession>& Sessions() {
  static auto* const sessions = new Table<OpenSession>("cx_session");
  return *sessions;
}

// The process whose threads the library has; 0: none yet.
std::atomic<pid_t> owner{0};

// Sessions that are open when the process exits: the other ranks need not wait
// until their leases run out.
void CloseAll() {
  if (!CheckProcess().ok()) return;
  for (auto& [handle, open] : Sessions().TakeAll()) {
    open->session->Leave("the process exited without cx_leave", true)
        .IgnoreError();
  }
}

void NoteProcess() {
  pid_t none = 0;
  if (owner.compare_exchange_strong(none, getpid())) std::atexit(CloseAll);
}

// ---- options ----

// The variables of SessionOptions that fields of cx_join_options stand for.
std::map<std::string, std::string> VariablesOf(const cx_join_options& options) {
  std::map<std::string, std::string> variables;
  const auto text = [&](const char* name, const char* value) {
    if (value != nullptr && *value != '\0') variables[name] = value;
  };
  const auto number = [&](const char* name, int64_t value) {
    if (value != 0) variables[name] = absl::StrCat(value);
  };
  text("COXSWAIN_COORDINATOR", options.coordinator);
  text("COXSWAIN_JOB", options.job);
  text("COXSWAIN_NODE", options.node);
  if (variables.count("COXSWAIN_NODE") > 0) {
    variables["COXSWAIN_LOCAL_RANK"] = absl::StrCat(options.slot);
  }
  number("COXSWAIN_WORLD_SIZE", options.world_size);
  number("COXSWAIN_MIN_WORLD_SIZE", options.min_world_size);
  number("COXSWAIN_ATTEMPT", options.attempt);
  text("COXSWAIN_BIND_ADDRESS", options.address);
  text("COXSWAIN_BACKEND", options.backend);
  text("COXSWAIN_TLS_CA", options.tls_ca);
  text("COXSWAIN_TLS_CERT", options.tls_cert);
  text("COXSWAIN_TLS_KEY", options.tls_key);
  text("COXSWAIN_TOKEN_FILE", options.token_file);
  if (options.join_timeout_ms != 0) {
    variables["COXSWAIN_JOIN_TIMEOUT"] =
        absl::StrCat(options.join_timeout_ms, "ms");
  }
  return variables;
}

absl::StatusOr<SessionOptions> SessionOptionsOf(
    const cx_join_options& options) {
  if ((options.flags & ~uint64_t{CX_JOIN_NO_ENVIRONMENT}) != 0) {
    return InvalidArgument("options", "sets a flag that does not exist");
  }
  if (options.collective_timeout_ms < 0) {
    return InvalidArgument("options", "has a negative collective_timeout_ms");
  }
  const auto given = VariablesOf(options);
  const bool read = (options.flags & CX_JOIN_NO_ENVIRONMENT) == 0;
  COXSWAIN_ASSIGN_OR_RETURN(
      auto result,
      SessionOptions::FromVariables([&](const char* name) -> const char* {
        const auto found = given.find(name);
        if (found != given.end()) return found->second.c_str();
        return read ? std::getenv(name) : nullptr;
      }));
  // The interface exchanges memory of the CPU alone.
  result.device = Device();
  if (options.collective_timeout_ms > 0) {
    result.collective_timeout =
        absl::Milliseconds(options.collective_timeout_ms);
  }
  return result;
}

absl::StatusOr<JobManifest> ManifestOf(const cx_join_options& options) {
  JobManifest manifest;
  COXSWAIN_ASSIGN_OR_RETURN(
      const schedule::PlanWords words,
      schedule::ParsePlanWords(schedule::SplitPlanText(TextOf(options.plan))));
  COXSWAIN_RETURN_IF_ERROR(schedule::ApplyPlanWords(words, &manifest));
  COXSWAIN_ASSIGN_OR_RETURN(manifest.hook, CanonicalSpec(manifest.hook));
  if (options.setting_count > 0) {
    COXSWAIN_RETURN_IF_ERROR(CheckPresent(options.settings, "settings"));
  }
  for (size_t i = 0; i < options.setting_count; ++i) {
    const cx_setting& setting = options.settings[i];
    COXSWAIN_RETURN_IF_ERROR(
        CheckPresent(setting.name, absl::StrCat("settings[", i, "].name")));
    manifest.settings[setting.name] = TextOf(setting.value);
  }
  COXSWAIN_ASSIGN_OR_RETURN(
      manifest.parameters,
      ParametersOf(options.parameters, options.parameter_count));
  return manifest;
}

// ---- what waits ----

Answer Join(const cx_join_options& given, cx_session* session, cx_call* call) {
  COXSWAIN_RETURN_IF_ERROR(CheckProcess());
  NoteProcess();
  COXSWAIN_ASSIGN_OR_RETURN(SessionOptions options, SessionOptionsOf(given));
  COXSWAIN_ASSIGN_OR_RETURN(JobManifest manifest, ManifestOf(given));
  const auto cancel = std::make_shared<CancelSignal>();
  options.cancel = cancel;
  const absl::Duration timeout = options.collective_timeout;
  // Given up, it is destroyed with the work, and leaves.
  const auto joined = std::make_shared<std::unique_ptr<Session>>();
  Work work;
  work.run = [joined, options = std::move(options),
              manifest = std::move(manifest)]() -> absl::Status {
    COXSWAIN_ASSIGN_OR_RETURN(*joined, Session::Join(options, manifest));
    return absl::OkStatus();
  };
  work.deliver = [joined, session, timeout]() {
    *session = Sessions().Add(
        std::make_shared<OpenSession>(std::move(*joined), timeout));
    return absl::OkStatus();
  };
  work.cancel = [cancel](const absl::Status& why) {
    cancel->Raise(why);
    return false;
  };
  return Do(call, std::move(work));
}

// Looks at the events in slices: one that is given up takes none of them.
class EventCall : public Call {
 public:
  EventCall(std::shared_ptr<OpenSession> open, int64_t timeout_ms,
            const Result<cx_event>& result)
      : open_(std::move(open)),
        timeout_(absl::Milliseconds(timeout_ms)),
        deadline_(Clock::Real()->Now() + timeout_),
        result_(result) {}

  std::optional<absl::Status> Wait(absl::Duration slice) override {
    const absl::Duration left =
        std::max(absl::ZeroDuration(), deadline_ - Clock::Real()->Now());
    auto event = open_->session->events().Next(std::min(slice, left));
    if (absl::IsDeadlineExceeded(event.status())) {
      if (left > slice) return std::nullopt;
      return absl::DeadlineExceededError(absl::StrCat(
          "no event of this session within ", absl::FormatDuration(timeout_)));
    }
    if (!event.ok()) return event.status();
    thread_local std::string text;
    text = std::move(event->text);
    static_assert(static_cast<int>(SessionEvent::Kind::kGenerationEnded) ==
                  CX_EVENT_GENERATION_ENDED);
    cx_event filled{};
    filled.kind = static_cast<cx_event_kind>(event->kind);
    filled.rank = event->rank;
    filled.generation = event->generation;
    filled.term = event->term;
    filled.text = text.c_str();
    result_.Fill(filled);
    return absl::OkStatus();
  }
  void Cancel(const absl::Status&) override {}

 private:
  const std::shared_ptr<OpenSession> open_;
  const absl::Duration timeout_;
  const absl::Time deadline_;
  const Result<cx_event> result_;
};

void FillMember(const JobMember& member, const Result<cx_member_info>& result) {
  thread_local JobMember kept;
  kept = member;
  cx_member_info filled{};
  filled.rank = kept.rank;
  filled.local_rank = kept.local_rank;
  filled.node = kept.identity.node.c_str();
  filled.slot = kept.identity.slot;
  filled.host = kept.host.c_str();
  filled.address = kept.address.c_str();
  result.Fill(filled);
}

}  // namespace

absl::Status CheckProcess() {
  const pid_t known = owner.load();
  if (known == 0 || known == getpid()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("process ", getpid(), " was forked from process ", known,
                   ", which uses Coxswain: only that one can go on with it"));
}

uint64_t NextHandle() {
  static std::atomic<uint64_t> last{0};
  return ++last;
}

absl::StatusOr<std::shared_ptr<OpenSession>> Find(cx_session session) {
  return Sessions().Find(session);
}

absl::StatusOr<DType> DTypeOf(cx_dtype dtype) {
  static_assert(static_cast<int>(DType::kFloat32) == CX_FLOAT32 &&
                static_cast<int>(DType::kFloat64) == CX_FLOAT64 &&
                static_cast<int>(DType::kFloat16) == CX_FLOAT16 &&
                static_cast<int>(DType::kBFloat16) == CX_BFLOAT16 &&
                static_cast<int>(DType::kInt8) == CX_INT8 &&
                static_cast<int>(DType::kInt32) == CX_INT32 &&
                static_cast<int>(DType::kInt64) == CX_INT64 &&
                static_cast<int>(DType::kUInt8) == CX_UINT8);
  if (dtype >= CX_FLOAT32 && dtype <= CX_UINT8) {
    return static_cast<DType>(dtype);
  }
  return InvalidArgument("dtype", absl::StrCat("is ", dtype, ", not one of ",
                                               CX_FLOAT32, " to ", CX_UINT8));
}

absl::StatusOr<std::vector<ParameterSpec>> ParametersOf(
    const cx_parameter* parameters, size_t count) {
  if (count > 0) {
    COXSWAIN_RETURN_IF_ERROR(CheckPresent(parameters, "parameters"));
  }
  std::vector<ParameterSpec> specs;
  for (size_t i = 0; i < count; ++i) {
    const cx_parameter& given = parameters[i];
    const std::string where = absl::StrCat("parameters[", i, "]");
    COXSWAIN_RETURN_IF_ERROR(
        CheckPresent(given.name, absl::StrCat(where, ".name")));
    if (given.ndim < 0 || given.ndim > kMaxDimensions) {
      return InvalidArgument(
          where, absl::StrCat("has ", given.ndim, " dimensions, not 0 to ",
                              kMaxDimensions));
    }
    if (given.ndim > 0) {
      COXSWAIN_RETURN_IF_ERROR(
          CheckPresent(given.shape, absl::StrCat(where, ".shape")));
    }
    ParameterSpec& spec = specs.emplace_back();
    spec.name = given.name;
    spec.shape.assign(given.shape, given.shape + given.ndim);
    COXSWAIN_ASSIGN_OR_RETURN(spec.dtype, DTypeOf(given.dtype));
  }
  return specs;
}

}  // namespace coxswain::capi

namespace capi = coxswain::capi;

cx_code cx_join(const cx_join_options* options, cx_session* session,
                cx_call* call) {
  return capi::Guarded([&]() -> capi::Answer {
    COXSWAIN_RETURN_IF_ERROR(capi::CheckPresent(session, "session"));
    *session = 0;
    cx_join_options given{};
    if (options != nullptr) {
      COXSWAIN_ASSIGN_OR_RETURN(given, capi::ReadStruct(options, "options"));
    }
    return capi::Join(given, session, call);
  });
}

cx_code cx_configure(cx_session session, const cx_parameter* parameters,
                     size_t parameter_count) {
  return capi::Guarded([&]() -> capi::Answer {
    COXSWAIN_ASSIGN_OR_RETURN(const auto open, capi::Find(session));
    COXSWAIN_ASSIGN_OR_RETURN(const auto specs,
                              capi::ParametersOf(parameters, parameter_count));
    std::string text;
    for (const coxswain::ParameterSpec& spec : specs) {
      absl::StrAppend(&text, spec.name.size(), ":", spec.name, " ",
                      coxswain::NameOf(spec.dtype), " ",
                      absl::StrJoin(spec.shape, ","), "\n");
    }
    open->layout = coxswain::StableHash(text);
    return absl::OkStatus();
  });
}

cx_code cx_leave(cx_session session, const char* reason, int32_t failed,
                 cx_call* call) {
  return capi::Guarded([&]() -> capi::Answer {
    COXSWAIN_ASSIGN_OR_RETURN(const auto open, capi::Find(session));
    capi::Work work;
    work.run = [open, why = capi::TextOf(reason), failed]() {
      return open->session->Leave(why, failed != 0);
    };
    return capi::Do(call, std::move(work));
  });
}

cx_code cx_close(cx_session session) {
  return capi::Guarded([&]() -> capi::Answer {
    COXSWAIN_ASSIGN_OR_RETURN(const auto open, capi::Sessions().Take(session));
    open->session->Leave("the session was closed without cx_leave", true)
        .IgnoreError();
    return absl::OkStatus();
  });
}

cx_code cx_info(cx_session session, cx_session_info* info) {
  return capi::Guarded([&]() -> capi::Answer {
    COXSWAIN_ASSIGN_OR_RETURN(const auto open, capi::Find(session));
    COXSWAIN_ASSIGN_OR_RETURN(const auto result,
                              capi::Result<cx_session_info>::Of(info, "info"));
    thread_local std::string job;
    job = open->session->job();
    cx_session_info filled{};
    filled.rank = open->session->rank();
    filled.world_size = open->session->world_size();
    filled.local_rank = open->session->local_rank();
    filled.generation = open->session->generation();
    filled.job = job.c_str();
    result.Fill(filled);
    return absl::OkStatus();
  });
}

cx_code cx_member(cx_session session, int32_t rank, cx_member_info* member,
                  cx_call* call) {
  return capi::Guarded([&]() -> capi::Answer {
    COXSWAIN_ASSIGN_OR_RETURN(const auto open, capi::Find(session));
    COXSWAIN_ASSIGN_OR_RETURN(
        const auto result, capi::Result<cx_member_info>::Of(member, "member"));
    if (rank < 0 || rank >= open->session->world_size()) {
      return capi::InvalidArgument(
          "rank", absl::StrCat("is ", rank, ", and the job has ranks 0 to ",
                               open->session->world_size() - 1));
    }
    const auto found = std::make_shared<coxswain::JobMember>();
    capi::Work work;
    work.run = [open, rank, found]() -> absl::Status {
      COXSWAIN_ASSIGN_OR_RETURN(auto members, open->session->Members());
      *found = std::move(members.at(static_cast<size_t>(rank)));
      return absl::OkStatus();
    };
    work.deliver = [found, result]() {
      capi::FillMember(*found, result);
      return absl::OkStatus();
    };
    return capi::Do(call, std::move(work));
  });
}

cx_code cx_status(cx_session session) {
  return capi::Guarded([&]() -> capi::Answer {
    COXSWAIN_ASSIGN_OR_RETURN(const auto open, capi::Find(session));
    return open->session->status();
  });
}

cx_code cx_next_event(cx_session session, int64_t timeout_ms, cx_event* event,
                      cx_call* call) {
  return capi::Guarded([&]() -> capi::Answer {
    COXSWAIN_ASSIGN_OR_RETURN(const auto open, capi::Find(session));
    COXSWAIN_ASSIGN_OR_RETURN(const auto result,
                              capi::Result<cx_event>::Of(event, "event"));
    COXSWAIN_RETURN_IF_ERROR(capi::CheckTimeout(timeout_ms));
    return capi::Await(
        call, std::make_shared<capi::EventCall>(open, timeout_ms, result));
  });
}

cx_code cx_report_progress(cx_session session, int64_t steps) {
  return capi::Guarded([&]() -> capi::Answer {
    COXSWAIN_ASSIGN_OR_RETURN(const auto open, capi::Find(session));
    open->session->ReportProgress(steps);
    return absl::OkStatus();
  });
}

cx_code cx_note_micro_batch(cx_session session) {
  return capi::Guarded([&]() -> capi::Answer {
    COXSWAIN_ASSIGN_OR_RETURN(const auto open, capi::Find(session));
    open->session->schedule().NoteMicroBatch();
    return absl::OkStatus();
  });
}

cx_code cx_barrier(cx_session session, const char* tag, int64_t timeout_ms,
                   cx_call* call) {
  return capi::Guarded([&]() -> capi::Answer {
    COXSWAIN_ASSIGN_OR_RETURN(const auto open, capi::Find(session));
    COXSWAIN_RETURN_IF_ERROR(capi::CheckPresent(tag, "tag"));
    COXSWAIN_RETURN_IF_ERROR(capi::CheckTimeout(timeout_ms));
    capi::Work work;
    work.run = [open, tag = std::string(tag), timeout_ms]() {
      return open->session->Barrier(/*group=*/"", tag,
                                    absl::Milliseconds(timeout_ms));
    };
    return capi::Do(call, std::move(work));
  });
}

int32_t cx_abi_version(void) { return CX_ABI_MAJOR << 16 | CX_ABI_MINOR; }

const char* cx_version(void) { return coxswain::kVersion; }
