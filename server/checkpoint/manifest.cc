#include "server/checkpoint/manifest.h"

#include <exception>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "base/crc32c.h"
#include "nlohmann/json.hpp"

namespace coxswain::server {
namespace {

// The first line is "coxswain-checkpoint <version> <crc32c of the rest>".
constexpr absl::string_view kMagic = "coxswain-checkpoint";
constexpr int kVersion = 1;

using Json = nlohmann::json;

absl::Status Damaged(absl::string_view what) {
  return absl::DataLossError(
      absl::StrCat("the checkpoint's manifest is damaged: ", what));
}

Json ToJson(const CheckpointRecord& record) {
  Json shards = Json::array();
  for (const auto& [index, shard] : record.shards) {
    shards.push_back({{"shard", index},
                      {"file", shard.file},
                      {"bytes", shard.bytes},
                      {"crc32c", shard.crc32c}});
  }
  return {{"id", record.id},
          {"job", record.job},
          {"step", record.step},
          {"generation", record.generation.value()},
          {"shard_count", record.shard_count},
          {"metadata", record.metadata},
          {"created_unix_ms", absl::ToUnixMillis(record.created)},
          {"shards", std::move(shards)}};
}

CheckpointRecord FromJson(const Json& json) {
  CheckpointRecord record;
  record.id = json.at("id").get<std::string>();
  record.job = json.at("job").get<std::string>();
  record.step = json.at("step").get<int64_t>();
  record.generation = Generation(json.value("generation", int64_t{0}));
  record.shard_count = json.at("shard_count").get<int>();
  record.metadata =
      json.at("metadata").get<std::map<std::string, std::string>>();
  record.created =
      absl::FromUnixMillis(json.at("created_unix_ms").get<int64_t>());
  for (const Json& item : json.at("shards")) {
    ShardRecord shard;
    shard.shard = item.at("shard").get<int>();
    shard.file = item.at("file").get<std::string>();
    shard.bytes = item.at("bytes").get<int64_t>();
    shard.crc32c = item.at("crc32c").get<uint32_t>();
    record.shards[shard.shard] = shard;
  }
  return record;
}

}  // namespace

int64_t CheckpointRecord::TotalBytes() const {
  int64_t bytes = 0;
  for (const auto& [index, shard] : shards) bytes += shard.bytes;
  return bytes;
}

absl::StatusOr<std::string> EncodeManifest(const CheckpointRecord& record) {
  try {
    const std::string body = absl::StrCat(ToJson(record).dump(1), "\n");
    return absl::StrFormat("%s %d %08x\n%s", kMagic, kVersion, Crc32c(body),
                           body);
  } catch (const std::exception& error) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the checkpoint's metadata cannot be written: ", error.what()));
  }
}

absl::StatusOr<CheckpointRecord> DecodeManifest(absl::string_view bytes) {
  const std::pair<absl::string_view, absl::string_view> parts =
      absl::StrSplit(bytes, absl::MaxSplits('\n', 1));
  const std::vector<absl::string_view> header =
      absl::StrSplit(parts.first, ' ');
  int version = 0;
  if (header.size() < 2 || header[0] != kMagic ||
      !absl::SimpleAtoi(header[1], &version)) {
    return Damaged("its first line is not that of a manifest");
  }
  if (version != kVersion) {
    return absl::UnimplementedError(
        absl::StrCat("the checkpoint's manifest has version ", version,
                     "; this coordinator reads version ", kVersion));
  }
  uint32_t crc32c = 0;
  if (header.size() != 3 || !absl::SimpleHexAtoi(header[2], &crc32c)) {
    return Damaged("its first line has no checksum");
  }
  if (Crc32c(parts.second) != crc32c) return Damaged("its checksum differs");
  try {
    return FromJson(Json::parse(parts.second.begin(), parts.second.end()));
  } catch (const std::exception& error) {
    return Damaged(error.what());
  }
}

}  // namespace coxswain::server
