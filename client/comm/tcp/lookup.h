#ifndef COXSWAIN_CLIENT_COMM_TCP_LOOKUP_H_
#define COXSWAIN_CLIENT_COMM_TCP_LOOKUP_H_

#include <atomic>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/mutex.h"
#include "client/comm/communicator.h"
#include "client/comm/tcp/hello.h"
#include "client/comm/tcp/tcp_socket.h"

namespace coxswain {

// Asks the store where the ranks below this one are, on a thread of its own: a
// question to the store cannot be interrupted, and connecting must be.
class PlaceLookup {
 public:
  using Found = std::pair<int, absl::StatusOr<TcpPlace>>;

  // Raises `wake` whenever something has been found.
  PlaceLookup(const CommunicatorOptions& options, absl::Time end,
              std::shared_ptr<WakeFd> wake);
  // Does not wait: a question that is being asked may outlive this object by a
  // second, and has a share of the store.
  ~PlaceLookup();

  // Returns what has been found since the last call; an error is the last
  // there is.
  std::vector<Found> Take();

  // Returns the key under which a rank publishes its place.
  static std::string Key(const CommunicatorOptions& options, int rank);

 private:
  struct Shared {
    std::atomic<bool> stop{false};
    Mutex mutex;
    std::vector<Found> found ABSL_GUARDED_BY(mutex);
  };

  const std::shared_ptr<Shared> shared_ = std::make_shared<Shared>();
};

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_COMM_TCP_LOOKUP_H_
