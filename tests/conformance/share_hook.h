#ifndef COXSWAIN_TESTS_CONFORMANCE_SHARE_HOOK_H_
#define COXSWAIN_TESTS_CONFORMANCE_SHARE_HOOK_H_

#include <deque>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "hooks/wrapper_hook.h"

namespace coxswain {

// A hook whose buckets have a share, as a reducer whose ranks have weights
// hands them over. For hook worlds. One rank's.
class ShareHook : public WrapperHook {
 public:
  ShareHook(std::unique_ptr<Hook> hook, double share)
      : WrapperHook(std::string(), std::move(hook)), share_(share) {}

  // Sets the share in the steps to come.
  void set_share(double share) { share_ = share; }

  absl::StatusOr<std::unique_ptr<Exchange>> Prepare(
      const Bucket& bucket, Communicator& communicator) override {
    buckets_.push_back(bucket);
    buckets_.back().share = share_;
    return inner().Prepare(buckets_.back(), communicator);
  }
  absl::StatusOr<std::unique_ptr<Exchange>> PrepareSlice(
      const Bucket& bucket, const BucketSlices& slices,
      Communicator& communicator) override {
    buckets_.push_back(bucket);
    buckets_.back().share = share_;
    return inner().PrepareSlice(buckets_.back(), slices, communicator);
  }
  absl::Status Commit() override {
    buckets_.clear();
    return WrapperHook::Commit();
  }
  void Rollback() override {
    buckets_.clear();
    WrapperHook::Rollback();
  }

 private:
  double share_;
  std::deque<Bucket> buckets_;  // while their exchanges use them
};

}  // namespace coxswain

#endif  // COXSWAIN_TESTS_CONFORMANCE_SHARE_HOOK_H_
