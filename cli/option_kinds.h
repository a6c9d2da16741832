#ifndef COXSWAIN_CLI_OPTION_KINDS_H_
#define COXSWAIN_CLI_OPTION_KINDS_H_

#include <functional>
#include <string>

#include "absl/time/time.h"

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace coxswain {

// The kinds of options that the commands have: each is a flag, a variable and a
// key of the configuration file at once, with its check. For cli/options.cc.

// A check returns what is wrong, or nothing.
using OptionCheck = std::function<std::string(const std::string&)>;

// --name-of-option may be given as COXSWAIN_NAME_OF_OPTION.
std::string VariableOf(std::string option);

// `check` may be null.
CLI::Option* AddText(CLI::App* app, const std::string& name,
                     std::string* target, const std::string& type,
                     const std::string& description, const OptionCheck& check);

OptionCheck IsNumber(int least, int most);
CLI::Option* AddNumber(CLI::App* app, const std::string& name, int* target,
                       int least, int most, const std::string& description);

// Such as 500ms, 10s, 5m, or plain seconds.
CLI::Option* AddDuration(CLI::App* app, const std::string& name,
                         absl::Duration least, absl::Duration* target,
                         const std::string& description);

CLI::Option* AddFlag(CLI::App* app, const std::string& flags,
                     const std::string& name, bool* target,
                     const std::string& description);

}  // namespace coxswain

#endif  // COXSWAIN_CLI_OPTION_KINDS_H_
