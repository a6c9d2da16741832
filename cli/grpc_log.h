#ifndef COXSWAIN_CLI_GRPC_LOG_H_
#define COXSWAIN_CLI_GRPC_LOG_H_

namespace coxswain {

// From now on what gRPC says on stderr are lines of our log, as event "grpc".
// For a process whose log is JSON: its lines would be none otherwise.
void TakeGrpcLog();

}  // namespace coxswain

#endif  // COXSWAIN_CLI_GRPC_LOG_H_
