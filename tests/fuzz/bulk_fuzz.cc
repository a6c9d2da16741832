// Messages of bulk streams, as they lie in gRPC's buffers: the codec reads what
// protobuf reads.

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/slice.h"
#include "proto/checkpoint.pb.h"
#include "proto/parameter.pb.h"
#include "tests/fuzz/decoders.h"
#include "tests/fuzz/fuzz_bytes.h"
#include "transport/chunk_codec.h"

namespace coxswain {
namespace {

// In pieces, as a network brings them; some may be empty.
grpc::ByteBuffer InPieces(size_t piece, absl::string_view bytes) {
  std::vector<grpc::Slice> slices;
  do {
    const absl::string_view one = bytes.substr(0, piece);
    slices.emplace_back(one.data(), one.size());
    bytes.remove_prefix(one.size());
    if (piece % 3 == 0) slices.emplace_back();
  } while (!bytes.empty());
  return grpc::ByteBuffer(slices.data(), slices.size());
}

std::string Joined(const bulk::Payload& payload) {
  std::string bytes;
  for (const absl::string_view piece : payload.pieces()) {
    bytes.append(piece.data(), piece.size());
  }
  return bytes;
}

template <typename Message>
void Compare(const grpc::ByteBuffer& buffer, absl::string_view bytes) {
  Message decoded;
  const auto chunk = bulk::Decode(buffer, &decoded);
  Message expected;
  const bool whole = expected.ParseFromString(std::string(bytes));
  // It takes numbers that are spelled longer than protobuf takes them.
  if (!whole) return;
  COXSWAIN_CHECK(chunk.ok());
  COXSWAIN_CHECK(chunk->has_value() == expected.has_chunk());
  if (!chunk->has_value()) return;
  COXSWAIN_CHECK((*chunk)->offset == expected.chunk().offset());
  COXSWAIN_CHECK((*chunk)->crc32c == expected.chunk().crc32c());
  COXSWAIN_CHECK(Joined((*chunk)->data) == expected.chunk().data());
}

}  // namespace

void FuzzBulkMessage(absl::string_view input) {
  FuzzBytes bytes(input);
  const size_t piece = 1 + bytes.Below(64);
  const absl::string_view message = bytes.Rest();
  const grpc::ByteBuffer buffer = InPieces(piece, message);
  Compare<v1::UploadRequest>(buffer, message);
  Compare<v1::DownloadChunk>(buffer, message);
  Compare<v1::ExchangeRequest>(buffer, message);
}

}  // namespace coxswain
