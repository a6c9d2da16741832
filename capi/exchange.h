#ifndef COXSWAIN_CAPI_EXCHANGE_H_
#define COXSWAIN_CAPI_EXCHANGE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "client/group/process_group.h"
#include "client/reduce/bucket.h"
#include "client/reduce/bucket_stream.h"
#include "schedule/plan.h"
#include "schedule/ticket.h"

namespace coxswain::capi {

// What exchanges the gradients of one stream: the hook, the ranks, and how they
// are connected. Threading: that of BucketStream.
class StreamExchange {
 public:
  // `parameters` is their hash, which ranks have in common.
  StreamExchange(std::shared_ptr<ProcessGroup> group, uint64_t parameters,
                 std::unique_ptr<BucketStream> stream)
      : group_(std::move(group)),
        parameters_(parameters),
        stream_(std::move(stream)) {}

  BucketStream& stream() { return *stream_; }

  absl::Status ChangeParameters(uint64_t hash,
                                std::vector<ParameterSpec> parameters);

  // Fills in what a ticket has of the exchanges before, and follows the plan
  // that it was made for.
  absl::Status Begin(const schedule::Plan& plan, schedule::Ticket* ticket);

  // Keeps what cx_hook_save returns, until the next one or Begin. Returns it.
  const std::string& KeepState(std::string state) {
    saved_ = std::move(state);
    return saved_;
  }

 private:
  // Destroyed last.
  const std::shared_ptr<ProcessGroup> group_;
  uint64_t parameters_;
  const std::unique_ptr<BucketStream> stream_;
  std::string saved_;
};

}  // namespace coxswain::capi

#endif  // COXSWAIN_CAPI_EXCHANGE_H_
