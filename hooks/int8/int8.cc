#include "hooks/int8/int8.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/logging.h"
#include "base/status_macros.h"
#include "hooks/allreduce.h"
#include "hooks/device/device_exchange.h"
#include "hooks/int8/int8_device.h"
#include "hooks/int8/int8_errors.h"
#include "hooks/int8/int8_exchange.h"
#include "hooks/int8/int8_state.h"
#include "hooks/kernels/quantise.h"
#include "hooks/parameter_state.h"
#include "hooks/plain_hook.h"
#include "hooks/scratch.h"
#include "hooks/weighted_exchange.h"

namespace coxswain {
namespace {

class Int8Hook : public Hook {
 public:
  Int8Hook(std::string spec, OptionValues options)
      : spec_(std::move(spec)), options_(std::move(options)) {}

  ~Int8Hook() override {
    if (device_ == nullptr) return;
    const absl::Status awaited = device_->Await();
    if (awaited.ok()) return;
    LogWarning("int8_device_not_through", {{"reason", awaited.message()}});
    // What a stream may still write to is nobody else's. A device that has
    // failed works on nothing any more.
    if (absl::IsDeadlineExceeded(awaited)) {
      static_cast<void>(new AllInt8Parameters(std::move(state_)));
    }
  }

  std::string spec() const override { return spec_; }

  absl::Status Configure(const std::vector<ParameterSpec>& parameters,
                         int world_size) override {
    COXSWAIN_RETURN_IF_ERROR(CheckParameters(parameters, world_size));
    COXSWAIN_RETURN_IF_ERROR(AwaitDevice());
    weighted_.Clear();
    AllInt8Parameters kept;
    for (const ParameterSpec& parameter : parameters) {
      if (parameter.dtype == DType::kFloat64) {
        Adopt<double>(parameter, kept);
      } else {
        Adopt<float>(parameter, kept);
      }
    }
    state_ = std::move(kept);
    parameters_ = parameters;
    world_size_ = world_size;
    return absl::OkStatus();
  }

  absl::StatusOr<std::unique_ptr<Exchange>> Prepare(
      const Bucket& bucket, Communicator& communicator) override {
    COXSWAIN_RETURN_IF_ERROR(Begin(bucket));
    if (!started()) return PrepareAllReduce(bucket, communicator);
    return PrepareWeighted(bucket, std::nullopt, communicator);
  }

  absl::StatusOr<std::unique_ptr<Exchange>> PrepareSlice(
      const Bucket& bucket, const BucketSlices& slices,
      Communicator& communicator) override {
    if (IsOnDevice(bucket)) return Prepare(bucket, communicator);
    COXSWAIN_RETURN_IF_ERROR(Begin(bucket));
    if (!started()) return PrepareReduceScatter(bucket, slices, communicator);
    return PrepareWeighted(bucket, slices, communicator);
  }
  bool applies_share() const override { return true; }

  absl::Status Commit() override {
    CommitAll(std::get<0>(state_));
    CommitAll(std::get<1>(state_));
    in_step_ = false;
    ++step_;
    return absl::OkStatus();
  }

  void Rollback() override {
    for (auto& [name, one] : std::get<0>(state_)) Unstage(one);
    for (auto& [name, one] : std::get<1>(state_)) Unstage(one);
    in_step_ = false;
  }

  int64_t step() const override { return step_; }
  bool started() const override { return step_ >= options_.Int("start_step"); }
  // Blocks and slices are cut from buckets.
  bool needs_frozen_layout() const override { return started(); }

  std::vector<NonFiniteGradient> non_finite() const override {
    return non_finite_;
  }

  absl::StatusOr<HookState> SaveOwn() const override {
    COXSWAIN_ASSIGN_OR_RETURN(const auto current, OnHost());
    HookState state =
        SaveOwnInt8State(parameters_, *current, options_.Texts(), world_size_);
    state.spec = spec_;
    state.step = step_;
    return state;
  }

  absl::Status LoadOwn(const HookState& state, double error_scale) override {
    COXSWAIN_RETURN_IF_ERROR(CheckErrorScale(spec_, error_scale));
    COXSWAIN_RETURN_IF_ERROR(CheckStateName(spec_, state));
    COXSWAIN_RETURN_IF_ERROR(AwaitDevice());
    COXSWAIN_ASSIGN_OR_RETURN(
        state_, LoadOwnInt8State(state, parameters_, state_, options_.Texts(),
                                 world_size_, error_scale));
    step_ = state.step;
    return absl::OkStatus();
  }

