#include "cli/checkpoint_format.h"

#include <cstring>
#include <map>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "cli/progress.h"
#include "cli/table.h"
#include "nlohmann/json.hpp"

namespace coxswain {
namespace {

using Json = nlohmann::json;

// What the library writes into the metadata of a checkpoint.
constexpr char kHook[] = "hook";
constexpr char kWorldSize[] = "world_size";
constexpr char kPlanVersion[] = "plan_version";
constexpr char kErrors[] = "errors";
constexpr char kOwn[] = "own";
constexpr char kPosition[] = "position/";

// Programs write what they like into the metadata, and it goes to a terminal.
std::string Visible(const std::string& text) {
  return absl::Utf8SafeCEscape(text);
}

std::string Meta(const v1::CheckpointInfo& one, const std::string& name) {
  const auto found = one.metadata().find(name);
  return found == one.metadata().end() ? "-" : Visible(found->second);
}

std::string MadeText(const v1::CheckpointInfo& one) {
  return absl::FormatTime("%Y-%m-%d %H:%M:%SZ",
                          absl::FromUnixMillis(one.created_unix_ms()),
                          absl::UTCTimeZone());
}

std::string GenerationText(const v1::CheckpointInfo& one) {
  return one.generation() == 0 ? "imported" : absl::StrCat(one.generation());
}

Json ToJson(const v1::CheckpointInfo& one) {
  return {{"id", one.checkpoint_id()},
          {"job", one.job()},
          {"step", one.step()},
          {"generation", one.generation()},
          {"imported", one.generation() == 0},
          {"shards", one.shards()},
          {"bytes", one.bytes()},
          {"created_unix_ms", one.created_unix_ms()},
          {"metadata", std::map<std::string, std::string>(
                           one.metadata().begin(), one.metadata().end())}};
}

std::string Dump(const Json& json) {
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

// What the metadata means, the best known first; names of others as they are.
std::vector<TableRow> Explained(const v1::CheckpointInfo& one) {
  std::vector<TableRow> rows;
  std::map<std::string, std::string> rest(one.metadata().begin(),
                                          one.metadata().end());
  const auto take = [&](const char* name, const std::string& label) {
    const auto found = rest.find(name);
    if (found == rest.end()) return;
    rows.push_back({label, Visible(found->second)});
    rest.erase(found);
  };
  take(kHook, "hook");
  take(kWorldSize, "ranks that saved it");
  take(kPlanVersion, "version of the plan");
  const auto errors = rest.find(kErrors);
  if (errors != rest.end() && errors->second == kOwn) {
    rows.push_back({"errors", "each rank's own"});
    rest.erase(errors);
  } else if (errors == rest.end()) {
    rows.push_back({"errors", "their mean"});
  }
  for (const auto& [name, value] : rest) {
    rows.push_back(
        {absl::StartsWith(name, kPosition)
             ? absl::StrCat("windows done in stream '",
                            Visible(name.substr(strlen(kPosition))), "'")
             : absl::StrCat("'", Visible(name), "'"),
         Visible(value)});
  }
  return rows;
}

}  // namespace

std::string FormatCheckpoints(
    const std::string& job,
    const std::vector<v1::CheckpointInfo>& checkpoints) {
  if (checkpoints.empty()) {
    return absl::StrCat("job ", job, " has no checkpoints\n");
  }
  std::vector<TableRow> rows = {
      {"CHECKPOINT", "STEP", "MADE", "GENERATION", "SHARDS", "SIZE", "HOOK"}};
  int64_t bytes = 0;
  for (const v1::CheckpointInfo& one : checkpoints) {
    rows.push_back({one.checkpoint_id(), absl::StrCat(one.step()),
                    MadeText(one), GenerationText(one),
                    absl::StrCat(one.shards()), SizeText(one.bytes()),
                    Meta(one, kHook)});
    bytes += one.bytes();
  }
  return absl::StrCat("job ", job, ": ", checkpoints.size(), " checkpoint",
                      checkpoints.size() == 1 ? "" : "s", ", ", SizeText(bytes),
                      ", the newest first\n", AlignTable(rows));
}

std::string FormatCheckpointsJson(
    const std::string& job,
    const std::vector<v1::CheckpointInfo>& checkpoints) {
  Json list = Json::array();
  for (const v1::CheckpointInfo& one : checkpoints) list.push_back(ToJson(one));
  return Dump({{"job", job}, {"checkpoints", std::move(list)}});
}

std::string FormatCheckpoint(const v1::ShowResponse& checkpoint) {
  const v1::CheckpointInfo& one = checkpoint.checkpoint();
  std::vector<TableRow> facts = {
      {"job", one.job()},
      {"step", absl::StrCat(one.step())},
      {"made", MadeText(one)},
      {"generation", GenerationText(one)},
      {"size", absl::StrCat(SizeText(one.bytes()), " in ", one.shards(),
                            one.shards() == 1 ? " shard" : " shards")}};
  for (TableRow& row : Explained(one)) facts.push_back(std::move(row));
  std::vector<TableRow> shards = {{"SHARD", "SIZE", "BYTES", "CRC-32C"}};
  for (const v1::ShardInfo& shard : checkpoint.shards()) {
    shards.push_back({absl::StrCat(shard.shard()), SizeText(shard.bytes()),
                      absl::StrCat(shard.bytes()),
                      absl::StrFormat("%08x", shard.crc32c())});
  }
  return absl::StrCat("checkpoint ", one.checkpoint_id(), "\n",
                      AlignTable(facts), AlignTable(shards));
}

std::string FormatCheckpointJson(const v1::ShowResponse& checkpoint) {
  Json json = ToJson(checkpoint.checkpoint());
  Json files = Json::array();
  for (const v1::ShardInfo& shard : checkpoint.shards()) {
    files.push_back({{"shard", shard.shard()},
                     {"file", shard.file()},
                     {"bytes", shard.bytes()},
                     {"crc32c", absl::StrFormat("%08x", shard.crc32c())}});
  }
  json["files"] = std::move(files);
  return Dump(json);
}

}  // namespace coxswain
