#ifndef COXSWAIN_TESTS_CHECKPOINT_SHARD_BYTES_H_
#define COXSWAIN_TESTS_CHECKPOINT_SHARD_BYTES_H_

#include <cstdint>
#include <string>

#include "base/random.h"

namespace coxswain {

// Several chunks, so that a kill can come between two.
inline constexpr size_t kShardBytes = 6'000'003;

// Returns what a rank saves at a step: a function of both, so that a reader can
// check whether it is whole, and which it is.
inline std::string ShardBytes(int64_t step, int rank) {
  const CounterRandom random(static_cast<uint64_t>(step), rank);
  std::string bytes(kShardBytes, '\0');
  for (size_t i = 0; i < bytes.size(); i += 64) {
    bytes[i] = static_cast<char>(random.Bits(i));
  }
  return bytes;
}

}  // namespace coxswain

#endif  // COXSWAIN_TESTS_CHECKPOINT_SHARD_BYTES_H_
