#ifndef COXSWAIN_SERVER_OPTIONS_OPTIONS_H_
#define COXSWAIN_SERVER_OPTIONS_OPTIONS_H_

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace coxswain::server {

// Limits and timeouts of the coordinator's own components. Whatever a peer
// controls has a limit; beyond it a request fails with RESOURCE_EXHAUSTED,
// which names the limit. Validate() fails with INVALID_ARGUMENT, naming the
// option that is out of range.

// Members of a generation, and groups of a mesh: what a record may have at
// most, by any options.
constexpr int kMaxWorldSize = 1 << 20;

struct MembershipOptions {
  // How often a worker should send a heartbeat: several fit into a lease, so
  // that one late packet costs no member the job.
  absl::Duration heartbeat_interval = absl::Seconds(2);
  // Silence for this long is a loss. Five heartbeats: longer than a busy host
  // stalls, short enough that survivors do not wait for minutes.
  absl::Duration lease = absl::Seconds(10);
  // How long a worker whose connection broke may take to attach again.
  absl::Duration reattach_grace = absl::Seconds(10);
  // The same, once a peer's data connection to it broke as well: then it is
  // not the coordinator alone that cannot reach it.
  absl::Duration broken_peer_grace = absl::Seconds(1);
  // A join that asks for more is given this much.
  absl::Duration max_join_timeout = absl::Hours(24);
  // Rounds whose size is a range wait this long for one more worker.
  absl::Duration last_call = absl::Seconds(5);
  // A generation that ends for the next one is not held up for longer by
  // members that do not leave it: a step on a slow device may have to end
  // first.
  absl::Duration rejoin_grace = absl::Seconds(30);
  // After the end of a generation others do not go on without any of its
  // survivors for this long, unless all of these are known to be lost: they
  // have the job's state, and may notice the end at their next collective only,
  // after a long accumulation, an evaluation, or an upload.
  absl::Duration survivor_timeout = absl::Minutes(10);
  // A running generation ends for a larger one once no further spare has
  // come for this long, and not before this age: each change is a pause. The
  // spares take the members' state before.
  absl::Duration growth_settle = absl::Seconds(1);
  absl::Duration growth_min_age = absl::Seconds(5);
  // It does not wait for longer than this until spares have taken that, from
  // when the first of them was to: they copy what they lack once it has ended.
  absl::Duration catch_up_timeout = absl::Seconds(30);
  // A round whose manifests differ is refused after this time, or once all are
  // there: as long as the workers of some launchers take to start.
  absl::Duration mismatch_settle = absl::Seconds(2);

  // Jobs known at once; for a new one the oldest ended one is forgotten.
  int max_jobs = 1024;
  // Every member costs a stream and a record in each answer to Join. At most
  // kMaxWorldSize.
  int max_members_per_job = 16'384;
  // Workers that wait while a generation runs.
  int max_spares_per_job = 1024;
  // Workers that have stopped waiting, remembered for the report of their exit.
  int max_withdrawn_per_job = 16'384;

  // Bounds of a manifest. Of a round at most 16 that differ are kept.
  int max_parameters = 100'000;
  int max_parameter_name_bytes = 1024;
  int max_dimensions = 16;
  int max_settings = 256;
  int max_setting_bytes = 4096;
  int max_hook_bytes = 4096;  // not more than kMaxHookBytes of schedule/plan.h
  int max_accumulation_steps = 1'000'000;

  // Bounds of what a worker sends of itself.
  int max_name_bytes = 255;  // node, host, address: as long as a DNS name
  int max_topology_keys = 16;
  int max_topology_key_bytes = 64;
  // Longer reasons are cut: an error carries its reason twice, in metadata
  // that receivers bound at 8 KiB.
  int max_reason_bytes = 1024;

  absl::Status Validate() const;
};

struct PlanOptions {
  int max_accumulation_steps = 1'000'000;
  int max_hook_bytes = 4096;  // not more than kMaxHookBytes of schedule/plan.h

  absl::Status Validate() const;
};

// Limits of what a peer can have kept for it.
struct ScheduleLimits {
  int max_streams = 64;  // of one generation
  size_t max_stream_bytes = 64;
  int max_history = 64;  // rounds of one job
  // Jobs whose last generation is kept after its end. More than
  // MembershipOptions::max_jobs costs nothing: running ones are always kept.
  int max_jobs = 1024;
};

// What one generation of a job may declare.
struct GroupLimits {
  size_t max_groups = 1 << 16;
  size_t max_name_bytes = 128;
  size_t max_tag_bytes = 256;
  size_t max_barriers = 1 << 12;      // tags that a rank waits for
  size_t max_declarations = 1 << 14;  // that wait for one another
  absl::Duration max_timeout = absl::Hours(24);
};

// What peers may make the store hold.
struct CheckpointLimits {
  int64_t max_shard_bytes = int64_t{64} << 30;
  int max_shards = 1 << 16;
  size_t max_chunk_bytes = 1 << 20;
  size_t max_metadata_bytes = 64 << 10;  // keys and values together
  size_t max_open_uploads = 512;         // each holds a file descriptor
  size_t max_open_downloads = 512;       // and so does each of these
  size_t max_ranges = 4096;              // of a shard, in one download
  size_t max_open_checkpoints = 64;
  // So that one job cannot take the places of all others.
  size_t max_open_checkpoints_per_job = 4;
  size_t max_checkpoints_per_job = 1000;
  // Of all jobs; those of one that was killed stay until it is tried again.
  size_t max_open_imports = 8;
  // How long after its last read a checkpoint is safe from retention.
  absl::Duration read_grace = absl::Minutes(1);
};

// How much is kept of the steps of ranks.
struct TelemetryLimits {
  // Steps that are kept of each rank.
  int steps_per_rank = 256;
  // A timing takes 40 bytes. A job of 4,096 ranks has its 256 steps in 40 MiB;
  // one of 16,384 ranks keeps 64 of each in as much. All jobs together: 160
  // MiB, past which a rank's newest steps take the places of its oldest.
  int64_t records_per_job = int64_t{1} << 20;
  int64_t records = int64_t{1} << 22;
  // As many jobs as the membership knows at most; past it, a new one is not
  // followed.
  size_t jobs = 1024;
  // A program may change its hook and its plan as often as it likes.
  size_t hooks_per_job = 16;
  size_t plans_per_job = 32;
  // How long a job stays here once its last generation has ended.
  absl::Duration kept_after_end = absl::Minutes(5);
};

struct RpcOptions {
  // Holds a manifest of 100,000 parameters with long names. gRPC checks only
  // whole messages: until then max_held_bytes counts.
  int max_message_bytes = 32 << 20;
  // What gRPC may hold of all calls and their messages. Beyond it gRPC ends
  // calls and idle connections of its own choice: their clients try again. 0: a
  // quarter of what the process may use, 64 MiB at least.
  int64_t max_held_bytes = 0;
  // Calls under way at once on one connection; more wait for their turn. A
  // worker needs its Attach stream, its store calls and its uploads.
  int max_streams_per_connection = 1024;
  // Events waiting for one slow Attach stream; a stream that falls further
  // behind is closed, and its worker attaches again.
  int max_queued_events = 256;
  // A stream whose first message (hello, or the header of an upload) does not
  // come in this time is ended.
  absl::Duration first_message_timeout = absl::Seconds(10);
  // How long one shard may take, up or down: as long as 64 GiB need at 20 MB/s.
  absl::Duration transfer_timeout = absl::Hours(1);
  // A silent connection is probed this often, and closed if the probe is not
  // answered in time: a vanished host sends nothing.
  absl::Duration keepalive_time = absl::Seconds(10);
  absl::Duration keepalive_timeout = absl::Seconds(5);

  // A new connection has this long to send HTTP/2's preface.
  absl::Duration preface_timeout = absl::Seconds(5);
  // Connections that have not sent it yet; one more closes the oldest.
  int max_waiting_connections = 1024;
  // Connections that have sent it; more are closed until others end. Four from
  // each member of the largest job. Fewer where the process may not have as
  // many descriptors: some are left for the disk.
  int max_connections = 65'536;

  absl::Status Validate() const;
};

}  // namespace coxswain::server

#endif  // COXSWAIN_SERVER_OPTIONS_OPTIONS_H_
