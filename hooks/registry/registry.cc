#include "hooks/registry/registry.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/check.h"
#include "base/mutex.h"
#include "base/nearest_word.h"
#include "base/status_macros.h"
#include "hooks/allreduce.h"
#include "hooks/averagers/diloco.h"
#include "hooks/averagers/hierarchical_sgd.h"
#include "hooks/averagers/post_local_sgd.h"
#include "hooks/cast.h"
#include "hooks/int8/int8.h"
#include "hooks/low_rank/acp_sgd.h"
#include "hooks/low_rank/batched_powersgd.h"
#include "hooks/low_rank/powersgd.h"
#include "hooks/noop.h"
#include "hooks/spec.h"
#include "hooks/staged_hook.h"
#include "hooks/stats.h"

namespace coxswain {
namespace {

// Returns the hooks of the library, sorted by name.
std::vector<HookRow> LibraryRows() {
  return {
      AcpSgdRow(), AllReduceRow(),    BatchedPowerSgdRow(), Bf16Row(),
      DilocoRow(), Fp16Row(),         HierarchicalSgdRow(), Int8Row(),
      NoopRow(),   PostLocalSgdRow(), PowerSgdRow(),        StatsRow(),
  };
}

absl::Status CheckRow(const HookRow& row) {
  const HookDescription& hook = row.description;
  std::vector<std::string> names = hook.aliases;
  names.push_back(hook.name);
  for (const std::string& name : names) {
    if (IsSpecName(name)) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "its name '", name, "' is not of letters, digits and '_'"));
  }
  if (row.make == nullptr) {
    return absl::InvalidArgumentError("its row has no function that makes it");
  }
  if (hook.needs_inner && !hook.takes_inner) {
    return absl::InvalidArgumentError(
        "it cannot need an inner hook and take none");
  }
  return CheckOptionTable(hook.options);
}

// Rows by name. They are never taken away, so pointers to them stay valid.
class Registry {
 public:
  static Registry& Get() {
    static auto* registry = new Registry();
    return *registry;
  }

  absl::Status Add(HookRow row) {
    const absl::Status sound = CheckRow(row);
    if (!sound.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat("hook '", row.description.name,
                       "' cannot be registered: ", sound.message()));
    }
    MutexLock lock(&mutex_);
    std::set<std::string> names(row.description.aliases.begin(),
                                row.description.aliases.end());
    names.insert(row.description.name);
    for (const std::string& name : names) {
      const auto taken = by_any_name_.find(name);
      if (taken == by_any_name_.end()) continue;
      return absl::AlreadyExistsError(absl::StrCat(
          "hook '", row.description.name, "' cannot be registered: the name '",
          name, "' belongs to hook ", taken->second->description.name,
          "; give yours another one"));
    }
    rows_.push_back(std::make_unique<const HookRow>(std::move(row)));
    for (const std::string& name : names) {
      by_any_name_[name] = rows_.back().get();
    }
    return absl::OkStatus();
  }

  // Null if there is none.
  const HookRow* Find(const std::string& name) const {
    MutexLock lock(&mutex_);
    const auto found = by_any_name_.find(name);
    return found == by_any_name_.end() ? nullptr : found->second;
  }

  std::vector<HookDescription> List() const {
    std::vector<HookDescription> list;
    {
      MutexLock lock(&mutex_);
      for (const auto& row : rows_) list.push_back(row->description);
    }
    std::sort(list.begin(), list.end(),
              [](const auto& a, const auto& b) { return a.name < b.name; });
    return list;
  }

 private:
  Registry() {
    for (HookRow& row : LibraryRows()) {
      COXSWAIN_CHECK(Add(std::move(row)).ok());
    }
  }

  mutable Mutex mutex_;
  std::vector<std::unique_ptr<const HookRow>> rows_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, const HookRow*> by_any_name_ ABSL_GUARDED_BY(mutex_);
};

const HookRow* FindRow(const std::string& name) {
  return Registry::Get().Find(name);
}

// A spec that has been matched to the table.
struct Resolved {
  const HookRow* row = nullptr;
  OptionValues options;
  std::unique_ptr<Resolved> inner;
  std::string canonical;
};

absl::Status CheckInner(const Spec& spec, const HookDescription& hook,
                        const SpecErrorAt& error) {
  if (spec.inner.empty()) {
    if (!hook.needs_inner) return absl::OkStatus();
    return error(spec.position,
                 absl::StrCat(hook.name, " wraps another hook and needs one, ",
                              "as in ", hook.name, "(allreduce)"));
  }
  if (!hook.takes_inner) {
    return error(spec.inner[0].position,
                 absl::StrCat(hook.name, " takes no inner hook, got '",
                              spec.inner[0].name,
                              "' (an option is written name=value)"));
  }
  if (spec.inner.size() == 1) return absl::OkStatus();
  return error(
      spec.inner[1].position,
      absl::StrCat(hook.name, " takes one inner hook, got '",
                   spec.inner[0].name, "' and '", spec.inner[1].name, "'"));
}