  double ErrorNorm() const override {
    const auto current = OnHost();
    if (current.ok()) return NormOf(**current, world_size_);
    LogWarning("int8_errors_unknown", {{"reason", current.status().message()}});
    return std::numeric_limits<double>::quiet_NaN();
  }

  absl::StatusOr<HookState> SaveState(Communicator& communicator) override {
    COXSWAIN_ASSIGN_OR_RETURN(const auto current, OnHost());
    const bool any = options_.Bool("error_feedback") && HasErrors(*current);
    HookState state =
        SaveInt8State(parameters_, *current, any, options_.Texts(),
                      communicator.rank(), world_size_);
    state.spec = spec_;
    state.step = step_;
    return state;
  }

  absl::Status LoadState(const HookState& state, int rank,
                         int world_size) override {
    COXSWAIN_RETURN_IF_ERROR(CheckStateName(spec_, state));
    COXSWAIN_RETURN_IF_ERROR(AwaitDevice());
    COXSWAIN_ASSIGN_OR_RETURN(
        state_, LoadInt8State(state, parameters_, state_, options_.Texts(),
                              rank, world_size));
    step_ = state.step;
    return absl::OkStatus();
  }

 private:
  // The same on all ranks: errors come with the first compressed step, or with
  // a loaded state.
  static bool HasErrors(const AllInt8Parameters& current) {
    const auto any = [](const auto& parameters) {
      return std::any_of(parameters.begin(), parameters.end(),
                         [](const auto& entry) {
                           return !entry.second.current.local.empty();
                         });
    };
    return any(std::get<0>(current)) || any(std::get<1>(current));
  }

  // Before memory that the device may be using is freed.
  absl::Status AwaitDevice() {
    if (device_ == nullptr) return absl::OkStatus();
    COXSWAIN_RETURN_IF_ERROR(device_->Await());
    device_->scratch().Clear();
    return absl::OkStatus();
  }

  // What is known, with all current errors in the host's memory.
  absl::StatusOr<std::shared_ptr<const AllInt8Parameters>> OnHost() const {
    if (device_ == nullptr) {
      return std::shared_ptr<const AllInt8Parameters>(std::shared_ptr<void>(),
                                                      &state_);
    }
    COXSWAIN_ASSIGN_OR_RETURN(AllInt8Parameters fetched,
                              device_->Fetch(state_));
    return std::make_shared<const AllInt8Parameters>(std::move(fetched));
  }

  // Enters a parameter into `kept`, with what is known about a parameter of
  // that name and shape.
  template <typename T>
  void Adopt(const ParameterSpec& parameter, AllInt8Parameters& kept) {
    auto& known = std::get<Int8Parameters<T>>(state_);
    Int8Parameter<T>& one = std::get<Int8Parameters<T>>(kept)[parameter.name];
    const auto found = known.find(parameter.name);
    if (found != known.end() && found->second.shape == parameter.shape) {
      one = std::move(found->second);
      Unstage(one);
      return;
    }
    one.shape = parameter.shape;
    one.count = parameter.count();
  }

  absl::Status Begin(const Bucket& bucket) {
    COXSWAIN_RETURN_IF_ERROR(CheckBucketType(spec_, bucket));
    COXSWAIN_RETURN_IF_ERROR(CheckSlots(bucket, parameters_));
    if (!std::exchange(in_step_, true)) non_finite_.clear();
    return absl::OkStatus();
  }

  absl::StatusOr<std::unique_ptr<Exchange>> PrepareWeighted(
      const Bucket& bucket, std::optional<BucketSlices> slices,
      Communicator& communicator) {
    return weighted_.Make(
        spec_, bucket, communicator,
        [this, slices](const Bucket& weighted, Communicator& ranks) {
          return weighted.data.dtype == DType::kFloat64
                     ? PrepareQuantised<double>(weighted, slices, ranks)
                     : PrepareQuantised<float>(weighted, slices, ranks);
        });
  }

