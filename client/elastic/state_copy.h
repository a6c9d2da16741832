#ifndef COXSWAIN_CLIENT_ELASTIC_STATE_COPY_H_
#define COXSWAIN_CLIENT_ELASTIC_STATE_COPY_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "client/device/tensor.h"
#include "client/elastic/elastic_state.h"

namespace coxswain {

// Returns a checksum of the bits of all of them, in order.
uint32_t ChecksumOf(const std::vector<Span>& spans);

// A copy of an ElasticState, in memory of its own, to go back to. Empty at
// first. An exception of the state is an error.
class StateCopy {
 public:
  // Copies the state as it is now; with `loose_only`, its loose tensors alone.
  absl::Status Take(ElasticState* state, bool loose_only = false);
  // Makes the state what was copied.
  absl::Status Restore(ElasticState* state) const;

  // Return checksums of what it holds: of the tensors the ChecksumOf that they
  // had when they were copied, unless a bit has changed since; of all else.
  uint32_t TensorsChecksum() const;
  uint32_t RestChecksum() const;

 private:
  std::vector<std::string> loose_;
  std::vector<std::string> tensors_;
  std::optional<std::string> bytes_;  // unset: only the loose ones
  int64_t step_ = 0;
};

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_ELASTIC_STATE_COPY_H_
