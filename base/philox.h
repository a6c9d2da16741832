#ifndef COXSWAIN_BASE_PHILOX_H_
#define COXSWAIN_BASE_PHILOX_H_

#include <array>
#include <cstdint>

namespace coxswain {

using PhiloxBlock = std::array<uint32_t, 4>;
using PhiloxKey = std::array<uint32_t, 2>;

// Philox 4x32-10 (Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy
// as 1, 2, 3", 2011): for each key a bijection of blocks, whose outputs for the
// counters 0, 1, 2, ... are random numbers. Pure.
PhiloxBlock Philox(PhiloxBlock counter, PhiloxKey key);

// What random numbers are drawn for.
struct DrawPlace {
  // Pinned: a run that goes on draws what it would have drawn.
  enum class Purpose : uint64_t { kInitialValue = 1, kDropout = 2 };

  uint64_t seed = 0;
  Purpose purpose = Purpose::kInitialValue;
  int64_t step = 0;
  int64_t data_index = 0;
  int64_t micro_batch = 0;
  // StableHash of the name that a parameter or layer has in the whole model.
  uint64_t name = 0;
};

// The random numbers of a place by the index of an element in the whole tensor,
// so that ranks that each have a part of it draw what one that has all of it
// draws. Numbers of different places have nothing in common, whatever the seed.
// The same bits on every processor. Thread-safe.
class PlaceRandom {
 public:
  explicit PlaceRandom(const DrawPlace& place);

  // Uniform in [0, 1).
  double Uniform(uint64_t element) const;

  // Returns a standard normal number.
  double Normal(uint64_t element) const;

 private:
  PhiloxBlock Draw(uint64_t element) const;

  PhiloxKey key_;
  // The upper half of counters; the lower one is the element.
  std::array<uint32_t, 2> place_;
};

}  // namespace coxswain

#endif  // COXSWAIN_BASE_PHILOX_H_
