#include "client/device/selection.h"

#include <algorithm>
#include <filesystem>
#include <system_error>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/status_macros.h"

namespace coxswain {
namespace {

// No host has more, nor could its workers be started.
constexpr int kMostGpus = 4096;
constexpr size_t kMaxUuid = 128;

bool ParseNumber(absl::string_view text, int* number) {
  const bool digits = !text.empty() && std::all_of(text.begin(), text.end(),
                                                   absl::ascii_isdigit);
  return digits && absl::SimpleAtoi(text, number) && *number < kMostGpus;
}

bool IsNumber(absl::string_view text) {
  int ignored = 0;
  return ParseNumber(text, &ignored);
}

bool IsUuid(absl::string_view text) {
  if (text.size() > kMaxUuid) return false;
  if (!absl::StartsWithIgnoreCase(text, "GPU-") &&
      !absl::StartsWithIgnoreCase(text, "MIG-")) {
    return false;
  }
  return text.size() > 4 && std::all_of(text.begin(), text.end(), [](char c) {
           return absl::ascii_isalnum(c) || c == '-' || c == '/';
         });
}

absl::Status Malformed(absl::string_view text) {
  return absl::InvalidArgumentError(absl::StrCat(
      "must be how many GPUs, as in 4; or which, with commas between, as in "
      "2,0 (and 2, for that one alone), by their numbers or by their UUIDs as "
      "`nvidia-smi -L` prints them; or none; not '",
      text, "'"));
}

// CUDA takes the beginning of a UUID for all of it.
bool MayBeTheSame(absl::string_view a, absl::string_view b) {
  if (IsNumber(a) && IsNumber(b)) return a == b;
  return absl::StartsWithIgnoreCase(a, b) || absl::StartsWithIgnoreCase(b, a);
}

absl::Status CheckList(const std::vector<std::string>& listed) {
  for (size_t i = 0; i < listed.size(); ++i) {
    if (IsNumber(listed[i]) != IsNumber(listed[0])) {
      return absl::InvalidArgumentError(
          absl::StrCat("names ", listed[0], " and ", listed[i],
                       ", which could be the same GPU: give numbers only, or "
                       "UUIDs only"));
    }
    for (size_t j = 0; j < i; ++j) {
      if (!MayBeTheSame(listed[i], listed[j])) continue;
      return absl::InvalidArgumentError(absl::StrCat(
          "two ranks would share GPU ", listed[i], " (places ", j, " and ", i,
          " of the list): each worker has one of its own"));
    }
  }
  return absl::OkStatus();
}

int CountEntries(const std::filesystem::path& folder,
                 bool (*counts)(const std::string& name)) {
  std::error_code error;
  std::filesystem::directory_iterator entry(folder, error);
  int count = 0;
  while (!error && entry != std::filesystem::directory_iterator()) {
    if (counts(entry->path().filename().string())) ++count;
    entry.increment(error);
  }
  return count;
}

bool IsGpuNode(const std::string& name) {
  absl::string_view rest = name;
  return absl::ConsumePrefix(&rest, "nvidia") && IsNumber(rest);
}

std::string Gpus(int count) {
  return absl::StrCat(count, count == 1 ? " GPU" : " GPUs");
}

std::string Workers(int count) {
  return absl::StrCat(count, count == 1 ? " worker" : " workers");
}

// Returns what the launcher may hand out, as CUDA reads the variable: up to the
// first entry that names none of the host's.
std::vector<std::string> Shown(const std::string& visible,
                               const HostGpus& host) {
  std::vector<std::string> shown;
  for (absl::string_view entry : absl::StrSplit(visible, ',')) {
    entry = absl::StripAsciiWhitespace(entry);
    int number = 0;
    const bool there = ParseNumber(entry, &number)
                           ? !host.count.has_value() || number < *host.count
                           : IsUuid(entry);
    if (!there) break;
    shown.emplace_back(entry);
  }
  return shown;
}

std::vector<std::string> NumbersBelow(int count) {
  std::vector<std::string> numbers;
  for (int i = 0; i < count; ++i) numbers.push_back(absl::StrCat(i));
  return numbers;
}

// The GPUs that a request's numbers count, and their description.
struct Offer {
  std::optional<std::vector<std::string>> gpus;  // nothing: not known
  std::string text;                              // "this host has 2 GPUs"
};

Offer OfferOf(const HostGpus& host, const std::optional<std::string>& visible) {
  if (visible.has_value()) {
    Offer offer = {Shown(*visible, host), ""};
    offer.text = absl::StrCat(
        "CUDA_VISIBLE_DEVICES='", *visible, "' shows ",
        Gpus(static_cast<int>(offer.gpus->size())),
        host.count.has_value() ? absl::StrCat(" of this host's ", *host.count)
                               : "");
    return offer;
  }
  if (!host.count.has_value()) return {};
  return {NumbersBelow(*host.count),
          absl::StrCat("this host has ", Gpus(*host.count))};
}

absl::Status NotThere(absl::string_view gpu, const Offer& offer) {
  return absl::InvalidArgumentError(absl::StrCat(
      "there is no GPU ", gpu, ": ", offer.text, ", counted from 0"));
}

// Returns what the process must be shown for one that was listed.
absl::StatusOr<std::string> Find(const std::string& listed,
                                 const Offer& offer) {
  if (!offer.gpus.has_value()) return listed;
  int number = 0;
  if (ParseNumber(listed, &number)) {
    if (number < static_cast<int>(offer.gpus->size())) {
      return (*offer.gpus)[number];
    }
    return NotThere(listed, offer);
  }
  // Against numbers a UUID cannot be held.
  bool comparable = !offer.gpus->empty();
  for (const std::string& gpu : *offer.gpus) {
    comparable = comparable && !IsNumber(gpu);
    if (MayBeTheSame(gpu, listed)) return listed;
  }
  if (comparable || offer.gpus->empty()) return NotThere(listed, offer);
  return listed;
}

absl::Status CheckCounts(const GpuRequest& request, const HostGpus& host,
                         const Offer& offer, int local_ranks) {
  if (host.count == 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "no GPU on this host: ", host.why_none,
        ". Leave --gpus out, or give --gpus none, to train on the CPU"));
  }
  if (request.count < local_ranks) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--gpus names ", Gpus(request.count), " for ", Workers(local_ranks),
        " of --nproc: each needs one of its own"));
  }
  if (request.count > local_ranks) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--gpus names ", Gpus(request.count), " for ", Workers(local_ranks),
        " of --nproc, one each: leave --nproc out for one worker per GPU",
        request.listed.empty()
            ? absl::StrCat(", or give --gpus ", request.count,
                           ", with a comma for GPU number ", request.count)
            : ""));
  }
  if (request.listed.empty() && offer.gpus.has_value() &&
      request.count > static_cast<int>(offer.gpus->size())) {
    return absl::InvalidArgumentError(
        absl::StrCat("--gpus asks for ", Gpus(request.count), ", and ",
                     offer.text, ": start fewer workers on this host"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<GpuRequest> ParseGpuRequest(absl::string_view text) {
  GpuRequest request;
  if (text == "none") return request;
  if (ParseNumber(text, &request.count)) {
    if (request.count > 0) return request;
    return absl::InvalidArgumentError(
        "0 GPUs: give none for the CPU, or 0, with a comma for GPU number 0");
  }
  absl::string_view list = text;
  absl::ConsumeSuffix(&list, ",");
  for (absl::string_view entry : absl::StrSplit(list, ',')) {
    entry = absl::StripAsciiWhitespace(entry);
    if (!IsNumber(entry) && !IsUuid(entry)) return Malformed(text);
    request.listed.emplace_back(entry);
  }
  if (request.listed.size() > kMostGpus) return Malformed(text.substr(0, 80));
  COXSWAIN_RETURN_IF_ERROR(CheckList(request.listed));
  request.count = static_cast<int>(request.listed.size());
  return request;
}

HostGpus CountHostGpus(const std::string& root) {
  const std::filesystem::path top(root);
  const int known = CountEntries(top / "proc/driver/nvidia/gpus",
                                 [](const std::string&) { return true; });
  const int nodes = CountEntries(top / "dev", IsGpuNode);
  // A container may see all, and have access to some; and a driver may not
  // have made its nodes yet.
  if (known > 0 && nodes > 0) return {std::min(known, nodes), ""};
  if (known + nodes > 0) return {known + nodes, ""};
  std::error_code ignored;
  if (std::filesystem::exists(top / "dev/dxg", ignored)) return {};
  return {0,
          "no NVIDIA driver shows one (neither /proc/driver/nvidia/gpus nor "
          "/dev/nvidia0 is there)"};
}

absl::StatusOr<GpuAssignment> AssignGpus(
    const GpuRequest& request, const HostGpus& host,
    const std::optional<std::string>& visible, int local_ranks) {
  GpuAssignment assignment;
  if (request.count == 0) return assignment;
  const Offer offer = OfferOf(host, visible);
  COXSWAIN_RETURN_IF_ERROR(CheckCounts(request, host, offer, local_ranks));
  const std::vector<std::string> wanted =
      request.listed.empty() ? NumbersBelow(request.count) : request.listed;
  for (const std::string& one : wanted) {
    COXSWAIN_ASSIGN_OR_RETURN(std::string gpu, Find(one, offer));
    assignment.devices.push_back(static_cast<int>(assignment.visible.size()));
    assignment.visible.push_back(std::move(gpu));
  }
  // What was inherited may name one twice, where CUDA shows none of them.
  const absl::Status distinct = CheckList(assignment.visible);
  if (distinct.ok()) return assignment;
  return absl::InvalidArgumentError(
      absl::StrCat(offer.text, ", of which ", distinct.message()));
}

}  // namespace coxswain
