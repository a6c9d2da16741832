#include "server/checkpoint/manifest.h"

#include <exception>
#include <limits>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "base/crc32c.h"
#include "base/status_macros.h"
#include "nlohmann/json.hpp"

namespace coxswain::server {
namespace {

// The first line is "coxswain-checkpoint <version> <crc32c of the rest>".
constexpr absl::string_view kMagic = "coxswain-checkpoint";
constexpr int kVersion = 1;
// No coordinator gets that far, and the next generations can still be counted.
constexpr int64_t kMaxGeneration = int64_t{1} << 53;

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

// The file may contain any number, or none.
absl::Status ReadNumber(const Json& json, const char* name, int64_t most,
                        int64_t* value) {
  const Json& number = json.at(name);
  // Of another kind, the conversion would be undefined.
  if (number.is_number_integer()) {
    *value = number.get<int64_t>();  // too large: comes out negative
    if (*value >= 0 && *value <= most) return absl::OkStatus();
  }
  return Damaged(
      absl::StrCat("'", name, "' is no whole number from 0 to ", most));
}

template <typename Number>
absl::Status ReadNumber(const Json& json, const char* name, Number* value) {
  int64_t number = 0;
  COXSWAIN_RETURN_IF_ERROR(
      ReadNumber(json, name, std::numeric_limits<Number>::max(), &number));
  *value = static_cast<Number>(number);
  return absl::OkStatus();
}

absl::Status ReadShards(const Json& json, CheckpointRecord* record) {
  int64_t total = 0;
  for (const Json& item : json.at("shards")) {
    ShardRecord shard;
    COXSWAIN_RETURN_IF_ERROR(ReadNumber(item, "shard", &shard.shard));
    COXSWAIN_RETURN_IF_ERROR(ReadNumber(item, "bytes", &shard.bytes));
    COXSWAIN_RETURN_IF_ERROR(ReadNumber(item, "crc32c", &shard.crc32c));
    shard.file = item.at("file").get<std::string>();
    if (__builtin_add_overflow(total, shard.bytes, &total)) {
      return Damaged("no disk holds as many bytes as its shards have");
    }
    if (!record->shards.emplace(shard.shard, shard).second) {
      return Damaged(absl::StrCat("it has shard ", shard.shard, " twice"));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<CheckpointRecord> FromJson(const Json& json) {
  CheckpointRecord record;
  record.id = json.at("id").get<std::string>();
  record.job = json.at("job").get<std::string>();
  COXSWAIN_RETURN_IF_ERROR(ReadNumber(json, "step", &record.step));
  int64_t generation = 0;
  if (json.contains("generation")) {
    COXSWAIN_RETURN_IF_ERROR(
        ReadNumber(json, "generation", kMaxGeneration, &generation));
  }
  record.generation = Generation(generation);
  COXSWAIN_RETURN_IF_ERROR(
      ReadNumber(json, "shard_count", &record.shard_count));
  record.metadata =
      json.at("metadata").get<std::map<std::string, std::string>>();
  const Json& created = json.at("created_unix_ms");
  if (!created.is_number_integer()) return Damaged("it has no date");
  record.created = absl::FromUnixMillis(created.get<int64_t>());
  COXSWAIN_RETURN_IF_ERROR(ReadShards(json, &record));
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
