#ifndef COXSWAIN_SERVER_MEMBERSHIP_RUN_COMMIT_H_
#define COXSWAIN_SERVER_MEMBERSHIP_RUN_COMMIT_H_

#include <deque>
#include <string>

#include "server/membership/job_record.h"
#include "server/plan/plan_store.h"
#include "server/state/state_store.h"

namespace coxswain::server {

// A generation on its way to the disk.
//
// Its tables may have tens of megabytes: the registry encodes them
// outside of any lock, and writes them one after the other, each once the one
// before is committed, so that the writes of other jobs come in between. The
// last commit is `start`, that of the plan and of the job's record: with it
// there is a new generation, and without it there are tables that the next
// start drops.
struct RunCommit {
  std::string job;
  RunRecord run;
  GenerationStart start;
  std::deque<StateBatch> tables;  // that are to be written yet
};

// Begins the commit of `run` as the next generation of the job.
RunCommit CommitOf(const JobRecord& job, RunRecord run);
// Encodes the tables of the generation.
std::deque<StateBatch> EncodeTables(const RunRecord& run);
// Deletes them.
StateBatch DropTables(const RunRecord& run);

}  // namespace coxswain::server

#endif  // COXSWAIN_SERVER_MEMBERSHIP_RUN_COMMIT_H_
