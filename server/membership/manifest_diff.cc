#include "server/membership/manifest_diff.h"

#include <algorithm>
#include <functional>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "schedule/plan.h"
#include "schedule/terms.h"
#include "server/membership/manifest_check.h"
#include "server/membership/membership_errors.h"

namespace coxswain::server {
namespace {

// Of a long spec or name this much is shown.
constexpr size_t kMaxValueBytes = 120;
constexpr size_t kMaxNameBytes = 64;
// In one line of a difference among many.
constexpr size_t kMaxValues = 4;
constexpr size_t kMaxNamedDifferences = 4;

std::string Describe(const ParameterInfo& parameter) {
  std::string text = absl::StrCat(parameter.name, " ", parameter.dtype, "[",
                                  absl::StrJoin(parameter.shape, ","), "]");
  if (!parameter.strides.empty()) {
    absl::StrAppend(&text, " strides [", absl::StrJoin(parameter.strides, ","),
                    "]");
  }
  return text;
}

using Manifests = std::vector<const Manifest*>;
using Values = std::vector<std::string>;  // one for each manifest

// Returns what is shown of values that differ: of long ones the beginning, or
// where they part if that is further on.
Values Excerpts(const Values& values) {
  const std::string& first = values.front();
  size_t common = first.size();
  for (const std::string& value : values) {
    const size_t end = std::min(common, value.size());
    common =
        std::mismatch(first.begin(), first.begin() + end, value.begin()).first -
        first.begin();
  }
  const size_t begin = common > kMaxValueBytes / 2
                           ? LetterStart(first, common - kMaxValueBytes / 4)
                           : 0;
  const bool fit = std::all_of(
      values.begin(), values.end(),
      [](const std::string& v) { return v.size() <= kMaxValueBytes; });
  Values shown;
  for (const std::string& value : values) {
    const absl::string_view rest = value;
    shown.push_back(OneLine(
        fit || begin == 0 ? Shorten(rest, kMaxValueBytes)
                          : absl::StrCat("...", Shorten(rest.substr(begin),
                                                        kMaxValueBytes))));
  }
  return shown;
}

// Counts all differences and keeps the first lines.
class DiffLines {
 public:
  // How the values of a line are written, once they differ.
  using Format =
      std::function<std::string(const Values& values, const Values& shown)>;

  explicit DiffLines(Format format) : format_(std::move(format)) {}

  void Compare(absl::string_view what, const Values& values) {
    if (std::equal(values.begin() + 1, values.end(), values.begin())) return;
    ++count_;
    if (full()) return;
    std::string line = absl::StrCat(OneLine(Shorten(what, kMaxValueBytes)),
                                    ": ", format_(values, Excerpts(values)));
    bytes_ += line.size();
    if (!full()) lines_.push_back(std::move(line));
  }

  // Counts one more that differs, whose text will not be shown.
  void Count() { ++count_; }
  bool full() const {
    return lines_.size() == kMaxDifferences || bytes_ > kMaxDifferenceBytes;
  }

  std::vector<std::string> Take() && {
    if (count_ > lines_.size()) {
      if (lines_.size() == kMaxDifferences) lines_.pop_back();
      lines_.push_back(
          absl::StrCat("and ", count_ - lines_.size(), " more differences"));
    }
    return std::move(lines_);
  }

