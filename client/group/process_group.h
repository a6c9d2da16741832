#ifndef COXSWAIN_CLIENT_GROUP_PROCESS_GROUP_H_
#define COXSWAIN_CLIENT_GROUP_PROCESS_GROUP_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "client/comm/communicator.h"

namespace coxswain {

class MemberContext;  // client/rpc/member_context.h

// Some ranks of a generation, and the communicator that connects them. Made
// by Session. Immutable, hence thread-safe; the communicator has its own
// rules.
class ProcessGroup {
 public:
  // How a group connects; the same for all groups of a session.
  struct ConnectOptions {
    std::string backend = "auto";
    std::string address;  // where this process's data connections listen
    absl::Duration timeout = absl::Minutes(5);
    // Called with the rank in the job of each peer whose data connection broke;
    // see PeerLossSource. May be null; the communicator may outlive the
    // session.
    std::function<void(int rank)> on_peer_lost;
    Device device;  // where this rank's data lies
    // As CommunicatorOptions have them.
    std::shared_ptr<MeasuredLinks> links;
    bool measures_links = false;
    bool encrypts = false;
    std::shared_ptr<const DataKey> data_key;
    // Connects; null: client/comm/backends does.
    std::function<absl::StatusOr<std::unique_ptr<Communicator>>(
        const std::string& backend, const CommunicatorOptions& options)>
        connect;
    // Ends connecting when it is raised, with its status; null: the end of the
    // generation does.
    CancelSignal* cancel = nullptr;
  };

  // The coordinator's description of a group.
  struct Description {
    std::string name;
    std::vector<int> ranks;  // the position is the rank in the group
    std::string communicator_id;
  };

  // Connects rank `rank` of the job with the other members through the
  // coordinator's store. Blocks until all have arrived, or the generation ends.
  // Fails with INVALID_ARGUMENT if `rank` is not a member; otherwise with
  // errors of the back end.
  static absl::StatusOr<std::shared_ptr<ProcessGroup>> Connect(
      Description description, int rank, const ConnectOptions& options,
      const std::shared_ptr<MemberContext>& member);

  ProcessGroup(Description description, int group_rank,
               std::unique_ptr<Communicator> communicator);

  const std::string& name() const { return description_.name; }
  const std::vector<int>& ranks() const { return description_.ranks; }
  const std::string& communicator_id() const {
    return description_.communicator_id;
  }
  int rank() const { return rank_; }  // in the group
  int size() const { return static_cast<int>(description_.ranks.size()); }

  // Returns the communicator, which lives as long as the group.
  Communicator& communicator() const { return *communicator_; }

 private:
  const Description description_;
  const int rank_;
  const std::unique_ptr<Communicator> communicator_;
};

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_GROUP_PROCESS_GROUP_H_
