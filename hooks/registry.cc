#include "hooks/registry.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "hooks/allreduce.h"
#include "hooks/cast.h"
#include "hooks/low_rank/powersgd.h"
#include "hooks/spec.h"

namespace coxswain {
namespace {

// Sorted by name.
const std::vector<HookRow>& Rows() {
  static const auto* rows = new std::vector<HookRow>{
      AllReduceRow(),
      Bf16Row(),
      Fp16Row(),
      PowerSgdRow(),
  };
  return *rows;
}

const HookRow* FindRow(const std::string& name) {
  for (const HookRow& row : Rows()) {
    const auto& aliases = row.description.aliases;
    if (row.description.name == name ||
        std::find(aliases.begin(), aliases.end(), name) != aliases.end()) {
      return &row;
    }
  }
  return nullptr;
}

std::string HookNames() {
  return absl::StrJoin(Rows(), ", ", [](std::string* out, const HookRow& row) {
    out->append(row.description.name);
  });
}

// A spec that has been matched to the table.
struct Resolved {
  const HookRow* row = nullptr;
  OptionValues options;
  std::unique_ptr<Resolved> inner;
  std::string canonical;
};

absl::Status CheckInner(absl::string_view text, const Spec& spec,
                        const HookDescription& hook) {
  if (spec.inner.empty()) return absl::OkStatus();
  if (!hook.takes_inner) {
    return SpecError(text, spec.inner[0].position,
                     absl::StrCat(hook.name, " takes no inner hook, got '",
                                  spec.inner[0].name,
                                  "' (an option is written name=value)"));
  }
  if (spec.inner.size() == 1) return absl::OkStatus();
  return SpecError(
      text, spec.inner[1].position,
      absl::StrCat(hook.name, " takes one inner hook, got '",
                   spec.inner[0].name, "' and '", spec.inner[1].name, "'"));
}

absl::StatusOr<Resolved> Resolve(absl::string_view text, const Spec& spec) {
  Resolved resolved;
  resolved.row = FindRow(spec.name);
  if (resolved.row == nullptr) {
    return SpecError(text, spec.position,
                     absl::StrCat("there is no hook '", spec.name,
                                  "'; the hooks are ", HookNames()));
  }
  const HookDescription& hook = resolved.row->description;
  COXSWAIN_RETURN_IF_ERROR(CheckInner(text, spec, hook));
  COXSWAIN_ASSIGN_OR_RETURN(resolved.options,
                            ResolveOptions(text, spec, hook.options));
  if (resolved.row->check) {
    const absl::Status sound =
        resolved.row->check(resolved.options, !spec.inner.empty());
    if (!sound.ok()) return SpecError(text, spec.position, sound.message());
  }
  std::string arguments = CanonicalOptions(resolved.options, hook.options);
  if (!spec.inner.empty()) {
    COXSWAIN_ASSIGN_OR_RETURN(Resolved inner, Resolve(text, spec.inner[0]));
    absl::StrAppend(&arguments, arguments.empty() ? "" : ",", inner.canonical);
    resolved.inner = std::make_unique<Resolved>(std::move(inner));
  }
  resolved.canonical = arguments.empty()
                           ? hook.name
                           : absl::StrCat(hook.name, "(", arguments, ")");
  return resolved;
}

// Whether `name` means the option start_step of this hook.
bool IsStartStep(const HookDescription& hook, const std::string& name) {
  for (const OptionDescription& option : hook.options) {
    if (option.name != "start_step") continue;
    return name == option.name ||
           std::find(option.aliases.begin(), option.aliases.end(), name) !=
               option.aliases.end();
  }
  return false;
}

// Sets it in the outermost hook that has it; false if none does.
bool SetStartStep(int64_t step, Spec* spec) {
  const HookRow* row = FindRow(spec->name);
  if (row != nullptr && IsStartStep(row->description, "start_step")) {
    auto& options = spec->options;
    options.erase(std::remove_if(options.begin(), options.end(),
                                 [&](const SpecOption& option) {
                                   return IsStartStep(row->description,
                                                      option.name);
                                 }),
                  options.end());
    options.push_back({"start_step", absl::StrCat(step), spec->position});
    return true;
  }
  for (Spec& inner : spec->inner) {
    if (SetStartStep(step, &inner)) return true;
  }
  return false;
}

std::unique_ptr<Hook> Make(Resolved resolved) {
  std::unique_ptr<Hook> inner;
  if (resolved.inner != nullptr) inner = Make(std::move(*resolved.inner));
  return resolved.row->make(std::move(resolved.canonical),
                            std::move(resolved.options), std::move(inner));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Hook>> MakeHook(absl::string_view spec) {
  COXSWAIN_ASSIGN_OR_RETURN(const Spec parsed, ParseSpec(spec));
  COXSWAIN_ASSIGN_OR_RETURN(Resolved resolved, Resolve(spec, parsed));
  return Make(std::move(resolved));
}

absl::StatusOr<std::unique_ptr<Averager>> MakeAverager(absl::string_view spec) {
  COXSWAIN_ASSIGN_OR_RETURN(const Spec parsed, ParseSpec(spec));
  COXSWAIN_ASSIGN_OR_RETURN(const Resolved resolved, Resolve(spec, parsed));
  if (!resolved.row->make_averager) return std::unique_ptr<Averager>();
  return resolved.row->make_averager(resolved.canonical, resolved.options);
}

absl::StatusOr<std::string> CanonicalSpec(absl::string_view spec) {
  COXSWAIN_ASSIGN_OR_RETURN(const Spec parsed, ParseSpec(spec));
  COXSWAIN_ASSIGN_OR_RETURN(Resolved resolved, Resolve(spec, parsed));
  return std::move(resolved.canonical);
}

absl::StatusOr<std::string> WithStartStep(absl::string_view spec,
                                          int64_t step) {
  COXSWAIN_ASSIGN_OR_RETURN(Spec parsed, ParseSpec(spec));
  if (!SetStartStep(step, &parsed)) {
    COXSWAIN_RETURN_IF_ERROR(Resolve(spec, parsed).status());
    return absl::InvalidArgumentError(absl::StrCat(
        "compression cannot start at step ", step, ": '", spec,
        "' has no start_step; leave the plan's compression_start_step at -1"));
  }
  COXSWAIN_ASSIGN_OR_RETURN(Resolved resolved, Resolve(spec, parsed));
  return std::move(resolved.canonical);
}

const std::vector<HookDescription>& ListHooks() {
  static const auto* hooks = [] {
    auto* list = new std::vector<HookDescription>;
    for (const HookRow& row : Rows()) list->push_back(row.description);
    return list;
  }();
  return *hooks;
}

std::string HookHelp() {
  std::string text;
  for (const HookDescription& hook : ListHooks()) {
    absl::StrAppend(&text, hook.name, ": ", hook.help, "\n");
    for (const OptionDescription& option : hook.options) {
      absl::StrAppend(&text, "  ", option.name, "=", option.DefaultText(), " (",
                      option.TypeName(), ", ", option.RangeText(),
                      "): ", option.help, "\n");
    }
  }
  return text;
}

}  // namespace coxswain