 private:
  const Format format_;
  std::vector<std::string> lines_;
  size_t bytes_ = 0;
  size_t count_ = 0;
};

template <typename ValueOf>
void Compare(absl::string_view what, const Manifests& manifests,
             const ValueOf& value_of, DiffLines* lines) {
  Values values;
  values.reserve(manifests.size());
  for (const Manifest* manifest : manifests) {
    values.push_back(value_of(*manifest));
  }
  lines->Compare(what, values);
}

using Settings = std::map<std::string, std::string>;

// `standard` is what stands for a name that a manifest does not have.
void CompareMaps(absl::string_view kind, const Manifests& manifests,
                 Settings Manifest::*field,
                 const std::function<std::string(const std::string&)>& standard,
                 DiffLines* lines) {
  std::set<std::string> keys;
  for (const Manifest* manifest : manifests) {
    for (const auto& entry : manifest->*field) keys.insert(entry.first);
  }
  for (const std::string& key : keys) {
    Compare(
        absl::StrCat(kind, key), manifests,
        [&](const Manifest& manifest) {
          const auto found = (manifest.*field).find(key);
          return found == (manifest.*field).end() ? standard(key)
                                                  : found->second;
        },
        lines);
  }
}

bool SameParameterAt(size_t i, const Manifests& manifests) {
  const auto& first = manifests.front()->parameters;
  return std::all_of(
      manifests.begin(), manifests.end(), [&](const Manifest* manifest) {
        const auto& other = manifest->parameters;
        if (i >= first.size()) return i >= other.size();
        return i < other.size() && SameParameter(first[i], other[i]);
      });
}

void CompareParameters(const Manifests& manifests, DiffLines* lines) {
  size_t longest = 0;
  for (const Manifest* manifest : manifests) {
    longest = std::max(longest, manifest->parameters.size());
  }
  Compare(
      "number of parameters", manifests,
      [](const Manifest& m) { return absl::StrCat(m.parameters.size()); },
      lines);
  for (size_t i = 0; i < longest; ++i) {
    if (SameParameterAt(i, manifests)) continue;
    if (lines->full()) {
      lines->Count();
      continue;
    }
    Compare(
        absl::StrCat("parameter ", i), manifests,
        [i](const Manifest& m) {
          return i < m.parameters.size() ? Describe(m.parameters[i])
                                         : std::string("nothing");
        },
        lines);
  }
}

std::vector<std::string> Diff(const Manifests& manifests,
                              DiffLines::Format format) {
  DiffLines lines(std::move(format));
  Compare(
      "world_size", manifests,
      [](const Manifest& m) { return absl::StrCat(m.world_size); }, &lines);
  Compare(
      "min_world_size", manifests,
      [](const Manifest& m) {
        return m.MinWorldSize() == m.world_size
                   ? std::string("world_size")
                   : absl::StrCat(m.MinWorldSize());
      },
      &lines);
  Compare(
      "mesh", manifests,
      [](const Manifest& m) {
        return m.mesh.empty() ? std::string("none") : m.mesh;
      },
      &lines);
  const std::vector<schedule::NamedValue> fields =
      schedule::StepSettings().Values();
  for (size_t i = 0; i < fields.size(); ++i) {
    Compare(
        fields[i].name, manifests,
        [i](const Manifest& m) { return m.Values()[i].text; }, &lines);
  }
  const Settings defaults = schedule::Terms().ToMap();
  CompareMaps(
      "", manifests, &Manifest::terms,
      [&](const std::string& name) { return defaults.at(name); }, &lines);
  CompareMaps(
      "setting ", manifests, &Manifest::settings,
      [](const std::string&) { return std::string("unset"); }, &lines);
  CompareParameters(manifests, &lines);
  return std::move(lines).Take();
}

// "rank 0 (bow/0), rank 1 (bow/1) and 14 more".
std::string NameHolders(const std::vector<size_t>& holders,
                        const std::vector<std::string>& names) {
  std::string text;
  for (size_t i = 0; i < std::min(holders.size(), kMaxNamedDifferences); ++i) {
    absl::StrAppend(&text, i == 0 ? "" : ", ",
                    Shorten(names[holders[i]], kMaxNameBytes));
  }
  if (holders.size() > kMaxNamedDifferences) {
    absl::StrAppend(&text, " and ", holders.size() - kMaxNamedDifferences,
                    " more");
  }
  return text;
}

struct Group {
  std::string shown;
  std::vector<size_t> holders;
};

// Returns the groups, the largest first; among equals the one with the first
// holder.
std::vector<Group> GroupByValue(const Values& values, const Values& shown,
                                const std::vector<HeldManifest>& held) {
  std::map<std::string, Group> by_value;
  for (size_t i = 0; i < values.size(); ++i) {
    Group& group = by_value[values[i]];
    group.shown = shown[i];
    group.holders.insert(group.holders.end(), held[i].holders.begin(),
                         held[i].holders.end());
  }
  std::vector<Group> groups;
  for (auto& [value, group] : by_value) {
    std::sort(group.holders.begin(), group.holders.end());
    groups.push_back(std::move(group));
  }
  std::sort(groups.begin(), groups.end(), [](const Group& a, const Group& b) {
    if (a.holders.size() != b.holders.size()) {
      return a.holders.size() > b.holders.size();
    }
    return a.holders < b.holders;
  });
  return groups;
}

std::string FormatGroups(const std::vector<Group>& groups,
                         const std::vector<std::string>& names) {
  std::string text;
  for (size_t i = 0; i < std::min(groups.size(), kMaxValues); ++i) {
    absl::StrAppend(&text, i == 0 ? "" : "; ", groups[i].shown, " on ",
                    NameHolders(groups[i].holders, names));
  }
  if (groups.size() > kMaxValues) {
    absl::StrAppend(&text, "; and ", groups.size() - kMaxValues,
                    " other values");
  }
  return text;
}

}  // namespace

std::vector<std::string> DiffManifests(const Manifest& theirs,
                                       absl::string_view other,
                                       const Manifest& ours) {
  const std::string name = Shorten(other, kMaxValueBytes);
  return Diff({&theirs, &ours}, [&name](const Values&, const Values& shown) {
    return absl::StrCat(shown[0], " on ", name, ", ", shown[1], " here");
  });
}

std::vector<std::string> DiffManifests(const std::vector<HeldManifest>& held,
                                       const std::vector<std::string>& names) {
  Manifests manifests;
  for (const HeldManifest& each : held) manifests.push_back(each.manifest);
  return Diff(manifests, [&](const Values& values, const Values& shown) {
    return FormatGroups(GroupByValue(values, shown, held), names);
  });
}

}  // namespace coxswain::server
