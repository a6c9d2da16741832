#ifndef COXSWAIN_CLIENT_COMM_TCP_RING_CHOICE_H_
#define COXSWAIN_CLIENT_COMM_TCP_RING_CHOICE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/comm/hosts.h"
#include "client/comm/measured_links.h"
#include "client/comm/tcp/tcp_messages.h"

namespace coxswain {

// A ring has a choice of neighbours from so many hosts on.
constexpr int kHostsToOrder = 4;
// Links of more hosts are not measured.
constexpr int kMaxHostsToOrder = 256;

// The ring of a group.
struct RingChoice {
  std::vector<int> ranks;
  std::string reason;     // on rank 0: why it is this one
  bool measures = false;  // the links are measured now, for the next generation
};

// Chooses by what was measured. Links that were not count as the median of
// those that were, so that a new host hinders none. The ring by ranks stays
// unless the slowest edge of another is faster by a tenth: measurements differ
// by a few hundredths each time.
RingChoice ChooseRing(const std::vector<uint64_t>& host_ids,
                      const MeasuredLinks::Costs& measured);

// Returns the ring and the reason, for display.
std::string Describe(const RingChoice& choice);

// Gives all ranks the choice of rank 0; the others pass theirs by rank. Errors
// as TcpMessages::Await; INTERNAL where rank 0 has sent no ring.
absl::Status ShareChoice(TcpMessages* messages, int rank, RingChoice* choice,
                         absl::Duration timeout);

// Gives all ranks the values of rank 0, which are as many on all.
absl::Status ShareValues(TcpMessages* messages, int rank, int size,
                         std::vector<int64_t>* values, absl::Duration timeout);

// Returns `values` as memory of messages.
Span SpanOfValues(std::vector<int64_t>* values);

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_COMM_TCP_RING_CHOICE_H_