  template <typename T>
  absl::StatusOr<std::unique_ptr<Exchange>> PrepareQuantised(
      const Bucket& bucket, std::optional<BucketSlices> slices,
      Communicator& communicator) {
    auto& known = std::get<Int8Parameters<T>>(state_);
    std::vector<Int8Parameter<T>*> state;
    for (const GradientSlot& slot : bucket.gradients) {
      const auto number = static_cast<size_t>(slot.parameter);
      state.push_back(&known.at(parameters_[number].name));
    }
    const Int8Context context{spec_,
                              parameters_,
                              scratch_,
                              non_finite_,
                              step_,
                              options_.Int("block"),
                              options_.Bool("error_feedback")};
    if (IsOnDevice(bucket)) {
      COXSWAIN_ASSIGN_OR_RETURN(DeviceQueue* const queue,
                                QueueFor(spec_, bucket, communicator));
      COXSWAIN_RETURN_IF_ERROR(UseDevice(*queue));
      return MakeInt8DeviceExchange(bucket, communicator, *queue,
                                    std::move(state), context, *device_);
    }
    for (Int8Parameter<T>* one : state) {
      if (!one->on_device) continue;
      COXSWAIN_RETURN_IF_ERROR(device_->FetchOne(one));
    }
    if (slices.has_value()) {
      return MakeInt8SliceExchange(bucket, *slices, communicator,
                                   std::move(state), context);
    }
    return MakeInt8Exchange(bucket, communicator, std::move(state), context);
  }

  absl::Status UseDevice(DeviceQueue& queue) {
    if (device_ == nullptr) {
      COXSWAIN_ASSIGN_OR_RETURN(device_, Int8Device::Make(queue.runtime()));
    }
    if (&device_->runtime() == &queue.runtime()) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat(
        "hook ", spec_, ": its errors are on GPU ",
        device_->runtime().device().index, ", but a bucket is on GPU ",
        queue.runtime().device().index, "; a rank's buckets lie on one GPU"));
  }

  template <typename T>
  static void Unstage(Int8Parameter<T>& one) {
    one.is_staged = false;
    one.staged_on_device = false;
  }

  template <typename T>
  void CommitAll(Int8Parameters<T>& parameters) {
    for (auto& [name, one] : parameters) {
      if (!std::exchange(one.is_staged, false)) continue;
      if (std::exchange(one.staged_on_device, false)) {
        std::swap(one.device_current, one.device_staged);
        one.on_device = true;
        one.current = {};
      } else {
        std::swap(one.current, one.staged);
      }
    }
  }

  const std::string spec_;
  const OptionValues options_;
  std::vector<ParameterSpec> parameters_;
  int world_size_ = 1;
  AllInt8Parameters state_;
  int64_t step_ = 0;
  bool in_step_ = false;  // something has been prepared since the last step
  std::vector<NonFiniteGradient> non_finite_;
  ScratchPool scratch_;
  WeightedExchanges weighted_;
  // Once a bucket was on a GPU. After the state, whose memory it may be using.
  std::unique_ptr<Int8Device> device_;
};

CostCard Card() {
  CostCard card;
  card.bytes =
      "(W + 1) ceil(N / (W block)) (block + 4) bytes handed in by each of W "
      "ranks: about (1 + 1/W) N; of these all but 1/W travel";
  card.collectives =
      "1 all-to-all and 1 all-gather; 1 all-reduce more if something is not "
      "finite";
  card.memory =
      "8 + 8/W bytes per element of errors (current and staged; twice that for "
      "float64), no more for a rollback; 2 bytes per element and 5/W in flight";
  card.numerics =
      "two roundings to 8 bits of each block's largest magnitude; what they "
      "leave out is sent later. Checkpoints hold all ranks' errors; on another "
      "world size each gets their mean, which is approximate. Where the "
      "members of a running job change from W to W', errors are multiplied by "
      "W'/W";
  card.avoid =
      "small models (each slice is at least a block), gradients whose blocks "
      "mix very different magnitudes, checkpoints that must stay small";
  return card;
}

}  // namespace

HookRow Int8Row() {
  constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
  HookRow row;
  row.description.name = "int8";
  row.description.help = "8-bit gradients and averages with error feedback";
  row.description.options = {
      IntOption("start_step", 0, 0, kMax,
                "steps of plain averages before compression starts"),
      BoolOption("error_feedback", true, "send later what a step leaves out"),
      IntOption("block", 256, 32, kMaxQuantisedBlock,
                "elements that share a scale; fewer are more exact"),
  };
  row.description.card = Card();
  row.on_device = true;
  row.make = [](std::string spec, OptionValues options, std::unique_ptr<Hook>) {
    return MakeInt8Hook(std::move(spec), std::move(options));
  };
  return row;
}

std::unique_ptr<Hook> MakeInt8Hook(std::string spec, OptionValues options) {
  return std::make_unique<Int8Hook>(std::move(spec), std::move(options));
}

int64_t Int8SliceBlocks(int64_t count, int world_size, int64_t block) {
  const int64_t row = block * world_size;
  return (count + row - 1) / row;
}

int64_t Int8PayloadBytes(int64_t count, int world_size, int64_t block) {
  return (world_size + 1) *
         QuantisedBytes(Int8SliceBlocks(count, world_size, block), block);
}

}  // namespace coxswain
