#ifndef COXSWAIN_CLIENT_ELASTIC_ELASTIC_STATE_H_
#define COXSWAIN_CLIENT_ELASTIC_ELASTIC_STATE_H_

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/crc32c.h"
#include "client/device/tensor.h"

namespace coxswain {

// Returns a number of bytes that differs for other bytes: two checksums, as
// bytes that end with their own all have the same one.
inline uint64_t DigestOf(absl::string_view bytes) {
  const size_t body = bytes.size() - std::min<size_t>(bytes.size(), 8);
  const uint32_t high = Crc32c(bytes.substr(0, body));
  const uint32_t low = Crc32c(bytes.substr(body), high);
  return uint64_t{high} << 32 | low;
}

// What a worker needs to continue training from its peers' step. Implemented
// for libtorch by client/torch/elastic_module_state, for frameworks that hand
// over pointers by train, and by programs without either.
//
// Called on the thread that trains, between generations; never during a step.
// All ranks hold the same bits of it after the same step, except for
// LooseTensors and a hook's own state (HookState: see elastic_run.h).
class ElasticState {
 public:
  virtual ~ElasticState() = default;

  // Returns the optimizer steps that are part of the state.
  virtual int64_t step() const = 0;
  // Returns a number that grows whenever the ranks change the state together:
  // with each step, and with whatever else they agree on, such as the end of an
  // epoch. The rank with the highest progress has the newest state.
  virtual int64_t progress() const { return step(); }

  // Forgets the gradients of a step that was in progress when the generation
  // ended, so that the state is that of step().
  virtual void Rollback() = 0;

  // Returns the large part: parameters, in an order and of sizes that are the
  // same on all ranks, and their elements in an order that is the same, too.
  // The spans are valid until the next call, or TakeTensors.
  virtual std::vector<Span> Tensors() = 0;
  // Likewise, returns what ranks may hold different bits of, such as running
  // means: taken from one rank whenever a generation begins. Small.
  virtual std::vector<Span> LooseTensors() { return {}; }
  // Called after the spans that either of them returned last were written to:
  // a state whose spans are not the memory of its tensors copies them there.
  virtual absl::Status TakeTensors() { return absl::OkStatus(); }

  // Returns the rest as bytes: the optimizer's state, counters, the program's
  // position in its data. Load is only called with what Save returned, here or
  // on a peer, at that step.
  virtual absl::StatusOr<std::string> Save() = 0;
  virtual absl::Status Load(absl::string_view bytes, int64_t step) = 0;

  // Returns the part of Save's bytes that may differ between ranks without
  // harm, such as a program's counters, if it does not change them alike:
  // small, and taken from one rank where they differ when a generation begins.
  // Not part of Digest. LoadLooseBytes is only called with what LooseBytes
  // returned, on a peer, after the same progress.
  virtual std::string LooseBytes() { return ""; }
  virtual absl::Status LoadLooseBytes(absl::string_view) {
    return absl::OkStatus();
  }

  // Returns equal values for equal states. To be overridden where the same
  // state may be written in several ways.
  virtual absl::StatusOr<uint64_t> Digest() {
    const absl::StatusOr<std::string> bytes = Save();
    if (!bytes.ok()) return bytes.status();
    return DigestOf(*bytes);
  }
};

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_ELASTIC_ELASTIC_STATE_H_
