#ifndef COXSWAIN_BASE_RANDOM_H_
#define COXSWAIN_BASE_RANDOM_H_

#include <cstdint>

#include "absl/strings/string_view.h"

namespace coxswain {

// Returns the number in [0, 1) that the upper 53 bits of `bits` make.
inline double UnitInterval(uint64_t bits) {
  return static_cast<double>(bits >> 11) * 0x1.0p-53;
}

// Where unpredictable numbers come from (incarnations, request ids, jitter).
// Injected, so that a test can replay a run. Implementations are thread-safe.
class RandomSource {
 public:
  virtual ~RandomSource() = default;
  virtual uint64_t Next() = 0;

  // Returns a non-zero number, for ids in which 0 means none.
  uint64_t NextId() {
    uint64_t id = 0;
    while (id == 0) id = Next();
    return id;
  }

  // Uniform in [0, 1).
  double Uniform() { return UnitInterval(Next()); }

  // Returns the operating system's entropy. Never destroyed.
  static RandomSource* System();
};

// The SplitMix64 finaliser (Steele, Lea, Flood: "Fast splittable pseudorandom
// number generators", 2014): a bijection whose output bits all depend on all
// input bits. The base of every counter-based stream here.
inline uint64_t Mix64(uint64_t x) {
  x += 0x9e3779b97f4a7c15ull;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

// Returns a 64-bit hash of a string that is the same on every machine and in
// every version (FNV-1a, then Mix64). Not for untrusted keys of a table.
uint64_t StableHash(absl::string_view text);

// A stream of numbers that is a pure function of (seed, stream, index): two
// processes that agree on these agree on every draw, whatever else they drew.
class CounterRandom {
 public:
  CounterRandom(uint64_t seed, uint64_t stream)
      : key_(Mix64(Mix64(seed) ^ stream)) {}

  uint64_t Bits(uint64_t index) const { return Mix64(key_ + Mix64(index)); }

  // Uniform in [0, 1).
  double Uniform(uint64_t index) const { return UnitInterval(Bits(index)); }

  // Returns a standard normal number by the Box-Muller transform, from two
  // uniforms. The same bits on every processor.
  double Normal(uint64_t index) const;

 private:
  uint64_t key_;
};

}  // namespace coxswain

#endif  // COXSWAIN_BASE_RANDOM_H_
