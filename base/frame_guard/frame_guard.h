#ifndef COXSWAIN_BASE_FRAME_GUARD_FRAME_GUARD_H_
#define COXSWAIN_BASE_FRAME_GUARD_FRAME_GUARD_H_

#include <cstdint>
#include <string>

namespace coxswain {

// Sees what comes to gRPC servers of this process before gRPC does, after TLS,
// and ends connections that no client needs: with headers that never end; those
// that have gRPC hold most, or reset calls, while all together do so too much;
// and of strangers, of whom nobody is known to have called yet, with more calls
// or bytes than it takes to say who one is. How much is too much is in
// GuardedConnections::Limits.
//
// gRPC 1.51 has no place for this. Five of its own functions, by which a
// connection begins, is read and ends, and its calls do, are found in the
// program before they are found in its library (docs/adr/0030). Thread-safe.
class FrameGuard {
 public:
  // Whether gRPC is one that can be guarded. Otherwise nothing here has an
  // effect, everybody is known, and the first to ask logs a warning.
  static bool Works();

  // While it lives, who comes to this port of the process is a stranger at
  // first. Made before anybody can come.
  explicit FrameGuard(int port);
  ~FrameGuard();
  FrameGuard(const FrameGuard&) = delete;
  FrameGuard& operator=(const FrameGuard&) = delete;

  // By what a call's context says of its peer.
  static bool IsStranger(const std::string& peer);
  static void Know(const std::string& peer);

  // What gRPC may hold for all connections to this process, in bytes. Before
  // it is said, an eighth of the process's memory, but 512 MiB at least.
  static void SetMaxHeld(int64_t bytes);

  // Of this process: connections that were ended, and what gRPC holds for those
  // that are there (GuardedConnections::held).
  static int64_t ended();
  static int64_t held();

 private:
  const int port_;
};

}  // namespace coxswain

#endif  // COXSWAIN_BASE_FRAME_GUARD_FRAME_GUARD_H_
