#ifndef COXSWAIN_CLIENT_SESSION_SESSION_H_
#define COXSWAIN_CLIENT_SESSION_SESSION_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/mesh.h"
#include "client/checkpoint/checkpoint_client.h"
#include "client/group/mesh_groups.h"
#include "client/group/process_group.h"
#include "client/schedule/schedule_client.h"
#include "client/session/job.h"
#include "client/session/session_events.h"
#include "client/session/session_options.h"
#include "client/store/store_client.h"
#include "schedule/pipeline/place.h"
#include "schedule/plan.h"

namespace coxswain {

// What a member has to report of a worker that waits, to which it sends its
// state.
struct NewcomerReport {
  uint64_t incarnation = 0;
  // It is in step, or gets nothing more from here: the regroup need not wait
  // for it any longer.
  bool settled = false;
  std::string damage;  // of what was sent, a sentence; empty: none

  bool operator==(const NewcomerReport& other) const {
    return incarnation == other.incarnation && settled == other.settled &&
           damage == other.damage;
  }
};

// A worker's membership in a job: a training program opens it first, and closes
// it last.
//
//   COXSWAIN_ASSIGN_OR_RETURN(auto options, SessionOptions::FromEnvironment());
//   COXSWAIN_ASSIGN_OR_RETURN(auto session, Session::Join(options, manifest));
//   COXSWAIN_ASSIGN_OR_RETURN(auto world, session->World());
//   ... train over world->communicator() ...
//   session->Leave("done");
//
// Life-cycle: one generation. It ends by Leave, or when the coordinator ends it
// (a member was lost), refuses this member's fence, or cannot be reached for
// longer than the reattach grace. Then every communicator made through this
// session is aborted, waiting calls of the store and of barriers end, and
// status() is ABORTED with a sentence that names the lost rank and host. To
// continue, a program calls Rejoin for the session of the next generation.
//
// Threading: all methods are safe from any thread. Those that return a Status
// may block, at most for the timeout given or a documented one.
//
// Errors of methods that call the coordinator: those of the rpc (see proto/),
// UNAVAILABLE if it could not be reached for 30 s, and ABORTED with the text of
// status() once the generation has ended.
class Session {
 public:
  // Joins and waits until all members have joined. Retries until
  // options.join_timeout while the coordinator cannot be reached, and logs
  // every 10 s what it waits for. Fails with
  //   INVALID_ARGUMENT     options or manifest are not valid
  //   DEADLINE_EXCEEDED    the coordinator never answered, or members are
  //                        missing; the message names them, and what to do
  //   FAILED_PRECONDITION  the members' manifests differ; the message lists
  //                        the differences. Or the members are on several
  //                        hosts and one has an address that only its own host
  //                        can reach. Or the plan has terms that only a newer
  //                        version of this library knows
  // and as Rendezvous.Join.
  static absl::StatusOr<std::unique_ptr<Session>> Join(
      SessionOptions options, const JobManifest& manifest);

  // Leaves as failed if Leave was not called, so that the other members do not
  // wait for this one; waits 2 s at most.
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  // Joins the generation after this one, as the same worker with the same
  // options and manifest: once this one has ended (status() is not OK) or is to
  // end after a step (schedule::Decision::regroup), in which case this worker
  // leaves it cleanly. Blocks until the next round is complete, as Join does.
  // This session's communicators cannot be used afterwards, but must live until
  // it returns: peers may still be reading from them. Once it has returned a
  // session, Leave of this one does nothing. Fails as Join does, and with
  //   CANCELLED            the job has ended meanwhile: IsJobFinished. Or
  //                        another thread has called Leave, whose reason the
  //                        message has, and this worker is a member no more
  //   FAILED_PRECONDITION  this worker has left for good, or another thread is
  //                        in this method
  absl::StatusOr<std::unique_ptr<Session>> Rejoin();

  int rank() const;
  int world_size() const;
  int local_rank() const;
  // Returns how the ranks of this generation are divided; empty: the job has no
  // mesh.
  const Mesh& mesh() const;
  int64_t generation() const;
  const std::string& job() const;
  // Returns the job's plan when it was joined; schedule().plan() is the newest.
  const schedule::Plan& plan() const;
  // Returns the names of what an operator has changed of this program's
  // manifest: by SessionOptions::plan_overrides, or by proposing `plan`. The
  // names are those of plan_overrides.
  std::set<std::string> ChangedByOperator(const schedule::Plan& plan) const;
  // Returns all members, by rank. In a job of more than 64 the first call asks
  // the coordinator, and blocks; in a smaller one they are known, and no call
  // fails. Each call returns a copy.
  absl::StatusOr<std::vector<JobMember>> Members();
  // Returns the generation before this one, and its members that are not in
  // this one.
  const PreviousGeneration& previous() const;

  // Returns the events of this session from now on. One reader.
  SessionEvents& events();

