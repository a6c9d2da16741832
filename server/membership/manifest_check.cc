#include "server/membership/manifest_check.h"

#include <algorithm>
#include <cstdint>
#include <map>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/check.h"
#include "base/mesh.h"
#include "base/peer_text.h"
#include "base/status_macros.h"
#include "base/version.h"
#include "schedule/plan.h"
#include "schedule/terms.h"
#include "server/membership/library_version.h"

namespace coxswain::server {
namespace {

// No value of a setting needs more.
constexpr int kMaxSettingTextBytes = 128;

// Of a text that is refused, in the error: receivers bound its length.
constexpr size_t kMaxShownBytes = 128;

absl::Status AtMost(absl::string_view what, size_t value, int limit,
                    absl::string_view limit_name) {
  if (value <= static_cast<size_t>(limit)) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(
      "the manifest has ", value, " ", what, "; ", limit_name, " is ", limit));
}

// They are shown to people, on terminals as well.
absl::Status CheckShown(absl::string_view what, absl::string_view text) {
  if (!HasControls(text)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("the manifest's ", what, ", '",
                   absl::CHexEscape(Shorten(text, kMaxShownBytes)),
                   "', has control characters"));
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
  const bool strides_fit = parameter.strides.empty() ||
                           parameter.strides.size() == parameter.shape.size();
  if (!strides_fit ||
      std::any_of(parameter.strides.begin(), parameter.strides.end(),
                  [](int64_t stride) { return stride < 0; })) {
    return absl::InvalidArgumentError(absl::StrCat(
        "parameter '", parameter.name, "' has ", parameter.shape.size(),
        " dimensions and strides [",
        Shorten(absl::StrJoin(parameter.strides, ","), kMaxShownBytes),
        "]: there must be one of 0 or more for each, or none"));
  }
  return absl::OkStatus();
}

absl::Status CheckTerms(const std::map<std::string, std::string>& values) {
  for (const auto& [name, value] : values) {
    COXSWAIN_RETURN_IF_ERROR(AtMost("bytes in a setting of the plan",
                                    std::max(name.size(), value.size()),
                                    kMaxSettingTextBytes, "max_term_bytes"));
  }
  COXSWAIN_ASSIGN_OR_RETURN(const schedule::Terms terms,
                            schedule::Terms::FromMap(values));
  return terms.Validate();
}

// Its ranks can be placed on its mesh, if it has one.
absl::Status CheckMesh(const Manifest& manifest) {
  if (manifest.mesh.empty()) return absl::OkStatus();
  return ParseJobMesh(manifest.mesh, manifest.MinWorldSize(),
                      manifest.world_size)
      .status();
}

absl::Status CheckTrainableMesh(const Manifest& manifest) {
  if (manifest.mesh.empty()) return absl::OkStatus();
  COXSWAIN_ASSIGN_OR_RETURN(const Mesh mesh, Mesh::Parse(manifest.mesh));
  COXSWAIN_ASSIGN_OR_RETURN(const schedule::Terms terms,
                            schedule::Terms::FromMap(manifest.terms));
  return CheckTrainable(mesh, !terms.pipeline.empty());
}

// A client without a version is served: there are others than ours.
absl::Status CheckVersion(const std::map<std::string, std::string>& settings) {
  const auto found = settings.find(kLibraryVersionSetting);
  if (found == settings.end()) return absl::OkStatus();
  return CheckLibraryVersion(found->second, kVersion);
}

bool IsRowMajor(const ParameterInfo& parameter) {
  int64_t expected = 1;
  for (size_t i = parameter.shape.size(); i-- > 0;) {
    if (parameter.shape[i] == 0) return true;
    if (parameter.shape[i] == 1) continue;
    if (parameter.strides[i] != expected) return false;
    // Wraps where the shape is nonsense: the comparison is all it is for.
    expected = static_cast<int64_t>(static_cast<uint64_t>(expected) *
                                    static_cast<uint64_t>(parameter.shape[i]));
  }
  return true;
}

void NormaliseStrides(ParameterInfo* parameter) {
  if (parameter->strides.empty()) return;
  if (IsRowMajor(*parameter)) {
    parameter->strides.clear();
    return;
  }
  // Nothing is ever multiplied with those of a dimension of 1.
  for (size_t i = 0; i < parameter->shape.size(); ++i) {
    if (parameter->shape[i] == 1) parameter->strides[i] = 1;
  }
}

}  // namespace

