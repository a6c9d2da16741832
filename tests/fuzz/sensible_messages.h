#ifndef COXSWAIN_TESTS_FUZZ_SENSIBLE_MESSAGES_H_
#define COXSWAIN_TESTS_FUZZ_SENSIBLE_MESSAGES_H_

#include <memory>
#include <string>
#include <vector>

#include "google/protobuf/message.h"
#include "proto/types.pb.h"
#include "tests/fuzz/fuzz_bytes.h"

namespace coxswain {

// What a member of the job in a TestServer knows, and sends.
struct Knowledge {
  std::vector<v1::Fence> fences;  // of rank 0 and rank 1
  std::string checkpoint;         // the last one that was begun
  uint64_t requests = 0;          // that were made
};

using MessagePtr = std::unique_ptr<google::protobuf::Message>;

// One rpc and what may be sent in it.
struct RpcMethod {
  const char* path;
  bool streams;  // the client sends several messages
  // `number`: how many were sent in this call.
  MessagePtr (*make)(Knowledge* known, int number, FuzzBytes* bytes);
};

// Returns all rpcs of the wire contract.
const std::vector<RpcMethod>& RpcMethods();
// Returns those in which the client sends several messages.
const std::vector<RpcMethod>& StreamMethods();

}  // namespace coxswain

#endif  // COXSWAIN_TESTS_FUZZ_SENSIBLE_MESSAGES_H_
