#ifndef COXSWAIN_TESTS_SECURITY_CALL_BY_NAME_H_
#define COXSWAIN_TESTS_SECURITY_CALL_BY_NAME_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/message.h"
#include "grpcpp/grpcpp.h"

namespace coxswain {

// Calls of any method, whatever its kind, with one message and no generated
// code: what a test needs that walks over all of them.

struct CallResult {
  absl::Status status;
  std::string answer;  // the first message, as it came; empty: none
};

// Makes a call; sends no token if `token` is empty.
CallResult CallByName(const std::shared_ptr<grpc::Channel>& channel,
                      const std::string& method, const std::string& message,
                      absl::Duration timeout, const std::string& token = "");

// Returns "/coxswain.v1.Rendezvous/Join" and all others of the services that
// the server's reflection service lists.
std::vector<std::string> AllMethods(
    const std::shared_ptr<grpc::Channel>& channel,
    const std::string& token = "");

// Returns a request of the method that names this job wherever it can.
std::unique_ptr<google::protobuf::Message> RequestAbout(
    const std::string& method, const std::string& job);

}  // namespace coxswain

#endif  // COXSWAIN_TESTS_SECURITY_CALL_BY_NAME_H_
