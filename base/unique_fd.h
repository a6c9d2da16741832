#ifndef COXSWAIN_BASE_UNIQUE_FD_H_
#define COXSWAIN_BASE_UNIQUE_FD_H_

#include <unistd.h>

#include <utility>

namespace coxswain {

// Owns a file descriptor; -1 is none.
class UniqueFd {
 public:
  explicit UniqueFd(int fd = -1) : fd_(fd) {}
  UniqueFd(UniqueFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~UniqueFd() { Close(); }

  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }
  void Close() {
    if (fd_ >= 0) close(fd_);
    fd_ = -1;
  }
  // Returns the descriptor, which the caller must close.
  int Release() { return std::exchange(fd_, -1); }

 private:
  int fd_;
};

}  // namespace coxswain

#endif  // COXSWAIN_BASE_UNIQUE_FD_H_
