#ifndef COXSWAIN_CLIENT_REDUCE_AVERAGER_CHANGE_H_
#define COXSWAIN_CLIENT_REDUCE_AVERAGER_CHANGE_H_

#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "client/comm/communicator.h"
#include "client/reduce/averager.h"
#include "client/reduce/hook.h"
#include "client/reduce/reducer.h"

namespace coxswain {

// What an owner holds of a hook and its averager, and needs to change both. All
// that is pointed to outlives the change.
struct HookOwner {
  std::unique_ptr<Hook>* hook = nullptr;
  std::unique_ptr<Averager>* averager = nullptr;  // of null: none
  // What the reducer has in place of a hook that needs an averager, which it
  // would refuse: one that equals it, but needs none.
  std::unique_ptr<Hook>* paired = nullptr;
  Reducer* reducer = nullptr;
  Communicator* communicator = nullptr;
  absl::Duration timeout;  // of each collective
  // Called with the end of a collective that may have failed on this rank
  // alone; returns the owner's first error.
  std::function<absl::Status(const absl::Status&)> keep;
  // Configures the new averager, if any, once all is the owner's.
  std::function<absl::Status()> configure;
};

// Changes the reducer, between steps, and the owner to another hook and
// averager; collective. With `carry` these take over the states of the former.
// Errors as Reducer::ChangeHook, and after an error of that the owner has what
// it had.
absl::Status ChangeHookAndAverager(const HookOwner& owner,
                                   std::unique_ptr<Hook> hook,
                                   std::unique_ptr<Averager> averager,
                                   bool carry);

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_REDUCE_AVERAGER_CHANGE_H_
