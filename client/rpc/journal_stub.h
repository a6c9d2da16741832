#ifndef COXSWAIN_CLIENT_RPC_JOURNAL_STUB_H_
#define COXSWAIN_CLIENT_RPC_JOURNAL_STUB_H_

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/tls_files.h"
#include "client/rpc/coordinator_stub.h"
#include "proto/journal.pb.h"

namespace coxswain {

class JournalStream {
 public:
  virtual ~JournalStream() = default;
  // Blocks for the next page. Returns false at the end, whose status Finish
  // returns.
  virtual bool Read(v1::JournalPage* page) = 0;
  virtual absl::Status Finish() = 0;
};

// proto/journal.proto, free of gRPC's types. For the command line; neither call
// is retried, and the timeout of Follow bounds the whole stream. Thread-safe;
// outlives its streams.
class JournalStub {
 public:
  virtual ~JournalStub() = default;
  virtual absl::StatusOr<v1::JournalPage> Read(
      const v1::JournalRequest& request, const CallOptions& options) = 0;
  virtual std::unique_ptr<JournalStream> Follow(
      const v1::JournalRequest& request, const CallOptions& options) = 0;
  // Returns the coordinator's address, for messages.
  virtual std::string address() const = 0;
};

// Connects to the coordinator at HOST:PORT, or to several with commas between,
// of which one leads: Read tries one after the other until one answers, Follow
// uses the one that answered.
std::unique_ptr<JournalStub> ConnectJournal(
    const std::string& address, const ClientSecurity& security = {});

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_RPC_JOURNAL_STUB_H_
