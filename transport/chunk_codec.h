#ifndef COXSWAIN_TRANSPORT_CHUNK_CODEC_H_
#define COXSWAIN_TRANSPORT_CHUNK_CODEC_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "google/protobuf/message_lite.h"
#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/slice.h"

// The messages of bulk streams to and from gRPC's buffers, without a copy of
// what they carry. On the wire they are the messages of proto/*.proto: a peer
// may use protobuf for them.
//
// For messages of this form, whatever their other fields:
//
//   message M { oneof kind { Header header = 1; Chunk chunk = N; } }
//   message Chunk { int64 offset = 1; bytes data = 2; fixed32 crc32c = 3; }
//
// Used by server/rpc and client/rpc only. Plain functions and values.
namespace coxswain::bulk {

// Bytes as they lie in gRPC's buffers, in pieces. Copies share the memory.
class Payload {
 public:
  Payload() = default;
  explicit Payload(std::vector<grpc::Slice> slices);

  size_t size() const { return size_; }
  // Returns the pieces in order; they live as long as this object.
  std::vector<absl::string_view> pieces() const;

 private:
  std::vector<grpc::Slice> slices_;
  size_t size_ = 0;
};

struct Chunk {
  int64_t offset = 0;
  uint32_t crc32c = 0;
  Payload data;
};

// Returns a slice of the caller's memory, without a copy. `owner` is released
// once gRPC does not need the bytes any more, which may be after the end of the
// write, and on any thread.
grpc::Slice Lend(absl::string_view bytes, std::shared_ptr<const void> owner);

// Returns the message whose field `chunk_field` (M::kChunkFieldNumber) is this
// chunk.
grpc::ByteBuffer EncodeChunk(int chunk_field, int64_t offset, uint32_t crc32c,
                             const grpc::Slice& data);

// Returns any other message of the stream.
grpc::ByteBuffer Encode(const google::protobuf::MessageLite& message);

// Returns the chunk, if `buffer` is a message that holds nothing else and
// encodes each field once, as every known writer does. Otherwise nothing:
// protobuf must parse it.
std::optional<Chunk> DecodeChunk(const grpc::ByteBuffer& buffer,
                                 int chunk_field);

// Fails with INVALID_ARGUMENT unless it is such a message.
absl::Status DecodeMessage(const grpc::ByteBuffer& buffer,
                           google::protobuf::MessageLite* message);

// Decodes a message of the stream: returns the chunk if it is one, otherwise
// nothing, and fills `message`. Fails with INVALID_ARGUMENT if it is no
// message.
template <typename Message>
absl::StatusOr<std::optional<Chunk>> Decode(const grpc::ByteBuffer& buffer,
                                            Message* message) {
  std::optional<Chunk> chunk = DecodeChunk(buffer, Message::kChunkFieldNumber);
  if (chunk.has_value()) return chunk;
  absl::Status status = DecodeMessage(buffer, message);
  if (!status.ok()) return status;
  if (!message->has_chunk()) return std::optional<Chunk>();
  chunk.emplace();
  chunk->offset = message->chunk().offset();
  chunk->crc32c = message->chunk().crc32c();
  const auto& data = message->chunk().data();
  chunk->data = Payload({grpc::Slice(data.data(), data.size())});
  return chunk;
}

// Returns whether the service of a method ("/coxswain.v1.Service/Method") takes
// its messages as they lie in gRPC's buffers: those that are declared
// WithRawCallbackMethod_*. An interceptor finds a grpc::ByteBuffer there, and
// the protobuf message in all other methods of coxswain.v1.
inline bool IsRaw(absl::string_view method) {
  return method == "/coxswain.v1.Checkpoint/Upload" ||
         method == "/coxswain.v1.Checkpoint/Download" ||
         method == "/coxswain.v1.Parameter/Exchange";
}

}  // namespace coxswain::bulk

#endif  // COXSWAIN_TRANSPORT_CHUNK_CODEC_H_
