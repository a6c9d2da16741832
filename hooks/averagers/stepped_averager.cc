#include "hooks/averagers/stepped_averager.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "hooks/allreduce.h"
#include "hooks/averagers/mean.h"
#include "hooks/parameter_state.h"
#include "hooks/plain_hook.h"

namespace coxswain {
namespace {

constexpr char kParameters[] = "parameters";

absl::Status CheckParameter(const std::string& spec,
                            const ParameterSpec& parameter) {
  Bucket bucket;
  bucket.data.dtype = parameter.dtype;
  bucket.data.device = parameter.device;
  if (CheckBucket(spec, bucket).ok()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("averager ", spec, ": parameter ", parameter.name, " is ",
                   NameOf(parameter.dtype),
                   "; only floating-point parameters in the CPU's memory can "
                   "be averaged"));
}

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

absl::Status StateMismatch(const std::string& spec, const std::string& why) {
  return absl::FailedPreconditionError(
      absl::StrCat("the saved state does not fit averager ", spec, ": ", why));
}

absl::Status SteppedAverager::Configure(
    const std::vector<ParameterSpec>& parameters,
    const std::vector<Span>& values, Communicator& world) {
  for (const ParameterSpec& parameter : parameters) {
    COXSWAIN_RETURN_IF_ERROR(CheckParameter(spec_, parameter));
  }
  const std::vector<ParameterSpec> before =
      std::exchange(parameters_, parameters);
  world_ = &world;
  COXSWAIN_RETURN_IF_ERROR(CheckValues(values));
  return Connect(before, values);
}

absl::Status SteppedAverager::CheckValues(
    const std::vector<Span>& values) const {
  if (world_ == nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat("averager ", spec_, " was not configured"));
  }
  if (values.size() != parameters_.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("averager ", spec_, " got the values of ", values.size(),
                     " parameters, the model has ", parameters_.size()));
  }
  for (size_t i = 0; i < values.size(); ++i) {
    const ParameterSpec& parameter = parameters_[i];
    if (values[i].dtype == parameter.dtype &&
        values[i].device == parameter.device &&
        values[i].count == parameter.count()) {
      continue;
    }
    return absl::InvalidArgumentError(absl::StrCat(
        "averager ", spec_, " got ", values[i].count, " x ",
        NameOf(values[i].dtype), " as values of parameter ", parameter.name,
        ", which has ", parameter.count(), " x ", NameOf(parameter.dtype)));
  }
  return absl::OkStatus();
}

absl::Status SteppedAverager::AfterOptimizerStep(
    const std::vector<Span>& values) {
  COXSWAIN_RETURN_IF_ERROR(CheckValues(values));
  if (averages_next()) COXSWAIN_RETURN_IF_ERROR(Average(step_, values));
  ++step_;
  EndStep(values);
  return absl::OkStatus();
}

absl::Status SteppedAverager::AverageNow(const std::vector<Span>& values) {
  COXSWAIN_RETURN_IF_ERROR(CheckValues(values));
  if (!diverged()) return absl::OkStatus();
  COXSWAIN_RETURN_IF_ERROR(Unite(values));
  united_at_ = step_;
  return absl::OkStatus();
}

bool SteppedAverager::diverged() const {
  return step_ > start_step_ && united_at_ != step_ && !Unites(step_ - 1);
}

absl::Status SteppedAverager::Average(int64_t,
                                      const std::vector<Span>& values) {
  return Unite(values);
}

absl::Status SteppedAverager::Unite(const std::vector<Span>& values) {
  return AverageOver(*world_, values, scratch_);
}

absl::StatusOr<HookState> SteppedAverager::SaveState(
    Communicator& communicator) {
  HookState state;
  state.spec = spec_;
  state.step = step_;
  if (communicator.rank() == 0) {
    state.options[kParameters] = ParameterLines(parameters_);
  }
  SaveTensors(communicator.rank(), communicator.size(), state);
  return state;
}

absl::Status SteppedAverager::LoadState(const HookState& state, int, int) {
  COXSWAIN_RETURN_IF_ERROR(CheckStateName(spec_, state));
  COXSWAIN_RETURN_IF_ERROR(CheckStateFits(spec_, state, parameters_, {}, {}));
  COXSWAIN_RETURN_IF_ERROR(LoadTensors(state));
  step_ = state.step;
  united_at_ = step_;
  return absl::OkStatus();
}

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
