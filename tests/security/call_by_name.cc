#include "tests/security/call_by_name.h"

#include <chrono>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "base/grpc_status.h"
#include "grpcpp/generic/generic_stub.h"

namespace coxswain {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

constexpr char kReflection[] =
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo";
// ServerReflectionRequest{list_services: "*"}
constexpr char kListServices[] = "\x3a\x01*";
constexpr char kOurs[] = "coxswain.v1.";

std::string ToText(const grpc::ByteBuffer& buffer) {
  grpc::Slice whole;
  if (!buffer.DumpToSingleSlice(&whole).ok()) return "";
  return std::string(reinterpret_cast<const char*>(whole.begin()),
                     whole.size());
}

// Sets the job wherever the message names one. Returns whether there was any.
bool FillIn(const std::string& job, int depth, Message* message) {
  const auto& reflection = *message->GetReflection();
  const Descriptor& type = *message->GetDescriptor();
  bool filled = false;
  for (int i = 0; i < type.field_count(); ++i) {
    const FieldDescriptor* const field = type.field(i);
    if (field->is_repeated()) continue;
    if (field->name() == "job") {
      reflection.SetString(message, field, job);
      filled = true;
    } else if (depth > 0 &&
               field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) {
      const std::unique_ptr<Message> part(
          reflection.GetMessage(*message, field).New());
      if (!FillIn(job, depth - 1, part.get())) continue;
      reflection.MutableMessage(message, field)->CopyFrom(*part);
      filled = true;
    }
  }
  return filled;
}

const google::protobuf::MethodDescriptor* Find(const std::string& method) {
  return google::protobuf::DescriptorPool::generated_pool()->FindMethodByName(
      absl::StrReplaceAll(method.substr(1), {{"/", "."}}));
}

}  // namespace

CallResult CallByName(const std::shared_ptr<grpc::Channel>& channel,
                      const std::string& method, const std::string& message,
                      absl::Duration timeout, const std::string& token) {
  grpc::GenericStub stub(channel);
  grpc::CompletionQueue queue;
  const auto step = [&queue] {
    void* tag = nullptr;
    bool ok = false;
    return queue.Next(&tag, &ok) && ok;
  };
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() +
                       absl::ToChronoMilliseconds(timeout));
  context.set_wait_for_ready(true);
  if (!token.empty()) {
    context.AddMetadata("authorization", absl::StrCat("Bearer ", token));
  }
  const auto call = stub.PrepareCall(&context, method, &queue);
  const grpc::Slice slice(message);
  grpc::ByteBuffer answer;
  bool answered = false;
  call->StartCall(nullptr);
  if (step()) {
    call->WriteLast(grpc::ByteBuffer(&slice, 1), grpc::WriteOptions(), nullptr);
    step();  // The call may have ended already: its status comes below.
    call->Read(&answer, nullptr);
    answered = step();
    grpc::ByteBuffer more;
    for (bool reading = answered; reading; reading = step()) {
      call->Read(&more, nullptr);
    }
  }
  grpc::Status status;
  call->Finish(&status, nullptr);
  step();
  queue.Shutdown();
  return {FromGrpcStatus(status), answered ? ToText(answer) : ""};
}

std::vector<std::string> AllMethods(
    const std::shared_ptr<grpc::Channel>& channel, const std::string& token) {
  const CallResult result =
      CallByName(channel, kReflection, kListServices, absl::Seconds(20), token);
  std::vector<std::string> methods;
  const std::string& names = result.answer;
  for (size_t at = names.find(kOurs); at != std::string::npos;
       at = names.find(kOurs, at + 1)) {
    // Each name stands behind its length.
    const std::string name =
        names.substr(at, static_cast<unsigned char>(names[at - 1]));
    const auto* const service =
        google::protobuf::DescriptorPool::generated_pool()->FindServiceByName(
            name);
    if (service == nullptr) {
      methods.push_back(absl::StrCat("/", name, "/is not linked"));
      continue;
    }
    for (int i = 0; i < service->method_count(); ++i) {
      methods.push_back(
          absl::StrCat("/", name, "/", service->method(i)->name()));
    }
  }
  return methods;
}

std::unique_ptr<Message> RequestAbout(const std::string& method,
                                      const std::string& job) {
  std::unique_ptr<Message> request(
      google::protobuf::MessageFactory::generated_factory()
          ->GetPrototype(Find(method)->input_type())
          ->New());
  FillIn(job, /*depth=*/4, request.get());
  return request;
}

}  // namespace coxswain