absl::Status CheckManifestBounds(const Manifest& manifest) {
  const auto not_negative = [](int64_t number) { return number >= 0; };
  const bool sizes = manifest.world_size >= 1 &&
                     manifest.world_size <= kMaxWorldSize &&
                     manifest.min_world_size >= 0 &&
                     manifest.min_world_size <= manifest.world_size;
  if (!sizes || manifest.accumulation_steps < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("a manifest cannot be for ", manifest.min_world_size,
                     " to ", manifest.world_size, " workers and ",
                     manifest.accumulation_steps, " micro-batches"));
  }
  COXSWAIN_RETURN_IF_ERROR(manifest.Check("manifest."));
  COXSWAIN_RETURN_IF_ERROR(CheckMesh(manifest));
  for (const ParameterInfo& parameter : manifest.parameters) {
    const std::vector<int64_t>& shape = parameter.shape;
    const std::vector<int64_t>& strides = parameter.strides;
    if (std::all_of(shape.begin(), shape.end(), not_negative) &&
        std::all_of(strides.begin(), strides.end(), not_negative) &&
        (strides.empty() || strides.size() == shape.size())) {
      continue;
    }
    return absl::InvalidArgumentError(absl::StrCat(
        "a parameter cannot have the shape [",
        Shorten(absl::StrJoin(shape, ","), kMaxShownBytes),
        "] and the strides [",
        Shorten(absl::StrJoin(strides, ","), kMaxShownBytes), "]"));
  }
  return absl::OkStatus();
}

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
  if (manifest.min_world_size < 0 ||
      manifest.min_world_size > manifest.world_size) {
    return absl::InvalidArgumentError(absl::StrCat(
        "min_world_size must be 1 to the world_size of ", manifest.world_size,
        ", or 0 for that, not ", manifest.min_world_size));
  }
  if (manifest.accumulation_steps < 1 ||
      manifest.accumulation_steps > options.max_accumulation_steps) {
    return absl::InvalidArgumentError(absl::StrCat(
        "accumulation_steps must be 1 to ", options.max_accumulation_steps,
        ", not ", manifest.accumulation_steps));
  }
  COXSWAIN_RETURN_IF_ERROR(AtMost("bytes of hook spec", manifest.hook.size(),
                                  options.max_hook_bytes, "max_hook_bytes"));
  COXSWAIN_RETURN_IF_ERROR(manifest.Check(""));
  COXSWAIN_RETURN_IF_ERROR(CheckShown("hook spec", manifest.hook));
  COXSWAIN_RETURN_IF_ERROR(CheckTerms(manifest.terms));
  COXSWAIN_RETURN_IF_ERROR(AtMost("settings", manifest.settings.size(),
                                  options.max_settings, "max_settings"));
  for (const auto& [key, value] : manifest.settings) {
    COXSWAIN_RETURN_IF_ERROR(
        AtMost("bytes in a setting", std::max(key.size(), value.size()),
               options.max_setting_bytes, "max_setting_bytes"));
  }
  COXSWAIN_RETURN_IF_ERROR(CheckVersion(manifest.settings));
  COXSWAIN_RETURN_IF_ERROR(AtMost("parameters", manifest.parameters.size(),
                                  options.max_parameters, "max_parameters"));
  for (const ParameterInfo& parameter : manifest.parameters) {
    COXSWAIN_RETURN_IF_ERROR(CheckParameter(parameter, options));
  }
  COXSWAIN_RETURN_IF_ERROR(CheckManifestBounds(manifest));
  return CheckTrainableMesh(manifest);
}

void NormaliseManifest(Manifest* manifest) {
  const auto terms = schedule::Terms::FromMap(manifest->terms);
  COXSWAIN_CHECK(terms.ok());
  const auto defaults = schedule::Terms().ToMap();
  manifest->terms.clear();
  for (const auto& [name, value] : terms->ToMap()) {
    if (value != defaults.at(name)) manifest->terms[name] = value;
  }
  for (ParameterInfo& parameter : manifest->parameters) {
    NormaliseStrides(&parameter);
  }
  NormaliseLibraryVersion(manifest);
}

void NormaliseLibraryVersion(Manifest* manifest) {
  const auto version = manifest->settings.find(kLibraryVersionSetting);
  if (version == manifest->settings.end()) return;
  version->second = LibrarySeries(version->second);
}

bool SameParameter(const ParameterInfo& a, const ParameterInfo& b) {
  return a.name == b.name && a.shape == b.shape && a.dtype == b.dtype &&
         a.strides == b.strides;
}

bool SameManifest(const Manifest& a, const Manifest& b) {
  return a.world_size == b.world_size && a.MinWorldSize() == b.MinWorldSize() &&
         a.mesh == b.mesh && a.SameSettings(b) && a.terms == b.terms &&
         a.settings == b.settings &&
         std::equal(a.parameters.begin(), a.parameters.end(),
                    b.parameters.begin(), b.parameters.end(), SameParameter);
}

}  // namespace coxswain::server
