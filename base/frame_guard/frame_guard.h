#ifndef COXSWAIN_BASE_FRAME_GUARD_FRAME_GUARD_H_
#define COXSWAIN_BASE_FRAME_GUARD_FRAME_GUARD_H_

#include <cstdint>
#include <string>

namespace coxswain {

// Sees what comes to gRPC servers of this process before gRPC does, after TLS,
// and ends connections that no client needs: with headers that never end, on
// any server; and of strangers, of whom nobody is known to have called yet,
// with more calls or bytes than it takes to say who one is.
//
// gRPC 1.51 has no place for this. Three of its own functions, by which a
// connection begins, is read and ends, are found in the program before they are
// found in its library (docs/adr/0030). Thread-safe.
class FrameGuard {
 public:
  // Whether gRPC is one that can be guarded. Otherwise nothing here has an
  // effect, everybody is known, and the first to ask logs a warning.
  static bool Works();

  // What strangers may, until they are known. All of a connection counts.
  static constexpr int64_t kStrangerCalls = 64;
  static constexpr int64_t kStrangerBytes = 33
                                            << 20;  // a message, and a little
  // Past the first 64 KiB of each connection they share this, in a process.
  static constexpr int64_t kFreeBytes = 64 << 10;
  static constexpr int64_t kSharedBytes = 256 << 20;

  // While it lives, who comes to this port of the process is a stranger at
  // first. Made before anybody can come.
  explicit FrameGuard(int port);
  ~FrameGuard();
  FrameGuard(const FrameGuard&) = delete;
  FrameGuard& operator=(const FrameGuard&) = delete;

  // By what a call's context says of its peer.
  static bool IsStranger(const std::string& peer);
  static void Know(const std::string& peer);

  // Connections that were ended, in this process.
  static int64_t ended();

 private:
  const int port_;
};

}  // namespace coxswain

#endif  // COXSWAIN_BASE_FRAME_GUARD_FRAME_GUARD_H_
