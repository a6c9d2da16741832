// Tells ThreadSanitizer what gRPC orders.
//
// Debian's gRPC is not instrumented: the sanitizer cannot see that the memory
// handed over with an operation is safe to touch once the operation has
// completed, and would report every callback. These functions stand in front
// of gRPC's own at the one door through which all operations pass, the C API,
// and state the order that gRPC promises:
//
//   start of an operation  ->  the event that completes it (same tag)
//   start of a server      ->  every later event
//   end of a callback      ->  the end of the server's shutdown
//
// Linked into every test under --config=tsan, see bazel/cc.bzl.

#include <dlfcn.h>
#include <grpc/grpc.h>
#include <sanitizer/tsan_interface.h>

namespace {

char server_started;
char callback_ended;

template <typename Function>
Function* Real(Function*, const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}

}  // namespace

#define COXSWAIN_REAL(function) \
  static auto* const real = Real(&function, #function)

extern "C" {

grpc_call_error grpc_call_start_batch(grpc_call* call, const grpc_op* ops,
                                      size_t nops, void* tag, void* reserved) {
  COXSWAIN_REAL(grpc_call_start_batch);
  __tsan_release(tag);
  return real(call, ops, nops, tag, reserved);
}

void grpc_server_start(grpc_server* server) {
  COXSWAIN_REAL(grpc_server_start);
  __tsan_release(&server_started);
  real(server);
}

grpc_event grpc_completion_queue_next(grpc_completion_queue* queue,
                                      gpr_timespec deadline, void* reserved) {
  COXSWAIN_REAL(grpc_completion_queue_next);
  __tsan_release(&callback_ended);
  const grpc_event event = real(queue, deadline, reserved);
  __tsan_acquire(&server_started);
  if (event.type == GRPC_OP_COMPLETE) __tsan_acquire(event.tag);
  if (event.type == GRPC_QUEUE_SHUTDOWN) __tsan_acquire(&callback_ended);
  return event;
}

grpc_event grpc_completion_queue_pluck(grpc_completion_queue* queue, void* tag,
                                       gpr_timespec deadline, void* reserved) {
  COXSWAIN_REAL(grpc_completion_queue_pluck);
  const grpc_event event = real(queue, tag, deadline, reserved);
  if (event.type == GRPC_OP_COMPLETE) __tsan_acquire(tag);
  return event;
}

}  // extern "C"
