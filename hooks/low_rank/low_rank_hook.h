#ifndef COXSWAIN_HOOKS_LOW_RANK_LOW_RANK_HOOK_H_
#define COXSWAIN_HOOKS_LOW_RANK_LOW_RANK_HOOK_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "client/reduce/hook.h"
#include "hooks/low_rank/low_rank_config.h"
#include "hooks/low_rank/low_rank_exchange.h"
#include "hooks/low_rank/low_rank_state.h"
#include "hooks/low_rank/low_rank_tensor.h"
#include "hooks/options.h"
#include "hooks/scratch.h"
#include "hooks/weighted_exchange.h"

namespace coxswain {

// What the low-rank hooks have in common: plain averages before start_step,
// the transaction of a step, what is reported of it, and the state. A hook
// defines how its parameters are laid out and makes the exchanges of its
// buckets.
class LowRankHook : public Hook {
 public:
  // `name` is the hook's, for messages.
  LowRankHook(std::string name, std::string spec, OptionValues options);

  std::string spec() const final { return spec_; }
  absl::Status Configure(const std::vector<ParameterSpec>& parameters,
                         int world_size) final;
  absl::StatusOr<std::unique_ptr<Exchange>> Prepare(
      const Bucket& bucket, Communicator& communicator) final;
  // Sends and remembers the same, and forms the averages of the slice only:
  // they have the bits of those that Prepare forms. In a GPU's memory those of
  // the whole bucket. Before the start, a reduce-scatter.
  absl::StatusOr<std::unique_ptr<Exchange>> PrepareSlice(
      const Bucket& bucket, const BucketSlices& slices,
      Communicator& communicator) final;
  absl::Status Commit() final;
  void Rollback() final;
  int64_t step() const final { return step_; }
  bool started() const final { return step_ >= config_.start_step; }
  // A plain step needs neither factors nor errors. A loaded state may have them
  // before the start, but errors on some ranks only, and all have to agree.
  bool needs_frozen_layout() const final { return started(); }
  bool applies_share() const final { return true; }
  std::vector<NonFiniteGradient> non_finite() const final {
    return report_.non_finite;
  }
  // Its tensors: MakeOwnError, and the factors of a checkpoint. mode=pytorch
  // restores its errors with a scale of 1, and drops them with any other.
  absl::StatusOr<HookState> SaveOwn() const final;
  absl::Status LoadOwn(const HookState& state, double error_scale) final;
  // NaN if a GPU that has failed has the errors.
  double ErrorNorm() const final;
  absl::StatusOr<HookState> SaveState(Communicator& communicator) final;
  absl::Status LoadState(const HookState& state, int rank,
                         int world_size) final;

 protected:
  // One for each parameter, of the type that it is computed in.
  using Tensor = std::variant<std::unique_ptr<LowRankTensor<float>>,
                              std::unique_ptr<LowRankTensor<double>>>;
  using Tensors = std::vector<Tensor>;

  // Those of a bucket's gradients.
  template <typename T>
  std::vector<LowRankTensor<T>*> TensorsOf(const Bucket& bucket) {
    std::vector<LowRankTensor<T>*> found;
    for (const GradientSlot& slot : bucket.gradients) {
      const Tensor& any = tensors_[static_cast<size_t>(slot.parameter)];
      found.push_back(std::get<std::unique_ptr<LowRankTensor<T>>>(any).get());
    }
    return found;
  }

  // Columns of the factors of a parameter; 0 if it has no factors of its own.
  virtual int64_t RankOf(const ParameterSpec& parameter) const = 0;
  // Returns whether something of a parameter is sent later.
  virtual bool KeepsError(int64_t rank_of_parameter) const = 0;

  // Returns the exchange of a bucket in a compressed step.
  virtual std::unique_ptr<Exchange> Compress(const Bucket& bucket,
                                             Communicator& communicator,
                                             const LowRankStep& step) = 0;

