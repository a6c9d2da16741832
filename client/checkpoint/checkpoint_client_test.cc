#include "client/checkpoint/checkpoint_client.h"

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/cord.h"
#include "base/status_matchers.h"
#include "client/checkpoint/fake_checkpoint_service.h"
#include "client/rpc/member_context.h"
#include "gtest/gtest.h"
#include "transport/error_detail.h"

namespace coxswain::checkpoint_client_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class CheckpointClientTest : public ::testing::Test {
 protected:
  CheckpointClientTest() {
    v1::Fence fence;
    fence.set_job("mnist");
    RetryPolicy policy;
    policy.base = policy.cap = absl::Microseconds(10);
    member_ = std::make_shared<MemberContext>(fake_, fence, policy);
    client_ = std::make_unique<CheckpointClient>(member_);
  }

  // A complete checkpoint of one shard.
  CheckpointDescription SaveOne(const std::string& bytes) {
    const auto id = client_->Save(5, 0, 1, {{"hook", "fp16"}}, bytes);
    EXPECT_OK(id);
    const auto checkpoint = client_->Commit(*id);
    EXPECT_OK(checkpoint);
    return *checkpoint;
  }

  std::shared_ptr<FakeCoordinatorStub> fake_ =
      std::make_shared<FakeCoordinatorStub>();
  FakeCheckpointService service_{fake_.get()};
  std::shared_ptr<MemberContext> member_;
  std::unique_ptr<CheckpointClient> client_;
};

class SizesTest : public CheckpointClientTest,
                  public ::testing::WithParamInterface<int> {};

TEST_P(SizesTest, WhatWasSavedIsLoaded) {
  std::string bytes;
  for (int i = 0; i < GetParam(); ++i) bytes += static_cast<char>(i * 7);
  const CheckpointDescription saved = SaveOne(bytes);
  EXPECT_EQ(saved.step, 5);
  EXPECT_EQ(saved.metadata.at("hook"), "fp16");
  ASSERT_OK_AND_ASSIGN(const auto shards, client_->LoadAll(saved));
  ASSERT_EQ(shards.size(), 1u);
  EXPECT_EQ(shards[0], bytes);
}

// Around the chunk size of ten bytes.
INSTANTIATE_TEST_SUITE_P(All, SizesTest,
                         ::testing::Values(0, 1, 9, 10, 11, 99));

// Both may have to wait until the coordinator has removed whole checkpoints.
TEST_F(CheckpointClientTest, BeginAndCommitHaveAsLongAsATransfer) {
  client_ = std::make_unique<CheckpointClient>(member_, absl::Hours(2));
  SaveOne("abc");
  EXPECT_GT(service_.begin_timeout, absl::Hours(1));
  EXPECT_GT(service_.commit_timeout, absl::Hours(1));
}

TEST_F(CheckpointClientTest, ABrokenUploadIsRepeated) {
  int uploads = 0;
  service_.upload_error = [&uploads](int) -> absl::Status {
    if (++uploads < 3) return absl::UnavailableError("connection reset");
    return absl::OkStatus();
  };
  ASSERT_OK_AND_ASSIGN(const auto shard,
                       client_->LoadShard(SaveOne("abc").id, 0));
  EXPECT_EQ(shard, "abc");
  EXPECT_EQ(uploads, 3);
}

TEST_F(CheckpointClientTest, AnUploadThatIsRefusedIsNot) {
  int uploads = 0;
  service_.upload_error = [&uploads](int) -> absl::Status {
    ++uploads;
    return absl::DataLossError("wrong checksum");
  };
  EXPECT_THAT(
      client_->Save(5, 0, 1, {}, "abc"),
      StatusIs(absl::StatusCode::kDataLoss, HasSubstr("wrong checksum")));
  EXPECT_EQ(uploads, 1);
}

TEST_F(CheckpointClientTest, AfterARestartOfTheCoordinatorItIsBegunAgain) {
  int uploads = 0;
  service_.upload_error = [&](int) -> absl::Status {
    if (++uploads > 2) return absl::OkStatus();
    member_->term().Raise(uploads);
    if (uploads == 2) return absl::NotFoundError("no open checkpoint");
    v1::ErrorDetail detail;
    detail.mutable_stale_fence()->set_field("term");
    detail.mutable_stale_fence()->set_expected("1");
    return WithDetail(absl::FailedPreconditionError("stale term"), detail);
  };
  ASSERT_OK_AND_ASSIGN(const auto shard,
                       client_->LoadShard(SaveOne("abc").id, 0));
  EXPECT_EQ(shard, "abc");
  EXPECT_EQ(uploads, 3);
}

TEST_F(CheckpointClientTest,
       AnOpenCheckpointThatIsDeletedWithinOneTermIsAnError) {
  service_.upload_error = [](int) -> absl::Status {
    return absl::NotFoundError("no open checkpoint");
  };
  EXPECT_THAT(
      client_->Save(5, 0, 1, {}, "abc"),
      StatusIs(absl::StatusCode::kNotFound, HasSubstr("no open checkpoint")));
}

struct Damage {
  std::string name;
  std::function<void(std::vector<v1::DownloadChunk>*)> spoil;
};

class DamageTest : public CheckpointClientTest,
                   public ::testing::WithParamInterface<Damage> {};

