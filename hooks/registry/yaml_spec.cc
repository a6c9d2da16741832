#include "hooks/registry/yaml_spec.h"

#include <cerrno>
#include <exception>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "base/nearest_word.h"
#include "base/status_macros.h"
#include "hooks/registry/registry.h"
#include "hooks/spec.h"
#include "yaml-cpp/eventhandler.h"
#include "yaml-cpp/yaml.h"

namespace coxswain {
namespace {

// Positions of a Spec that was read from YAML: line and column in one number.
// Columns are less than kMaxHookYaml.
constexpr size_t kLine = size_t{1} << 16;
static_assert(kMaxHookYaml < kLine);

size_t PositionOf(const YAML::Mark& mark) {
  if (mark.is_null()) return 0;
  return static_cast<size_t>(mark.line) * kLine +
         static_cast<size_t>(mark.column);
}

absl::Status ErrorAt(size_t position, absl::string_view message) {
  return absl::InvalidArgumentError(
      absl::StrCat("hook YAML, line ", position / kLine + 1, ", column ",
                   position % kLine + 1, ": ", message));
}

absl::Status ErrorAt(const YAML::Node& node, absl::string_view message) {
  return ErrorAt(PositionOf(node.Mark()), message);
}

// Returns what a YAML text may be, in a message.
std::string Shown(const YAML::Node& node) {
  if (node.IsScalar()) {
    return absl::StrCat("'", absl::CHexEscape(node.Scalar().substr(0, 80)),
                        "'");
  }
  return node.IsMap() ? "a map" : node.IsSequence() ? "a list" : "nothing";
}

// The entries of a map; each key one of `valid`, if there are any, and once.
using Entries = std::map<std::string, std::pair<YAML::Node, YAML::Node>>;

absl::StatusOr<Entries> ReadMap(const YAML::Node& map, absl::string_view what,
                                const std::vector<std::string>& valid) {
  Entries entries;
  for (const auto& entry : map) {
    const std::string key = entry.first.IsScalar() ? entry.first.Scalar() : "";
    bool known = valid.empty() && IsSpecName(key);
    for (const std::string& name : valid) known |= key == name;
    if (!known) {
      return ErrorAt(
          entry.first,
          absl::StrCat(Shown(entry.first), " is no key of ", what,
                       valid.empty() ? "" : "; its keys are ",
                       absl::StrJoin(valid, ", "), DidYouMean(key, valid)));
    }
    if (!entries.emplace(key, std::pair(entry.first, entry.second)).second) {
      return ErrorAt(entry.first, absl::StrCat("'", key, "' is given twice"));
    }
  }
  return entries;
}

// Returns a scalar that the grammar of specs takes as a name or a value.
absl::StatusOr<std::string> ReadWord(const YAML::Node& node,
                                     absl::string_view what,
                                     bool (*belongs)(absl::string_view)) {
  if (node.IsScalar() && belongs(node.Scalar())) return node.Scalar();
  return ErrorAt(node,
                 absl::StrCat("expected ", what, ", found ", Shown(node)));
}

absl::Status ReadOptions(const YAML::Node& node, absl::string_view what,
                         Spec& spec) {
  if (!node.IsMap()) {
    return ErrorAt(node, absl::StrCat(what, " is a map of names and values, ",
                                      "as in {rank: 4}; found ", Shown(node)));
  }
  COXSWAIN_ASSIGN_OR_RETURN(const Entries entries, ReadMap(node, what, {}));
  for (const auto& [name, entry] : entries) {
    COXSWAIN_ASSIGN_OR_RETURN(
        std::string value,
        ReadWord(entry.second, absl::StrCat("a value for ", name),
                 IsSpecValue));
    spec.options.push_back(
        {name, std::move(value), PositionOf(entry.first.Mark())});
  }
  return absl::OkStatus();
}

void SetPositions(size_t position, Spec& spec) {
  spec.position = position;
  for (SpecOption& option : spec.options) option.position = position;
  for (Spec& inner : spec.inner) SetPositions(position, inner);
}

absl::StatusOr<Spec> ReadSpec(const YAML::Node& scalar) {
  auto spec = ParseSpec(scalar.Scalar());
  if (!spec.ok()) return ErrorAt(scalar, spec.status().message());
  SetPositions(PositionOf(scalar.Mark()), *spec);
  return spec;
}

// `depth` limits the recursion: by an alias, a map can contain itself.
absl::StatusOr<Spec> ReadHook(const YAML::Node& node, int depth);

// Returns the hooks that wrap another, the outermost first; none has an inner
// hook.
absl::StatusOr<std::vector<Spec>> ReadWrappers(const YAML::Node& node,
                                               int depth) {
  std::vector<YAML::Node> nodes;
  if (!node.IsSequence()) nodes.push_back(node);
  for (size_t i = 0; node.IsSequence() && i < node.size(); ++i) {
    nodes.push_back(node[i]);
  }
  std::vector<Spec> wrappers;
  for (const YAML::Node& one : nodes) {
    if (wrappers.size() >= kMaxSpecDepth) {
      return ErrorAt(one, absl::StrCat("more than ", kMaxSpecDepth,
                                       " hooks inside one another"));
    }
    COXSWAIN_ASSIGN_OR_RETURN(Spec wrapper, ReadHook(one, depth));
    if (!wrapper.inner.empty()) {
      return ErrorAt(one, absl::StrCat("what wraps a hook is named without an ",
                                       "inner hook of its own"));
    }
    wrappers.push_back(std::move(wrapper));
  }
  return wrappers;
}

absl::StatusOr<Spec> ReadOurMap(const YAML::Node& node, int depth) {
  COXSWAIN_ASSIGN_OR_RETURN(
      const Entries entries,
      ReadMap(node, "a hook", {"name", "options", "inner", "wrap"}));
  const auto name = entries.find("name");
  if (name == entries.end()) {
    return ErrorAt(node, "a hook needs a name, as in {name: allreduce}");
  }
  Spec spec;
  spec.position = PositionOf(name->second.second.Mark());
  COXSWAIN_ASSIGN_OR_RETURN(
      spec.name, ReadWord(name->second.second, "a hook's name", IsSpecName));
  const auto options = entries.find("options");
  if (options != entries.end()) {
    COXSWAIN_RETURN_IF_ERROR(
        ReadOptions(options->second.second, "options", spec));
  }
  const auto inner = entries.find("inner");
  if (inner != entries.end()) {
    COXSWAIN_ASSIGN_OR_RETURN(Spec wrapped,
                              ReadHook(inner->second.second, depth + 1));
    spec.inner.push_back(std::move(wrapped));
  }
  const auto wrap = entries.find("wrap");
  if (wrap == entries.end()) return spec;
  COXSWAIN_ASSIGN_OR_RETURN(std::vector<Spec> wrappers,
                            ReadWrappers(wrap->second.second, depth + 1));
  for (; !wrappers.empty(); wrappers.pop_back()) {
    wrappers.back().inner.push_back(std::move(spec));
    spec = std::move(wrappers.back());
  }
  return spec;
}

// One of Accelerate's names and what it stands for here.
using Names = std::vector<std::pair<std::string, std::string>>;

absl::StatusOr<std::string> Translate(const Entries& entries,
                                      const std::string& key,
                                      const Names& names) {
  const auto entry = entries.find(key);
  if (entry == entries.end()) return std::string();  // as `no`
  const YAML::Node& value = entry->second.second;
  std::vector<std::string> valid;
  for (const auto& [theirs, ours] : names) {
    if (value.IsScalar() && value.Scalar() == theirs) return ours;
    valid.push_back(theirs);
  }
  return ErrorAt(value,
                 absl::StrCat(key, " is one of ", absl::StrJoin(valid, ", "),
                              "; found ", Shown(value)));
}

absl::StatusOr<Spec> ReadTheirMap(const YAML::Node& node) {
  COXSWAIN_ASSIGN_OR_RETURN(
      const Entries entries,
      ReadMap(node, "Accelerate's hook settings",
              {"comm_hook", "comm_wrapper", "comm_state_option"}));
  COXSWAIN_ASSIGN_OR_RETURN(
      const std::string hook,
      Translate(entries, "comm_hook",
                {{"no", ""},
                 {"fp16", "fp16"},
                 {"bf16", "bf16"},
                 {"power_sgd", "powersgd"},
                 {"batched_power_sgd", "batched_powersgd"}}));
  COXSWAIN_ASSIGN_OR_RETURN(
      const std::string wrapper,
      Translate(entries, "comm_wrapper",
                {{"no", ""}, {"fp16", "fp16"}, {"bf16", "bf16"}}));
  Spec spec;
  spec.name = hook.empty() ? "allreduce" : hook;
  const auto named = entries.find("comm_hook");
  spec.position = PositionOf(
      named == entries.end() ? node.Mark() : named->second.second.Mark());
  const auto options = entries.find("comm_state_option");
  if (options != entries.end()) {
    const YAML::Node& given = options->second.second;
    COXSWAIN_RETURN_IF_ERROR(ReadOptions(given, "comm_state_option", spec));
    if (hook != "powersgd" && hook != "batched_powersgd" &&
        !spec.options.empty()) {
      return ErrorAt(
          options->second.first,
          absl::StrCat("comm_state_option is for comm_hook ",
                       "power_sgd and batched_power_sgd; ",
                       hook.empty() ? "no hook" : hook, " takes none of them"));
    }
  }
  if (wrapper.empty()) return spec;
  if (hook.empty()) {
    return ErrorAt(entries.at("comm_wrapper").first,
                   absl::StrCat("comm_wrapper ", wrapper,
                                " has no hook to wrap; for gradients in 16 ",
                                "bits write comm_hook: ", wrapper));
  }
  Spec outer;
  outer.name = wrapper;
  outer.position = PositionOf(entries.at("comm_wrapper").first.Mark());
  outer.inner.push_back(std::move(spec));
  return outer;
}

absl::StatusOr<Spec> ReadHook(const YAML::Node& node, int depth) {
  if (depth > kMaxSpecDepth) {
    return ErrorAt(node, absl::StrCat("more than ", kMaxSpecDepth,
                                      " hooks inside one another"));
  }
  if (node.IsScalar()) return ReadSpec(node);
  if (node.IsMap()) return ReadOurMap(node, depth);
  return ErrorAt(node, absl::StrCat("expected a hook, as a spec such as ",
                                    "powersgd(rank=4) or as a map with its ",
                                    "name; found ", Shown(node)));
}

bool HasKeyOfAccelerate(const YAML::Node& node) {
  for (const auto& entry : node) {
    if (entry.first.IsScalar() &&
        absl::StartsWith(entry.first.Scalar(), "comm_")) {
      return true;
    }
  }
  return false;
}

// Takes note of nothing that is in a document.
class Ignore : public YAML::EventHandler {
 public:
  using Mark = YAML::Mark;
  void OnDocumentStart(const Mark&) override {}
  void OnDocumentEnd() override {}
  void OnNull(const Mark&, YAML::anchor_t) override {}
  void OnAlias(const Mark&, YAML::anchor_t) override {}
  void OnScalar(const Mark&, const std::string&, YAML::anchor_t,
                const std::string&) override {}
  void OnSequenceStart(const Mark&, const std::string&, YAML::anchor_t,
                       YAML::EmitterStyle::value) override {}
  void OnSequenceEnd() override {}
  void OnMapStart(const Mark&, const std::string&, YAML::anchor_t,
                  YAML::EmitterStyle::value) override {}
  void OnMapEnd() override {}
};

// Returns the number of documents, up to `limit`. YAML::LoadAll has none:
// before a lone comma it finds one empty document after the other, without an
// end.
int CountDocuments(const std::string& text, int limit) {
  std::istringstream stream(text);
  YAML::Parser parser(stream);
  Ignore ignore;
  int count = 0;
  while (count < limit && parser.HandleNextDocument(ignore)) ++count;
  return count;
}

// Everything that may throw happens in here; the caller catches it.
absl::StatusOr<std::string> Read(const std::string& text) {
  const int documents = CountDocuments(text, 2);
  if (documents != 1) {
    return ErrorAt(0, absl::StrCat("expected one document that names a hook, ",
                                   "found ", documents > 1 ? "more" : "none"));
  }
  const YAML::Node node = YAML::Load(text);
  COXSWAIN_ASSIGN_OR_RETURN(const Spec spec,
                            node.IsMap() && HasKeyOfAccelerate(node)
                                ? ReadTheirMap(node)
                                : ReadHook(node, 1));
  const SpecErrorAt error = [](size_t position, absl::string_view message) {
    return ErrorAt(position, message);
  };
  COXSWAIN_ASSIGN_OR_RETURN(const std::string canonical,
                            CanonicalSpec(spec, error));
  // What is too deep or too long for a spec shows when it is read as one.
  const auto parsed = ParseSpec(canonical);
  if (!parsed.ok()) return ErrorAt(node, parsed.status().message());
  return canonical;
}

}  // namespace

absl::StatusOr<std::string> HookSpecFromYaml(absl::string_view text) {
  if (text.size() > kMaxHookYaml) {
    return absl::InvalidArgumentError(absl::StrCat(
        "hook YAML may have ", kMaxHookYaml, " bytes, this has ", text.size()));
  }
  try {
    return Read(std::string(text));
  } catch (const YAML::Exception& error) {
    return ErrorAt(PositionOf(error.mark), error.msg);
  } catch (const std::exception& error) {
    return ErrorAt(0, error.what());
  }
}

absl::StatusOr<std::string> ReadHookArgument(const std::string& argument) {
  absl::string_view path = argument;
  if (!absl::ConsumePrefix(&path, "@")) return CanonicalSpec(argument);
  std::string text(kMaxHookYaml + 1, '\0');
  errno = 0;
  std::ifstream file{std::string(path), std::ios::binary};
  if (file) file.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (!file.eof() && !file.good()) {
    return absl::ErrnoToStatus(
        errno != 0 ? errno : EIO,
        absl::StrCat("cannot read the hook from file '", path, "'"));
  }
  text.resize(static_cast<size_t>(file.gcount()));
  absl::StatusOr<std::string> spec = HookSpecFromYaml(text);
  if (spec.ok()) return spec;
  return absl::Status(spec.status().code(),
                      absl::StrCat(path, ": ", spec.status().message()));
}

}  // namespace coxswain
