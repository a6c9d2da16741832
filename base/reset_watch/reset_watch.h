#ifndef COXSWAIN_BASE_RESET_WATCH_RESET_WATCH_H_
#define COXSWAIN_BASE_RESET_WATCH_RESET_WATCH_H_

#include <cstdint>
#include <memory>

namespace coxswain {

// Ends connections to a gRPC server of this process on which calls are begun
// and reset, as fast as the client can (CVE-2023-44487). Until 1.56 gRPC has no
// bound of its own: it holds each such call for as long as more of them come.
//
// All watches of a process share one thread, which reads gRPC's counts of calls
// ten times a second and looks at the connections while calls fail. It waits in
// the system, whose clock it follows. Thread-safe.
class ResetWatch {
 public:
  // `port`: of the server, which listens already. `streams`: what the server
  // lets a connection have under way at once. Watches as long as it lives.
  ResetWatch(int port, int streams);
  ~ResetWatch();
  ResetWatch(const ResetWatch&) = delete;
  ResetWatch& operator=(const ResetWatch&) = delete;

  // Connections that it has ended.
  int64_t ended() const;

 private:
  class Watcher;
  struct Port;
  const std::shared_ptr<Port> port_;
  const std::shared_ptr<Watcher> watcher_;
};

}  // namespace coxswain

#endif  // COXSWAIN_BASE_RESET_WATCH_RESET_WATCH_H_
