#ifndef COXSWAIN_TESTS_SUPPORT_TCP_RELAY_H_
#define COXSWAIN_TESTS_SUPPORT_TCP_RELAY_H_

#include <list>
#include <string>
#include <thread>

#include "base/mutex.h"
#include "base/unique_fd.h"

namespace coxswain {

// Passes the connections to a port of the loopback interface on to another end,
// until a test wants a network that does not: nothing is refused then, it just
// gets nowhere. Thread-safe.
class TcpRelay {
 public:
  enum class Mode {
    kOpen,         // bytes go both ways
    kHoldAnswers,  // holds back the server's answers
    kHoldAll,      // nothing gets through, nor a new connection
  };

  struct End {
    std::string host = "127.0.0.1";  // an address of IPv4
    int port = 0;
  };

  explicit TcpRelay(int target_port);
  // Connects from `source`, whose port 0 is any that is free.
  TcpRelay(End target, End source);
  ~TcpRelay();
  TcpRelay(const TcpRelay&) = delete;
  TcpRelay& operator=(const TcpRelay&) = delete;

  int port() const { return port_; }
  // Sets the mode. kOpen sends on what was held back.
  void Set(Mode mode);
  // Ends all connections; with what was held back.
  void Break();

 private:
  struct Pair {
    UniqueFd client;
    UniqueFd server;
    bool ended = false;
  };

  void Run();
  void Wake();
  void Accept();

  const End target_;
  const End source_;
  int port_ = 0;
  UniqueFd listener_;
  UniqueFd wake_;
  std::list<Pair> pairs_;  // the thread's own
  Mutex mutex_;
  Mode mode_ ABSL_GUARDED_BY(mutex_) = Mode::kOpen;
  bool break_ ABSL_GUARDED_BY(mutex_) = false;
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
  CondVar broken_;
  std::thread thread_;
};

}  // namespace coxswain

#endif  // COXSWAIN_TESTS_SUPPORT_TCP_RELAY_H_