  // Returns the same for one in a GPU's memory. INVALID_ARGUMENT by default:
  // hooks without it are staged (hooks/staged_hook.h).
  virtual absl::StatusOr<std::unique_ptr<Exchange>> CompressOnDevice(
      const Bucket& bucket, Communicator& communicator,
      const LowRankStep& step);
  // Before tensors() are read or worked on: brings over to them what stands in
  // a GPU's memory only.
  virtual absl::Status FetchFromDevice() const { return absl::OkStatus(); }
  // From now on tensors() are what counts.
  virtual void ForgetDevice() {}

  // Where a parameter's committed error stands.
  virtual std::variant<ErrorView<float>, ErrorView<double>> ErrorOf(
      size_t parameter) const;
  // The committed factors.
  virtual void SaveFactors(HookState& state) const;
  // Takes a factor over into `tensors`, which are to replace those of now.
  // Changes nothing else; the parameter exists.
  virtual absl::Status LoadFactor(const StateTensor& saved, Tensors& tensors);

  // The same of this rank's committed errors (MakeOwnError): appends them to
  // `state`, and takes one over, multiplied by `scale`, into `tensors`.
  virtual void SaveOwnErrors(HookState& state) const;
  virtual absl::Status LoadOwnError(const StateTensor& saved, double scale,
                                    Tensors& tensors);

  // Makes what a step staged the state of now, or forgets it.
  virtual void EndStep(bool commit);
  // Before tensors() are replaced by those of other parameters.
  virtual void BeforeOtherParameters() {}
  // Before the first tensor of a state is taken over.
  virtual void BeforeLoading() {}
  // After tensors() have been replaced by those of a state.
  virtual void AfterLoading(const HookState&) {}

  const LowRankConfig& config() const { return config_; }
  const std::vector<ParameterSpec>& parameters() const { return parameters_; }
  const std::string& name() const { return name_; }
  Tensors& tensors() { return tensors_; }
  const Tensors& tensors() const { return tensors_; }
  // Returns the registration index of a parameter; -1 if there is none of that
  // name.
  int IndexOf(const std::string& name) const;

 private:
  // Takes one tensor of a state over.
  using Take =
      std::function<absl::Status(const StateTensor& saved, Tensors& loaded)>;

  // Checks the bucket, and begins a step with the first one.
  absl::Status Begin(const Bucket& bucket, const Communicator& communicator);
  // Returns the exchange of a bucket in a compressed step.
  absl::StatusOr<std::unique_ptr<Exchange>> PrepareCompressed(
      const Bucket& bucket, std::optional<BucketSlices> slices,
      Communicator& communicator);
  // FetchFromDevice and ForgetDevice.
  absl::Status LeaveDevice();
  Tensor MakeTensor(const ParameterSpec& parameter) const;
  // Takes a whole state over, or nothing.
  absl::Status Load(const HookState& state, const Take& take);
  absl::Status LoadError(const StateTensor& saved, int share, Tensors& tensors);
  std::vector<ErrorSource> ErrorSources() const;
  // Returns the rank that takes each parameter's mean error over, by name. It
  // follows from the name alone: where ranks divide a model, other parameters
  // lie beside one that all of them have, whose averages have the same bits on
  // all of them.
  std::map<std::string, int> Owners(int world_size) const;
  void LogPoisoned() const;
  void LogSavings();

  const std::string name_;
  const std::string spec_;
  const OptionValues options_;
  const LowRankConfig config_;
  std::vector<ParameterSpec> parameters_;
  std::map<std::string, int> indices_;  // of the parameters, by name
  Tensors tensors_;                     // by registration index
  int64_t step_ = 0;
  ScratchPool scratch_;
  WeightedExchanges weighted_;

  bool open_ = false;     // between the first Prepare and the end of a step
  LowRankReport report_;  // of the step prepared last
  int rank_ = 0;
  int64_t compressed_steps_ = 0;
  int64_t elements_ = 0;  // of all compressed steps
  int64_t sent_ = 0;
};

}  // namespace coxswain

#endif  // COXSWAIN_HOOKS_LOW_RANK_LOW_RANK_HOOK_H_
