#ifndef COXSWAIN_CLIENT_COMM_TCP_MEETING_H_
#define COXSWAIN_CLIENT_COMM_TCP_MEETING_H_

#include <poll.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "client/comm/communicator.h"
#include "client/comm/tcp/hello.h"
#include "client/comm/tcp/tcp_socket.h"
#include "client/comm/tcp/tcp_stream.h"

namespace coxswain {

// The connections of a group as they come about, by rank and index. Each side
// of a pair adds the same number, which the caller chooses.
class TcpPairs {
 public:
  explicit TcpPairs(const CommunicatorOptions& options)
      : rank_(options.rank), pairs_(static_cast<size_t>(options.size)) {}

  // False: there is such a connection already, or the pair has another number.
  bool Add(int peer, uint32_t index, uint32_t count, uint64_t host,
           TcpStream stream);
  // Returns the ranks with which not all connections are there.
  std::vector<int> Missing() const;
  std::vector<TcpStream> Release(int peer);
  // Returns the id of a peer's host.
  uint64_t host(int peer) const {
    return pairs_[static_cast<size_t>(peer)].host;
  }

 private:
  struct Pair {
    std::vector<TcpStream> streams;
    size_t connected = 0;
    uint64_t host = 0;
  };

  const int rank_;
  std::vector<Pair> pairs_;
};

// The side that is called. Reads what callers say, without trusting them.
class Acceptor {
 public:
  // Without keys connections are in plain text.
  Acceptor(const CommunicatorOptions& options, const TcpPlace& own,
           std::shared_ptr<const TlsKeys> keys, TcpListener listener);

  // Accepts and reads what there is, a few new callers at most: poll
  // shows that there are more. RESOURCE_EXHAUSTED if no descriptors are left.
  absl::Status Advance(absl::Time now, TcpPairs* pairs);
  void AddEntries(std::vector<pollfd>* entries) const;
  // Returns when the first of those that have sent nothing yet is dropped.
  absl::Time NextExpiry() const;

 private:
  struct Caller {
    TcpStream stream;
    absl::Time expires;
    TcpHelloBytes bytes = {};
    size_t read = 0;
  };
  enum class Heard { kWaits, kDropped, kTaken };

  Heard Hear(Caller* caller, TcpPairs* pairs) const;
  bool IsOurs(const TcpHello& hello) const;

  const CommunicatorOptions& options_;
  const TcpPlace own_;
  const std::shared_ptr<const TlsKeys> keys_;
  const TcpListener listener_;
  const size_t max_callers_;
  std::vector<Caller> callers_;
};

// The side that calls.
class CallerSide {
 public:
  CallerSide(const CommunicatorOptions& options, const TcpPlace& own,
             std::shared_ptr<const TlsKeys> keys)
      : options_(options), own_(own), keys_(std::move(keys)) {}

  // Begins to connect with a peer: `count` connections.
  absl::Status Begin(int peer, const TcpPlace& place, uint32_t count);
  // UNAVAILABLE names the peer that cannot be reached, or that is another one.
  absl::Status Advance(TcpPairs* pairs);
  void AddEntries(std::vector<pollfd>* entries) const;

 private:
  struct Call {
    int peer = 0;
    uint32_t index = 0;
    uint32_t count = 0;
    TcpStream stream;
    TcpHelloBytes hello = {};
    size_t sent = 0;
    TcpAnswerBytes expected = {};
    TcpAnswerBytes answer = {};
    size_t read = 0;
  };

  // Returns whether it has been answered.
  absl::StatusOr<bool> AdvanceCall(Call* call) const;

  const CommunicatorOptions& options_;
  const TcpPlace own_;
  const std::shared_ptr<const TlsKeys> keys_;
  std::map<int, TcpPlace> places_;
  std::vector<Call> calls_;
};

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_COMM_TCP_MEETING_H_
