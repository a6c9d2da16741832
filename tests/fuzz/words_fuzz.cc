// The small languages of command lines and variables.

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_split.h"
#include "base/check.h"
#include "cli/address.h"
#include "cli/command_line.h"
#include "cli/plan_change.h"
#include "client/device/selection.h"
#include "client/session/job.h"
#include "client/session/session_options.h"
#include "schedule/plan_words.h"
#include "schedule/terms.h"
#include "server/open_state.h"
#include "tests/fuzz/decoders.h"
#include "transport/listen_address.h"

namespace coxswain {
namespace {

void ReadAddresses(absl::string_view text) {
  const auto one = ParseHostPort(text, PortRule::kAnyFree);
  if (one.ok()) {
    const auto again = ParseHostPort(one->ToString(), PortRule::kAnyFree);
    COXSWAIN_CHECK(again.ok() && again->host == one->host &&
                   again->port == one->port);
    IsLoopback(one->host);
  }
  ParseHostPorts(text).IgnoreError();
  ParseListenAddress(text).IgnoreError();
  server::ParseStateLocation(text).IgnoreError();
}

void ReadGpus(absl::string_view text) {
  const auto request = ParseGpuRequest(text);
  if (!request.ok()) return;
  HostGpus host;
  host.count = 4;
  for (const int ranks : {1, 4, 5}) {
    AssignGpus(*request, host, std::nullopt, ranks).IgnoreError();
    AssignGpus(*request, host, std::string(text), ranks).IgnoreError();
  }
}

void ReadPlan(absl::string_view text) {
  const std::string words(text);
  const auto overrides = ReadPlanOverrides({words});
  if (overrides.ok()) {
    const auto again = ReadPlanOverrides({*overrides});
    COXSWAIN_CHECK(again.ok() && *again == *overrides);
  }
  const auto change = PlanChange::Parse(absl::StrSplit(words, ' '));
  if (change.ok()) change->ApplyTo(schedule::Plan()).IgnoreError();
  const auto parsed = ParsePlanOverrides(text);
  JobManifest manifest;
  if (parsed.ok()) schedule::ApplyPlanWords(*parsed, &manifest).IgnoreError();
}

// Lines of NAME=VALUE.
void ReadEnvironment(absl::string_view text) {
  std::map<std::string, std::string> variables;
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    const std::pair<std::string, std::string> one =
        absl::StrSplit(line, absl::MaxSplits('=', 1));
    variables[one.first] = one.second;
  }
  SessionOptions::FromVariables([&](const char* name) -> const char* {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  }).IgnoreError();
}

// Returns whether a command line would make this process read files.
bool NamesFile(absl::string_view text) {
  return absl::StrContains(text, '/') || absl::StrContains(text, '@') ||
         absl::StrContains(text, "--config");
}

}  // namespace

void FuzzAddresses(absl::string_view input) {
  ReadAddresses(input);
  ReadGpus(input);
}

void FuzzPlanWords(absl::string_view input) {
  ReadPlan(input);
  const std::pair<std::string, std::string> term =
      absl::StrSplit(input, absl::MaxSplits('=', 1));
  schedule::Terms terms;
  if (!terms.Set(term.first, term.second).ok()) return;
  const auto again = schedule::Terms::FromMap(terms.ToMap());
  COXSWAIN_CHECK(again.ok() && *again == terms);
}

void FuzzEnvironment(absl::string_view input) { ReadEnvironment(input); }

// An argument in each line.
void FuzzCommandLine(absl::string_view input) {
  if (NamesFile(input)) return;
  ParseCommandLine(absl::StrSplit(input, '\n')).IgnoreError();
}

}  // namespace coxswain
