#ifndef COXSWAIN_CLIENT_SHARD_PIECE_H_
#define COXSWAIN_CLIENT_SHARD_PIECE_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/element_type.h"

namespace coxswain {

// At most so many dimensions has a tensor that is cut in pieces.
constexpr size_t kMaxPieceDimensions = 16;

// The elements of a tensor whose index in each dimension d is in
// [begin[d], end[d]). A scalar has no dimensions and one element.
struct Box {
  std::vector<int64_t> begin;
  std::vector<int64_t> end;

  // Returns the box of all elements.
  static Box Whole(const std::vector<int64_t>& shape);

  // Returns the number of elements; of a box that CheckPiece has passed.
  int64_t count() const;
  friend bool operator==(const Box& a, const Box& b) {
    return a.begin == b.begin && a.end == b.end;
  }
};

// Which part of a parameter of the whole model a rank's parameter is.
struct ParameterBox {
  std::vector<int64_t> shape;  // of the whole
  Box box;
};

// By name; parameters that are left out are whole.
using ParameterBoxes = std::map<std::string, ParameterBox>;

// Which part of the whole, unsharded model some elements are. A rank's place in
// the mesh decides on the box (tensor parallelism cuts a tensor in boxes) and
// on the flat range (ZeRO cuts the elements of a box in runs), so that pieces
// of any mesh describe themselves without naming it.
struct TensorPiece {
  std::string parameter;       // its name in the whole model
  std::string kind = "value";  // of what: "value", "exp_avg", "error/3", ...
  ElementType dtype = ElementType::kFloat32;
  std::vector<int64_t> shape;  // of the whole tensor
  Box box;
  // Elements [begin, end) of the box, which lies row-major.
  int64_t begin = 0;
  int64_t end = 0;
  // How many steps the parameter had taken. Pieces of different steps are not
  // parts of one tensor.
  int64_t step = 0;

  // Returns a piece that has all elements of a tensor.
  static TensorPiece Whole(std::string parameter, std::string kind,
                           ElementType dtype, std::vector<int64_t> shape);

  // Returns one that has all elements of a box of a tensor.
  static TensorPiece Of(std::string parameter, std::string kind,
                        ElementType dtype, const ParameterBox& box);

  int64_t count() const { return end - begin; }
  int64_t bytes() const {
    return count() * static_cast<int64_t>(SizeOf(dtype));
  }
};

// A piece, and where its elements are: piece.bytes() bytes of host memory,
// row-major.
struct PieceMemory {
  TensorPiece piece;
  char* data = nullptr;
};

// Returns a piece in words, for messages: "exp_avg of a.weight, elements
// [0, 6) of the box [0:2, 0:3]".
std::string Describe(const TensorPiece& piece);

// Fails with INVALID_ARGUMENT, saying why, for what is no piece: a box that is
// not in its tensor, a range that is not in its box, too many dimensions, or a
// tensor of more bytes than 2^63.
absl::Status CheckPiece(const TensorPiece& piece);

// Fails likewise for what is no piece, and for elements without memory.
absl::Status CheckMemory(const PieceMemory& memory);

// Elements that two pieces have in common: [from, from + count) of one's own
// elements are [to, to + count) of the other's.
struct PieceRun {
  int64_t from = 0;
  int64_t to = 0;
  int64_t count = 0;
};

// Returns the elements of `want` that `have` has, as few runs as can be,
// ascending in both. Of pieces of one tensor, which CheckPiece has passed; what
// kinds they are does not matter. Takes time by the rows of the boxes' overlap.
std::vector<PieceRun> Intersect(const TensorPiece& have,
                                const TensorPiece& want);

// The range of `count` elements that part `index` of `parts` has: equal ones,
// but that the first count mod parts have one more.
struct EvenRange {
  int64_t begin = 0;
  int64_t end = 0;
  static EvenRange Of(int64_t count, int64_t parts, int64_t index);
};

// Returns box `index` of `parts` boxes that a tensor is cut into along one
// dimension, by EvenRange. Fails with INVALID_ARGUMENT, naming the numbers.
absl::StatusOr<Box> CutBox(const std::vector<int64_t>& shape, int dimension,
                           int64_t parts, int64_t index);

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_SHARD_PIECE_H_
