#include "cli/checkpoint.h"

#include <string>
#include <vector>

#include "base/status_matchers.h"
#include "cli/job_query.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace coxswain {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

v1::CheckpointInfo Info(const std::string& id, int64_t step,
                        int64_t generation) {
  v1::CheckpointInfo info;
  info.set_checkpoint_id(id);
  info.set_job("mnist");
  info.set_step(step);
  info.set_generation(generation);
  info.set_shards(2);
  info.set_bytes(1500);
  info.set_created_unix_ms(1763800000123);
  (*info.mutable_metadata())["hook"] = "fp16";
  return info;
}

TEST(CheckpointFormatTest, AListIsATable) {
  EXPECT_EQ(FormatCheckpoints("mnist", {}), "job mnist has no checkpoints\n");
  EXPECT_EQ(FormatCheckpoints("mnist", {Info("b", 20, 3), Info("a", 10, 0)}),
            "job mnist: 2 checkpoints, 3.0 kB, the newest first\n"
            "  CHECKPOINT  STEP  MADE                  GENERATION  SHARDS  "
            "SIZE    HOOK\n"
            "  b           20    2025-11-22 08:26:40Z  3           2       "
            "1.5 kB  fp16\n"
            "  a           10    2025-11-22 08:26:40Z  imported    2       "
            "1.5 kB  fp16\n");
}

TEST(CheckpointFormatTest, OneIsExplained) {
  v1::ShowResponse shown;
  *shown.mutable_checkpoint() = Info("b", 20, 3);
  auto& metadata = *shown.mutable_checkpoint()->mutable_metadata();
  metadata["world_size"] = "4";
  metadata["plan_version"] = "7";
  metadata["position/main"] = "240";
  metadata["epoch"] = "2\n\x1b[2Jsch\xc3\xb6n";
  v1::ShardInfo* const shard = shown.add_shards();
  shard->set_shard(0);
  shard->set_file("shard-00000.1");
  shard->set_bytes(1500);
  shard->set_crc32c(0xabc);
  const std::string text = FormatCheckpoint(shown);
  EXPECT_THAT(text, HasSubstr("'epoch'                        "
                              "2\\n\\033[2Jsch\xc3\xb6n\n"));
  metadata["epoch"] = "2";
  for (const char* line :
       {"checkpoint b\n", "  hook  ", "ranks that saved it  ",
        "version of the plan  ", "windows done in stream 'main'  240\n",
        "'epoch'  ", "their mean\n", "1.5 kB  1500   00000abc\n"}) {
    EXPECT_THAT(text, HasSubstr(line));
  }
  metadata["errors"] = "own";
  EXPECT_THAT(FormatCheckpoint(shown),
              AllOf(HasSubstr("each rank's own"), Not(HasSubstr("mean"))));
  const auto json = nlohmann::json::parse(FormatCheckpointJson(shown));
  EXPECT_EQ(json["id"], "b");
  EXPECT_EQ(json["imported"], false);
  EXPECT_EQ(json["metadata"]["epoch"], "2");
  EXPECT_EQ(json["files"][0]["crc32c"], "00000abc");
}

TEST(CheckpointFormatTest, OfAShardedModelThePiecesAreShown) {
  v1::CheckpointInfo sharded = Info("b", 20, 3);
  (*sharded.mutable_metadata())["pieces"] = "412";
  EXPECT_EQ(FormatCheckpoints("mnist", {sharded, Info("a", 10, 0)}),
            "job mnist: 2 checkpoints, 3.0 kB, the newest first\n"
            "  CHECKPOINT  STEP  MADE                  GENERATION  SHARDS  "
            "SIZE    HOOK  PIECES\n"
            "  b           20    2025-11-22 08:26:40Z  3           2       "
            "1.5 kB  fp16  412\n"
            "  a           10    2025-11-22 08:26:40Z  imported    2       "
            "1.5 kB  fp16  -\n");
  v1::ShowResponse shown;
  *shown.mutable_checkpoint() = sharded;
  EXPECT_THAT(FormatCheckpoint(shown),
              AllOf(HasSubstr("pieces of a sharded model  412\n"),
                    HasSubstr("their mean\n")));
  // Pieces alone: there are no errors of a hook.
  shown.mutable_checkpoint()->mutable_metadata()->erase("hook");
  EXPECT_THAT(FormatCheckpoint(shown), Not(HasSubstr("their mean")));
}

TEST(CheckpointFormatTest, AListAsJson) {
  const auto json = nlohmann::json::parse(
      FormatCheckpointsJson("mnist", {Info("b", 20, 3), Info("a", 10, 0)}));
  EXPECT_EQ(json["job"], "mnist");
  EXPECT_EQ(json["checkpoints"][1]["imported"], true);
  EXPECT_EQ(json["checkpoints"][0]["bytes"], 1500);
  EXPECT_EQ(json["checkpoints"][0]["created_at"], 1763800000.123);
  EXPECT_EQ(json["checkpoints"][0]["metadata"]["hook"], "fp16");
  // A name of an earlier version.
  EXPECT_EQ(json["checkpoints"][0]["created_unix_ms"], 1763800000123);
}

TEST(CheckpointQueryTest, OneIsNamedByIdStepOrNewest) {
  const std::vector<v1::CheckpointInfo> all = {Info("step-20-b", 20, 3),
                                               Info("step-10-a", 10, 3),
                                               Info("step-10-i", 10, 0)};
  const auto pick = [&](const std::string& which) {
    const auto picked = PickCheckpoint(all, "mnist", which);
    return picked.ok() ? picked->checkpoint_id() : picked.status().ToString();
  };
  EXPECT_EQ(pick("newest"), "step-20-b");
  EXPECT_EQ(pick("20"), "step-20-b");
  EXPECT_EQ(pick("step-10-i"), "step-10-i");
  EXPECT_THAT(pick("10"), AllOf(HasSubstr("INVALID_ARGUMENT"),
                                HasSubstr("step-10-a, step-10-i")));
  EXPECT_THAT(pick("11"), AllOf(HasSubstr("NOT_FOUND"),
                                HasSubstr("no checkpoint of step 11"),
                                HasSubstr("step-20-b, step-10-a, step-10-i")));
  EXPECT_THAT(PickCheckpoint({}, "mnist", "newest"),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("it has none")));
}

}  // namespace
}  // namespace coxswain