TEST_P(DamageTest, IsDataLossThatNamesTheShard) {
  const std::string id = SaveOne("twenty bytes of data and more").id;
  service_.spoil_download = GetParam().spoil;
  EXPECT_THAT(client_->LoadShard(id, 0),
              StatusIs(absl::StatusCode::kDataLoss,
                       AllOf(HasSubstr("shard 0"), HasSubstr(id))));
}

using Chunks = std::vector<v1::DownloadChunk>;
INSTANTIATE_TEST_SUITE_P(
    All, DamageTest,
    ::testing::Values(
        Damage{"FlippedByte",
               [](Chunks* chunks) {
                 (*(*chunks)[2].mutable_chunk()->mutable_data())[3] ^= 1;
               }},
        Damage{"FlippedByteWithItsChecksum",
               [](Chunks* chunks) {
                 v1::Chunk* chunk = (*chunks)[2].mutable_chunk();
                 (*chunk->mutable_data())[3] ^= 1;
                 chunk->set_crc32c(Crc32c(chunk->data()));
               }},
        Damage{"MissingChunk",
               [](Chunks* chunks) { chunks->erase(chunks->begin() + 2); }},
        Damage{"CutOff", [](Chunks* chunks) { chunks->pop_back(); }},
        Damage{"RepeatedChunk",
               [](Chunks* chunks) { chunks->push_back(chunks->back()); }},
        Damage{"NoHeader",
               [](Chunks* chunks) { chunks->erase(chunks->begin()); }},
        Damage{"TwoHeaders",
               [](Chunks* chunks) {
                 chunks->insert(chunks->begin(), chunks->front());
               }},
        Damage{"Nothing", [](Chunks* chunks) { chunks->clear(); }}),
    [](const auto& info) { return info.param.name; });

class RangesTest : public CheckpointClientTest {
 protected:
  // Of "0123...", two digits for each ten.
  absl::Status Load(const std::vector<ShardRange>& ranges) {
    const CheckpointDescription saved =
        SaveOne("00112233445566778899aabbccddeeff");
    got_.clear();
    return client_->LoadRanges(saved.id, 0, ranges,
                               [&](absl::string_view more) {
                                 got_.append(more.data(), more.size());
                                 return absl::OkStatus();
                               });
  }

  std::string got_;
};

TEST_F(RangesTest, TheirBytesComeInOrder) {
  ASSERT_OK(Load({{2, 4}, {10, 1}, {12, 20}}));
  EXPECT_EQ(got_, "1122566778899aabbccddeeff");
  ASSERT_OK(Load({}));
  EXPECT_EQ(got_, "");
}

TEST_F(RangesTest, MoreThanACallTakesComeInSeveral) {
  const CheckpointDescription saved = SaveOne(std::string(10000, 'x'));
  std::vector<ShardRange> ranges;
  for (int64_t i = 0; i < 5000; ++i) ranges.push_back({2 * i, 1});
  int64_t bytes = 0;
  int calls = 0;
  service_.download_error = [&](std::vector<v1::DownloadChunk>*) {
    ++calls;
    return absl::OkStatus();
  };
  ASSERT_OK(
      client_->LoadRanges(saved.id, 0, ranges, [&](absl::string_view more) {
        bytes += static_cast<int64_t>(more.size());
        return absl::OkStatus();
      }));
  EXPECT_EQ(bytes, 5000);
  EXPECT_EQ(calls, 2);
}

TEST_F(RangesTest, ABrokenOneGoesOnBehindWhatHasCome) {
  int calls = 0;
  service_.download_error =
      [&](std::vector<v1::DownloadChunk>* chunks) -> absl::Status {
    if (++calls > 3) return absl::OkStatus();
    chunks->resize(2);  // the header and one chunk
    return absl::UnavailableError("connection reset");
  };
  ASSERT_OK(Load({{0, 15}, {20, 12}}));
  EXPECT_EQ(got_,
            "001122334455667"
            "aabbccddeeff");
  EXPECT_EQ(calls, 4);
}

TEST_F(RangesTest, ACoordinatorThatSendsWholeShardsIsRefused) {
  service_.knows_ranges = false;
  EXPECT_THAT(Load({{2, 4}}),
              StatusIs(absl::StatusCode::kUnimplemented,
                       AllOf(HasSubstr("only whole shards"),
                             HasSubstr("update the coordinator"))));
  EXPECT_EQ(got_, "");
}

TEST_F(RangesTest, DamageOnTheWayIsFound) {
  service_.spoil_download = [](std::vector<v1::DownloadChunk>* chunks) {
    chunks->back().mutable_chunk()->set_data("zz");
  };
  EXPECT_THAT(Load({{2, 2}}), StatusIs(absl::StatusCode::kDataLoss,
                                       HasSubstr("wrong CRC-32C")));
  service_.spoil_download = [](std::vector<v1::DownloadChunk>* chunks) {
    chunks->back().mutable_chunk()->set_offset(3);
  };
  EXPECT_THAT(Load({{2, 2}}), StatusIs(absl::StatusCode::kDataLoss,
                                       HasSubstr("none of the ranges")));
  service_.spoil_download = [](std::vector<v1::DownloadChunk>* chunks) {
    chunks->pop_back();
  };
  EXPECT_THAT(Load({{2, 2}}), StatusIs(absl::StatusCode::kDataLoss,
                                       HasSubstr("ranges are missing")));
}

}  // namespace
}  // namespace coxswain::checkpoint_client_test
