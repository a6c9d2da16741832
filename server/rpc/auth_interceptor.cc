#include "server/rpc/auth_interceptor.h"

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "base/grpc_status.h"
#include "base/logging.h"
#include "base/mutex.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/message.h"
#include "grpc/grpc.h"
#include "transport/chunk_codec.h"

namespace coxswain::server {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using grpc::experimental::InterceptionHookPoints;
using grpc::experimental::Interceptor;
using grpc::experimental::InterceptorBatchMethods;
using grpc::experimental::ServerInterceptorFactoryInterface;
using grpc::experimental::ServerRpcInfo;

// The rules of what a caller may do: an operator everything, a job what
// concerns itself. Which job a request concerns is found in the message,
// whatever its type: fields `job` and `fence`, also of the messages in it that
// are there once. A method that no rule names is refused to jobs until its
// request has the job that it is about.

constexpr absl::string_view kOurs = "/coxswain.v1.";
constexpr char kJobField[] = "job";
// request.hello.fence.job, and one more.
constexpr int kMaxDepth = 4;
constexpr size_t kMaxJobBytes = 128;

// Returns the field `job`, or null.
const FieldDescriptor* JobFieldOf(const Descriptor& type) {
  const FieldDescriptor* const field = type.FindFieldByName(kJobField);
  const bool text = field != nullptr && !field->is_repeated() &&
                    field->type() == FieldDescriptor::TYPE_STRING;
  return text ? field : nullptr;
}

void Collect(const Message& message, int depth,
             std::vector<std::string>* jobs) {
  const auto& reflection = *message.GetReflection();
  const FieldDescriptor* const job = JobFieldOf(*message.GetDescriptor());
  if (job != nullptr) {
    std::string name = reflection.GetString(message, job);
    if (!name.empty()) jobs->push_back(std::move(name));
  }
  if (depth == 0) return;
  const Descriptor& type = *message.GetDescriptor();
  for (int i = 0; i < type.field_count(); ++i) {
    const FieldDescriptor* const field = type.field(i);
    if (field->is_repeated() ||
        field->cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE ||
        !reflection.HasField(message, field)) {
      continue;
    }
    Collect(reflection.GetMessage(message, field), depth - 1, jobs);
  }
}

// "Rendezvous.Join"
std::string ShownMethod(absl::string_view method) {
  absl::ConsumePrefix(&method, kOurs);
  return absl::StrReplaceAll(method, {{"/", "."}});
}

// A name as long as one may be, whatever came: errors travel in headers.
std::string Excerpt(const std::string& job) {
  return absl::CHexEscape(absl::string_view(job).substr(0, kMaxJobBytes));
}

absl::Status Denied(const Identity& caller, absl::string_view method,
                    absl::string_view why) {
  return absl::PermissionDeniedError(absl::StrCat(
      caller.ToString(), " may not call ", ShownMethod(method), ": ", why,
      ". Use a certificate or token of that job, or of an "
      "operator"));
}

// Returns whether the method, "/package.Service/Method", is open to callers
// without an identity: health checks.
bool IsForEveryone(absl::string_view method) {
  return absl::StartsWith(method, "/grpc.health.v1.");
}

// Returns whether the method is open to all callers with an identity, whatever
// the message: reflection.
bool IsForAnyone(absl::string_view method) {
  return absl::StartsWith(method, "/grpc.reflection.");
}

// Returns whether a message without a job is allowed at first: the answers are
// then cut down to the caller's job instead (KeepOwn).
bool IsCutDown(absl::string_view method) {
  return method == "/coxswain.v1.Rendezvous/Describe" ||
         method == "/coxswain.v1.Journal/Read" ||
         method == "/coxswain.v1.Journal/Follow";
}

// Returns the jobs that a message names, each with a character at least.
std::vector<std::string> JobsIn(const Message& message) {
  std::vector<std::string> jobs;
  Collect(message, kMaxDepth, &jobs);
  return jobs;
}

// Whether the caller may send this message; `first` of its call. A
// message that it may not send is PERMISSION_DENIED, with the caller, the
// message and what to do next.
absl::Status Authorise(const Identity& caller, absl::string_view method,
                       const Message& message, bool first) {
  if (caller.is_operator) return absl::OkStatus();
  const std::vector<std::string> jobs = JobsIn(message);
  if (jobs.empty() && first && !IsCutDown(method)) {
    return Denied(caller, method, "the request does not say for which job");
  }
  for (const std::string& job : jobs) {
    if (job == caller.job) continue;
    return Denied(caller, method,
                  absl::StrCat("it is about job ", Excerpt(job)));
  }
  return absl::OkStatus();
}

// Leaves out what an answer has of other jobs: all repeated fields whose
// messages have a field `job`.
void KeepOwn(const Identity& caller, Message* answer) {
  if (caller.is_operator) return;
  const auto& reflection = *answer->GetReflection();
  const Descriptor& type = *answer->GetDescriptor();
  for (int i = 0; i < type.field_count(); ++i) {
    const FieldDescriptor* const field = type.field(i);
    if (!field->is_repeated() || field->is_map() ||
        field->cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE) {
      continue;
    }
    const FieldDescriptor* const job = JobFieldOf(*field->message_type());
    if (job == nullptr) continue;
    int kept = 0;
    for (int at = 0; at < reflection.FieldSize(*answer, field); ++at) {
      const Message& one = reflection.GetRepeatedMessage(*answer, field, at);
      if (one.GetReflection()->GetString(one, job) != caller.job) continue;
      reflection.SwapElements(answer, field, kept++, at);
    }
    while (reflection.FieldSize(*answer, field) > kept) {
      reflection.RemoveLast(answer, field);
    }
  }
}

// What is known of a method from its descriptor.
struct Method {
  const Message* request = nullptr;  // an example of its messages
  const Message* answer = nullptr;
  // The service gets messages as they lie in gRPC's buffers
  // (transport/chunk_codec).
  bool raw = false;
  int chunk_field = 0;  // of a raw one, in a request; 0: none
};

// "/coxswain.v1.Service/Method" as the linked protos have it; nothing for
// another one.
std::optional<Method> FindMethod(absl::string_view name) {
  if (!absl::StartsWith(name, kOurs)) return std::nullopt;
  const auto* const descriptor =
      google::protobuf::DescriptorPool::generated_pool()->FindMethodByName(
          absl::StrReplaceAll(name.substr(1), {{"/", "."}}));
  if (descriptor == nullptr) return std::nullopt;
  auto* const factory = google::protobuf::MessageFactory::generated_factory();
  Method method;
  method.request = factory->GetPrototype(descriptor->input_type());
  method.answer = factory->GetPrototype(descriptor->output_type());
  method.raw = bulk::IsRaw(name);
  const auto* const chunk = descriptor->input_type()->FindFieldByName("chunk");
  if (chunk != nullptr) method.chunk_field = chunk->number();
  return method;
}

// One call. gRPC runs reads and writes of a stream side by side.
class AuthInterceptor : public Interceptor {
 public:
  AuthInterceptor(std::shared_ptr<CallerIdentities> identities,
                  std::shared_ptr<LogRate> refusals, ServerRpcInfo* info)
      : identities_(std::move(identities)),
        refusals_(std::move(refusals)),
        info_(info),
        name_(info->method()),
        method_(FindMethod(name_)) {}

