#ifndef COXSWAIN_CLIENT_TORCH_NO_SYNC_SCOPE_H_
#define COXSWAIN_CLIENT_TORCH_NO_SYNC_SCOPE_H_

namespace coxswain::torch {

// Backward passes within the scope only sum up locally. Made by
// DistributedDataParallel::NoSync, which it must not outlive.
class [[nodiscard]] NoSyncScope {
 public:
  explicit NoSyncScope(int* depth) : depth_(depth) { ++*depth_; }
  ~NoSyncScope() { --*depth_; }
  NoSyncScope(const NoSyncScope&) = delete;
  NoSyncScope& operator=(const NoSyncScope&) = delete;

 private:
  int* depth_;
};

}  // namespace coxswain::torch

#endif  // COXSWAIN_CLIENT_TORCH_NO_SYNC_SCOPE_H_
