#ifndef COXSWAIN_SERVER_RPC_JOURNAL_SERVICE_H_
#define COXSWAIN_SERVER_RPC_JOURNAL_SERVICE_H_

#include <atomic>
#include <cstdint>
#include <string>
#include <utility>

#include "absl/time/time.h"
#include "base/clock.h"
#include "proto/journal.grpc.pb.h"
#include "server/journal/journal.h"

namespace coxswain::server {

struct FollowLimits {
  // Streams at once; each holds one page of events at most.
  int max_followers = 256;
  // A stream ends after this time, and is asked for again.
  absl::Duration max_time = absl::Minutes(10);
};

// proto/journal.proto on top of the journal. Thread-safe.
class JournalService : public v1::Journal::CallbackService {
 public:
  // What it stands on; the pointers outlive the gRPC server.
  struct Source {
    Journal* journal = nullptr;
    const Clock* clock = nullptr;
    std::string cluster_id;
    int64_t term = 0;
  };

  explicit JournalService(Source source, const FollowLimits& limits = {});
  ~JournalService() override;

  grpc::ServerUnaryReactor* Read(grpc::CallbackServerContext* context,
                                 const v1::JournalRequest* request,
                                 v1::JournalPage* response) override;
  grpc::ServerWriteReactor<v1::JournalPage>* Follow(
      grpc::CallbackServerContext* context,
      const v1::JournalRequest* request) override;

 private:
  const Source source_;
  const FollowLimits limits_;
  std::atomic<int> followers_{0};
};

}  // namespace coxswain::server

#endif  // COXSWAIN_SERVER_RPC_JOURNAL_SERVICE_H_
