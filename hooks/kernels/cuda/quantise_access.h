#ifndef COXSWAIN_HOOKS_KERNELS_CUDA_QUANTISE_ACCESS_H_
#define COXSWAIN_HOOKS_KERNELS_CUDA_QUANTISE_ACCESS_H_

#include <cstdint>
#include <cstring>

#include "base/host_device.h"
#include "client/device/elements.h"
#include "client/device/launch.h"

// How the programs of quantise_programs.h walk over memory: which thread has
// which elements of which quantised block, where a run lies, and accesses to
// four elements at a time.

namespace coxswain {

// A run of elements, one entry of a table in the memory of the device. An
// entry behind the last one has `first` alone, the number of all elements.
struct QuantiseEntry {
  const void* gradient = nullptr;
  const void* error = nullptr;
  void* remainder = nullptr;  // may be `error`
  int64_t first = 0;          // elements before it
};

// Which of `entries` runs has element `at`; `entries` if it lies behind all.
template <class Entry>
COXSWAIN_HOST_DEVICE int64_t FindRun(const Entry* runs, int64_t entries,
                                     int64_t at) {
  if (at >= runs[entries].first) return entries;
  int64_t low = 0;
  for (int64_t high = entries; high - low > 1;) {
    const int64_t middle = low + (high - low) / 2;
    if (runs[middle].first <= at) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return low;
}

// `blocks` blocks of `size` elements. A power of two of threads takes one of
// them, each kChunks times four neighbours: what a thread holds belongs to one
// block, and neighbouring threads touch neighbouring memory.
struct QuantiseGrid {
  static constexpr int kThreads = 256;
  static constexpr int kChunks = 4;
  static constexpr int kHeld = 4 * kChunks;  // elements of a thread

  int64_t size = 1;
  int64_t blocks = 0;
  int lanes_log = 0;  // 2^lanes_log threads have a block

  static QuantiseGrid Of(int64_t size, int64_t blocks) {
    QuantiseGrid grid;
    grid.size = size;
    grid.blocks = blocks;
    while ((int64_t{kHeld} << grid.lanes_log) < size) ++grid.lanes_log;
    return grid;
  }
  // How many blocks of threads.
  int64_t launched() const {
    const int64_t together = kThreads >> lanes_log;
    return (blocks + together - 1) / together;
  }

  COXSWAIN_HOST_DEVICE int lanes() const { return 1 << lanes_log; }
  COXSWAIN_HOST_DEVICE int64_t BlockOf(const BlockPlace& at) const {
    return at.block * (kThreads >> lanes_log) + (at.thread >> lanes_log);
  }
  COXSWAIN_HOST_DEVICE int LaneOf(const BlockPlace& at) const {
    return at.thread & (lanes() - 1);
  }
  // Where in its block a thread's chunk begins; perhaps behind its end.
  COXSWAIN_HOST_DEVICE int64_t ChunkOf(int lane, int chunk) const {
    return int64_t{4} * (lane + (chunk << lanes_log));
  }
  // Where the block's scale stands, with its codes behind it.
  COXSWAIN_HOST_DEVICE int64_t BytesBefore(int64_t block) const {
    return block * (size + 4);
  }
};

template <typename T>
using Four = Pack<T, 4>;

// A block's scale; blocks of any size begin at any byte.
COXSWAIN_HOST_DEVICE inline float LoadScale(const uint8_t* from) {
  Four<uint8_t> bytes;
  if (Four<uint8_t>::FitsAt(from)) {
    bytes = Four<uint8_t>::Load(from);
  } else {
    for (int i = 0; i < 4; ++i) bytes.at[i] = from[i];
  }
  float scale;
  std::memcpy(&scale, &bytes, sizeof(scale));
  return scale;
}
COXSWAIN_HOST_DEVICE inline void StoreScale(float scale, uint8_t* to) {
  Four<uint8_t> bytes;
  std::memcpy(&bytes, &scale, sizeof(scale));
  if (Four<uint8_t>::FitsAt(to)) return bytes.Store(to);
  for (int i = 0; i < 4; ++i) to[i] = bytes.at[i];
}

// The codes of up to four elements; others are zero.
COXSWAIN_HOST_DEVICE inline Four<uint8_t> LoadCodes(const uint8_t* from,
                                                    int64_t count) {
  if (count >= 4 && Four<uint8_t>::FitsAt(from)) {
    return Four<uint8_t>::Load(from);
  }
  Four<uint8_t> codes;
  for (int i = 0; i < 4; ++i) codes.at[i] = i < count ? from[i] : uint8_t{0};
  return codes;
}
COXSWAIN_HOST_DEVICE inline void StoreCodes(const Four<uint8_t>& codes,
                                            int64_t count, uint8_t* to) {
  if (count >= 4 && Four<uint8_t>::FitsAt(to)) return codes.Store(to);
  for (int i = 0; i < 4; ++i) {
    if (i < count) to[i] = codes.at[i];
  }
}

}  // namespace coxswain

#endif  // COXSWAIN_HOOKS_KERNELS_CUDA_QUANTISE_ACCESS_H_
