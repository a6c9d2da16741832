#ifndef COXSWAIN_SERVER_GENERATION_FENCE_H_
#define COXSWAIN_SERVER_GENERATION_FENCE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/ids.h"
#include "base/mesh.h"
#include "schedule/plan.h"
#include "schedule/ticket.h"

namespace coxswain::server {

// The cluster, term and generation that a mutating request was made in.
struct Fence {
  std::string cluster_id;
  Term term;
  std::string job;
  Generation generation;
  Incarnation incarnation;
  uint64_t request_id = 0;
};

// The sender of a request whose fence is valid.
struct Caller {
  WorkerIdentity identity;
  int rank = 0;
  int world_size = 0;
};

// Checks that a request's fence is that of the present. Implemented by the
// membership, used by every component that changes something for a member.
// Thread-safe.
class FenceValidator {
 public:
  virtual ~FenceValidator() = default;

  // Returns the caller. Fails with FAILED_PRECONDITION, naming the field that
  // is stale (with ErrorDetail.stale_fence as payload), or with NOT_FOUND for
  // an unknown job.
  virtual absl::StatusOr<Caller> Admit(const Fence& fence) const = 0;

  // Checks the cluster and the term only, for a request of an operator. Fails
  // with INVALID_ARGUMENT if it names a generation or an incarnation.
  virtual absl::Status AdmitOperator(const Fence& fence) const = 0;
};

// A generation that has just begun.
struct GenerationBegin {
  std::string job;
  Generation generation;
  int world_size = 0;
  schedule::Plan plan;
  Mesh mesh;  // without a free axis; empty: the job has none
};

// A generation that an earlier term has left running.
struct GenerationResumed {
  GenerationBegin begin;  // its plan is the one in force now
  // Cleanly, before the restart.
  std::vector<int> left;
};

// Is notified when a generation has ended, to drop what is scoped by it and to
// answer its waiters. Called without any lock held.
//
// The calls about one job come one after the other, in the order of their
// events: the begin of a generation, members that left, its end, the begin of
// the next one. Each observer gets a call after those that were registered
// before it. What an observer causes by a call is reported after that call.
//
// UNAVAILABLE as the reason means that this coordinator stops, and not that
// the generation has ended: waiters are answered, and nothing that is durable
// is dropped, for the next coordinator resumes the generation (OnResume).
class GenerationObserver {
 public:
  virtual ~GenerationObserver() = default;
  virtual void OnGenerationEnded(absl::string_view job, Generation generation,
                                 const absl::Status& reason) = 0;

  // Called before any of its members is notified.
  virtual void OnGenerationBegan(const GenerationBegin& begin) {
    static_cast<void>(begin);
  }

  // Once, before any request: what an earlier term has left running. Whatever
  // else the component keeps of generations in the state store is to be
  // dropped. A record that cannot be read goes into quarantine, and the
  // membership ends its generation. An error of the store keeps the coordinator
  // from starting.
  virtual absl::Status OnResume(const std::vector<GenerationResumed>& running) {
    static_cast<void>(running);
    return absl::OkStatus();
  }

  // The generation should end after a step, for one with other members, which
  // `reason` names. Repeated until it has ended, or until it need not any more:
  // then `reason` is empty, once. Where the schedule is not enforced there are
  // no common steps, and nothing happens.
  virtual void OnRegroupWanted(absl::string_view job, Generation generation,
                               absl::string_view reason) {
    static_cast<void>(job);
    static_cast<void>(generation);
    static_cast<void>(reason);
  }

  // The members are to send their state to these workers, which wait, while
  // they train: once for each, and not where the schedule is not enforced.
  virtual void OnCatchUpWanted(
      absl::string_view job, Generation generation,
      const std::vector<schedule::Newcomer>& newcomers) {
    static_cast<void>(job);
    static_cast<void>(generation);
    static_cast<void>(newcomers);
  }

  // A member has left cleanly; its generation continues without it.
  virtual void OnMemberLeft(absl::string_view job, Generation generation,
                            int rank) {
    static_cast<void>(job);
    static_cast<void>(generation);
    static_cast<void>(rank);
  }
};

}  // namespace coxswain::server

#endif  // COXSWAIN_SERVER_GENERATION_FENCE_H_
