#ifndef COXSWAIN_SERVER_STATE_CLUSTER_RECORDS_H_
#define COXSWAIN_SERVER_STATE_CLUSTER_RECORDS_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/random.h"
#include "server/state/state_store.h"

namespace coxswain::server {

// The records that belong to no job: the id of this cluster, the schema of the
// other records, and the lowest numbers that were never given out. They are
// apart from the records of jobs, so that a job's record can be lost without a
// number being given out twice; each is changed in the batch that gives the
// number out. Every value is a text that ends with a checksum of its own,
// because not every store has one. It stays a text, so that coordinators of any
// schema can recognise that they do not know this one.
constexpr char kClusterTable[] = "cluster";
constexpr char kJobTable[] = "jobs";

// As far as numbers go on the wire, and in keys that were written here.
constexpr int64_t kMaxNumber = int64_t{1} << 53;

// What the records of the other tables are. Coordinators before schema 1 kept
// none, and their numbers have no checksums.
//   1  some are texts or numbers that follow each other (earlier_records.h)
//   2  those of 1 and of 3: TakeOverRecords has begun
//   3  messages of proto/state.proto
// A coordinator refuses what is above the schema that it knows.
constexpr int64_t kMixedSchema = 2;
constexpr int64_t kStateSchema = 3;

struct ClusterRecords {
  int64_t schema = kStateSchema;  // 0: none is kept
  std::string id;                 // empty: the state is new
  int64_t next_term = 1;
  int64_t next_generation = 1;
  // Of all jobs; unset if the coordinator that wrote the state kept none.
  std::optional<int64_t> next_plan_version;
};

// Returns the records, also those of an empty store or of a coordinator that
// wrote no schema.
//   DATA_LOSS            a record is missing or cannot be read; the message
//                        has the way to repair it
//   FAILED_PRECONDITION  a newer coordinator wrote the state
absl::StatusOr<ClusterRecords> ReadClusterRecords(const StateStore& store);

// Returns the lowest plan version that no job has had, of one record only;
// unset and errors as above.
absl::StatusOr<std::optional<int64_t>> ReadNextPlanVersion(
    const StateStore& store);

// Returns a version above those of all plans; far above them if there is one
// that cannot be read.
absl::StatusOr<int64_t> PlanVersionAboveAll(const StateStore& store);

// Adds all of the records; next_plan_version must be set. With a schema below
// kStateSchema, kMixedSchema is kept.
void PutClusterRecords(const ClusterRecords& records, StateBatch* batch);
void PutSchema(int64_t schema, StateBatch* batch);
void PutNextGeneration(int64_t next, StateBatch* batch);
void PutNextPlanVersion(int64_t next, StateBatch* batch);

// Makes a state usable whose records ReadClusterRecords refuses with DATA_LOSS;
// does nothing to any other. The records go into quarantine, as do damaged ones
// of jobs. The cluster gets a new id, which fences every worker of the old one
// off, kMixedSchema if it is not known to have a later one, and numbers far
// above all that can have been given out: also by earlier repairs, as far as
// the quarantine, the jobs and their plans have them. All of it is one batch.
absl::Status RepairClusterRecords(RandomSource* random, StateStore* store);

}  // namespace coxswain::server

#endif  // COXSWAIN_SERVER_STATE_CLUSTER_RECORDS_H_
