#include "hooks/hook_list.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "nlohmann/json.hpp"

namespace coxswain {
namespace {

constexpr size_t kColumns = 80;

// Returns the card's lines, and what they are called.
std::vector<std::pair<std::string, std::string>> CardLines(
    const CostCard& card) {
  std::vector<std::pair<std::string, std::string>> lines;
  for (const auto& [label, text] : {std::pair("bytes", &card.bytes),
                                    {"collectives", &card.collectives},
                                    {"memory", &card.memory},
                                    {"numerics", &card.numerics},
                                    {"not for", &card.avoid}}) {
    if (!text->empty()) lines.emplace_back(label, *text);
  }
  return lines;
}

// Returns the words of `text` from column `indent` on, up to the 80th, after
// what stands before them in the first line.
std::string Wrapped(std::string line, size_t indent, const std::string& text) {
  std::string out;
  line.resize(std::max(indent, line.size()), ' ');
  bool first = true;
  for (const absl::string_view word : absl::StrSplit(text, ' ')) {
    if (!first && line.size() + 1 + word.size() > kColumns) {
      absl::StrAppend(&out, line, "\n");
      line.assign(indent, ' ');
      first = true;
    }
    absl::StrAppend(&line, first ? "" : " ", word);
    first = false;
  }
  return absl::StrCat(out, line, "\n");
}

std::string Also(const std::vector<std::string>& aliases) {
  if (aliases.empty()) return "";
  return absl::StrCat(" (also ", absl::StrJoin(aliases, ", "), ")");
}

std::string AsText(const HookDescription& hook) {
  std::string text = absl::StrCat(hook.name, Also(hook.aliases), "\n");
  absl::StrAppend(&text, Wrapped("", 2, hook.help));
  for (const OptionDescription& option : hook.options) {
    absl::StrAppend(&text, "  ", option.name, "=", option.DefaultText(), " [",
                    option.RangeText(), "]\n",
                    Wrapped("", 6, option.help + Also(option.aliases)));
  }
  for (const auto& [label, line] : CardLines(hook.card)) {
    absl::StrAppend(&text, Wrapped("  " + label, 15, line));
  }
  return text;
}

// For a cell of a table.
std::string Cell(const std::string& text) {
  return absl::StrReplaceAll(text, {{"|", "\\|"}});
}

std::string Code(const std::vector<std::string>& names) {
  return absl::StrJoin(names, ", ", [](std::string* out, const auto& name) {
    absl::StrAppend(out, "`", name, "`");
  });
}

std::string AsMarkdown(const HookDescription& hook) {
  std::string text = absl::StrCat("### `", hook.name, "`\n\n", hook.help, ".");
  if (!hook.aliases.empty()) {
    absl::StrAppend(&text, " Also named ", Code(hook.aliases), ".");
  }
  absl::StrAppend(&text, "\n");
  if (!hook.options.empty()) {
    absl::StrAppend(&text, "\n| option | default | values | what it is |\n",
                    "|---|---|---|---|\n");
  }
  for (const OptionDescription& option : hook.options) {
    absl::StrAppend(&text, "| `", option.name, "` | ", option.DefaultText(),
                    " | ", Cell(option.RangeText()), " | ", Cell(option.help),
                    option.aliases.empty() ? "" : "; also ",
                    Code(option.aliases), " |\n");
  }
  const auto lines = CardLines(hook.card);
  if (!lines.empty()) absl::StrAppend(&text, "\n| cost | |\n|---|---|\n");
  for (const auto& [label, line] : lines) {
    absl::StrAppend(&text, "| ", label, " | ", Cell(line), " |\n");
  }
  return text;
}

nlohmann::json AsJson(const OptionDescription& option) {
  return {{"name", option.name},
          {"aliases", option.aliases},
          {"type", option.TypeName()},
          {"range", option.RangeText()},
          {"default",
           std::visit([](const auto& value) { return nlohmann::json(value); },
                      option.default_value)},
          {"help", option.help}};
}

nlohmann::json AsJson(const HookDescription& hook) {
  nlohmann::json options = nlohmann::json::array();
  for (const OptionDescription& option : hook.options) {
    options.push_back(AsJson(option));
  }
  return {{"name", hook.name},
          {"aliases", hook.aliases},
          {"help", hook.help},
          {"takes_inner", hook.takes_inner},
          {"needs_inner", hook.needs_inner},
          {"options", std::move(options)},
          {"card",
           {{"bytes", hook.card.bytes},
            {"collectives", hook.card.collectives},
            {"memory", hook.card.memory},
            {"numerics", hook.card.numerics},
            {"avoid", hook.card.avoid}}}};
}

// Returns the hooks one after the other, an empty line between them.
std::string Join(const std::vector<HookDescription>& hooks,
                 std::string (*write)(const HookDescription&)) {
  return absl::StrJoin(hooks, "\n",
                       [write](std::string* out, const HookDescription& hook) {
                         out->append(write(hook));
                       });
}

}  // namespace

std::string HooksAsText(const std::vector<HookDescription>& hooks) {
  return Join(hooks, AsText);
}

std::string HooksAsMarkdown(const std::vector<HookDescription>& hooks) {
  return Join(hooks, AsMarkdown);
}

std::string HooksAsJson(const std::vector<HookDescription>& hooks) {
  nlohmann::json list = nlohmann::json::array();
  for (const HookDescription& hook : hooks) list.push_back(AsJson(hook));
  const nlohmann::json all = {{"hooks", std::move(list)}};
  return all.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) +
         "\n";
}

}  // namespace coxswain
