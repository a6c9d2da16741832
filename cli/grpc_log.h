#ifndef COXSWAIN_CLI_GRPC_LOG_H_
#define COXSWAIN_CLI_GRPC_LOG_H_

namespace coxswain {

// Makes what gRPC logs lines of our log, as event "grpc": in its format, and
// errors, which callers can cause as often as they like, once a minute for each
// place in gRPC.
void TakeGrpcLog();

}  // namespace coxswain

#endif  // COXSWAIN_CLI_GRPC_LOG_H_
