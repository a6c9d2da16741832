#ifndef COXSWAIN_TESTS_CHECKPOINT_PIECES_SHARDED_MODEL_H_
#define COXSWAIN_TESTS_CHECKPOINT_PIECES_SHARDED_MODEL_H_

#include <cstdint>
#include <list>
#include <string>
#include <vector>

#include "client/checkpoint/piece_part.h"
#include "client/shard/piece.h"

namespace coxswain {

// A mesh without pipelines: rank = (replica * shard + slice) * tp + box.
struct TestMesh {
  int replicas = 1;
  int shard = 1;
  int tp = 1;

  int size() const { return replicas * shard * tp; }
  std::string text() const;
};

// What one rank has: pieces, and memory for them.
class RankPieces {
 public:
  void Add(TensorPiece piece, std::string bytes);
  const std::vector<PieceMemory>& memory() const { return memory_; }
  // The elements of the i-th piece.
  std::string bytes(size_t i) const;
  // Overwrites all of it.
  void Spoil();
  int64_t total() const;

 private:
  std::list<std::string> bytes_;  // stay where they are
  std::vector<PieceMemory> memory_;
};

// A model whose elements are known: each byte is a function of parameter, kind
// and place. Parameters of several types and shapes, a scalar and an empty one
// among them, with values, two states of an optimizer and a count of steps.
class ShardedModel {
 public:
  // `width` scales it. `seed` chooses the model.
  explicit ShardedModel(int64_t width, uint64_t seed = 1)
      : width_(width), seed_(seed) {}

  // Returns what a rank of the mesh has: tp cuts the boxes of some parameters,
  // along the first or the last dimension, and `shard` all in flat ranges.
  RankPieces Cut(const TestMesh& mesh, int rank) const;

 private:
  struct Parameter {
    std::string name;
    ElementType dtype;
    std::vector<int64_t> shape;
    int cut = -1;  // dimension that tp cuts; -1: replicated
    int64_t step = 0;
  };
  std::vector<Parameter> Parameters() const;
  std::string Elements(const TensorPiece& piece) const;

  const int64_t width_;
  const uint64_t seed_;
};

}  // namespace coxswain

#endif  // COXSWAIN_TESTS_CHECKPOINT_PIECES_SHARDED_MODEL_H_