  // Returns the group of all ranks. Connected by the first call, which blocks
  // until every rank has called, at most options.collective_timeout or until
  // the generation ends; later calls return the same. Fails with UNAVAILABLE,
  // 2 s and a heartbeat later at most, where a rank has left without calling,
  // in a job of at most 64 members.
  absl::StatusOr<std::shared_ptr<ProcessGroup>> World();

  // Returns a group of these ranks, in this order; called by each of them. The
  // name has 1 to 128 characters of [A-Za-z0-9._:/-]. Blocks as World. A group
  // that exists already is returned again; so is the error of one that could
  // not be connected, of which peers may hold half.
  absl::StatusOr<std::shared_ptr<ProcessGroup>> CreateGroup(
      absl::string_view name, const std::vector<int>& ranks);

  // Returns this rank's group along each axis of a mesh, whose axes may have
  // any names, and then along each set of joined ones, by name. Called by all
  // ranks. Blocks as World. Fails with UNIMPLEMENTED where the coordinator is
  // of a version that joins no axes.
  absl::StatusOr<std::vector<std::shared_ptr<ProcessGroup>>> CreateMesh(
      absl::string_view name, const std::vector<MeshAxis>& axes,
      const std::vector<std::vector<std::string>>& joined = {});

  // Returns this rank's groups in a mesh of known axes that fits the world,
  // such as mesh(), by at most two calls of the coordinator. Called by all
  // ranks. Blocks as World.
  absl::StatusOr<MeshGroups> GroupsOf(const Mesh& mesh);

  // Waits at the coordinator until all members of a group (empty: all ranks)
  // have called with this tag. Fails with DEADLINE_EXCEEDED, naming the ranks
  // that did not call.
  absl::Status Barrier(absl::string_view group, absl::string_view tag,
                       absl::Duration timeout);

  // Returns the client by which exchanges are announced to the coordinator and
  // decided. Ready as soon as the session is.
  ScheduleClient& schedule();
  // Returns the store of small values shared by the members of this generation.
  StoreClient& store();
  // Returns the checkpoints of this job.
  CheckpointClient& checkpoints();

  // Sets this worker's progress, which is sent to the coordinator with the
  // heartbeats and when it leaves. Without a call it is that of its schedule's
  // stream "train".
  void ReportProgress(int64_t optimizer_steps);
  // Sets whether this worker waits for others in a way that the session does
  // not see: plans with a stall_timeout ask. It sees each thread of the program
  // that stands in a call of this library until other ranks have acted.
  void ReportWait(bool waits);
  // Sets Hook::ErrorNorm after this step, likewise.
  void ReportErrorNorm(double norm, int64_t step);

  // Sets this for all newcomers, likewise, and sends it at once, too.
  void ReportNewcomers(std::vector<NewcomerReport> reports);

  // Sets where this rank is in its pipeline, likewise: `source` is asked when a
  // heartbeat is made, on a thread of the session, and returns nothing before
  // the first step. See PipelineExecutor::PlaceSource. Null: it has none.
  void SetPipelinePlace(std::function<std::optional<PipelinePlace>()> source);

  // Returns OK while the generation lasts; then why it ended: ABORTED, or
  // CANCELLED after Leave.
  absl::Status status() const;

  // Calls `callback` when the generation ends other than by Leave, once, on a
  // thread of the session (at once on this one if it has ended already). All
  // communicators have been aborted by then. No lock is held. It must not
  // destroy the session, nor wait for another callback.
  void OnAbort(std::function<void(const absl::Status&)> callback);

  // Ends the membership. With `failed` the others are to stop as well and this
  // session's communicators are aborted; otherwise the generation continues
  // without this member. May be called after the generation has ended, so that
  // no round waits for this worker to join the next one (2 s at most then, and
  // OK whatever the answer is). Waits 5 s at most for the coordinator's answer.
  // While another thread is in Rejoin, that fails with CANCELLED, and what it
  // has entered by then is left, too, with this reason; waits for that, 2 s
  // more at most. Once: later calls do nothing. Fails with NOT_FOUND if the
  // coordinator had declared this member lost already.
  absl::Status Leave(absl::string_view reason, bool failed = false);

  // Reports that the data connections to these ranks broke: if the coordinator
  // has lost them too, it need not wait for long. The reducer's and the groups'
  // errors are reported automatically.
  void ReportBrokenPeers(const std::vector<int>& ranks);

 private:
  class Core;
  explicit Session(std::unique_ptr<Core> core);

  const std::unique_ptr<Core> core_;
};

// Returns whether Join or Rejoin failed because the job has ended cleanly: this
// worker was a spare that was not needed.
bool IsJobFinished(const absl::Status& status);

// Returns whether an error may have been caused by a peer's end.
bool MayComeFromPeers(const absl::Status& error);

// Returns the error to show for an error in a collective. When a peer ends, its
// broken connection is often noticed before the coordinator's event that names
// it: this waits for that event, `timeout` at most, and returns its error, or
// else `error` itself. Returns OK for OK, without waiting.
//
// Any thread; `session` is only used during the call.
absl::Status Explain(Session& session, const absl::Status& error,
                     absl::Duration timeout = absl::Seconds(3));

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_SESSION_SESSION_H_
