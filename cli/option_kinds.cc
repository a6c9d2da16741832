#include "cli/option_kinds.h"

#include "CLI/App.hpp"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace coxswain {
namespace {

// Such as 500ms, 10s, 5m, or plain seconds.
bool ParseDuration(const std::string& text, absl::Duration* duration) {
  double seconds = 0;
  if (absl::SimpleAtod(text, &seconds))
    *duration = absl::Seconds(seconds);
  else if (!absl::ParseDuration(text, duration))
    return false;
  return *duration < absl::InfiniteDuration() &&
         *duration > -absl::InfiniteDuration();
}

}  // namespace

std::string VariableOf(std::string option) {
  for (char& c : option) c = c == '-' ? '_' : absl::ascii_toupper(c);
  return absl::StrCat("COXSWAIN_", option);
}

CLI::Option* AddText(CLI::App* app, const std::string& name,
                     std::string* target, const std::string& type,
                     const std::string& description, const OptionCheck& check) {
  CLI::Option* option = app->add_option("--" + name, *target, description)
                            ->type_name(type)
                            ->envname(VariableOf(name));
  if (!target->empty()) option->default_str(*target);
  if (check != nullptr) option->check(check, "");
  return option;
}

OptionCheck IsNumber(int least, int most) {
  return [=](const std::string& text) {
    int value = 0;
    if (absl::SimpleAtoi(text, &value) && value >= least && value <= most) {
      return std::string();
    }
    return absl::StrCat("must be a whole number from ", least, " to ", most,
                        ", not '", text, "'");
  };
}

CLI::Option* AddNumber(CLI::App* app, const std::string& name, int* target,
                       int least, int most, const std::string& description) {
  return app->add_option("--" + name, *target, description)
      ->type_name("N")
      ->default_str(absl::StrCat(*target))
      ->envname(VariableOf(name))
      ->check(IsNumber(least, most), "");
}

CLI::Option* AddDuration(CLI::App* app, const std::string& name,
                         absl::Duration least, absl::Duration* target,
                         const std::string& description) {
  const auto parse = [target](const std::string& text) {
    ParseDuration(text, target);  // checked before
  };
  const auto check = [least](const std::string& text) {
    absl::Duration value;
    if (!ParseDuration(text, &value)) {
      return absl::StrCat("'", text,
                          "' is no duration; write for example 500ms, 10s, 5m");
    }
    if (value < least) {
      return absl::StrCat("must be at least ", absl::FormatDuration(least),
                          ", not ", text);
    }
    return std::string();
  };
  CLI::Option* option =
      app->add_option_function<std::string>("--" + name, parse, description)
          ->type_name("DURATION")
          ->envname(VariableOf(name))
          ->check(check, "");
  if (*target != absl::InfiniteDuration()) {
    option->default_str(absl::FormatDuration(*target));
  }
  return option;
}

CLI::Option* AddFlag(CLI::App* app, const std::string& flags,
                     const std::string& name, bool* target,
                     const std::string& description) {
  return app->add_flag(flags, *target, description)->envname(VariableOf(name));
}

}  // namespace coxswain
