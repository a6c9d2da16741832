#include "tests/checkpoint/pieces/sharded_model.h"

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/random.h"

namespace coxswain {

std::string TestMesh::text() const {
  return absl::StrCat("dp=", replicas, ",shard=", shard, ",tp=", tp);
}

void RankPieces::Add(TensorPiece piece, std::string bytes) {
  bytes_.push_back(std::move(bytes));
  memory_.push_back({std::move(piece), bytes_.back().data()});
}

std::string RankPieces::bytes(size_t i) const {
  return {memory_[i].data, static_cast<size_t>(memory_[i].piece.bytes())};
}

void RankPieces::Spoil() {
  for (const PieceMemory& memory : memory_) {
    std::memset(memory.data, 0x5a, static_cast<size_t>(memory.piece.bytes()));
  }
}

int64_t RankPieces::total() const {
  int64_t total = 0;
  for (const PieceMemory& memory : memory_) total += memory.piece.bytes();
  return total;
}

std::vector<ShardedModel::Parameter> ShardedModel::Parameters() const {
  const int64_t w = width_;
  return {
      {"embedding.weight", ElementType::kFloat32, {2 * w + 1, w}, 0, 40},
      {"block.column.weight", ElementType::kFloat64, {w, 7}, 0, 40},
      {"block.column.bias", ElementType::kFloat32, {w}, 0, 40},
      {"block.row.weight", ElementType::kBFloat16, {5, 3, w}, 2, 39},
      {"block.row.bias", ElementType::kFloat32, {11}, -1, 39},
      {"norm.scale", ElementType::kFloat64, {}, -1, 7},
      {"unused", ElementType::kFloat32, {0, 4}, -1, 0},
  };
}

// Byte by byte, by the element's number in the whole tensor.
std::string ShardedModel::Elements(const TensorPiece& piece) const {
  const uint64_t stream =
      StableHash(absl::StrCat(seed_, "/", piece.parameter, "/", piece.kind));
  const size_t width = SizeOf(piece.dtype);
  std::string bytes;
  for (int64_t flat = piece.begin; flat < piece.end; ++flat) {
    int64_t rest = flat;
    int64_t number = 0;
    int64_t stride = 1;
    for (size_t d = piece.shape.size(); d-- > 0;) {
      const int64_t extent = piece.box.end[d] - piece.box.begin[d];
      number += (piece.box.begin[d] + rest % extent) * stride;
      rest /= extent;
      stride *= piece.shape[d];
    }
    const uint64_t bits = Mix64(stream + static_cast<uint64_t>(number));
    bytes.append(reinterpret_cast<const char*>(&bits), width);
  }
  return bytes;
}

RankPieces ShardedModel::Cut(const TestMesh& mesh, int rank) const {
  const int box = rank % mesh.tp;
  const int slice = rank / mesh.tp % mesh.shard;
  RankPieces pieces;
  for (const Parameter& parameter : Parameters()) {
    for (const char* kind : {"value", "exp_avg", "exp_avg_sq"}) {
      TensorPiece piece = TensorPiece::Whole(parameter.name, kind,
                                             parameter.dtype, parameter.shape);
      piece.step = parameter.step;
      if (parameter.cut >= 0) {
        piece.box =
            CutBox(parameter.shape, parameter.cut, mesh.tp, box).value();
      }
      const EvenRange range =
          EvenRange::Of(piece.box.count(), mesh.shard, slice);
      piece.begin = range.begin;
      piece.end = range.end;
      pieces.Add(piece, Elements(piece));
    }
    // What an optimizer counts, which no rank shares out.
    TensorPiece steps =
        TensorPiece::Whole(parameter.name, "steps", ElementType::kInt64, {});
    pieces.Add(steps, Elements(steps));
  }
  return pieces;
}

}  // namespace coxswain
