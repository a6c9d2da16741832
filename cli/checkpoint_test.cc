// `coxswain checkpoint` against a coordinator in this process, on real files.
#include "cli/checkpoint.h"

#include <stdlib.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/crc32c.h"
#include "base/random.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "client/rpc/fake_coordinator_stub.h"
#include "client/rpc/stub_factory.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/rendezvous.pb.h"
#include "server/coordinator.h"
#include "server/storage/file_system.h"

namespace coxswain {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using Action = CheckpointOptions::Action;

std::string Bytes(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

std::string RandomBytes(size_t size) {
  std::string data(size, '\0');
  const CounterRandom random(1, 2);
  for (size_t i = 0; i < size; ++i) data[i] = static_cast<char>(random.Bits(i));
  return data;
}

// Returns the files of a folder by name.
std::map<std::string, std::string> Files(const fs::path& folder) {
  std::map<std::string, std::string> files;
  for (const auto& file : fs::directory_iterator(folder)) {
    files[file.path().filename().string()] = Bytes(file.path());
  }
  return files;
}

class CheckpointTest : public testing::Test {
 protected:
  CheckpointTest() {
    std::string folder = testing::TempDir() + "/checkpoint_test-XXXXXX";
    EXPECT_NE(mkdtemp(folder.data()), nullptr);
    root_ = folder;
    server::CoordinatorOptions options;
    options.state_dir = (root_ / "state").string();
    coordinator_ = server::Coordinator::Start(options).value();
    stub_ =
        ConnectCoordinator(absl::StrCat("127.0.0.1:", coordinator_->port()));
    world_.transfer.stub = stub_.get();
    world_.transfer.files = server::PosixFileSystem();
    world_.transfer.random = RandomSource::System();
    world_.confirm = [this](const std::string& question) {
      asked_ = question;
      return answer_;
    };
    options_.job = "job";
    options_.timeout = absl::Seconds(30);
  }

  // Saves these shards from a job of one worker; returns the checkpoint's id.
  absl::StatusOr<std::string> Save(int64_t step,
                                   const std::vector<std::string>& shards,
                                   int keep_last = 0) {
    if (fence_.generation() == 0) COXSWAIN_RETURN_IF_ERROR(Join());
    v1::BeginRequest begin;
    *begin.mutable_fence() = fence_;
    begin.set_step(step);
    begin.set_shards(static_cast<int>(shards.size()));
    (*begin.mutable_metadata())["hook"] = "fp16";
    COXSWAIN_ASSIGN_OR_RETURN(const auto open,
                              stub_->BeginCheckpoint(begin, CallOptions()));
    for (size_t i = 0; i < shards.size(); ++i) {
      COXSWAIN_RETURN_IF_ERROR(
          Upload(open.checkpoint_id(), static_cast<int>(i), shards[i]));
    }
    v1::CommitRequest commit;
    *commit.mutable_fence() = fence_;
    commit.set_checkpoint_id(open.checkpoint_id());
    commit.set_keep_last(keep_last);
    COXSWAIN_RETURN_IF_ERROR(
        stub_->CommitCheckpoint(commit, CallOptions()).status());
    return open.checkpoint_id();
  }
  absl::Status Join() {
    v1::JoinRequest join;
    join.set_job("job");
    join.mutable_identity()->set_node("n");
    join.set_incarnation(1);
    join.set_host("here");
    join.set_address("127.0.0.1");
    join.mutable_manifest()->set_world_size(1);
    join.mutable_manifest()->set_hook("fp16");
    join.mutable_manifest()->set_accumulation_steps(1);
    join.set_timeout_ms(10'000);
    COXSWAIN_ASSIGN_OR_RETURN(const auto joined,
                              stub_->Join(join, CallOptions()));
    fence_.set_cluster_id(joined.cluster_id());
    fence_.set_term(joined.term());
    fence_.set_job("job");
    fence_.set_generation(joined.generation());
    fence_.set_incarnation(1);
    return absl::OkStatus();
  }
  absl::Status Upload(const std::string& id, int shard,
                      const std::string& data) {
    constexpr size_t kChunk = 1 << 20;
    const auto stream = stub_->Upload(CallOptions());
    v1::UploadRequest request;
    *request.mutable_header()->mutable_fence() = fence_;
    request.mutable_header()->set_checkpoint_id(id);
    request.mutable_header()->set_shard(shard);
    request.mutable_header()->set_bytes(static_cast<int64_t>(data.size()));
    request.mutable_header()->set_crc32c(Crc32c(data));
    bool open = stream->Write(request);
    for (size_t at = 0; open && at < data.size(); at += kChunk) {
      const std::string chunk = data.substr(at, kChunk);
      open = stream->WriteChunk(static_cast<int64_t>(at), chunk, Crc32c(chunk),
                                nullptr);
    }
    return stream->Finish();
  }

  std::string Run(Action action, const std::string& which = "newest") {
    options_.action = action;
    options_.which = which;
    const auto text = RunCheckpoint(options_, world_);
    return text.ok() ? *text : text.status().ToString();
  }
  std::string Export(const std::string& folder) {
    options_.folder = (root_ / folder).string();
    return Run(Action::kExport);
  }
  std::string Import(const std::string& folder) {
    options_.folder = (root_ / folder).string();
    return Run(Action::kImport);
  }
  size_t CountStored(const std::string& job = "job") {
    size_t count = 0;
    std::error_code ignored;
    for (const auto& entry : fs::directory_iterator(
             root_ / "state" / "checkpoints" / job, ignored)) {
      static_cast<void>(entry);
      ++count;
    }
    return count;
  }
  void FlipBit(const fs::path& path, size_t byte) {
    std::string data = Bytes(path);
    ASSERT_LT(byte, data.size()) << path;
    data[byte] = static_cast<char>(data[byte] ^ 4);
    std::ofstream(path, std::ios::binary) << data;
  }

  fs::path root_;
  std::unique_ptr<server::Coordinator> coordinator_;
  std::shared_ptr<CoordinatorStub> stub_;
  v1::Fence fence_;
  CheckpointWorld world_;
  CheckpointOptions options_;
  std::string asked_;
  bool answer_ = false;
};

TEST_F(CheckpointTest, ExportDeleteImportGivesTheSameBytes) {
  const std::string large = RandomBytes((3 << 20) + 17);
  ASSERT_OK_AND_ASSIGN(const std::string id, Save(40, {large, "", "small"}));
  EXPECT_THAT(Run(Action::kList), AllOf(HasSubstr(id), HasSubstr("fp16")));
  EXPECT_THAT(Run(Action::kShow, "40"), HasSubstr("3145745"));
  EXPECT_THAT(Run(Action::kVerify, id), HasSubstr("no damage"));
  EXPECT_THAT(Export("out"), HasSubstr(id));
  // The files are byte by byte those of the coordinator.
  EXPECT_EQ(Files(root_ / "out"),
            Files(root_ / "state" / "checkpoints" / "job" / id));

  answer_ = true;
  EXPECT_THAT(Run(Action::kDelete, id), HasSubstr("deleted checkpoint"));
  EXPECT_THAT(asked_, HasSubstr(id));
  EXPECT_EQ(CountStored(), 0);
  EXPECT_THAT(Run(Action::kList), HasSubstr("no checkpoints"));

  EXPECT_THAT(Import("out"), HasSubstr("step 40"));
  EXPECT_THAT(Run(Action::kList),
              AllOf(HasSubstr("imported"), Not(HasSubstr(id))));
  EXPECT_THAT(Run(Action::kVerify), HasSubstr("no damage"));
  EXPECT_THAT(Export("again"), HasSubstr("step 40"));
  const auto before = server::DecodeManifest(Bytes(root_ / "out/MANIFEST"));
  const auto after = server::DecodeManifest(Bytes(root_ / "again/MANIFEST"));
  ASSERT_OK(before);
  ASSERT_OK(after);
  EXPECT_EQ(after->metadata, before->metadata);
  EXPECT_EQ(after->created, before->created);
  EXPECT_EQ(after->step, before->step);
  const auto files = Files(root_ / "again");
  ASSERT_EQ(after->shards.size(), 3);
  EXPECT_TRUE(files.at(after->shards.at(0).file) == large);
  EXPECT_EQ(files.at(after->shards.at(1).file), "");
  EXPECT_EQ(files.at(after->shards.at(2).file), "small");
}

TEST_F(CheckpointTest, AnotherJobOfAnotherNameMayHaveIt) {
  ASSERT_OK(Save(40, {"data"}).status());
  ASSERT_THAT(Export("out"), HasSubstr("exported"));
  options_.job = "elsewhere";
  EXPECT_THAT(Import("out"), HasSubstr("of job elsewhere"));
  EXPECT_THAT(Run(Action::kList), HasSubstr("imported"));
  EXPECT_THAT(Import("out"),
              AllOf(HasSubstr("ALREADY_EXISTS"), HasSubstr("delete it first")));
  EXPECT_EQ(CountStored("elsewhere"), 1);
  options_.job = "";  // The manifest's job, whose step 40 is not an import.
  EXPECT_THAT(Import("out"), HasSubstr("of job job"));
  EXPECT_EQ(CountStored("job"), 2);
}

TEST_F(CheckpointTest, AFlippedBitOfAnExportIsRefusedWithItsShard) {
  ASSERT_OK_AND_ASSIGN(const std::string id, Save(40, {"data", "more data"}));
  ASSERT_THAT(Export("out"), HasSubstr(id));
  FlipBit(root_ / "out" / "shard-00001.2", 3);
  options_.job = "elsewhere";
  EXPECT_THAT(Import("out"),
              AllOf(HasSubstr("DATA_LOSS"), HasSubstr("shard 1 ("),
                    HasSubstr("shard-00001.2"), HasSubstr("CRC-32C")));
  FlipBit(root_ / "out" / "shard-00001.2", 3);
  fs::resize_file(root_ / "out" / "shard-00000.1", 3);
  EXPECT_THAT(Import("out"),
              AllOf(HasSubstr("shard 0 ("), HasSubstr("has 3 bytes")));
  fs::remove(root_ / "out" / "shard-00000.1");
  EXPECT_THAT(Import("out"),
              AllOf(HasSubstr("shard 0 ("), HasSubstr("is missing")));
  FlipBit(root_ / "out" / "MANIFEST", 60);
  EXPECT_THAT(Import("out"), AllOf(HasSubstr("DATA_LOSS"),
                                   HasSubstr("manifest"), HasSubstr("out")));
  EXPECT_THAT(Import("nowhere"), HasSubstr("NOT_FOUND"));
  EXPECT_EQ(CountStored("elsewhere"), 0);
}

// A stub describes a checkpoint that does not exist, with a malicious id.
TEST_F(CheckpointTest, ExportWritesToNoPathThatTheCoordinatorChooses) {
  for (const char* id : {"", ".", "..", "/tmp/x", "../x", "a/b"}) {
    FakeCoordinatorStub fake;
    v1::CheckpointInfo info;
    info.set_job("job");
    info.set_checkpoint_id(id);
    fake.Answer<v1::DescribeRequest, v1::DescribeResponse>(
        "Rendezvous/Describe",
        [](const v1::DescribeRequest&, const CallOptions&) {
          v1::DescribeResponse response;
          response.add_jobs()->set_job("job");
          return response;
        });
    fake.Answer<v1::ListRequest, v1::ListResponse>(
        "Checkpoint/List", [&](const v1::ListRequest&, const CallOptions&) {
          v1::ListResponse response;
          *response.add_checkpoints() = info;
          return response;
        });
    fake.Answer<v1::ShowRequest, v1::ShowResponse>(
        "Checkpoint/Show", [&](const v1::ShowRequest&, const CallOptions&) {
          v1::ShowResponse response;
          *response.mutable_checkpoint() = info;
          return response;
        });
    world_.transfer.stub = &fake;
    EXPECT_THAT(Run(Action::kExport),
                HasSubstr("cannot be the name of a folder"))
        << id;
  }
}

TEST_F(CheckpointTest, ExportOverwritesNothingAndLeavesNothingBehind) {
  ASSERT_OK_AND_ASSIGN(const std::string id, Save(40, {"data", "more data"}));
  fs::create_directories(root_ / "dir");
  std::ofstream(root_ / "file") << "precious";
  EXPECT_THAT(Export("dir"), HasSubstr("ALREADY_EXISTS"));
  EXPECT_THAT(Export("file"), HasSubstr("ALREADY_EXISTS"));
  EXPECT_EQ(Bytes(root_ / "file"), "precious");
  EXPECT_THAT(Export("none/such"), HasSubstr("NOT_FOUND"));
  // An export that fails in the middle.
  FlipBit(root_ / "state" / "checkpoints" / "job" / id / "shard-00001.2", 1);
  EXPECT_THAT(Export("out"),
              AllOf(HasSubstr("DATA_LOSS"), HasSubstr("shard 1")));
  for (const auto& entry : fs::directory_iterator(root_)) {
    EXPECT_THAT(entry.path().filename().string(), Not(HasSubstr("out")));
  }
}

TEST_F(CheckpointTest, VerifyNamesEveryDamagedShard) {
  ASSERT_OK_AND_ASSIGN(const std::string id,
                       Save(40, {"data", "more data", "last"}));
  const fs::path folder = root_ / "state" / "checkpoints" / "job" / id;
  FlipBit(folder / "shard-00000.1", 1);
  fs::remove(folder / "shard-00002.3");
  EXPECT_THAT(Run(Action::kVerify),
              AllOf(HasSubstr("DATA_LOSS"), HasSubstr("shard 0 (file"),
                    HasSubstr("shard 2 of"), Not(HasSubstr("shard 1"))));
  FlipBit(folder / "MANIFEST", 60);
  EXPECT_THAT(Run(Action::kVerify), HasSubstr("manifest is damaged"));
}

TEST_F(CheckpointTest, DeleteAsksFirst) {
  ASSERT_OK_AND_ASSIGN(const std::string id, Save(40, {"data"}));
  EXPECT_THAT(Run(Action::kDelete), HasSubstr("nothing was deleted"));
  EXPECT_EQ(CountStored(), 1);
  options_.yes = true;
  asked_.clear();
  EXPECT_THAT(Run(Action::kDelete), HasSubstr("deleted checkpoint"));
  EXPECT_EQ(asked_, "");
  EXPECT_THAT(Run(Action::kDelete, id), HasSubstr("NOT_FOUND"));
}

TEST_F(CheckpointTest, RetentionKeepsWhatTheJobAsksForAndImports) {
  for (const int64_t step : {10, 20, 30}) ASSERT_OK(Save(step, {"data"}));
  options_.folder = (root_ / "ten").string();
  ASSERT_THAT(Run(Action::kExport, "10"), HasSubstr("exported"));
  ASSERT_THAT(Import("ten"), HasSubstr("step 10"));
  ASSERT_OK(Save(40, {"data"}, /*keep_last=*/2));
  // 10, 20 and 30 were read less than a minute ago at most; 20 was not.
  const std::string list = Run(Action::kList);
  EXPECT_THAT(
      list,
      AllOf(HasSubstr("step-000000000040"), HasSubstr("step-000000000030"),
            Not(HasSubstr("step-000000000020")), HasSubstr("imported")));
}

TEST_F(CheckpointTest, NowReportsWhyTheJobCannotSave) {
  options_.job = "stranger";
  EXPECT_THAT(Run(Action::kNow),
              HasSubstr("did not accept the request to save"));
}

}  // namespace
}  // namespace coxswain
