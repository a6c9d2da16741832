#include "capi/join.h"

#include <cstdint>
#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/cancel_signal.h"
#include "base/random.h"
#include "base/status_macros.h"
#include "capi/call.h"
#include "capi/newcomer.h"
#include "capi/open_session.h"
#include "capi/own_hook.h"
#include "capi/table.h"
#include "client/session/join.h"
#include "hooks/registry/registry.h"
#include "schedule/plan_words.h"

namespace coxswain::capi {
namespace {

constexpr int kMaxDimensions = 64;

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
  if ((options.flags & CX_JOIN_PLAIN_DATA) != 0) {
    variables["COXSWAIN_PLAIN_DATA"] = "true";
  }
  if (options.join_timeout_ms != 0) {
    variables["COXSWAIN_JOIN_TIMEOUT"] =
        absl::StrCat(options.join_timeout_ms, "ms");
  }
  return variables;
}

// Fails if a text that is sent is not UTF-8. Paths of files need not be.
absl::Status CheckTexts(const cx_join_options& options) {
  COXSWAIN_RETURN_IF_ERROR(TextOf(options.coordinator, "coordinator").status());
  COXSWAIN_RETURN_IF_ERROR(TextOf(options.job, "job").status());
  COXSWAIN_RETURN_IF_ERROR(TextOf(options.node, "node").status());
  COXSWAIN_RETURN_IF_ERROR(TextOf(options.address, "address").status());
  return TextOf(options.backend, "backend").status();
}

}  // namespace

absl::StatusOr<SessionOptions> SessionOptionsOf(
    const cx_join_options& options) {
  if ((options.flags &
       ~uint64_t{CX_JOIN_NO_ENVIRONMENT | CX_JOIN_PLAIN_DATA}) != 0) {
    return InvalidArgument("options", "sets a flag that does not exist");
  }
  if (options.slot != 0 && (options.node == nullptr || *options.node == '\0')) {
    return InvalidArgument(
        "options", absl::StrCat("has the slot ", options.slot,
                                " and no node: set both `node` and `slot`, or "
                                "neither"));
  }
  COXSWAIN_RETURN_IF_ERROR(CheckTexts(options));
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

namespace {

absl::StatusOr<JobManifest> ManifestOf(const cx_join_options& options) {
  JobManifest manifest;
  COXSWAIN_ASSIGN_OR_RETURN(const std::string plan,
                            TextOf(options.plan, "plan"));
  COXSWAIN_ASSIGN_OR_RETURN(
      const schedule::PlanWords words,
      schedule::ParsePlanWords(schedule::SplitPlanText(plan)));
  COXSWAIN_RETURN_IF_ERROR(schedule::ApplyPlanWords(words, &manifest));
  COXSWAIN_ASSIGN_OR_RETURN(manifest.hook, CanonicalSpec(manifest.hook));
  if (options.setting_count > 0) {
    COXSWAIN_RETURN_IF_ERROR(CheckPresent(options.settings, "settings"));
  }
  for (size_t i = 0; i < options.setting_count; ++i) {
    const cx_setting& setting = options.settings[i];
    const std::string where = absl::StrCat("settings[", i, "]");
    COXSWAIN_RETURN_IF_ERROR(
        CheckPresent(setting.name, absl::StrCat(where, ".name")));
    COXSWAIN_ASSIGN_OR_RETURN(
        const std::string name,
        TextOf(setting.name, absl::StrCat(where, ".name")));
    COXSWAIN_ASSIGN_OR_RETURN(
        manifest.settings[name],
        TextOf(setting.value, absl::StrCat(where, ".value")));
  }
  for (auto& [name, version] : OwnHookSettings()) {
    manifest.settings[name] = version;
  }
  COXSWAIN_ASSIGN_OR_RETURN(
      manifest.parameters,
      ParametersOf(options.parameters, options.parameter_count));
  return manifest;
}

// Of a session that is opened.
struct Opened {
  absl::Duration timeout;  // of its collectives
  std::shared_ptr<CancelSignal> cancel;
  bool encrypts = false;
  std::shared_ptr<OpenSession> before;  // of this worker; null: the first
};

// Work that makes a session, and opens it.
Work Opening(std::function<absl::StatusOr<std::unique_ptr<Session>>()> make,
             cx_session* opened, const Opened& options) {
  // If the call is cancelled, the session is destroyed with the work, and
  // leaves.
  const auto made = std::make_shared<std::unique_ptr<Session>>();
  Work work;
  work.run = [made, make = std::move(make)]() -> absl::Status {
    COXSWAIN_ASSIGN_OR_RETURN(*made, make());
    return absl::OkStatus();
  };
  work.deliver = [made, opened, options]() {
    auto open = std::make_shared<OpenSession>(std::move(*made), options.timeout,
                                              options.cancel, options.encrypts);
    if (options.before != nullptr) {
      open->source.TakeOver(&options.before->source);
    }
    *opened = Sessions().Add(std::move(open));
    return absl::OkStatus();
  };
  work.cancel = [cancel = options.cancel](const absl::Status& why) {
    cancel->Raise(why);
    return false;
  };
  return work;
}

Answer Join(const cx_join_options& given, cx_session* session, cx_call* call) {
  COXSWAIN_RETURN_IF_ERROR(CheckProcess());
  COXSWAIN_ASSIGN_OR_RETURN(SessionOptions options, SessionOptionsOf(given));
  COXSWAIN_ASSIGN_OR_RETURN(JobManifest manifest, ManifestOf(given));
  if (given.newcomer != 0) {
    COXSWAIN_ASSIGN_OR_RETURN(const auto newcomer,
                              Newcomers().Find(given.newcomer));
    options.catch_up_address = newcomer->receiver->address();
    options.catch_up_secret = newcomer->receiver->secret();
  }
  NoteProcess();
  const auto cancel = std::make_shared<CancelSignal>();
  options.cancel = cancel;
  const Opened opened = {options.collective_timeout, cancel,
                         EncryptsData(options), nullptr};
  const auto join = [options = std::move(options),
                     manifest = std::move(manifest)]() {
    return Session::Join(options, manifest);
  };
  return Do(call, Opening(join, session, opened));
}

}  // namespace

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
    COXSWAIN_ASSIGN_OR_RETURN(spec.name,
                              TextOf(given.name, absl::StrCat(where, ".name")));
    spec.shape.assign(given.shape, given.shape + given.ndim);
    COXSWAIN_ASSIGN_OR_RETURN(spec.dtype, DTypeOf(given.dtype));
  }
  return specs;
}

