#ifndef COXSWAIN_CLIENT_COMM_SHM_SEGMENT_H_
#define COXSWAIN_CLIENT_COMM_SHM_SEGMENT_H_

#include <cstddef>
#include <cstdint>

#include "absl/status/statusor.h"
#include "base/unique_fd.h"

namespace coxswain {

// Memory that processes of one host share. It has no name: whoever holds the
// descriptor, or has it mapped, keeps it, and it is gone with the last of them,
// however they end. It is sealed against shrinking, so that a peer cannot make
// an access to it fault.
class Segment {
 public:
  // RESOURCE_EXHAUSTED where the system has no memory or descriptors left.
  static absl::StatusOr<Segment> Create(int64_t bytes);
  // Maps what a peer has created. INVALID_ARGUMENT if it is smaller than
  // `bytes`, or not sealed.
  static absl::StatusOr<Segment> Map(UniqueFd fd, int64_t bytes);

  Segment() = default;
  Segment(Segment&& other) noexcept;
  Segment& operator=(Segment&& other) noexcept;
  ~Segment();

  char* data() const { return data_; }
  int64_t bytes() const { return bytes_; }
  // -1 after CloseFd, which the mapping survives.
  int fd() const { return fd_.get(); }
  void CloseFd() { fd_.Close(); }

 private:
  UniqueFd fd_;
  char* data_ = nullptr;
  int64_t bytes_ = 0;
};

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_COMM_SHM_SEGMENT_H_
