#include "hooks/averagers/local_gradients.h"

#include <algorithm>
#include <utility>

#include "base/status_macros.h"
#include "hooks/allreduce.h"
#include "hooks/plain_hook.h"

namespace coxswain {
namespace {

class NoExchange : public Exchange {
 public:
  absl::StatusOr<WorkPtr> Advance() override { return WorkPtr(); }
};

class LocalGradientsHook : public PlainHook {
 public:
  LocalGradientsHook(std::string spec, int64_t start_step, int64_t group)
      : PlainHook(std::move(spec)), start_step_(start_step), group_(group) {}

  bool started() const override { return step() >= start_step_; }
  bool needs_averager() const override { return true; }
  GradientReach reach() const override {
    if (!started() || group_ >= world_size_) return GradientReach::kAll;
    return group_ == 1 ? GradientReach::kOwn : GradientReach::kGroup;
  }

  absl::Status Configure(const std::vector<ParameterSpec>& parameters,
                         int world_size) override {
    block_.reset();
    world_size_ = world_size;
    return PlainHook::Configure(parameters, world_size);
  }

  absl::StatusOr<std::unique_ptr<Exchange>> Prepare(
      const Bucket& bucket, Communicator& communicator) override {
    COXSWAIN_RETURN_IF_ERROR(CheckBucket(spec(), bucket));
    if (!started()) return PrepareAllReduce(bucket, communicator);
    if (group_ == 1) return std::make_unique<NoExchange>();
    if (group_ >= communicator.size()) {
      return PrepareAllReduce(bucket, communicator);
    }
    if (block_ == nullptr) {
      COXSWAIN_ASSIGN_OR_RETURN(
          block_, communicator.Split(BlockOf(communicator.rank(),
                                             communicator.size(), group_)));
    }
    return PrepareAllReduce(bucket, *block_);
  }

 private:
  const int64_t start_step_;
  const int64_t group_;
  int world_size_ = 0;
  std::unique_ptr<Communicator> block_;  // null until needed
};

}  // namespace

std::unique_ptr<Hook> MakeLocalGradientsHook(std::string spec,
                                             int64_t start_step,
                                             int64_t group) {
  return std::make_unique<LocalGradientsHook>(std::move(spec), start_step,
                                              group);
}

std::vector<int> BlockOf(int rank, int size, int64_t group) {
  const int64_t first = rank / group * group;
  std::vector<int> ranks;
  for (int64_t i = first; i < std::min<int64_t>(first + group, size); ++i) {
    ranks.push_back(static_cast<int>(i));
  }
  return ranks;
}

}  // namespace coxswain
