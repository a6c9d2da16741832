#ifndef COXSWAIN_CAPI_MEMBER_SOURCE_H_
#define COXSWAIN_CAPI_MEMBER_SOURCE_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "base/mutex.h"
#include "client/device/tensor.h"
#include "client/elastic/catch_up/source.h"
#include "client/session/session.h"
#include "schedule/ticket.h"

namespace coxswain::capi {

// What a session has for newcomers that take the state while they wait. Those
// that decisions name before it is open, or once it is dropped, copy the state
// when the members regroup. Thread-safe.
class MemberSource {
 public:
  // encrypts: what workers exchange is encrypted, and there is no source.
  MemberSource(Session* session, bool encrypts)
      : session_(*session), encrypts_(encrypts) {}

  bool encrypts() const { return encrypts_; }

  // Fails with FAILED_PRECONDITION if there can be none, or it was open before.
  absl::Status Open(int64_t lineage);
  // Notes the newcomers that a decision has named.
  void NoteNewcomers(const std::vector<schedule::Newcomer>& newcomers);
  // Returns CX_WANTS_...
  int32_t Wants();
  // Do nothing without a source.
  void CopyAverages(const std::vector<Span>& averages);
  // `step` without its newcomers.
  void EndStep(catch_up::Source::Step step);
  // Gives newcomers nothing more.
  void Drop();
  // Takes over what the generation before has still on its way to newcomers,
  // which are members by now, or not: until Open.
  void TakeOver(MemberSource* before);

 private:
  void Report(std::vector<NewcomerReport> reports)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  Session& session_;
  const bool encrypts_;

  Mutex mutex_;
  bool opened_ ABSL_GUARDED_BY(mutex_) = false;
  std::unique_ptr<catch_up::Source> source_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<catch_up::Source> before_ ABSL_GUARDED_BY(mutex_);
  // Named, and not begun: a window may have several decisions.
  std::vector<schedule::Newcomer> named_ ABSL_GUARDED_BY(mutex_);
  std::vector<NewcomerReport> reported_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace coxswain::capi

#endif  // COXSWAIN_CAPI_MEMBER_SOURCE_H_
