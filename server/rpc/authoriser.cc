#include "server/rpc/authoriser.h"

#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "google/protobuf/descriptor.h"

namespace coxswain::server {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

constexpr absl::string_view kOurs = "/coxswain.v1.";
constexpr char kJobField[] = "job";
// request.hello.fence.job, and one more.
constexpr int kMaxDepth = 4;
constexpr size_t kMaxJobBytes = 128;

// The field `job`, or null.
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
std::string Shown(absl::string_view method) {
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
      caller.ToString(), " may not call ", Shown(method), ": ", why,
      ". Use a certificate or token of that job, or of an "
      "operator"));
}

}  // namespace

bool IsForEveryone(absl::string_view method) {
  return absl::StartsWith(method, "/grpc.health.v1.");
}

bool IsForAnyone(absl::string_view method) {
  return absl::StartsWith(method, "/grpc.reflection.");
}

bool IsCutDown(absl::string_view method) {
  return method == "/coxswain.v1.Rendezvous/Describe" ||
         method == "/coxswain.v1.Journal/Read" ||
         method == "/coxswain.v1.Journal/Follow";
}

std::vector<std::string> JobsIn(const Message& message) {
  std::vector<std::string> jobs;
  Collect(message, kMaxDepth, &jobs);
  return jobs;
}

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

}  // namespace coxswain::server
