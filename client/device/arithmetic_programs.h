#ifndef COXSWAIN_CLIENT_DEVICE_ARITHMETIC_PROGRAMS_H_
#define COXSWAIN_CLIENT_DEVICE_ARITHMETIC_PROGRAMS_H_

#include <cstdint>

#include "base/host_device.h"
#include "client/device/elements.h"
#include "client/device/launch.h"

// The programs behind client/device/arithmetic.h: for its sources and tests.

namespace coxswain::arithmetic {

// out = in * factor, where both may be the same. A block scales kBlock.
template <class Element>
struct ScaleElements {
  using Stored = typename Element::Stored;
  static constexpr int kThreads = 256;
  static constexpr int kEach = 8;  // elements of a thread, loaded together
  static constexpr int64_t kBlock = int64_t{kThreads} * kEach;
  struct Shared {};
  struct Thread {};

  const Stored* in;
  Stored* out;
  int64_t count;
  typename Element::Value factor;

  COXSWAIN_HOST_DEVICE constexpr int phases() const { return 1; }

  COXSWAIN_HOST_DEVICE void Run(int, const BlockPlace& at, Thread*,
                                Shared*) const {
    const int64_t first = at.block * kBlock + at.thread;
    Stored values[kEach] = {};
    for (int e = 0; e < kEach; ++e) {
      const int64_t i = first + int64_t{kThreads} * e;
      if (i < count) values[e] = in[i];
    }
    for (int e = 0; e < kEach; ++e) {
      const int64_t i = first + int64_t{kThreads} * e;
      if (i < count) {
        out[i] = Element::Narrow(Element::Widen(values[e]) * factor);
      }
    }
  }
};

// to += from. A block adds kBlock.
template <class Element>
struct AddElements {
  using Stored = typename Element::Stored;
  static constexpr int kThreads = 256;
  static constexpr int kEach = 4;  // elements of a thread, loaded together
  static constexpr int64_t kBlock = int64_t{kThreads} * kEach;
  struct Shared {};
  struct Thread {};

  const Stored* from;
  Stored* to;
  int64_t count;

  COXSWAIN_HOST_DEVICE constexpr int phases() const { return 1; }

  COXSWAIN_HOST_DEVICE void Run(int, const BlockPlace& at, Thread*,
                                Shared*) const {
    const int64_t first = at.block * kBlock + at.thread;
    Stored values[kEach] = {};
    Stored sums[kEach] = {};
    for (int e = 0; e < kEach; ++e) {
      const int64_t i = first + int64_t{kThreads} * e;
      if (i < count) {
        values[e] = from[i];
        sums[e] = to[i];
      }
    }
    for (int e = 0; e < kEach; ++e) {
      const int64_t i = first + int64_t{kThreads} * e;
      if (i < count) {
        to[i] = Element::Narrow(Element::Widen(sums[e]) +
                                Element::Widen(values[e]));
      }
    }
  }
};

// Runs of elements, one after the other, each cut into chunks.
struct Runs {
  static constexpr int kMost = 96;
  static constexpr int64_t kChunk = 2048;  // elements

  int count = 0;
  // Run r is [begin[r], begin[r + 1]) and has the chunks
  // [first_chunk[r], first_chunk[r + 1]).
  int64_t begin[kMost + 1] = {};
  int64_t first_chunk[kMost + 1] = {};

  COXSWAIN_HOST_DEVICE int64_t chunks() const { return first_chunk[count]; }
  // Returns the run that has this chunk, which exists.
  COXSWAIN_HOST_DEVICE int RunOf(int64_t chunk) const {
    int low = 0;
    int high = count;  // the answer is in [low, high)
    while (high - low > 1) {
      const int middle = (low + high) / 2;
      if (first_chunk[middle] <= chunk) {
        low = middle;
      } else {
        high = middle;
      }
    }
    return low;
  }
};

struct Statistics {
  double sum_of_squares;
  int64_t non_finite;
};

// Of each chunk. Element i of it is added to lane i % kLanes, and then the
// upper half of the lanes to the lower one until one is left: the order of
// client/reduce/gradient_statistics.cc. A block has kChunks.
template <class Element>
struct MeasureChunks {
  using Stored = typename Element::Stored;
  static constexpr int kThreads = 256;
  static constexpr int kLanes = 16;
  static constexpr int kChunks = kThreads / kLanes;
  struct Shared {
    double sums[kThreads];
    int64_t found[kThreads];
  };
  struct Thread {};

