#include "tests/system/worker_life.h"

#include <cstdlib>
#include <map>

#include "absl/strings/match.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "nlohmann/json.hpp"

namespace coxswain {
namespace {

// Returns "step 3 generation 4" as {step: 3, generation: 4}: words in pairs.
std::map<std::string, std::string> Pairs(absl::string_view line) {
  std::map<std::string, std::string> pairs;
  const std::vector<std::string> words = absl::StrSplit(line, ' ');
  for (size_t i = 0; i + 1 < words.size(); ++i) pairs[words[i]] = words[i + 1];
  return pairs;
}

int64_t Number(const std::map<std::string, std::string>& pairs,
               const std::string& name) {
  const auto found = pairs.find(name);
  return found == pairs.end() ? 0 : std::atoll(found->second.c_str());
}

// Returns the time in a line that has one; else when it was read.
absl::Time TimeOf(const std::map<std::string, std::string>& pairs,
                  absl::Time now) {
  const int64_t micros = Number(pairs, "at_us");
  return micros == 0 ? now : absl::UnixEpoch() + absl::Microseconds(micros);
}

void TakeGeneration(absl::string_view line, absl::Time now, WorkerLife* life) {
  const auto pairs = Pairs(line);
  LivedGeneration generation;
  generation.generation = Number(pairs, "generation");
  generation.rank = static_cast<int>(Number(pairs, "rank"));
  generation.world = static_cast<int>(Number(pairs, "of"));
  generation.from_step = Number(pairs, "step");
  generation.copied = pairs.at("copied") == "yes";
  generation.began = TimeOf(pairs, now);
  generation.first_step = absl::InfiniteFuture();
  generation.ended = absl::InfiniteFuture();
  life->generations.push_back(generation);
}

void TakeStep(absl::string_view line, absl::Time now, WorkerLife* life) {
  const auto pairs = Pairs(line);
  life->step = Number(pairs, "step");
  life->step_generation = Number(pairs, "generation");
  LivedGeneration& newest = life->generations.back();
  if (newest.first_step == absl::InfiniteFuture()) {
    newest.first_step = TimeOf(pairs, now);
  }
}

void TakeResult(absl::string_view text, WorkerLife* life) {
  const auto json =
      nlohmann::json::parse(text.begin(), text.end(), nullptr, false);
  if (!json.is_object()) return;
  WorkerResult result;
  result.step = json.value("step", int64_t{-1});
  result.finished = json.value("finished", false);
  result.samples = json.value("samples", int64_t{-1});
  result.parameters = json.value("parameters", "");
  result.exact = json.value("exact", false);
  result.runs = json["runs"].dump();
  life->result = result;
}

}  // namespace

pid_t PidOfLine(absl::string_view line) {
  if (!absl::StartsWith(line, "generation ")) return 0;
  return static_cast<pid_t>(Number(Pairs(line), "pid"));
}

bool TakeLine(absl::string_view line, absl::Time now, WorkerLife* life) {
  if (absl::StartsWith(line, "generation ")) {
    TakeGeneration(line, now, life);
  } else if (absl::StartsWith(line, "step ")) {
    TakeStep(line, now, life);
  } else if (absl::StartsWith(line, "error ")) {
    life->generations.back().ended = TimeOf(Pairs(line), now);
  } else if (absl::ConsumePrefix(&line, "result ")) {
    TakeResult(line, life);
  } else {
    return false;
  }
  return true;
}

}  // namespace coxswain
