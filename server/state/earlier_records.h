#ifndef COXSWAIN_SERVER_STATE_EARLIER_RECORDS_H_
#define COXSWAIN_SERVER_STATE_EARLIER_RECORDS_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "server/state/state_store.h"

namespace coxswain::server {

// Prepares what is in the store for the components. Called once by each
// coordinator, after ReadClusterRecords() has not refused the state, and before
// anything else is read.
//
// Damaged records go into quarantine: see QuarantineDamaged(). Where the schema
// is an earlier one, records of the forms that schema 1 had become messages of
// proto/state.proto, and those that cannot be read in their own form go into
// quarantine, too; last of all the schema becomes kStateSchema.
//
// The form of a record is known from the record alone, and it is replaced in
// one batch. So a coordinator that dies meanwhile leaves kMixedSchema, which
// coordinators of schema 1 refuse, and the next one goes on.
absl::Status TakeOverRecords(const std::vector<std::string>& together,
                             StateStore* store);

}  // namespace coxswain::server

#endif  // COXSWAIN_SERVER_STATE_EARLIER_RECORDS_H_
