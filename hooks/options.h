#ifndef COXSWAIN_HOOKS_OPTIONS_H_
#define COXSWAIN_HOOKS_OPTIONS_H_

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "hooks/spec.h"

namespace coxswain {

// A value of an option; the alternative is its type, std::string being a
// choice among names or a text.
using OptionValue = std::variant<int64_t, double, bool, std::string>;

// What stands for a text in canonical specs, or an error with what is
// wrong with it. A canonical text is its own.
using TextCheck =
    std::function<absl::StatusOr<std::string>(absl::string_view text)>;

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
  std::string form;                  // of a text: what it looks like
  TextCheck check;                   // of a text
  std::vector<std::string> aliases;  // other names, such as PyTorch's

  std::string TypeName() const;     // "int", "float", "bool", "choice", "text"
  std::string RangeText() const;    // "1 to 1024", "true or false", ...
  std::string DefaultText() const;  // as in a spec
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
// Returns a text that no list of names can hold, such as `levels=2x4+8x16`:
// `form` describes it for display ("PERIODxSIZE, joined by +"). The default
// must pass the check and, as every value in a spec, consist of A-Z a-z 0-9 _ .
// + -.
OptionDescription TextOption(std::string name, std::string default_value,
                             std::string form, TextCheck check,
                             std::string help,
                             std::vector<std::string> aliases = {});

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
  const std::string& Text(const std::string& name) const;

  // Each option and its value, as in a spec.
  std::map<std::string, std::string> Texts() const;

 private:
  const OptionValue& Find(const std::string& name) const;

  std::map<std::string, OptionValue> values_;
};

// Returns a value as in a spec; reading it back gives the same value.
std::string OptionText(const OptionValue& value);

// Matches what a spec gives to a hook's table. INVALID_ARGUMENT, made by
// `error`, for an option that is unknown, given twice (also under an alias) or
// out of range.
absl::StatusOr<OptionValues> ResolveOptions(
    const SpecErrorAt& error, const Spec& spec,
    const std::vector<OptionDescription>& table);

// INVALID_ARGUMENT for a table that specs cannot use: a name that the grammar
// does not know or that is there twice, a default out of its range.
absl::Status CheckOptionTable(const std::vector<OptionDescription>& table);

// "rank=4,start_step=10": what differs from the defaults, in table order.
std::string CanonicalOptions(const OptionValues& values,
                             const std::vector<OptionDescription>& table);

}  // namespace coxswain

#endif  // COXSWAIN_HOOKS_OPTIONS_H_