absl::StatusOr<Resolved> Resolve(const Spec& spec, const SpecErrorAt& error) {
  Resolved resolved;
  resolved.row = FindRow(spec.name);
  if (resolved.row == nullptr) {
    return error(spec.position, NoSuchHook(spec.name));
  }
  const HookDescription& hook = resolved.row->description;
  COXSWAIN_RETURN_IF_ERROR(CheckInner(spec, hook, error));
  COXSWAIN_ASSIGN_OR_RETURN(resolved.options,
                            ResolveOptions(error, spec, hook.options));
  if (resolved.row->check) {
    const absl::Status sound =
        resolved.row->check(resolved.options, !spec.inner.empty());
    if (!sound.ok()) return error(spec.position, sound.message());
  }
  std::string arguments = CanonicalOptions(resolved.options, hook.options);
  if (!spec.inner.empty()) {
    COXSWAIN_ASSIGN_OR_RETURN(Resolved inner, Resolve(spec.inner[0], error));
    absl::StrAppend(&arguments, arguments.empty() ? "" : ",", inner.canonical);
    resolved.inner = std::make_unique<Resolved>(std::move(inner));
  }
  resolved.canonical = arguments.empty()
                           ? hook.name
                           : absl::StrCat(hook.name, "(", arguments, ")");
  return resolved;
}

SpecErrorAt ErrorIn(absl::string_view text) {
  return [text](size_t position, absl::string_view message) {
    return SpecError(text, position, message);
  };
}

absl::StatusOr<Resolved> ResolveText(absl::string_view text) {
  COXSWAIN_ASSIGN_OR_RETURN(const Spec spec, ParseSpec(text));
  return Resolve(spec, ErrorIn(text));
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
  auto hook = resolved.row->make(std::move(resolved.canonical),
                                 std::move(resolved.options), std::move(inner));
  return resolved.row->on_device ? std::move(hook)
                                 : MakeStagedHook(std::move(hook));
}

}  // namespace

absl::Status RegisterHook(HookRow row) {
  return Registry::Get().Add(std::move(row));
}

absl::StatusOr<std::unique_ptr<Hook>> MakeHook(absl::string_view spec) {
  COXSWAIN_ASSIGN_OR_RETURN(Resolved resolved, ResolveText(spec));
  return Make(std::move(resolved));
}

absl::StatusOr<std::unique_ptr<Averager>> MakeAverager(absl::string_view spec) {
  COXSWAIN_ASSIGN_OR_RETURN(const Resolved outermost, ResolveText(spec));
  for (const Resolved* one = &outermost; one != nullptr;
       one = one->inner.get()) {
    if (one->row->make_averager) {
      return one->row->make_averager(one->canonical, one->options);
    }
  }
  return std::unique_ptr<Averager>();
}

absl::StatusOr<std::string> CanonicalSpec(absl::string_view spec) {
  COXSWAIN_ASSIGN_OR_RETURN(Resolved resolved, ResolveText(spec));
  return std::move(resolved.canonical);
}

absl::StatusOr<std::string> CanonicalSpec(const Spec& spec,
                                          const SpecErrorAt& error) {
  COXSWAIN_ASSIGN_OR_RETURN(Resolved resolved, Resolve(spec, error));
  return std::move(resolved.canonical);
}

absl::StatusOr<std::string> WithStartStep(absl::string_view spec,
                                          int64_t step) {
  COXSWAIN_ASSIGN_OR_RETURN(Spec parsed, ParseSpec(spec));
  if (!SetStartStep(step, &parsed)) {
    COXSWAIN_RETURN_IF_ERROR(Resolve(parsed, ErrorIn(spec)).status());
    return absl::InvalidArgumentError(absl::StrCat(
        "compression cannot start at step ", step, ": '", spec,
        "' has no start_step; leave the plan's compression_start at -1"));
  }
  return CanonicalSpec(parsed, ErrorIn(spec));
}

std::string NoSuchHook(const std::string& name) {
  std::vector<std::string> names, known;
  for (const HookDescription& hook : ListHooks()) {
    names.push_back(hook.name);
    known.push_back(hook.name);
    known.insert(known.end(), hook.aliases.begin(), hook.aliases.end());
  }
  return absl::StrCat(
      "there is no hook '", name, "'; the hooks are ",
      absl::StrJoin(names, ", "), DidYouMean(name, known),
      " (a hook of your own is known in programs that register it before they "
      "join, with RegisterHook or coxswain.torch.hook: docs/hooks.md)");
}

std::vector<HookDescription> ListHooks() { return Registry::Get().List(); }

}  // namespace coxswain
