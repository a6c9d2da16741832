#ifndef COXSWAIN_BASE_IDS_H_
#define COXSWAIN_BASE_IDS_H_

#include <cstdint>
#include <ostream>
#include <string>

#include "absl/strings/str_cat.h"

namespace coxswain {

// A number with a meaning: two ids of different tags do not mix.
template <typename Tag, typename T>
class StrongId {
 public:
  constexpr StrongId() = default;
  constexpr explicit StrongId(T value) : value_(value) {}
  constexpr T value() const { return value_; }

  friend bool operator==(StrongId a, StrongId b) {
    return a.value_ == b.value_;
  }
  friend bool operator!=(StrongId a, StrongId b) { return !(a == b); }
  friend bool operator<(StrongId a, StrongId b) { return a.value_ < b.value_; }
  friend std::ostream& operator<<(std::ostream& os, StrongId id) {
    return os << id.value_;
  }

 private:
  T value_ = {};
};

// Grows by one each time a coordinator starts on the same state.
using Term = StrongId<struct TermTag, int64_t>;
// One agreed membership of a job. Grows, and is never used twice; 0 is none.
using Generation = StrongId<struct GenerationTag, int64_t>;
// Random for each start of a worker process; 0 is none.
using Incarnation = StrongId<struct IncarnationTag, uint64_t>;

// Who a worker is across restarts: given by its launcher, not by itself.
struct WorkerIdentity {
  std::string node;  // the launcher's --node, by default the host name
  int slot = 0;      // local slot on that node

  friend bool operator==(const WorkerIdentity& a, const WorkerIdentity& b) {
    return a.node == b.node && a.slot == b.slot;
  }
  friend bool operator<(const WorkerIdentity& a, const WorkerIdentity& b) {
    return a.node != b.node ? a.node < b.node : a.slot < b.slot;
  }
  std::string ToString() const { return absl::StrCat(node, "/", slot); }
};

}  // namespace coxswain

#endif  // COXSWAIN_BASE_IDS_H_