  const Stored* values;
  Statistics* chunks;  // runs.chunks() of them
  Runs runs;

  // Of its own elements; then kLanes / 2, ..., 1 lanes at work.
  COXSWAIN_HOST_DEVICE constexpr int phases() const { return 5; }

  COXSWAIN_HOST_DEVICE void Run(int phase, const BlockPlace& at, Thread*,
                                Shared* shared) const {
    const int lane = at.thread % kLanes;
    const int64_t chunk = at.block * kChunks + at.thread / kLanes;
    if (chunk >= runs.chunks()) return;
    double* const sum = shared->sums + at.thread;
    int64_t* const found = shared->found + at.thread;
    if (phase == 0) return Measure(chunk, lane, sum, found);
    const int width = kLanes >> phase;
    if (lane >= width) return;
    *sum += sum[width];
    *found += found[width];
    if (width > 1) return;
    chunks[chunk].sum_of_squares = *sum;
    chunks[chunk].non_finite = *found;
  }

 private:
  COXSWAIN_HOST_DEVICE void Measure(int64_t chunk, int lane, double* sum,
                                    int64_t* found) const {
    const int run = runs.RunOf(chunk);
    const int64_t first =
        runs.begin[run] + (chunk - runs.first_chunk[run]) * Runs::kChunk;
    const int64_t rest = runs.begin[run + 1] - first;
    const int64_t end = first + (rest < Runs::kChunk ? rest : Runs::kChunk);
    double total = 0;
    int64_t count = 0;
    for (int64_t i = first + lane; i < end; i += kLanes) {
      const double value = Element::Widen(values[i]);
      total += value * value;
      // x - x is 0 for a finite x, and NaN otherwise.
      count += value - value == 0 ? 0 : 1;
    }
    *sum = total;
    *found = count;
  }
};

// Of each run, which has a block, from its chunks in order.
struct SumChunks {
  static constexpr int kThreads = 256;
  struct Shared {
    Statistics chunks[kThreads];
  };
  struct Thread {
    double sum;
    int64_t found;
  };

  const Statistics* chunks;
  Statistics* results;  // runs.count of them
  Runs runs;
  int rounds;  // of kThreads chunks, for the longest run; at least 1

  // Loads a round and adds it up, in turns.
  COXSWAIN_HOST_DEVICE constexpr int phases() const { return 2 * rounds; }

  COXSWAIN_HOST_DEVICE void Run(int phase, const BlockPlace& at, Thread* thread,
                                Shared* shared) const {
    const int64_t first =
        runs.first_chunk[at.block] + int64_t{phase / 2} * kThreads;
    const int64_t rest = runs.first_chunk[at.block + 1] - first;
    if (phase % 2 == 0) {
      if (at.thread < rest) {
        shared->chunks[at.thread] = chunks[first + at.thread];
      }
      return;
    }
    if (at.thread != 0) return;
    if (phase == 1) *thread = Thread{0, 0};
    for (int i = 0; i < kThreads && i < rest; ++i) {
      thread->sum += shared->chunks[i].sum_of_squares;
      thread->found += shared->chunks[i].non_finite;
    }
    if (phase + 1 < phases()) return;
    results[at.block].sum_of_squares = thread->sum;
    results[at.block].non_finite = thread->found;
  }
};

}  // namespace coxswain::arithmetic

#endif  // COXSWAIN_CLIENT_DEVICE_ARITHMETIC_PROGRAMS_H_
