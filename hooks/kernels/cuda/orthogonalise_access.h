#ifndef COXSWAIN_HOOKS_KERNELS_CUDA_ORTHOGONALISE_ACCESS_H_
#define COXSWAIN_HOOKS_KERNELS_CUDA_ORTHOGONALISE_ACCESS_H_

#include <cstdint>

#include "base/box_muller.h"
#include "base/host_device.h"
#include "hooks/kernels/cuda/low_rank_block_sums.h"
#include "hooks/kernels/cuda/orthogonalise.h"

// What the programs of orthogonalise.h agree upon.

namespace coxswain {

// Columns that a Gram matrix is computed of.
constexpr int kMostGramColumns = 32;
// Columns that a block has Gram-Schmidt's sums of together.
constexpr int kMostSchmidtColumns = 256;

// Strips of a matrix, so that adding up their Gram matrices stays cheap; and
// rows of one.
constexpr int64_t kMostStrips = 64;
constexpr int64_t kFewestRows = 512;
// Rows that ManyGramProgram has in shared memory at a time.
constexpr int64_t kRowsAtOnce = 256;

// Numbers of an upper triangle, column by column.
COXSWAIN_HOST_DEVICE constexpr int PairsOf(int r) { return r * (r + 1) / 2; }

// Returns whether the Gram matrix of a matrix is computed: if Cholesky is to be
// tried, and for a single column, where both methods are the same.
template <typename T>
COXSWAIN_HOST_DEVICE bool HasGram(const DeviceTallMatrix<T>& matrix) {
  return sizeof(T) == 4 && matrix.r <= kMostGramColumns &&
         (matrix.cholesky != 0 || matrix.r == 1);
}

// base/random.h's, for the device.
COXSWAIN_HOST_DEVICE inline uint64_t DeviceMix64(uint64_t x) {
  x += 0x9e3779b97f4a7c15ull;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

// CounterRandom of a matrix in a step, with the same bits.
class DeviceDraw {
 public:
  COXSWAIN_HOST_DEVICE DeviceDraw(uint64_t seed, uint64_t stream,
                                  const uint64_t* step)
      : key_(DeviceMix64(DeviceMix64(seed) ^ stream ^ DeviceMix64(*step))) {}

  COXSWAIN_HOST_DEVICE double Normal(int64_t at) const {
    const auto index = static_cast<uint64_t>(at);
    return BoxMuller(Uniform(2 * index), Uniform(2 * index + 1));
  }

 private:
  COXSWAIN_HOST_DEVICE double Uniform(uint64_t index) const {
    const uint64_t bits = DeviceMix64(key_ + DeviceMix64(index));
    return static_cast<double>(bits >> 11) * 0x1.0p-53;
  }
  const uint64_t key_;
};

// What is drawn, and whether there is anything to do.
struct TallDraws {
  uint64_t seed;
  const uint64_t* step;

  template <typename T>
  COXSWAIN_HOST_DEVICE T At(const DeviceTallMatrix<T>& matrix, int64_t row,
                            int64_t k) const {
    const DeviceDraw draw(seed, matrix.stream, step);
    return static_cast<T>(draw.Normal(k * matrix.n + row));
  }
};

COXSWAIN_HOST_DEVICE inline bool IsPoisoned(const uint32_t* poisoned) {
  return poisoned != nullptr && *poisoned != 0;
}

}  // namespace coxswain

#endif  // COXSWAIN_HOOKS_KERNELS_CUDA_ORTHOGONALISE_ACCESS_H_
