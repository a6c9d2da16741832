#include "hooks/kernels/quantise.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/check.h"
#include "hooks/kernels/parallel.h"
#include "hooks/kernels/quantise_block.h"

namespace coxswain {
namespace {

// Outputs of this size and above would push everything else out of the
// caches, and are written past them.
constexpr int64_t kStreamBytes = int64_t{1} << 20;

float ScaleOf(const uint8_t* block) {
  float scale;
  std::memcpy(&scale, block, sizeof(scale));
  return scale;
}

// Where in a list of runs the next block begins.
struct Place {
  size_t run = 0;
  int64_t offset = 0;
};

// Calls visit(run, offset in the run, offset in the block, count) for the
// pieces of runs that make up the block of `size` elements at `place`. Returns
// where the next one begins.
template <typename T, typename Visit>
Place ForEachPiece(const std::vector<QuantiseRun<T>>& runs, Place place,
                   int64_t size, const Visit& visit) {
  for (int64_t filled = 0; filled < size && place.run < runs.size();) {
    const QuantiseRun<T>& run = runs[place.run];
    const int64_t count = std::min(size - filled, run.count - place.offset);
    if (count > 0) visit(run, place.offset, filled, count);
    filled += count;
    place.offset += count;
    if (place.offset == run.count) place = {place.run + 1, 0};
  }
  return place;
}

template <typename T>
Place PlaceOf(const std::vector<QuantiseRun<T>>& runs, int64_t element) {
  Place place;
  while (place.run < runs.size() && element >= runs[place.run].count) {
    element -= runs[place.run++].count;
  }
  place.offset = place.run < runs.size() ? element : 0;
  return place;
}

// Quantises blocks, each of which `start`(block, x) begins, runs are added to,
// and which stays in the first cache until it is written. `bytes`: what an
// element moves besides its remainder.
template <typename T, typename Start>
void QuantiseBlocks(const std::vector<QuantiseRun<T>>& runs, int64_t size,
                    int64_t blocks, int64_t bytes, uint8_t* out,
                    const Start& start) {
  COXSWAIN_CHECK(size >= 1 && size <= kMaxQuantisedBlock);
  constexpr int64_t kBytes = sizeof(T);
  const bool stream = blocks * size * kBytes >= kStreamBytes;
  const auto range = [&](int64_t begin, int64_t end) {
    alignas(64) T x[kMaxQuantisedBlock];
    Place place = PlaceOf(runs, begin * size);
    for (int64_t block = begin; block < end; ++block) {
      int64_t count = 0;
      const auto sum = [&x, &count](const QuantiseRun<T>& run, int64_t offset,
                                    int64_t filled, int64_t some) {
        const T* error = run.error == nullptr ? nullptr : run.error + offset;
        SumOfRun(run, offset, error, x + filled, some);
        count = filled + some;
      };
      const auto store = [&x, stream](const QuantiseRun<T>& run, int64_t offset,
                                      int64_t filled, int64_t some) {
        if (run.remainder == nullptr) return;
        StoreBlock(x + filled, run.remainder + offset, some, stream);
      };
      start(block, x);
      ForEachPiece(runs, place, size, sum);
      EncodeBlock(x, count, size, out + QuantisedBytes(block, size));
      place = ForEachPiece(runs, place, size, store);
    }
    if (stream) FlushStream();
  };
  RunRanges(blocks, 1, blocks * size * (kBytes + bytes), range);
}

}  // namespace

template <typename T>
void Quantise(const std::vector<QuantiseRun<T>>& runs, int64_t size,
              int64_t blocks, uint8_t* out) {
  const int64_t bytes = 2 * sizeof(T) + 1;
  QuantiseBlocks(runs, size, blocks, bytes, out, [](int64_t, T*) {});
}

template <typename T>
void QuantiseMean(const uint8_t* in, int64_t stride, int ranks,
                  const std::vector<QuantiseRun<T>>& runs, int64_t size,
                  int64_t blocks, uint8_t* out) {
  const int64_t bytes = static_cast<int64_t>(sizeof(T)) + ranks + 1;
  QuantiseBlocks(runs, size, blocks, bytes, out, [=](int64_t block, T* x) {
    MeanOfBlocks(in + QuantisedBytes(block, size), stride, ranks, size, x);
  });
}

void Dequantise(const uint8_t* in, int64_t size, int64_t count, void* out,
                DType type) {
  COXSWAIN_CHECK(size >= 1 && size <= kMaxQuantisedBlock);
  const auto width = static_cast<int64_t>(SizeOf(type));
  const bool stream = count * width >= kStreamBytes;
  const auto range = [=](int64_t begin, int64_t end) {
    for (int64_t block = begin; block < end; ++block) {
      const int64_t at = block * size;
      DecodeBlock(in + QuantisedBytes(block, size), std::min(size, count - at),
                  type, static_cast<char*>(out) + at * width, stream);
    }
    if (stream) FlushStream();
  };
  RunRanges((count + size - 1) / size, 1, count * (width + 1), range);
}

bool QuantisedIsFinite(const uint8_t* in, int64_t size, int64_t blocks) {
  bool finite = true;
  for (int64_t block = 0; block < blocks; ++block) {
    finite = finite && std::isfinite(ScaleOf(in + QuantisedBytes(block, size)));
  }
  return finite;
}

template void Quantise<float>(const std::vector<QuantiseRun<float>>&, int64_t,
                              int64_t, uint8_t*);
template void Quantise<double>(const std::vector<QuantiseRun<double>>&, int64_t,
                               int64_t, uint8_t*);
template void QuantiseMean<float>(const uint8_t*, int64_t, int,
                                  const std::vector<QuantiseRun<float>>&,
                                  int64_t, int64_t, uint8_t*);
template void QuantiseMean<double>(const uint8_t*, int64_t, int,
                                   const std::vector<QuantiseRun<double>>&,
                                   int64_t, int64_t, uint8_t*);

}  // namespace coxswain
