#ifndef COXSWAIN_TESTS_SYSTEM_LATENCIES_H_
#define COXSWAIN_TESTS_SYSTEM_LATENCIES_H_

#include <string>
#include <vector>

#include "absl/time/time.h"

namespace coxswain {

// How long something took, many times.
class Latencies {
 public:
  void Add(absl::Duration took) { all_.push_back(took); }
  size_t count() const { return all_.size(); }

  // Returns the smallest latency that is not exceeded by this share of all;
  // zero of none.
  absl::Duration Quantile(double share) const;

  // Returns "p50 1.2 ms, p99 34.0 ms, most 50.1 ms, of 120".
  std::string ToString() const;
  // Returns {"count": ..., "p50_ms": ..., "p99_ms": ..., "max_ms": ...}.
  std::string ToJson() const;

 private:
  std::vector<absl::Duration> all_;
};

}  // namespace coxswain

#endif  // COXSWAIN_TESTS_SYSTEM_LATENCIES_H_