  void Intercept(InterceptorBatchMethods* batch) override {
    using Point = InterceptionHookPoints;
    if (batch->QueryInterceptionHookPoint(Point::POST_RECV_INITIAL_METADATA)) {
      Begin();
    }
    if (batch->QueryInterceptionHookPoint(Point::POST_RECV_MESSAGE)) {
      Take(batch->GetRecvMessage());
    }
    if (batch->QueryInterceptionHookPoint(Point::PRE_SEND_MESSAGE)) {
      Give(batch);
    }
    if (batch->QueryInterceptionHookPoint(Point::PRE_SEND_STATUS)) {
      const absl::Status verdict = this->verdict();
      if (!verdict.ok()) batch->ModifySendStatus(ToGrpcStatus(verdict));
    }
    batch->Proceed();
  }

 private:
  absl::Status verdict() const {
    MutexLock lock(&mutex_);
    return verdict_;
  }

  void Begin() {
    if (IsForEveryone(name_)) return;
    auto caller = identities_->Of(*info_->server_context());
    if (!caller.ok()) return Refuse(caller.status());
    caller_ = *std::move(caller);
    const absl::Status good =
        identities_->CheckConnection(info_->server_context());
    if (!good.ok()) return Refuse(good);
    if (!method_.has_value() && !IsForAnyone(name_)) {
      return Refuse(absl::PermissionDeniedError(
          absl::StrCat("no caller may use ", name_, " here")));
    }
  }

