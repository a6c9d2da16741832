#ifndef COXSWAIN_SERVER_RPC_AUTHORISER_H_
#define COXSWAIN_SERVER_RPC_AUTHORISER_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "google/protobuf/message.h"
#include "server/token/identity.h"

namespace coxswain::server {

// What a caller may do: an operator everything, a job what concerns itself.
// Which job a request concerns is found in the message, whatever its type:
// fields `job` and `fence`, also of the messages in it that are there once. A
// method that nobody has thought of is refused to jobs until its request says
// which job it is about. Plain functions.

// Whether the method, "/package.Service/Method", is for everyone, nobody
// included: health checks.
bool IsForEveryone(absl::string_view method);

// Whether the method is for whoever is somebody, whatever the message: what
// the services are.
bool IsForAnyone(absl::string_view method);

// Whether a message that says no job is allowed at the beginning: the answers
// are cut down to the caller's job instead (KeepOwn).
bool IsCutDown(absl::string_view method);

// The jobs that a message names, each with a character at least.
std::vector<std::string> JobsIn(const google::protobuf::Message& message);

// Whether the caller may send this message; `first` of its call. What the
// message is not to say is PERMISSION_DENIED, with who, what and how to go on.
absl::Status Authorise(const Identity& caller, absl::string_view method,
                       const google::protobuf::Message& message, bool first);

// Leaves out what an answer says of other jobs: all repeated fields whose
// messages have a field `job`.
void KeepOwn(const Identity& caller, google::protobuf::Message* answer);

}  // namespace coxswain::server

#endif  // COXSWAIN_SERVER_RPC_AUTHORISER_H_
