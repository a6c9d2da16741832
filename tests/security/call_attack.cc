#include "tests/security/call_attack.h"

#include <atomic>
#include <chrono>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "grpcpp/generic/generic_stub.h"
#include "grpcpp/grpcpp.h"
#include "proto/rendezvous.pb.h"
#include "proto/store.pb.h"

namespace coxswain {
namespace {

constexpr size_t kLargest = 32 << 20;  // RpcOptions::max_message_bytes
// Together more than a coordinator may take, were they not refused.
constexpr int kCompressedJoins = 48;
constexpr size_t kCompressedJoinBytes = 30 << 20;

// How an attack calls, and with what.
struct Way {
  int at_once = 0;
  // The n-th call.
  std::string (*method)(int64_t number) = nullptr;
  std::string (*message)(int64_t number) = nullptr;
  // Cancels instead of ending its stream.
  bool abandons = false;
  bool compressed = false;
};

std::string DescribeOrGet(int64_t number) {
  return number % 2 == 0 ? "/coxswain.v1.Rendezvous/Describe"
                         : "/coxswain.v1.Store/Get";
}

std::string SmallMessage(int64_t number) {
  if (number % 2 == 0) return v1::DescribeRequest().SerializeAsString();
  v1::GetRequest request;
  request.mutable_fence()->set_job("rows");
  request.set_key("key");
  return request.SerializeAsString();
}

std::string JoinOrSet(int64_t number) {
  return number % 2 == 0 ? "/coxswain.v1.Rendezvous/Join"
                         : "/coxswain.v1.Store/Set";
}

v1::JoinRequest LongManifest(const std::string& job, size_t size) {
  v1::JoinRequest request;
  request.set_job(job);
  const std::string name(1000, 'n');
  for (size_t bytes = 0; bytes + 1100 < size; bytes += 1010) {
    request.mutable_manifest()->add_parameters()->set_name(name);
  }
  return request;
}

// Returns a manifest with as many names as fit, and a value that no store
// takes, each just within what a message may have; every fourth is larger than
// that.
std::string HugeMessage(int64_t number) {
  const size_t size = number % 4 == 3 ? kLargest + 1000 : kLargest - 1000;
  if (number % 2 != 0) {
    v1::SetRequest request;
    request.set_key("key");
    request.set_value(std::string(size, 'v'));
    return request.SerializeAsString();
  }
  return LongManifest("huge", size).SerializeAsString();
}

std::string Join(int64_t) { return "/coxswain.v1.Rendezvous/Join"; }

// Waits for the rest of its job, which does not come.
std::string WaitingJoin(int64_t number) {
  v1::JoinRequest request = LongManifest("compressed", kCompressedJoinBytes);
  request.mutable_identity()->set_node(absl::StrCat("node-", number));
  request.set_incarnation(static_cast<uint64_t>(number) + 1);
  request.set_timeout_ms(60'000);
  request.mutable_manifest()->set_world_size(10'000);
  request.mutable_manifest()->set_hook("allreduce");
  request.mutable_manifest()->set_accumulation_steps(1);
  for (auto& parameter : *request.mutable_manifest()->mutable_parameters()) {
    parameter.set_dtype("float32");
  }
  return request.SerializeAsString();
}

std::string AnyStream(int64_t number) {
  static const char* const kStreams[] = {"/coxswain.v1.Rendezvous/Attach",
                                         "/coxswain.v1.Checkpoint/Upload",
                                         "/coxswain.v1.Parameter/Exchange"};
  return kStreams[number % 3];
}

std::string Nothing(int64_t) { return ""; }

Way WayOf(AttackKind kind) {
  switch (kind) {
    case AttackKind::kSmallCalls:
      return {256, DescribeOrGet, SmallMessage, false};
    case AttackKind::kHugeMessages:
      return {2, JoinOrSet, HugeMessage, false};
    case AttackKind::kCompressedJoins:
      return {kCompressedJoins, Join, WaitingJoin, false, true};
    default:
      return {1000, AnyStream, Nothing, true};
  }
}

class CallAttack : public Attack {
 public:
  CallAttack(const Way& way, int port) : way_(way), stub_(Channel(port)) {
    for (int i = 0; i < way_.at_once; ++i) Start();
    thread_ = std::thread([this] { Run(); });
  }
  ~CallAttack() override {
    ending_ = true;
    thread_.join();
  }

  Count count() const override { return {1, 0, ended_}; }

 private:
  enum class State { kStarting, kWriting, kFinishing };
  // Has one event under way at a time.
  struct Call {
    int64_t number = 0;
    State state = State::kStarting;
    grpc::ClientContext context;
    std::unique_ptr<grpc::GenericClientAsyncReaderWriter> stream;
    grpc::Status status;
  };

  static std::shared_ptr<grpc::Channel> Channel(int port) {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    return grpc::CreateCustomChannel(absl::StrCat("127.0.0.1:", port),
                                     grpc::InsecureChannelCredentials(),
                                     arguments);
  }

  void Start() {
    auto call = std::make_unique<Call>();
    call->number = begun_++;
    call->context.set_deadline(std::chrono::system_clock::now() +
                               std::chrono::minutes(1));
    if (way_.compressed) {
      call->context.set_compression_algorithm(GRPC_COMPRESS_GZIP);
    }
    call->stream =
        stub_.PrepareCall(&call->context, way_.method(call->number), &queue_);
    Call* const started = call.get();
    calls_[started] = std::move(call);
    started->stream->StartCall(started);
  }

  // Until it is to end, and all calls have.
  void Run() {
    bool cancelled = false;
    while (!calls_.empty()) {
      if (ending_ && !std::exchange(cancelled, true)) {
        for (const auto& [call, owned] : calls_) call->context.TryCancel();
      }
      void* tag = nullptr;
      bool ok = false;
      const auto look =
          std::chrono::system_clock::now() + std::chrono::milliseconds(20);
      if (queue_.AsyncNext(&tag, &ok, look) ==
          grpc::CompletionQueue::GOT_EVENT) {
        GoOn(static_cast<Call*>(tag));
      }
    }
    queue_.Shutdown();
  }

  void GoOn(Call* call) {
    switch (call->state) {
      case State::kStarting:
        if (way_.abandons) return Abandon(call);
        call->state = State::kWriting;
        return Write(call);
      case State::kWriting:
        call->state = State::kFinishing;
        return call->stream->Finish(&call->status, call);
      case State::kFinishing:
        calls_.erase(call);
        ++ended_;
        if (!ending_) Start();
    }
  }

  // Half of them are left open, the others are left.
  void Abandon(Call* call) {
    if (call->number % 2 == 0) call->context.TryCancel();
    call->state = State::kFinishing;
    call->stream->Finish(&call->status, call);
  }

  void Write(Call* call) {
    const std::string bytes = way_.message(call->number);
    const grpc::Slice slice(bytes.data(), bytes.size());
    call->stream->WriteLast(grpc::ByteBuffer(&slice, 1), grpc::WriteOptions(),
                            call);
  }

  const Way way_;
  grpc::GenericStub stub_;
  grpc::CompletionQueue queue_;
  // The thread's, once that runs.
  int64_t begun_ = 0;
  std::map<Call*, std::unique_ptr<Call>> calls_;
  std::atomic<bool> ending_{false};
  std::atomic<int64_t> ended_{0};
  std::thread thread_;
};

}  // namespace

std::unique_ptr<Attack> BeginCallAttack(AttackKind kind, int port) {
  return std::make_unique<CallAttack>(WayOf(kind), port);
}

}  // namespace coxswain