  // A message that the service is about to see; null: there are no more.
  void Take(void* received) {
    if (received == nullptr || !method_.has_value()) return;
    if (verdict().ok()) {
      const absl::Status status = Look(received);
      if (!status.ok()) Refuse(status);
    }
    if (!verdict().ok()) Empty(received);
  }

  absl::Status Look(void* received) {
    const bool first = std::exchange(first_, false);
    if (!method_->raw) {
      return Authorise(*caller_, name_, *static_cast<Message*>(received),
                       first);
    }
    const auto& buffer = *static_cast<const grpc::ByteBuffer*>(received);
    const std::unique_ptr<Message> message(method_->request->New());
    // A chunk names no job, and is not worth a copy.
    const bool chunk =
        method_->chunk_field != 0 &&
        bulk::DecodeChunk(buffer, method_->chunk_field).has_value();
    if (!chunk) {
      const absl::Status decoded = bulk::DecodeMessage(buffer, message.get());
      if (!decoded.ok()) return decoded;
    }
    return Authorise(*caller_, name_, *message, first);
  }

  void Empty(void* received) const {
    if (method_->raw) {
      *static_cast<grpc::ByteBuffer*>(received) =
          bulk::Encode(*method_->request);
    } else {
      static_cast<Message*>(received)->Clear();
    }
  }

  void Give(InterceptorBatchMethods* batch) {
    if (!verdict().ok()) {
      batch->ModifySendMessage(nullptr);
      return;
    }
    if (!IsCutDown(name_) || caller_->is_operator) return;
    const auto* const whole =
        static_cast<const Message*>(batch->GetSendMessage());
    if (whole == nullptr) return;
    answer_.reset(method_->answer->New());
    answer_->CopyFrom(*whole);
    KeepOwn(*caller_, answer_.get());
    batch->ModifySendMessage(answer_.get());
  }

  // Ends the call at once: the service may wait for something.
  void Refuse(const absl::Status& status) {
    {
      MutexLock lock(&mutex_);
      verdict_ = status;
    }
    const std::string message(status.message());
    const std::string peer = info_->server_context()->peer();
    const std::string who = caller_.has_value() ? caller_->ToString()
                                                : std::string(HostOfPeer(peer));
    refusals_->Line(
        absl::StrCat(who, " ", absl::StatusCodeToString(status.code())),
        {{"peer", peer}, {"method", name_}, {"reason", message}});
    grpc_call_cancel_with_status(info_->server_context()->c_call(),
                                 static_cast<grpc_status_code>(status.code()),
                                 message.c_str(), nullptr);
  }

  const std::shared_ptr<CallerIdentities> identities_;
  const std::shared_ptr<LogRate> refusals_;
  ServerRpcInfo* const info_;
  const std::string name_;
  const std::optional<Method> method_;

  // The call begins before anything else happens in it, and has one read under
  // way at a time, and one write of an answer that is cut down.
  std::optional<Identity> caller_;
  bool first_ = true;
  std::unique_ptr<Message> answer_;

  mutable Mutex mutex_;
  absl::Status verdict_ ABSL_GUARDED_BY(mutex_);
};

class Factory : public ServerInterceptorFactoryInterface {
 public:
  Factory(std::shared_ptr<CallerIdentities> identities, const Clock* clock)
      : identities_(std::move(identities)),
        refusals_(std::make_shared<LogRate>("call_refused", clock)) {}
  Interceptor* CreateServerInterceptor(ServerRpcInfo* info) override {
    // gRPC owns it.
    return new AuthInterceptor(identities_, refusals_, info);
  }

 private:
  const std::shared_ptr<CallerIdentities> identities_;
  const std::shared_ptr<LogRate> refusals_;
};

}  // namespace

std::unique_ptr<ServerInterceptorFactoryInterface> MakeAuthInterceptor(
    std::shared_ptr<CallerIdentities> identities, const Clock* clock) {
  return std::make_unique<Factory>(std::move(identities), clock);
}

}  // namespace coxswain::server
