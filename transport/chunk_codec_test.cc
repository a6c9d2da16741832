#include "transport/chunk_codec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/random.h"
#include "base/status_matchers.h"
#include "proto/checkpoint.pb.h"

namespace coxswain::bulk {
namespace {

constexpr int kField = v1::UploadRequest::kChunkFieldNumber;

std::string Joined(const Payload& payload) {
  std::string bytes;
  for (const absl::string_view piece : payload.pieces()) {
    bytes.append(piece.data(), piece.size());
  }
  return bytes;
}

std::string Joined(const grpc::ByteBuffer& buffer) {
  std::vector<grpc::Slice> slices;
  EXPECT_TRUE(buffer.Dump(&slices).ok());
  return Joined(Payload(slices));
}

// Returns the bytes in slices of at most `piece` bytes.
grpc::ByteBuffer InPieces(const std::string& bytes, size_t piece) {
  std::vector<grpc::Slice> slices;
  for (size_t at = 0; at < bytes.size(); at += piece) {
    slices.emplace_back(bytes.substr(at, piece));
  }
  return grpc::ByteBuffer(slices.data(), slices.size());
}

v1::UploadRequest ChunkMessage(int64_t offset, uint32_t crc,
                               const std::string& data) {
  v1::UploadRequest message;
  message.mutable_chunk()->set_offset(offset);
  message.mutable_chunk()->set_crc32c(crc);
  message.mutable_chunk()->set_data(data);
  return message;
}

grpc::ByteBuffer Ours(int64_t offset, uint32_t crc, const std::string& data) {
  return EncodeChunk(kField, offset, crc, grpc::Slice(data));
}

struct Case {
  int64_t offset;
  uint32_t crc;
  std::string data;
};

std::vector<Case> Cases() {
  return {
      {0, 0, ""},
      {0, 0, "x"},
      {1, 1, std::string(127, 'a')},
      {int64_t{1} << 40, 0xffffffff, std::string(128, 'b')},
      {-1, 0x80000000, std::string(1 << 20, '\0')},
  };
}

TEST(ChunkCodecTest, ProtobufReadsWhatIsEncodedHere) {
  for (const auto& [offset, crc, data] : Cases()) {
    v1::UploadRequest message;
    ASSERT_TRUE(message.ParseFromString(Joined(Ours(offset, crc, data))));
    ASSERT_TRUE(message.has_chunk());
    EXPECT_EQ(message.chunk().offset(), offset);
    EXPECT_EQ(message.chunk().crc32c(), crc);
    EXPECT_EQ(message.chunk().data(), data);
  }
}

TEST(ChunkCodecTest, ReadsWhatProtobufHasEncoded) {
  for (const auto& [offset, crc, data] : Cases()) {
    const std::string bytes =
        ChunkMessage(offset, crc, data).SerializeAsString();
    for (const size_t piece : {size_t{1}, size_t{7}, size_t{1} << 21}) {
      if (bytes.size() / piece > 1 << 16) continue;
      const auto chunk = DecodeChunk(InPieces(bytes, piece), kField);
      ASSERT_TRUE(chunk.has_value());
      EXPECT_EQ(chunk->offset, offset);
      EXPECT_EQ(chunk->crc32c, crc);
      EXPECT_EQ(chunk->data.size(), data.size());
      EXPECT_EQ(Joined(chunk->data), data);
    }
  }
}

TEST(ChunkCodecTest, NeitherEndCopiesTheData) {
  const std::string data(1 << 20, 'd');
  const grpc::ByteBuffer buffer =
      EncodeChunk(kField, 5, 6, Lend(data, std::make_shared<int>(0)));
  const std::optional<Chunk> chunk = DecodeChunk(buffer, kField);
  ASSERT_TRUE(chunk.has_value());
  ASSERT_EQ(chunk->data.pieces().size(), 1u);
  EXPECT_EQ(chunk->data.pieces()[0].data(), data.data());
}

TEST(ChunkCodecTest, TheOwnerIsHeldUntilTheLastSliceIsReleased) {
  auto owner = std::make_shared<std::string>(1000, 'o');
  const std::weak_ptr<std::string> watch = owner;
  std::optional<Chunk> chunk;
  {
    const grpc::Slice slice = Lend(*owner, owner);
    chunk = DecodeChunk(EncodeChunk(kField, 0, 0, slice), kField);
    owner.reset();
  }
  EXPECT_EQ(Joined(chunk->data), std::string(1000, 'o'));
  EXPECT_FALSE(watch.expired());
  chunk.reset();
  EXPECT_TRUE(watch.expired());
}

TEST(ChunkCodecTest, AHeaderIsLeftToProtobuf) {
  v1::UploadRequest header;
  header.mutable_header()->set_checkpoint_id("step-1");
  v1::UploadRequest message;
  const auto decoded = Decode(Encode(header), &message);
  ASSERT_THAT(decoded, IsOk());
  const std::optional<Chunk>& chunk = *decoded;
  EXPECT_FALSE(chunk.has_value());
  EXPECT_EQ(message.header().checkpoint_id(), "step-1");
}

TEST(ChunkCodecTest, AnEmptyMessageIsNoChunk) {
  for (const grpc::ByteBuffer& buffer :
       {grpc::ByteBuffer(), Encode(v1::UploadRequest())}) {
    v1::UploadRequest message;
    const auto decoded = Decode(buffer, &message);
    ASSERT_THAT(decoded, IsOk());
    const std::optional<Chunk>& chunk = *decoded;
    EXPECT_FALSE(chunk.has_value());
    EXPECT_EQ(message.kind_case(), v1::UploadRequest::KIND_NOT_SET);
  }
}

// Valid, but no known writer does it: protobuf's rules for fields that come
// twice apply.
TEST(ChunkCodecTest, FieldsThatComeTwiceMeanWhatProtobufReads) {
  const std::string once = ChunkMessage(1, 2, "first").SerializeAsString();
  const std::string twice = ChunkMessage(3, 4, "second").SerializeAsString();
  v1::UploadRequest message;
  EXPECT_FALSE(DecodeChunk(InPieces(once + twice, 9), kField).has_value());
  const auto decoded = Decode(InPieces(once + twice, 9), &message);
  ASSERT_THAT(decoded, IsOk());
  const std::optional<Chunk>& chunk = *decoded;
  ASSERT_TRUE(chunk.has_value());
  EXPECT_EQ(chunk->offset, 3);
  EXPECT_EQ(Joined(chunk->data), "second");
}

TEST(ChunkCodecTest, CutMessagesAreRefused) {
  const std::string whole =
      ChunkMessage(77, 88, std::string(300, 'c')).SerializeAsString();
  for (size_t size = 1; size < whole.size(); ++size) {
    v1::UploadRequest message;
    EXPECT_THAT(Decode(InPieces(whole.substr(0, size), 50), &message),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         testing::HasSubstr("UploadRequest")))
        << size;
  }
}

// Whatever the bytes are, both readers read the same.
TEST(ChunkCodecTest, DamagedMessagesMeanWhatProtobufReads) {
  const CounterRandom random(/*seed=*/1, /*stream=*/0);
  const std::string whole =
      ChunkMessage(300, 88, std::string(40, 'c')).SerializeAsString();
  for (int round = 0; round < 20000; ++round) {
    std::string bytes = whole;
    const size_t head = 16;  // where the lengths and tags are
    for (int flip = 0; flip < 2; ++flip) {
      const uint64_t bits = random.Bits(2 * round + flip);
      bytes[bits % head] ^= static_cast<char>(1 << bits / head % 8);
    }
    const auto chunk = DecodeChunk(InPieces(bytes, 11), kField);
    if (!chunk.has_value()) continue;
    v1::UploadRequest message;
    ASSERT_TRUE(message.ParseFromString(bytes));
    ASSERT_TRUE(message.has_chunk());
    EXPECT_EQ(message.chunk().offset(), chunk->offset);
    EXPECT_EQ(message.chunk().crc32c(), chunk->crc32c);
    EXPECT_EQ(message.chunk().data(), Joined(chunk->data));
  }
}

}  // namespace
}  // namespace coxswain::bulk
