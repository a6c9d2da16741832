#include "server/membership/manifest_check.h"

#include <algorithm>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "server/membership/membership_errors.h"

namespace coxswain::server {
namespace {

absl::Status AtMost(absl::string_view what, size_t value, int limit,
                    absl::string_view limit_name) {
  if (value <= static_cast<size_t>(limit)) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(
      "the manifest has ", value, " ", what, "; ", limit_name, " is ", limit));
}

absl::Status CheckParameter(const ParameterInfo& parameter,
                            const MembershipOptions& options) {
  COXSWAIN_RETURN_IF_ERROR(
      AtMost("bytes in a parameter name", parameter.name.size(),
             options.max_parameter_name_bytes, "max_parameter_name_bytes"));
  COXSWAIN_RETURN_IF_ERROR(AtMost("dimensions in one parameter",
                                  parameter.shape.size(),
                                  options.max_dimensions, "max_dimensions"));
  if (parameter.dtype.empty() || parameter.dtype.size() > 32) {
    return absl::InvalidArgumentError(absl::StrCat(
        "parameter '", parameter.name, "' has no dtype of 1 to 32 bytes"));
  }
  for (const int64_t size : parameter.shape) {
    if (size < 0) {
      return absl::InvalidArgumentError(absl::StrCat(
          "parameter '", parameter.name, "' has a dimension of ", size));
    }
  }
  return absl::OkStatus();
}

std::string Describe(const ParameterInfo& parameter) {
  return absl::StrCat(parameter.name, " ", parameter.dtype, "[",
                      absl::StrJoin(parameter.shape, ","), "]");
}

// Of a long spec or name the beginning is enough to find it.
constexpr size_t kMaxValueBytes = 120;

// Counts all differences and keeps the first lines.
class DiffLines {
 public:
  explicit DiffLines(absl::string_view other)
      : other_(Shorten(other, kMaxValueBytes)) {}

  void Compare(absl::string_view what, absl::string_view theirs,
               absl::string_view ours) {
    if (theirs == ours) return;
    ++count_;
    if (lines_.size() == kMaxDifferences) return;
    std::string line = absl::StrCat(
        Shorten(what, kMaxValueBytes), ": ", Shorten(theirs, kMaxValueBytes),
        " on ", other_, ", ", Shorten(ours, kMaxValueBytes), " here");
    if (bytes_ + line.size() > kMaxDifferenceBytes) return;
    bytes_ += line.size();
    lines_.push_back(std::move(line));
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
  const std::string other_;
  std::vector<std::string> lines_;
  size_t bytes_ = 0;
  size_t count_ = 0;
};

void DiffSettings(const Manifest& theirs, const Manifest& ours,
                  DiffLines* lines) {
  std::set<std::string> keys;
  for (const auto& entry : theirs.settings) keys.insert(entry.first);
  for (const auto& entry : ours.settings) keys.insert(entry.first);
  const auto value = [](const Manifest& manifest, const std::string& key) {
    const auto found = manifest.settings.find(key);
    return found == manifest.settings.end() ? std::string("unset")
                                            : found->second;
  };
  for (const std::string& key : keys) {
    lines->Compare(absl::StrCat("setting ", key), value(theirs, key),
                   value(ours, key));
  }
}

bool SameParameter(const ParameterInfo& a, const ParameterInfo& b) {
  return a.name == b.name && a.shape == b.shape && a.dtype == b.dtype;
}

void DiffParameters(const Manifest& theirs, const Manifest& ours,
                    DiffLines* lines) {
  const size_t n = theirs.parameters.size();
  const size_t m = ours.parameters.size();
  lines->Compare("number of parameters", absl::StrCat(n), absl::StrCat(m));
  for (size_t i = 0; i < std::max(n, m); ++i) {
    if (i < n && i < m &&
        SameParameter(theirs.parameters[i], ours.parameters[i])) {
      continue;
    }
    lines->Compare(absl::StrCat("parameter ", i),
                   i < n ? Describe(theirs.parameters[i]) : "nothing",
                   i < m ? Describe(ours.parameters[i]) : "nothing");
  }
}

}  // namespace

absl::Status CheckManifest(const Manifest& manifest,
                           const MembershipOptions& options) {
  if (manifest.world_size < 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        "world_size must be at least 1, not ", manifest.world_size));
  }
  if (manifest.world_size > options.max_members_per_job) {
    return absl::ResourceExhaustedError(
        absl::StrCat("world_size is ", manifest.world_size,
                     "; max_members_per_job of this coordinator is ",
                     options.max_members_per_job));
  }
  if (manifest.accumulation_steps < 1 ||
      manifest.accumulation_steps > options.max_accumulation_steps) {
    return absl::InvalidArgumentError(absl::StrCat(
        "accumulation_steps must be 1 to ", options.max_accumulation_steps,
        ", not ", manifest.accumulation_steps));
  }
  COXSWAIN_RETURN_IF_ERROR(AtMost("bytes of hook spec", manifest.hook.size(),
                                  options.max_hook_bytes, "max_hook_bytes"));
  COXSWAIN_RETURN_IF_ERROR(AtMost("settings", manifest.settings.size(),
                                  options.max_settings, "max_settings"));
  for (const auto& [key, value] : manifest.settings) {
    COXSWAIN_RETURN_IF_ERROR(
        AtMost("bytes in a setting", std::max(key.size(), value.size()),
               options.max_setting_bytes, "max_setting_bytes"));
  }
  COXSWAIN_RETURN_IF_ERROR(AtMost("parameters", manifest.parameters.size(),
                                  options.max_parameters, "max_parameters"));
  for (const ParameterInfo& parameter : manifest.parameters) {
    COXSWAIN_RETURN_IF_ERROR(CheckParameter(parameter, options));
  }
  return absl::OkStatus();
}

std::vector<std::string> DiffManifests(const Manifest& theirs,
                                       absl::string_view other,
                                       const Manifest& ours) {
  DiffLines lines(other);
  lines.Compare("world_size", absl::StrCat(theirs.world_size),
                absl::StrCat(ours.world_size));
  lines.Compare("hook", theirs.hook, ours.hook);
  lines.Compare("accumulation_steps", absl::StrCat(theirs.accumulation_steps),
                absl::StrCat(ours.accumulation_steps));
  DiffSettings(theirs, ours, &lines);
  DiffParameters(theirs, ours, &lines);
  return std::move(lines).Take();
}

}  // namespace coxswain::server
