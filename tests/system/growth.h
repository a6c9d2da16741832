#ifndef COXSWAIN_TESTS_SYSTEM_GROWTH_H_
#define COXSWAIN_TESTS_SYSTEM_GROWTH_H_

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

namespace coxswain {

// Whether what a process holds grows: looked at again and again, between things
// that it should have forgotten afterwards.
class Growth {
 public:
  struct Held {
    int64_t kilobytes = 0;  // resident
    int64_t descriptors = 0;
    int64_t threads = 0;
  };

  // Looks at a running process; does nothing for one that has ended.
  void Look(pid_t process);
  // Begins anew, with another process.
  void Clear() { looks_.clear(); }
  size_t looks() const { return looks_.size(); }

  // Returns what it held at the beginning, once it had warmed up, and at the
  // end: "RSS 40 -> 41 MB, 30 -> 30 descriptors, 12 -> 12 threads".
  std::string ToString() const;
  // Fails the test if that is clearly more at the end. With few looks it is
  // not said.
  void ExpectNone(const std::string& whose) const;

 private:
  static constexpr size_t kFewest = 12;

  // Returns the medians of the second quarter and of the last.
  Held Early() const;
  Held Late() const;
  Held Median(size_t begin, size_t end) const;

  std::vector<Held> looks_;
};

}  // namespace coxswain

#endif  // COXSWAIN_TESTS_SYSTEM_GROWTH_H_
