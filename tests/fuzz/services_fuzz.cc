// A malicious client, at the real services over the real components. Whatever
// it has sent, all of its calls end when it disconnects, and a job that comes
// after it is served.

#include <chrono>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "base/check.h"
#include "proto/checkpoint.pb.h"
#include "proto/rendezvous.grpc.pb.h"
#include "proto/store.grpc.pb.h"
#include "tests/fuzz/fuzz_bytes.h"
#include "tests/fuzz/hostile_client.h"
#include "tests/fuzz/message_damage.h"
#include "tests/fuzz/sensible_messages.h"
#include "tests/fuzz/services.h"
#include "tests/fuzz/test_server.h"
#include "transport/chunk_codec.h"

namespace coxswain {
namespace {

constexpr int kMostActs = 24;
constexpr size_t kMostCalls = 64;

class Play {
 public:
  Play(const std::vector<RpcMethod>& methods, absl::string_view input)
      : methods_(methods),
        bytes_(input),
        client_(server_.channel(), [this](const std::string& method,
                                          const grpc::ByteBuffer& message) {
          Learn(method, message);
        }) {
    known_.fences = server_.fences();
    words_ = {"mnist",     "another",
              "host",      "train",
              "allreduce", "weight",
              "float32",   "a",
              "b",         "pair",
              "mesh",      "group",
              "flush",     "drop",
              "on_tail",   "w",
              "t",         "int8",
              "bfloat16",  "checksum_every",
              "..",        "/",
              "a/../b",    "enforcement",
              "off",       known_.fences[0].cluster_id()};
  }

  void Run() {
    for (int i = 0; i < kMostActs && !bytes_.empty(); ++i) Act();
  }
  std::shared_ptr<grpc::Channel> channel() const { return server_.channel(); }

 private:
  void Act() {
    const size_t what = bytes_.Below(16);
    if (what == 15) {
      server_.Pass(absl::Seconds(bytes_.Byte()));
    } else if (what == 14 && client_.size() > 0) {
      const size_t call = bytes_.Byte() % client_.size();
      if (bytes_.Below(2) == 0) client_.Cancel(call);
      client_.WritesDone(call);
      client_.Settle(call);
    } else if (what >= 8 && !streams_.empty()) {
      SendOn(bytes_.Byte() % streams_.size());
    } else if (client_.size() < kMostCalls) {
      Call(methods_[bytes_.Below(methods_.size())]);
    }
  }

  std::string Message(const RpcMethod& method, int number) {
    if (bytes_.Below(16) == 15) return std::string(bytes_.Text());
    const MessagePtr message = method.make(&known_, number, &bytes_);
    DamageMessage(words_, &bytes_, message.get());
    return message->SerializeAsString();
  }

  void Call(const RpcMethod& method) {
    const size_t call = client_.Open(method.path);
    client_.Write(call, Message(method, 0));
    if (method.streams) {
      streams_.push_back({call, &method, 1});
    } else {
      client_.WritesDone(call);
    }
    client_.Settle(call);
  }
  void SendOn(size_t which) {
    Stream& stream = streams_[which];
    client_.Write(stream.call, Message(*stream.method, stream.sent++));
    client_.Settle(stream.call);
  }

  // What makes later messages sensible.
  void Learn(const std::string& method, const grpc::ByteBuffer& message) {
    v1::BeginResponse begun;
    if (absl::EndsWith(method, "/Begin") &&
        bulk::DecodeMessage(message, &begun).ok()) {
      known_.checkpoint = begun.checkpoint_id();
    }
    v1::JoinResponse joined;
    if (absl::EndsWith(method, "/Join") &&
        bulk::DecodeMessage(message, &joined).ok()) {
      for (const v1::Member& member : joined.members()) {
        v1::Fence& fence = known_.fences[member.rank() % 2];
        fence.set_generation(joined.generation());
        fence.set_incarnation(member.incarnation());
      }
    }
  }

  struct Stream {
    size_t call = 0;
    const RpcMethod* method = nullptr;
    int sent = 0;
  };

  const std::vector<RpcMethod>& methods_;
  FuzzBytes bytes_;
  TestServer server_;
  Knowledge known_;
  std::vector<std::string> words_;
  std::vector<Stream> streams_;
  HostileClient client_;
};

struct Context : grpc::ClientContext {
  Context() {
    set_deadline(std::chrono::system_clock::now() + std::chrono::minutes(1));
  }
};

v1::Fence JoinAlone(v1::Rendezvous::Stub* rendezvous) {
  Context context;
  v1::JoinRequest request;
  request.set_job("honest");
  request.mutable_identity()->set_node("honest");
  request.set_incarnation(99);
  request.set_timeout_ms(60'000);
  request.mutable_manifest()->set_world_size(1);
  request.mutable_manifest()->set_hook("allreduce");
  request.mutable_manifest()->set_accumulation_steps(1);
  v1::JoinResponse response;
  const grpc::Status joined = rendezvous->Join(&context, request, &response);
  COXSWAIN_CHECK(joined.ok());
  v1::Fence fence;
  fence.set_cluster_id(response.cluster_id());
  fence.set_term(response.term());
  fence.set_job("honest");
  fence.set_generation(response.generation());
  fence.set_incarnation(99);
  fence.set_request_id(1);
  return fence;
}

// Another client, of another job, while the hostile one still holds what it
// has.
void BeServed(const std::shared_ptr<grpc::Channel>& channel) {
  const auto rendezvous = v1::Rendezvous::NewStub(channel);
  const auto store = v1::Store::NewStub(channel);
  const v1::Fence fence = JoinAlone(rendezvous.get());
  {
    Context context;
    v1::SetRequest request;
    v1::SetResponse response;
    *request.mutable_fence() = fence;
    request.set_key("key");
    request.set_value("value");
    COXSWAIN_CHECK(store->Set(&context, request, &response).ok());
  }
  {
    Context context;
    v1::GetRequest request;
    v1::GetResponse response;
    *request.mutable_fence() = fence;
    request.set_key("key");
    COXSWAIN_CHECK(store->Get(&context, request, &response).ok());
    COXSWAIN_CHECK(response.value() == "value");
  }
  Context context;
  v1::LeaveRequest request;
  v1::LeaveResponse response;
  *request.mutable_fence() = fence;
  COXSWAIN_CHECK(rendezvous->Leave(&context, request, &response).ok());
}

void Fuzz(const std::vector<RpcMethod>& methods, absl::string_view input) {
  Play play(methods, input);
  play.Run();
  BeServed(play.channel());
}

}  // namespace

void FuzzServices(absl::string_view input) { Fuzz(RpcMethods(), input); }
void FuzzStreams(absl::string_view input) { Fuzz(StreamMethods(), input); }

}  // namespace coxswain