uint64_t HashParameters(const std::vector<ParameterSpec>& parameters) {
  std::string text;
  for (const ParameterSpec& spec : parameters) {
    absl::StrAppend(&text, spec.name.size(), ":", spec.name, " ",
                    NameOf(spec.dtype), " ", absl::StrJoin(spec.shape, ","),
                    "\n");
  }
  return StableHash(text);
}

}  // namespace coxswain::capi

namespace capi = coxswain::capi;

cx_code cx_join(const cx_join_options* options, cx_session* session,
                cx_call* call) {
  return capi::Guarded(call, [&]() -> capi::Answer {
    COXSWAIN_RETURN_IF_ERROR(capi::CheckPresent(session, "session"));
    *session = 0;
    cx_join_options given{};
    if (options != nullptr) {
      COXSWAIN_ASSIGN_OR_RETURN(given, capi::ReadStruct(options, "options"));
    }
    return capi::Join(given, session, call);
  });
}

cx_code cx_rejoin(cx_session session, cx_session* next, cx_call* call) {
  return capi::Guarded(call, [&]() -> capi::Answer {
    COXSWAIN_RETURN_IF_ERROR(capi::CheckPresent(next, "next"));
    *next = 0;
    COXSWAIN_ASSIGN_OR_RETURN(const auto open, capi::Find(session));
    return capi::Do(
        call, capi::Opening([open]() { return open->session->Rejoin(); }, next,
                            {open->collective_timeout, open->cancel,
                             open->source.encrypts(), open}));
  });
}

cx_code cx_configure(cx_session session, const cx_parameter* parameters,
                     size_t parameter_count) {
  return capi::Guarded([&]() -> capi::Answer {
    COXSWAIN_ASSIGN_OR_RETURN(const auto open, capi::Find(session));
    COXSWAIN_ASSIGN_OR_RETURN(const auto specs,
                              capi::ParametersOf(parameters, parameter_count));
    open->layout = capi::HashParameters(specs);
    return absl::OkStatus();
  });
}
