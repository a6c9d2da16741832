// Pieces of random tensors, cut for one random mesh, become those of another:
// the same elements as an enumeration of all of them says.

#include <algorithm>
#include <cstdint>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "base/status_matchers.h"
#include "client/shard/piece.h"
#include "client/shard/piece_index.h"
#include "gtest/gtest.h"

namespace coxswain {
namespace {

constexpr int kCases = 10000;

class Dice {
 public:
  explicit Dice(uint64_t seed) : engine_(seed) {}
  // Uniform in [low, high].
  int64_t Roll(int64_t low, int64_t high) {
    return low + static_cast<int64_t>(engine_() %
                                      static_cast<uint64_t>(high - low + 1));
  }
  bool Chance(int one_in) { return Roll(1, one_in) == 1; }
  template <typename T>
  void Shuffle(std::vector<T>& values) {
    for (size_t i = values.size(); i > 1; --i) {
      std::swap(
          values[i - 1],
          values[static_cast<size_t>(Roll(0, static_cast<int64_t>(i) - 1))]);
    }
  }

 private:
  std::mt19937_64 engine_;
};

std::vector<int64_t> RandomShape(Dice& dice) {
  std::vector<int64_t> shape(static_cast<size_t>(dice.Roll(0, 4)));
  for (int64_t& extent : shape) extent = dice.Chance(20) ? 0 : dice.Roll(1, 7);
  return shape;
}

// Boxes that a tensor is cut into along one dimension, or two: as many as there
// may be elements, or more.
std::vector<Box> RandomBoxes(const std::vector<int64_t>& shape, Dice& dice) {
  std::vector<Box> boxes = {Box::Whole(shape)};
  for (int cuts = static_cast<int>(dice.Roll(0, 2)); cuts > 0; --cuts) {
    if (shape.empty()) break;
    const auto d = static_cast<size_t>(
        dice.Roll(0, static_cast<int64_t>(shape.size()) - 1));
    const int64_t parts = dice.Roll(1, 5);
    std::vector<Box> cut;
    for (const Box& box : boxes) {
      const int64_t begin = box.begin[d];
      for (int64_t i = 0; i < parts; ++i) {
        const EvenRange range = EvenRange::Of(box.end[d] - begin, parts, i);
        cut.push_back(box);
        cut.back().begin[d] = begin + range.begin;
        cut.back().end[d] = begin + range.end;
      }
    }
    boxes = std::move(cut);
  }
  return boxes;
}

// The pieces of all ranks of a random mesh: boxes, cut in flat ranges at random
// places, some of them on several ranks, in any order.
std::vector<TensorPiece> RandomPieces(const std::vector<int64_t>& shape,
                                      Dice& dice) {
  std::vector<TensorPiece> pieces;
  for (const Box& box : RandomBoxes(shape, dice)) {
    TensorPiece piece =
        TensorPiece::Whole("w", "value", ElementType::kFloat32, shape);
    piece.box = box;
    const int64_t count = box.count();
    std::vector<int64_t> cuts = {0, count};
    for (int64_t more = dice.Roll(0, 6); more > 0; --more) {
      cuts.push_back(dice.Roll(0, count));
    }
    std::sort(cuts.begin(), cuts.end());
    for (size_t i = 0; i + 1 < cuts.size(); ++i) {
      piece.begin = cuts[i];
      piece.end = cuts[i + 1];
      pieces.push_back(piece);
      while (dice.Chance(4)) pieces.push_back(piece);
    }
  }
  dice.Shuffle(pieces);
  return pieces;
}

// The numbers that a piece's elements have in the whole tensor, one by one.
std::vector<int64_t> NumbersOf(const TensorPiece& piece) {
  std::vector<int64_t> numbers;
  const size_t dimensions = piece.shape.size();
  for (int64_t flat = piece.begin; flat < piece.end; ++flat) {
    int64_t rest = flat;
    int64_t number = 0;
    int64_t stride = 1;
    for (size_t d = dimensions; d-- > 0;) {
      const int64_t extent = piece.box.end[d] - piece.box.begin[d];
      number += (piece.box.begin[d] + rest % extent) * stride;
      rest /= extent;
      stride *= piece.shape[d];
    }
    numbers.push_back(number);
  }
  return numbers;
}

bool Has(const std::vector<TensorPiece>& pieces, int64_t number) {
  return std::any_of(
      pieces.begin(), pieces.end(), [&](const TensorPiece& piece) {
        const std::vector<int64_t> numbers = NumbersOf(piece);
        return std::find(numbers.begin(), numbers.end(), number) !=
               numbers.end();
      });
}

// Copies what `reads` say; elements that they give twice fail the test.
std::vector<int64_t> Copied(const std::vector<TensorPiece>& have,
                            const std::vector<PieceRead>& reads,
                            int64_t count) {
  std::vector<int64_t> got(static_cast<size_t>(count), -1);
  for (const PieceRead& read : reads) {
    const std::vector<int64_t> source = NumbersOf(have[read.piece]);
    for (int64_t i = 0; i < read.count; ++i) {
      int64_t& to = got.at(static_cast<size_t>(read.to + i));
      EXPECT_EQ(to, -1) << "given twice";
      to = source.at(static_cast<size_t>(read.from + i));
    }
  }
  return got;
}

TEST(PieceCuttingTest, AnyPiecesBecomeAnyOthersElementByElement) {
  for (int number = 0; number < kCases && !testing::Test::HasFailure();
       ++number) {
    SCOPED_TRACE(number);
    Dice dice(static_cast<uint64_t>(number));
    const std::vector<int64_t> shape = RandomShape(dice);
    std::vector<TensorPiece> have = RandomPieces(shape, dice);
    // Some ranks are lost.
    while (have.size() > 1 && dice.Chance(3)) have.pop_back();
    const auto index = PieceIndex::Create(have);
    ASSERT_OK(index);
    for (const TensorPiece& want : RandomPieces(shape, dice)) {
      const std::vector<int64_t> expected = NumbersOf(want);
      const auto reads = index->Find(want);
      if (!reads.ok()) {
        EXPECT_EQ(reads.status().code(), absl::StatusCode::kNotFound);
        EXPECT_TRUE(
            std::any_of(expected.begin(), expected.end(),
                        [&](int64_t element) { return !Has(have, element); }))
            << reads.status();
        continue;
      }
      EXPECT_EQ(Copied(have, *reads, want.count()), expected) << Describe(want);
    }
  }
}

TEST(PieceCuttingTest, RunsAreAscendingAndAsLongAsCanBe) {
  for (int number = 0; number < kCases && !testing::Test::HasFailure();
       ++number) {
    SCOPED_TRACE(number);
    Dice dice(static_cast<uint64_t>(number) + (uint64_t{1} << 32));
    const std::vector<int64_t> shape = RandomShape(dice);
    const TensorPiece have = RandomPieces(shape, dice)[0];
    const TensorPiece want = RandomPieces(shape, dice)[0];
    const std::vector<int64_t> theirs = NumbersOf(have);
    const std::vector<int64_t> ours = NumbersOf(want);
    size_t common = 0;
    for (const int64_t element : ours) {
      common += std::count(theirs.begin(), theirs.end(), element);
    }
    const std::vector<PieceRun> runs = Intersect(have, want);
    size_t covered = 0;
    for (size_t i = 0; i < runs.size(); ++i) {
      const PieceRun& run = runs[i];
      EXPECT_GT(run.count, 0);
      covered += static_cast<size_t>(run.count);
      for (int64_t k = 0; k < run.count; ++k) {
        EXPECT_EQ(theirs.at(static_cast<size_t>(run.from + k)),
                  ours.at(static_cast<size_t>(run.to + k)));
      }
      if (i == 0) continue;
      const PieceRun& last = runs[i - 1];
      EXPECT_GE(run.from, last.from + last.count);
      EXPECT_GE(run.to, last.to + last.count);
      EXPECT_FALSE(run.from == last.from + last.count &&
                   run.to == last.to + last.count);
    }
    EXPECT_EQ(covered, common);
  }
}

}  // namespace
}  // namespace coxswain
