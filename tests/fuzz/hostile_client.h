#ifndef COXSWAIN_TESTS_FUZZ_HOSTILE_CLIENT_H_
#define COXSWAIN_TESTS_FUZZ_HOSTILE_CLIENT_H_

#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "grpcpp/generic/generic_stub.h"
#include "grpcpp/grpcpp.h"

namespace coxswain {

// Calls whatever it likes with whatever bytes, as many calls at once as it
// likes, and leaves them as it likes. Every rpc is a stream of messages to it.
// One thread; nothing happens but within its methods.
class HostileClient {
 public:
  // The server's answer in a call of that method.
  using OnMessage = std::function<void(const std::string& method,
                                       const grpc::ByteBuffer& message)>;

  HostileClient(const std::shared_ptr<grpc::Channel>& channel,
                OnMessage on_message);
  // Ends all calls, and waits until they have ended.
  ~HostileClient();
  HostileClient(const HostileClient&) = delete;
  HostileClient& operator=(const HostileClient&) = delete;

  // Begins a call; returns its number.
  size_t Open(const std::string& method);
  void Write(size_t call, absl::string_view message);
  void WritesDone(size_t call);
  void Cancel(size_t call);

  size_t size() const { return calls_.size(); }
  const std::string& method(size_t call) const { return calls_[call]->method; }

  // Handles what comes until that call has ended, or nothing more comes for a
  // moment: it may wait for others.
  void Settle(size_t call);

 private:
  enum Kind { kStart, kRead, kWrite, kFinish, kKinds };
  struct Call;
  struct Tag {
    Call* call = nullptr;
    Kind kind = kStart;
  };
  struct Call {
    std::string method;
    grpc::ClientContext context;
    std::unique_ptr<grpc::GenericClientAsyncReaderWriter> stream;
    std::deque<grpc::ByteBuffer> writes;
    grpc::ByteBuffer incoming;
    grpc::Status status;
    Tag tags[kKinds];
    bool started = false;
    bool writing = false;
    bool half_close = false;  // is wanted
    bool ended = false;       // nothing more is written
    bool done = false;
  };

  void* TagOf(Call* call, Kind kind) { return &call->tags[kind]; }
  // Handles one event; returns false if none comes in time.
  bool Handle(gpr_timespec deadline);
  void Handle(const Tag& tag, bool ok);
  void Advance(Call* call);

  const OnMessage on_message_;
  grpc::GenericStub stub_;
  grpc::CompletionQueue queue_;
  std::vector<std::unique_ptr<Call>> calls_;
};

}  // namespace coxswain

#endif  // COXSWAIN_TESTS_FUZZ_HOSTILE_CLIENT_H_
