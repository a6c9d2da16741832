// Shows ThreadSanitizer what gRPC orders.
//
// Debian's gRPC is not instrumented: the sanitizer cannot see that the memory
// handed over with an operation is safe to touch once the operation has
// completed, and would report every callback. These functions stand in front of
// gRPC's own where all operations pass, in the C API, and state the order that
// gRPC promises:
//
//   start of an operation  ->  the event that completes it (same tag)
//   start of a server      ->  every later event
//   end of a callback      ->  the end of the server's shutdown
//
// A server's reactor is the one case that is settled inside the library: its
// OnDone comes after its other callbacks, and its OnCancel after its creation.
// Two counters in the call state that. OnDone and OnCancel also run on the
// thread that finds the counter at zero, and not on another one whose order is
// not seen.
//
// What gRPC's headers guard with absl::Mutex is ordered by it. And the last
// owner of an absl::Status, which deletes it, comes after all others: they
// count down inside the library, so this is compiled here once more.
//
// Linked into every program under --config=tsan, see bazel/cc.bzl.

#include <absl/status/status.h>
#include <absl/synchronization/mutex.h>
#include <dlfcn.h>
#include <grpc/grpc.h>
#include <grpcpp/support/server_callback.h>
#include <sanitizer/tsan_interface.h>

#include <atomic>
#include <cstdint>
#include <string>

namespace {

char server_started;
char callback_ended;

template <typename Function>
Function* Real(Function*, const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}

// A function of Debian's libabsl, by its name in the object code.
template <typename Function>
Function* RealAbsl(const char* name) {
  const std::string symbol = std::string("_ZN4absl7debian3") + name;
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, symbol.c_str()));
}

// Names the private counters of a call: access is not checked in an explicit
// instantiation.
using grpc::internal::ServerCallbackCall;
std::atomic_int ServerCallbackCall::*CallbacksOutstanding();
std::atomic_int ServerCallbackCall::*CancelConditionsRemaining();

template <std::atomic_int ServerCallbackCall::*outstanding,
          std::atomic_int ServerCallbackCall::*cancel>
struct Counters {
  friend std::atomic_int ServerCallbackCall::*CallbacksOutstanding() {
    return outstanding;
  }
  friend std::atomic_int ServerCallbackCall::*CancelConditionsRemaining() {
    return cancel;
  }
};
template struct Counters<&ServerCallbackCall::callbacks_outstanding_,
                         &ServerCallbackCall::on_cancel_conditions_remaining_>;

}  // namespace

void absl::Mutex::Lock() {
  static auto* const real = RealAbsl<void(Mutex*)>("5Mutex4LockEv");
  real(this);
  __tsan_acquire(this);
}

void absl::Mutex::Unlock() {
  static auto* const real = RealAbsl<void(Mutex*)>("5Mutex6UnlockEv");
  __tsan_release(this);
  real(this);
}

void absl::CondVar::Wait(Mutex* mutex) {
  static auto* const real =
      RealAbsl<void(CondVar*, Mutex*)>("7CondVar4WaitEPNS0_5MutexE");
  __tsan_release(mutex);
  real(this, mutex);
  __tsan_acquire(mutex);
}

// As the library has it. An owner may be added and go between any two steps of
// another one: no order that is stated before or after the library's own
// decrement covers all of them.
void absl::Status::UnrefNonInlined(uintptr_t rep) {
  status_internal::StatusRep* const shared = RepToPointer(rep);
  if (shared->ref.load(std::memory_order_acquire) == 1 ||
      shared->ref.fetch_sub(1, std::memory_order_acq_rel) == 1) {
    delete shared;
  }
}

namespace grpc {
namespace internal {

void ServerCallbackCall::ScheduleOnDone(bool /*inline_ondone*/) {
  __tsan_acquire(&(this->*CallbacksOutstanding()));
  CallOnDone();
}

void ServerCallbackCall::CallOnCancel(ServerReactor* reactor) {
  __tsan_acquire(&(this->*CancelConditionsRemaining()));
  reactor->OnCancel();
}

}  // namespace internal
}  // namespace grpc

extern "C" {

grpc_call_error grpc_call_start_batch(grpc_call* call, const grpc_op* ops,
                                      size_t nops, void* tag, void* reserved) {
  static auto* const real =
      Real(&grpc_call_start_batch, "grpc_call_start_batch");
  __tsan_release(tag);
  return real(call, ops, nops, tag, reserved);
}

void grpc_server_start(grpc_server* server) {
  static auto* const real = Real(&grpc_server_start, "grpc_server_start");
  __tsan_release(&server_started);
  real(server);
}

grpc_event grpc_completion_queue_next(grpc_completion_queue* queue,
                                      gpr_timespec deadline, void* reserved) {
  static auto* const real =
      Real(&grpc_completion_queue_next, "grpc_completion_queue_next");
  __tsan_release(&callback_ended);
  const grpc_event event = real(queue, deadline, reserved);
  __tsan_acquire(&server_started);
  if (event.type == GRPC_OP_COMPLETE) __tsan_acquire(event.tag);
  if (event.type == GRPC_QUEUE_SHUTDOWN) __tsan_acquire(&callback_ended);
  return event;
}

grpc_event grpc_completion_queue_pluck(grpc_completion_queue* queue, void* tag,
                                       gpr_timespec deadline, void* reserved) {
  static auto* const real =
      Real(&grpc_completion_queue_pluck, "grpc_completion_queue_pluck");
  const grpc_event event = real(queue, tag, deadline, reserved);
  if (event.type == GRPC_OP_COMPLETE) __tsan_acquire(tag);
  return event;
}

}  // extern "C"
