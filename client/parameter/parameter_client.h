#ifndef COXSWAIN_CLIENT_PARAMETER_PARAMETER_CLIENT_H_
#define COXSWAIN_CLIENT_PARAMETER_PARAMETER_CLIENT_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/mutex.h"
#include "client/comm/communicator.h"
#include "client/device/tensor.h"

namespace coxswain {

class MemberContext;  // client/rpc/member_context.h
class ParameterStub;  // client/rpc/parameter_stub.h

// What the coordinator knows of a parameter.
struct ParameterDescription {
  std::string name;
  int64_t version = 0;
  std::string dtype;
  int64_t bytes = 0;
  int64_t generation = 0;  // in which it was pushed
};

// A part of a parameter whose parts several ranks push.
struct ParameterPart {
  int part = 0;
  int parts = 1;
  ReduceOp op =
      ReduceOp::kSum;  // over the parts, in the order of their numbers
};

// The current parameters of a job at the coordinator: named tensors, of which
// the newest complete version is kept, also for the next generation of the job.
// For workers that join late, or were away: they pull what the others have
// pushed. Not durable: a coordinator that is restarted knows none; what must
// not be lost belongs into a checkpoint. Made by Session.
//
// Thread-safe. Calls block, and are repeated while the coordinator cannot be
// reached, at most as long as the transfer timeout. Errors: as in
// proto/parameter.proto; ABORTED once the generation has ended.
class ParameterClient {
 public:
  explicit ParameterClient(std::shared_ptr<MemberContext> member,
                           absl::Duration transfer_timeout = absl::Minutes(10))
      : member_(std::move(member)), transfer_timeout_(transfer_timeout) {}

  // Pushes a version of a parameter. Versions count from 1 and rise, such as
  // the optimizer step. Fails with ALREADY_EXISTS if this one, or a newer one,
  // has been pushed in this generation.
  absl::Status Push(absl::string_view name, int64_t version, const Span& span);
  // Pushes one of several parts of equal size. Returns whether all of them have
  // been pushed.
  absl::StatusOr<bool> PushPart(absl::string_view name, int64_t version,
                                const Span& span, const ParameterPart& part);

  // Waits for `version` or a newer one (0: any) and copies it into `span`,
  // whose type and size must be the parameter's; fails with INVALID_ARGUMENT,
  // naming both, if they are not. With a timeout of 0, fails with NOT_FOUND if
  // there is none.
  absl::StatusOr<ParameterDescription> Pull(absl::string_view name,
                                            int64_t version,
                                            absl::Duration timeout,
                                            const Span& span);

  // Returns what can be pulled now, by name.
  absl::StatusOr<std::vector<ParameterDescription>> List();
  // Removes the parameter; returns whether there was one.
  absl::StatusOr<bool> Forget(absl::string_view name);

 private:
  // Returns the stub of a connection of its own, made by the first call that
  // needs it.
  absl::StatusOr<std::shared_ptr<ParameterStub>> Stub(absl::Duration timeout);
  void DropStub();
  // Returns whether all parts of the version, or of a newer one, were pushed in
  // this generation.
  absl::StatusOr<bool> IsComplete(absl::string_view name, int64_t version,
                                  int64_t generation);

  const std::shared_ptr<MemberContext> member_;
  const absl::Duration transfer_timeout_;
  Mutex mutex_;
  std::shared_ptr<ParameterStub> stub_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_PARAMETER_PARAMETER_CLIENT_H_
