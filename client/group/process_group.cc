#include "client/group/process_group.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "client/comm/backends/registry.h"
#include "client/comm/communicator.h"
#include "client/rpc/member_context.h"
#include "client/store/store_client.h"

namespace coxswain {

namespace {

void WatchPeerLosses(Communicator* communicator, const std::vector<int>& ranks,
                     const std::function<void(int rank)>& on_lost) {
  auto* const source = dynamic_cast<PeerLossSource*>(communicator);
  if (source == nullptr || on_lost == nullptr) return;
  source->WatchPeerLosses([ranks, on_lost](int peer) {
    if (peer >= 0 && peer < static_cast<int>(ranks.size())) {
      on_lost(ranks[peer]);
    }
  });
}

}  // namespace

absl::StatusOr<std::shared_ptr<ProcessGroup>> ProcessGroup::Connect(
    Description description, int rank, const ConnectOptions& options,
    const std::shared_ptr<MemberContext>& member) {
  const std::vector<int>& ranks = description.ranks;
  const auto position = std::find(ranks.begin(), ranks.end(), rank);
  if (position == ranks.end()) {
    return absl::InvalidArgumentError(
        absl::StrCat("rank ", rank, " is not in the group '", description.name,
                     "' of the ranks ", absl::StrJoin(ranks, ", ")));
  }
  CommunicatorOptions communicator_options;
  communicator_options.id = description.communicator_id;
  communicator_options.rank = static_cast<int>(position - ranks.begin());
  communicator_options.size = static_cast<int>(ranks.size());
  communicator_options.address = options.address;
  communicator_options.device = options.device;
  communicator_options.links = options.links;
  communicator_options.measures_links = options.measures_links;
  communicator_options.timeout = options.timeout;
  communicator_options.encrypts = options.encrypts;
  communicator_options.data_key = options.data_key;
  communicator_options.cancel =
      options.cancel == nullptr ? &member->ended() : options.cancel;
  communicator_options.store =
      std::make_shared<StoreRendezvous>(member, description.communicator_id);
  auto communicator =
      options.connect == nullptr
          ? ::coxswain::Connect(options.backend, communicator_options)
          : options.connect(options.backend, communicator_options);
  if (!communicator.ok()) return member->Outcome(communicator.status());
  (*communicator)->CountWaitsIn(member->waits());
  WatchPeerLosses(communicator->get(), description.ranks, options.on_peer_lost);
  return std::make_shared<ProcessGroup>(std::move(description),
                                        communicator_options.rank,
                                        std::move(communicator).value());
}

ProcessGroup::ProcessGroup(Description description, int group_rank,
                           std::unique_ptr<Communicator> communicator)
    : description_(std::move(description)),
      rank_(group_rank),
      communicator_(std::move(communicator)) {}

}  // namespace coxswain
