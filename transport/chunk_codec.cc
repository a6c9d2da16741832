#include "transport/chunk_codec.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "google/protobuf/io/coded_stream.h"
#include "google/protobuf/message_lite.h"

namespace coxswain::bulk {
namespace {

using google::protobuf::io::CodedOutputStream;

// Of Chunk: a field's number and its wire type.
constexpr uint32_t kOffsetTag = 1 << 3 | 0;
constexpr uint32_t kDataTag = 2 << 3 | 2;
constexpr uint32_t kCrcTag = 3 << 3 | 5;

uint32_t MessageTag(int field) { return static_cast<uint32_t>(field) << 3 | 2; }

// Reads the wire format over the borders of slices.
class Cursor {
 public:
  explicit Cursor(std::vector<grpc::Slice> slices)
      : slices_(std::move(slices)) {
    for (const grpc::Slice& slice : slices_) left_ += slice.size();
  }

  size_t left() const { return left_; }

  bool Varint(uint64_t* value) {
    *value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      uint8_t byte = 0;
      if (!Byte(&byte)) return false;
      *value |= static_cast<uint64_t>(byte & 0x7f) << shift;
      if (byte < 0x80) return true;
    }
    return false;
  }

  bool Fixed32(uint32_t* value) {
    *value = 0;
    for (int shift = 0; shift < 32; shift += 8) {
      uint8_t byte = 0;
      if (!Byte(&byte)) return false;
      *value |= static_cast<uint32_t>(byte) << shift;
    }
    return true;
  }

  bool Bytes(size_t count, std::vector<grpc::Slice>* pieces) {
    if (count > left_) return false;
    left_ -= count;
    while (count > 0) {
      const grpc::Slice& slice = slices_[slice_];
      const size_t end = std::min(slice.size(), at_ + count);
      if (end > at_) pieces->push_back(slice.sub(at_, end));
      count -= end - at_;
      at_ = end;
      if (at_ == slice.size()) NextSlice();
    }
    return true;
  }

 private:
  bool Byte(uint8_t* byte) {
    if (left_ == 0) return false;
    while (at_ == slices_[slice_].size()) NextSlice();
    *byte = slices_[slice_].begin()[at_++];
    --left_;
    return true;
  }

  void NextSlice() {
    ++slice_;
    at_ = 0;
  }

  const std::vector<grpc::Slice> slices_;
  size_t left_ = 0;
  size_t slice_ = 0;
  size_t at_ = 0;  // within that slice
};

// The fields of a Chunk, each at most once.
class ChunkFields {
 public:
  bool Take(Cursor* cursor) {
    uint64_t tag = 0;
    if (!cursor->Varint(&tag)) return false;
    switch (tag) {
      case kOffsetTag: {
        uint64_t offset = 0;
        if (!First(&has_offset_) || !cursor->Varint(&offset)) return false;
        chunk_.offset = static_cast<int64_t>(offset);
        return true;
      }
      case kDataTag:
        return First(&has_data_) && TakeData(cursor);
      case kCrcTag:
        return First(&has_crc_) && cursor->Fixed32(&chunk_.crc32c);
      default:
        return false;
    }
  }

  Chunk Release() { return std::move(chunk_); }

 private:
  static bool First(bool* seen) { return !std::exchange(*seen, true); }

  bool TakeData(Cursor* cursor) {
    uint64_t size = 0;
    std::vector<grpc::Slice> pieces;
    if (!cursor->Varint(&size) || !cursor->Bytes(size, &pieces)) return false;
    chunk_.data = Payload(std::move(pieces));
    return true;
  }

  Chunk chunk_;
  bool has_offset_ = false;
  bool has_data_ = false;
  bool has_crc_ = false;
};

std::vector<grpc::Slice> SlicesOf(const grpc::ByteBuffer& buffer) {
  std::vector<grpc::Slice> slices;
  // Fails for a buffer that is empty, or that cannot be unpacked.
  if (!buffer.Valid() || !buffer.Dump(&slices).ok()) slices.clear();
  return slices;
}

}  // namespace

Payload::Payload(std::vector<grpc::Slice> slices) : slices_(std::move(slices)) {
  for (const grpc::Slice& slice : slices_) size_ += slice.size();
}

std::vector<absl::string_view> Payload::pieces() const {
  std::vector<absl::string_view> pieces;
  pieces.reserve(slices_.size());
  for (const grpc::Slice& slice : slices_) {
    pieces.emplace_back(reinterpret_cast<const char*>(slice.begin()),
                        slice.size());
  }
  return pieces;
}

grpc::Slice Lend(absl::string_view bytes, std::shared_ptr<const void> owner) {
  using Owner = std::shared_ptr<const void>;
  // gRPC does not write to the memory of what it sends.
  return grpc::Slice(
      const_cast<char*>(bytes.data()), bytes.size(),
      [](void* held) { delete static_cast<Owner*>(held); },
      new Owner(std::move(owner)));
}

grpc::ByteBuffer EncodeChunk(int chunk_field, int64_t offset, uint32_t crc32c,
                             const grpc::Slice& data) {
  // The data comes last, so that one slice in front of it is enough. Readers
  // of protobuf take fields in any order.
  std::array<uint8_t, 64> fields;
  uint8_t* end = fields.data();
  end = CodedOutputStream::WriteVarint32ToArray(kOffsetTag, end);
  end = CodedOutputStream::WriteVarint64ToArray(static_cast<uint64_t>(offset),
                                                end);
  end = CodedOutputStream::WriteVarint32ToArray(kCrcTag, end);
  end = CodedOutputStream::WriteLittleEndian32ToArray(crc32c, end);
  end = CodedOutputStream::WriteVarint32ToArray(kDataTag, end);
  end = CodedOutputStream::WriteVarint64ToArray(data.size(), end);
  const size_t fields_size = end - fields.data();

  std::array<uint8_t, 96> header;
  end = header.data();
  end = CodedOutputStream::WriteVarint32ToArray(MessageTag(chunk_field), end);
  end = CodedOutputStream::WriteVarint64ToArray(fields_size + data.size(), end);
  std::memcpy(end, fields.data(), fields_size);
  end += fields_size;

  const std::array<grpc::Slice, 2> slices = {
      grpc::Slice(header.data(), end - header.data()), data};
  return grpc::ByteBuffer(slices.data(), slices.size());
}

grpc::ByteBuffer Encode(const google::protobuf::MessageLite& message) {
  const grpc::Slice slice(message.SerializeAsString());
  return grpc::ByteBuffer(&slice, 1);
}

std::optional<Chunk> DecodeChunk(const grpc::ByteBuffer& buffer,
                                 int chunk_field) {
  Cursor cursor(SlicesOf(buffer));
  uint64_t tag = 0;
  uint64_t size = 0;
  if (!cursor.Varint(&tag) || tag != MessageTag(chunk_field) ||
      !cursor.Varint(&size) || size != cursor.left()) {
    return std::nullopt;
  }
  ChunkFields fields;
  while (cursor.left() > 0) {
    if (!fields.Take(&cursor)) return std::nullopt;
  }
  return fields.Release();
}

absl::Status DecodeMessage(const grpc::ByteBuffer& buffer,
                           google::protobuf::MessageLite* message) {
  std::string bytes;
  bytes.reserve(buffer.Length());
  for (const grpc::Slice& slice : SlicesOf(buffer)) {
    bytes.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  }
  if (message->ParseFromString(bytes)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("a message of ", bytes.size(), " bytes is no ",
                   message->GetTypeName(), ": use the protos of this version"));
}

}  // namespace coxswain::bulk
