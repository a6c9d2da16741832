#ifndef COXSWAIN_HOOKS_OPTIONS_H_
#define COXSWAIN_HOOKS_OPTIONS_H_

#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "hooks/spec.h"

namespace coxswain {

// A value of an option; the alternative tells its type, std::string being a
// choice among names.
using OptionValue = std::variant<int64_t, double, bool, std::string>;

// One row of a hook's option table. The parser, the errors and the help text
// all read this table. A number lies in [minimum, maximum].
struct OptionDescription {
  std::string name;
  OptionValue default_value;
  std::string help;    // one line
  double minimum = 0;  // of a double
  double maximum = 0;
  int64_t int_minimum = 0;  // of an int
  int64_t int_maximum = 0;
  std::vector<std::string> choices;  // of a choice
  std::vector<std::string> aliases;  // other names, such as PyTorch's

  std::string TypeName() const;     // "int", "float", "bool", "choice"
  std::string RangeText() const;    // "1 to 1024", "true or false", ...
  std::string DefaultText() const;  // as a spec would say it
};

OptionDescription IntOption(std::string name, int64_t default_value,
                            int64_t minimum, int64_t maximum, std::string help,
                            std::vector<std::string> aliases = {});
OptionDescription DoubleOption(std::string name, double default_value,
                               double minimum, double maximum, std::string help,
                               std::vector<std::string> aliases = {});
OptionDescription BoolOption(std::string name, bool default_value,
                             std::string help,
                             std::vector<std::string> aliases = {});
OptionDescription ChoiceOption(std::string name, std::string default_value,
                               std::vector<std::string> choices,
                               std::string help);

// The values of all options of a hook, defaults filled in. A getter's name
// and type must be in the table the values were resolved from.
class OptionValues {
 public:
  OptionValues() = default;
  explicit OptionValues(std::map<std::string, OptionValue> values)
      : values_(std::move(values)) {}

  int64_t Int(const std::string& name) const;
  double Double(const std::string& name) const;
  bool Bool(const std::string& name) const;
  const std::string& Choice(const std::string& name) const;

  // Each option and its value, as a spec would say it.
  std::map<std::string, std::string> Texts() const;

 private:
  const OptionValue& Find(const std::string& name) const;

  std::map<std::string, OptionValue> values_;
};

// A value as a spec says it; reading it back gives the same value.
std::string OptionText(const OptionValue& value);

// Matches what a spec gives to a hook's table. INVALID_ARGUMENT for an option
// that is unknown, given twice (also under an alias) or out of range; it
// shows `text`, the whole spec.
absl::StatusOr<OptionValues> ResolveOptions(
    absl::string_view text, const Spec& spec,
    const std::vector<OptionDescription>& table);

// "rank=4,start_step=10": what differs from the defaults, in table order.
std::string CanonicalOptions(const OptionValues& values,
                             const std::vector<OptionDescription>& table);

}  // namespace coxswain

#endif  // COXSWAIN_HOOKS_OPTIONS_H_
