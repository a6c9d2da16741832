#include "capi/own_hook.h"

#include <limits>
#include <memory>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/mutex.h"
#include "base/status_macros.h"
#include "capi/errors.h"
#include "capi/hook_calls.h"
#include "capi/open_session.h"
#include "capi/table.h"
#include "hooks/hook_row.h"
#include "hooks/options.h"
#include "hooks/registry/registry.h"
#include "hooks/spec.h"

namespace coxswain::capi {
namespace {

constexpr absl::Duration kEndTimeout = absl::Seconds(10);
constexpr size_t kMostOptions = 64;
constexpr char kSetting[] = "hook_";

struct Registered {
  Mutex mutex;
  std::map<std::string, std::string> settings ABSL_GUARDED_BY(mutex);
};

Registered& AllRegistered() {
  static auto* const registered = new Registered;
  return *registered;
}

absl::StatusOr<std::string> SpecText(absl::string_view text) {
  if (IsSpecValue(text)) return std::string(text);
  return absl::InvalidArgumentError(absl::StrCat(
      "'", text, "' is not of letters, digits, '_', '.', '+' and '-'"));
}

absl::StatusOr<OptionDescription> OptionOf(const cx_hook_option& given,
                                           const std::string& where) {
  COXSWAIN_RETURN_IF_ERROR(
      CheckPresent(given.name, absl::StrCat(where, ".name")));
  COXSWAIN_RETURN_IF_ERROR(
      CheckPresent(given.default_value, absl::StrCat(where, ".default_value")));
  COXSWAIN_ASSIGN_OR_RETURN(const std::string name,
                            TextOf(given.name, absl::StrCat(where, ".name")));
  COXSWAIN_ASSIGN_OR_RETURN(
      const std::string text,
      TextOf(given.default_value, absl::StrCat(where, ".default_value")));
  COXSWAIN_ASSIGN_OR_RETURN(const std::string help,
                            TextOf(given.help, absl::StrCat(where, ".help")));
  const auto unfit = [&](absl::string_view kind) {
    return InvalidArgument(absl::StrCat(where, ".default_value"),
                           absl::StrCat("is '", text, "', not ", kind));
  };
  int64_t whole = 0;
  double number = 0;
  switch (given.type) {
    case CX_OPTION_INT:
      if (!absl::SimpleAtoi(text, &whole)) return unfit("a whole number");
      return IntOption(name, whole, std::numeric_limits<int64_t>::min(),
                       std::numeric_limits<int64_t>::max(), help);
    case CX_OPTION_FLOAT:
      if (!absl::SimpleAtod(text, &number)) return unfit("a number");
      return DoubleOption(name, number, std::numeric_limits<double>::lowest(),
                          std::numeric_limits<double>::max(), help);
    case CX_OPTION_BOOL:
      if (text != "true" && text != "false") return unfit("true or false");
      return BoolOption(name, text == "true", help);
    case CX_OPTION_TEXT:
      return TextOption(name, text, "letters, digits and _ . + -", SpecText,
                        help);
    default:
      return InvalidArgument(
          absl::StrCat(where, ".type"),
          absl::StrCat("is ", given.type, ", not a CX_OPTION_..."));
  }
}

absl::Status CheckFunctions(const cx_hook& hook) {
  const auto check = [](bool present, absl::string_view name) {
    return present ? absl::OkStatus()
                   : InvalidArgument(absl::StrCat("hook.", name), "is NULL");
  };
  COXSWAIN_RETURN_IF_ERROR(check(hook.make != nullptr, "make"));
  COXSWAIN_RETURN_IF_ERROR(check(hook.begin != nullptr, "begin"));
  COXSWAIN_RETURN_IF_ERROR(check(hook.advance != nullptr, "advance"));
  COXSWAIN_RETURN_IF_ERROR(check(hook.end != nullptr, "end"));
  COXSWAIN_RETURN_IF_ERROR(check(hook.destroy != nullptr, "destroy"));
  return check(hook.save == nullptr || hook.load != nullptr, "load");
}

CostCard Card() {
  CostCard card;
  card.bytes = "as the program makes it";
  card.collectives = "as the program makes it, and a barrier";
  card.memory = "as the program makes it";
  card.numerics = "as the program makes it";
  card.avoid = "programs that have not registered it";
  return card;
}

absl::Status Register(const cx_hook& given) {
  if (!Sessions().empty()) {
    return absl::FailedPreconditionError(
        "a session is open, whose ranks have compared their hooks already: "
        "register hooks before joining");
  }
  COXSWAIN_RETURN_IF_ERROR(CheckPresent(given.name, "hook.name"));
  COXSWAIN_RETURN_IF_ERROR(CheckFunctions(given));
  auto own = std::make_shared<OwnHook>();
  own->calls = given;
  COXSWAIN_ASSIGN_OR_RETURN(own->name, TextOf(given.name, "hook.name"));
  COXSWAIN_ASSIGN_OR_RETURN(own->version,
                            TextOf(given.version, "hook.version"));
  HookRow row;
  row.description.name = own->name;
  COXSWAIN_ASSIGN_OR_RETURN(row.description.help,
                            TextOf(given.help, "hook.help"));
  row.description.card = Card();
  if (given.option_count > kMostOptions) {
    return InvalidArgument("hook.option_count",
                           absl::StrCat("is ", given.option_count,
                                        ", and there may be ", kMostOptions));
  }
  if (given.option_count > 0) {
    COXSWAIN_RETURN_IF_ERROR(CheckPresent(given.options, "hook.options"));
  }
  for (size_t i = 0; i < given.option_count; ++i) {
    COXSWAIN_ASSIGN_OR_RETURN(
        row.description.options.emplace_back(),
        OptionOf(given.options[i], absl::StrCat("hook.options[", i, "]")));
  }
  // These were the caller's.
  own->calls.name = own->calls.help = own->calls.version = nullptr;
  own->calls.options = nullptr;
  row.check = [own](const OptionValues& options, bool) {
    return CheckOwnHook(*own, options);
  };
  row.make = [own](std::string spec, OptionValues options,
                   std::unique_ptr<Hook>) {
    return MakeOwnHook(own, std::move(spec), options);
  };
  COXSWAIN_RETURN_IF_ERROR(RegisterHook(std::move(row)));
  Registered& all = AllRegistered();
  MutexLock lock(&all.mutex);
  all.settings[absl::StrCat(kSetting, own->name)] = own->version;
  return absl::OkStatus();
}

}  // namespace

std::map<std::string, std::string> OwnHookSettings() {
  Registered& all = AllRegistered();
  MutexLock lock(&all.mutex);
  return all.settings;
}

}  // namespace coxswain::capi

namespace capi = coxswain::capi;

cx_code cx_hook_register(const cx_hook* hook) {
  return capi::Guarded([&]() -> capi::Answer {
    COXSWAIN_RETURN_IF_ERROR(capi::CheckProcess());
    COXSWAIN_ASSIGN_OR_RETURN(const cx_hook given,
                              capi::ReadStruct(hook, "hook"));
    return capi::Register(given);
  });
}

void cx_hook_fail(const char* message) {
  capi::SetHookError(capi::TextOf(message, "its error")
                         .value_or("its error is a text that is not UTF-8"));
}

cx_code cx_hooks_end(void) {
  return capi::Guarded([&]() -> capi::Answer {
    if (capi::HookGate::Get().End(capi::kEndTimeout)) return absl::OkStatus();
    return absl::DeadlineExceededError(absl::StrCat(
        "a function of a hook is still running ",
        absl::FormatDuration(capi::kEndTimeout), " after hooks were ended"));
  });
}
