#ifndef COXSWAIN_PROTO_BULK_RAW_METHODS_H_
#define COXSWAIN_PROTO_BULK_RAW_METHODS_H_

#include "absl/strings/string_view.h"

namespace coxswain::bulk {

// Whether the service of a method ("/coxswain.v1.Service/Method") takes its
// messages as they lie in gRPC's buffers: those that are declared
// WithRawCallbackMethod_*. An interceptor finds a grpc::ByteBuffer there, and
// the protobuf message in all other methods of coxswain.v1.
inline bool IsRaw(absl::string_view method) {
  return method == "/coxswain.v1.Checkpoint/Upload" ||
         method == "/coxswain.v1.Checkpoint/Download" ||
         method == "/coxswain.v1.Parameter/Exchange";
}

}  // namespace coxswain::bulk

#endif  // COXSWAIN_PROTO_BULK_RAW_METHODS_H_
