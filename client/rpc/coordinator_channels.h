#ifndef COXSWAIN_CLIENT_RPC_COORDINATOR_CHANNELS_H_
#define COXSWAIN_CLIENT_RPC_COORDINATOR_CHANNELS_H_

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_split.h"
#include "base/clock.h"
#include "base/tls_files.h"
#include "client/rpc/credentials.h"
#include "client/rpc/failover.h"
#include "grpcpp/grpcpp.h"

// For this folder only.
namespace coxswain {

// The coordinators of a list, HOST:PORT with commas between, of which one
// leads: a connection to each, made by the first call there. Thread-safe.
class CoordinatorChannels {
 public:
  struct Coordinator {
    std::string address;
    std::shared_ptr<grpc::Channel> channel;
  };

  CoordinatorChannels(const std::string& addresses,
                      const ClientSecurity& security)
      : addresses_(addresses),
        coordinators_(Make(addresses, security)),
        failover_(
            coordinators_.size(),
            [this](size_t at) {
              return coordinators_[at].channel->GetState(
                         /*try_to_connect=*/false) == GRPC_CHANNEL_READY;
            },
            Clock::Real()) {}

  const std::string& addresses() const { return addresses_; }
  // See Failover.
  absl::Status Call(
      const CallOptions& options,
      const std::function<absl::Status(const Coordinator&,
                                       const CallOptions& once)>& attempt) {
    return failover_.Call(options, [&](size_t at, const CallOptions& once) {
      return attempt(coordinators_[at], once);
    });
  }
  // For a stream: the one that answered last.
  const Coordinator& Current() const {
    return coordinators_[failover_.Current()];
  }

 private:
  static std::vector<Coordinator> Make(const std::string& addresses,
                                       const ClientSecurity& security) {
    std::vector<Coordinator> all;
    for (const absl::string_view one : absl::StrSplit(addresses, ',')) {
      const std::string address(one);
      all.push_back({address, MakeCoordinatorChannel(address, security)});
    }
    return all;
  }

  const std::string addresses_;
  const std::vector<Coordinator> coordinators_;
  Failover failover_;
};

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_RPC_COORDINATOR_CHANNELS_H_
