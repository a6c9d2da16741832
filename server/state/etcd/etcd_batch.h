#ifndef COXSWAIN_SERVER_STATE_ETCD_ETCD_BATCH_H_
#define COXSWAIN_SERVER_STATE_ETCD_ETCD_BATCH_H_

#include <vector>

#include "server/state/etcd/etcd.pb.h"
#include "server/state/etcd/etcd_keys.h"
#include "server/state/state_store.h"

namespace coxswain::server {

// What etcd is to do so that all changes of the batch have happened in their
// order. etcd changes no key twice in one transaction, not even by deleting a
// range in which it also puts a key: what counts is the last change of each
// key, and ranges are deleted around the keys that are put. More than a level
// of a transaction may hold goes into transactions within it.
std::vector<etcdserverpb::RequestOp> OperationsOf(const StateBatch& batch,
                                                  const EtcdKeys& keys);

}  // namespace coxswain::server

#endif  // COXSWAIN_SERVER_STATE_ETCD_ETCD_BATCH_H_
