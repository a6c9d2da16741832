#include "hooks/options.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/types/span.h"
#include "base/check.h"
#include "base/nearest_word.h"
#include "base/status_macros.h"

namespace coxswain {
namespace {

// Returns the shortest decimal that reads back as `value`.
std::string DoubleText(double value) {
  if (value == std::trunc(value) && std::abs(value) < 1e9) {
    return absl::StrCat(static_cast<int64_t>(value));  // not 1e+06
  }
  for (int digits = 1; digits < 17; ++digits) {
    std::string text = absl::StrFormat("%.*g", digits, value);
    double parsed = 0;
    if (absl::SimpleAtod(text, &parsed) && parsed == value) return text;
  }
  return absl::StrFormat("%.17g", value);
}

bool Contains(const std::vector<std::string>& list, absl::string_view item) {
  return std::find(list.begin(), list.end(), item) != list.end();
}

absl::StatusOr<OptionValue> ParseInt(const OptionDescription& option,
                                     const std::string& text) {
  int64_t value = 0;
  if (!absl::SimpleAtoi(text, &value)) {
    return absl::InvalidArgumentError(absl::StrCat(
        option.name, " must be a whole number between ", option.int_minimum,
        " and ", option.int_maximum, ", got ", text));
  }
  if (value < option.int_minimum || value > option.int_maximum) {
    return absl::InvalidArgumentError(
        absl::StrCat(option.name, " must be between ", option.int_minimum,
                     " and ", option.int_maximum, ", got ", text));
  }
  return OptionValue(value);
}

absl::StatusOr<OptionValue> ParseDouble(const OptionDescription& option,
                                        const std::string& text) {
  double value = 0;
  // A NaN fails both comparisons.
  if (!absl::SimpleAtod(text, &value) ||
      !(value >= option.minimum && value <= option.maximum)) {
    return absl::InvalidArgumentError(absl::StrCat(
        option.name, " must be between ", DoubleText(option.minimum), " and ",
        DoubleText(option.maximum), ", got ", text));
  }
  return OptionValue(value == 0 ? 0.0 : value);  // no negative zero
}

absl::StatusOr<OptionValue> ParseBool(const OptionDescription& option,
                                      const std::string& text) {
  if (text == "true" || text == "True" || text == "1") return OptionValue(true);
  if (text == "false" || text == "False" || text == "0") {
    return OptionValue(false);
  }
  return absl::InvalidArgumentError(
      absl::StrCat(option.name, " must be true or false, got ", text));
}

absl::StatusOr<OptionValue> ParseText(const OptionDescription& option,
                                      const std::string& text) {
  absl::StatusOr<std::string> canonical = option.check(text);
  if (canonical.ok()) return OptionValue(*std::move(canonical));
  return absl::InvalidArgumentError(
      absl::StrCat(option.name, " must be ", option.form, ", got ", text, ": ",
                   canonical.status().message()));
}

absl::StatusOr<OptionValue> ParseValue(const OptionDescription& option,
                                       const std::string& text) {
  if (std::holds_alternative<int64_t>(option.default_value)) {
    return ParseInt(option, text);
  }
  if (std::holds_alternative<double>(option.default_value)) {
    return ParseDouble(option, text);
  }
  if (std::holds_alternative<bool>(option.default_value)) {
    return ParseBool(option, text);
  }
  if (option.check != nullptr) return ParseText(option, text);
  if (Contains(option.choices, text)) return OptionValue(text);
  return absl::InvalidArgumentError(absl::StrCat(
      option.name, " must be ", option.RangeText(), ", got ", text));
}

const OptionDescription* FindOption(const std::vector<OptionDescription>& table,
                                    const std::string& name) {
  for (const OptionDescription& option : table) {
    if (option.name == name || Contains(option.aliases, name)) return &option;
  }
  return nullptr;
}

std::string Listing(const std::vector<OptionDescription>& table) {
  if (table.empty()) return "it has none";
  return absl::StrCat(
      "its options are ",
      absl::StrJoin(table, ", ", [](std::string* out, const auto& option) {
        absl::StrAppend(out, option.name, " (", option.RangeText(), ")");
      }));
}

std::vector<std::string> NamesOf(const std::vector<OptionDescription>& table) {
  std::vector<std::string> names;
  for (const OptionDescription& option : table) {
    names.push_back(option.name);
    names.insert(names.end(), option.aliases.begin(), option.aliases.end());
  }
  return names;
}

OptionDescription Describe(std::string name, OptionValue default_value,
                           std::string help, std::vector<std::string> aliases) {
  OptionDescription option;
  option.name = std::move(name);
  option.default_value = std::move(default_value);
  option.help = std::move(help);
  option.aliases = std::move(aliases);
  return option;
}

}  // namespace

std::string OptionText(const OptionValue& value) {
  if (const auto* number = std::get_if<int64_t>(&value)) {
    return absl::StrCat(*number);
  }
  if (const auto* number = std::get_if<double>(&value)) {
    return DoubleText(*number);
  }
  if (const auto* flag = std::get_if<bool>(&value)) {
    return *flag ? "true" : "false";
  }
  return std::get<std::string>(value);
}

std::string OptionDescription::TypeName() const {
  if (check != nullptr) return "text";
  constexpr const char* kNames[] = {"int", "float", "bool", "choice"};
  return kNames[default_value.index()];
}

std::string OptionDescription::RangeText() const {
  if (std::holds_alternative<int64_t>(default_value)) {
    if (int_maximum == std::numeric_limits<int64_t>::max()) {
      return absl::StrCat(int_minimum, " or more");
    }
    return absl::StrCat(int_minimum, " to ", int_maximum);
  }
  if (std::holds_alternative<double>(default_value)) {
    return absl::StrCat(DoubleText(minimum), " to ", DoubleText(maximum));
  }
  if (std::holds_alternative<bool>(default_value)) return "true or false";
  if (check != nullptr) return form;
  if (choices.empty()) return "nothing";
  const absl::Span<const std::string> but_last =
      absl::MakeConstSpan(choices).first(choices.size() - 1);
  return absl::StrCat(absl::StrJoin(but_last, ", "),
                      but_last.empty() ? "" : " or ", choices.back());
}

std::string OptionDescription::DefaultText() const {
  return OptionText(default_value);
}

OptionDescription IntOption(std::string name, int64_t default_value,
                            int64_t minimum, int64_t maximum, std::string help,
                            std::vector<std::string> aliases) {
  OptionDescription option = Describe(std::move(name), default_value,
                                      std::move(help), std::move(aliases));
  option.int_minimum = minimum;
  option.int_maximum = maximum;
  return option;
}

OptionDescription DoubleOption(std::string name, double default_value,
                               double minimum, double maximum, std::string help,
                               std::vector<std::string> aliases) {
  OptionDescription option = Describe(std::move(name), default_value,
                                      std::move(help), std::move(aliases));
  option.minimum = minimum;
  option.maximum = maximum;
  return option;
}

OptionDescription BoolOption(std::string name, bool default_value,
                             std::string help,
                             std::vector<std::string> aliases) {
  return Describe(std::move(name), default_value, std::move(help),
                  std::move(aliases));
}

OptionDescription ChoiceOption(std::string name, std::string default_value,
                               std::vector<std::string> choices,
                               std::string help) {
  OptionDescription option =
      Describe(std::move(name), std::move(default_value), std::move(help), {});
  option.choices = std::move(choices);
  return option;
}

OptionDescription TextOption(std::string name, std::string default_value,
                             std::string form, TextCheck check,
                             std::string help,
                             std::vector<std::string> aliases) {
  OptionDescription option = Describe(std::move(name), std::move(default_value),
                                      std::move(help), std::move(aliases));
  option.form = std::move(form);
  option.check = std::move(check);
  return option;
}

const OptionValue& OptionValues::Find(const std::string& name) const {
  const auto found = values_.find(name);
  COXSWAIN_CHECK(found != values_.end());
  return found->second;
}

int64_t OptionValues::Int(const std::string& name) const {
  return *std::get_if<int64_t>(&Find(name));
}
double OptionValues::Double(const std::string& name) const {
  return *std::get_if<double>(&Find(name));
}
bool OptionValues::Bool(const std::string& name) const {
  return *std::get_if<bool>(&Find(name));
}
const std::string& OptionValues::Choice(const std::string& name) const {
  return *std::get_if<std::string>(&Find(name));
}
const std::string& OptionValues::Text(const std::string& name) const {
  return Choice(name);
}

std::map<std::string, std::string> OptionValues::Texts() const {
  std::map<std::string, std::string> texts;
  for (const auto& [name, value] : values_) texts[name] = OptionText(value);
  return texts;
}

absl::StatusOr<OptionValues> ResolveOptions(
    const SpecErrorAt& error, const Spec& spec,
    const std::vector<OptionDescription>& table) {
  std::map<std::string, OptionValue> values;
  std::map<std::string, std::string> given_as;
  for (const SpecOption& given : spec.options) {
    const OptionDescription* option = FindOption(table, given.name);
    if (option == nullptr) {
      return error(
          given.position,
          absl::StrCat(spec.name, " has no option '", given.name, "'; ",
                       Listing(table), DidYouMean(given.name, NamesOf(table))));
    }
    const auto [earlier, first] = given_as.emplace(option->name, given.name);
    if (!first) {
      return error(
          given.position,
          absl::StrCat(option->name, " is given twice, as '", earlier->second,
                       "' and as '", given.name, "'"));
    }
    auto value = ParseValue(*option, given.value);
    if (!value.ok()) return error(given.position, value.status().message());
    values[option->name] = *std::move(value);
  }
  for (const OptionDescription& option : table) {
    values.emplace(option.name, option.default_value);
  }
  return OptionValues(std::move(values));
}

absl::Status CheckOptionTable(const std::vector<OptionDescription>& table) {
  std::set<std::string> names;
  for (const OptionDescription& option : table) {
    std::vector<std::string> all = option.aliases;
    all.push_back(option.name);
    for (const std::string& name : all) {
      if (IsSpecName(name) && names.insert(name).second) continue;
      return absl::InvalidArgumentError(
          absl::StrCat("option '", name, "' has a name that another one has, ",
                       "or that is not of letters, digits and '_'"));
    }
    const std::string text = option.DefaultText();
    const auto value = ParseValue(option, text);
    if (IsSpecValue(text) && value.ok() && *value == option.default_value) {
      continue;
    }
    return absl::InvalidArgumentError(
        absl::StrCat("option '", option.name, "' has the default '", text,
                     "', which is not ", option.RangeText()));
  }
  return absl::OkStatus();
}

std::string CanonicalOptions(const OptionValues& values,
                             const std::vector<OptionDescription>& table) {
  const std::map<std::string, std::string> texts = values.Texts();
  std::vector<std::string> parts;
  for (const OptionDescription& option : table) {
    const std::string& text = texts.at(option.name);
    if (text != option.DefaultText()) {
      parts.push_back(absl::StrCat(option.name, "=", text));
    }
  }
  return absl::StrJoin(parts, ",");
}

}  // namespace coxswain
