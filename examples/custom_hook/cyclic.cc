// A hook with error feedback. cyclic(parts=K) sends every K-th element of each
// gradient, the next ones in the next step: a K-th of the bytes. What a step
// leaves out is this rank's error, which is added to its next gradient, so that
// it is sent within K steps.
#include "examples/custom_hook/cyclic.h"

#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "base/status_macros.h"
#include "hooks/parameter_state.h"
#include "hooks/plain_hook.h"
#include "hooks/registry/registry.h"

namespace coxswain::examples {
namespace {

using Values = std::vector<float>;

constexpr absl::Duration kTimeout = absl::Minutes(30);
// Kinds of a state's tensors: a mean over the ranks, and a rank's own.
constexpr char kError[] = "error";
constexpr char kOwnError[] = "own_error";

bool AllFinite(const Values& values) {
  for (const float value : values) {
    if (!std::isfinite(value)) return false;
  }
  return true;
}

class CyclicHook : public PlainHook {  // which counts the steps
 public:
  CyclicHook(std::string spec, int64_t parts)
      : PlainHook(std::move(spec)), parts_(parts) {}

  // Keeps the errors of the parameters that stay, by name and shape.
  absl::Status Configure(const std::vector<ParameterSpec>& parameters,
                         int world_size) override {
    COXSWAIN_RETURN_IF_ERROR(CheckParameters(parameters, world_size));
    std::map<std::string, Values> kept;
    for (const ParameterSpec& now : parameters) {
      Values& error = kept[now.name];
      for (const ParameterSpec& before : parameters_) {
        if (before.name == now.name && before.shape == now.shape) {
          error = std::move(errors_[now.name]);
        }
      }
      error.resize(static_cast<size_t>(now.count()));
    }
    parameters_ = parameters;
    errors_ = std::move(kept);
    staged_.clear();
    return absl::OkStatus();
  }

  absl::StatusOr<std::unique_ptr<Exchange>> Prepare(
      const Bucket& bucket, Communicator& ranks) override {
    COXSWAIN_RETURN_IF_ERROR(CheckBucket(spec(), bucket));
    COXSWAIN_RETURN_IF_ERROR(CheckSlots(bucket, parameters_));
    if (bucket.data.dtype != DType::kFloat32)
      return absl::InvalidArgumentError("cyclic is for float32");
    // Lives until the next step: longer than the collective that uses it.
    Values& sent = sent_[bucket.index];
    return MakeExchange([this, &bucket, &ranks, &sent](int call) {
      if (call > 0) {
        Unpack(bucket, sent);
        return WorkPtr();
      }
      Pack(bucket, ranks.size(), sent);
      return ranks.AllReduce({sent.data(), static_cast<int64_t>(sent.size()),
                              DType::kFloat32, Device()});
    });
  }

  absl::Status Commit() override {
    for (auto& [name, error] : staged_) errors_[name] = std::move(error);
    staged_.clear();
    return PlainHook::Commit();
  }
  void Rollback() override { staged_.clear(); }

  bool needs_frozen_layout() const override { return true; }

  // Rank 0 has the mean errors, which any number of ranks can go on with.
  absl::StatusOr<HookState> SaveState(Communicator& ranks) override {
    COXSWAIN_ASSIGN_OR_RETURN(HookState state, PlainHook::SaveState(ranks));
    for (const ParameterSpec& parameter : parameters_) {
      const auto mean = std::make_shared<Values>(errors_[parameter.name]);
      for (float& value : *mean) value /= static_cast<float>(ranks.size());
      COXSWAIN_RETURN_IF_ERROR(
          WaitHolding(ranks.AllReduce({mean->data(), parameter.count(),
                                       DType::kFloat32, Device()}),
                      mean, kTimeout));
      if (ranks.rank() == 0) Add(kError, parameter, *mean, state);
    }
    return state;
  }
  absl::Status LoadState(const HookState& state, int /*rank*/,
                         int /*world_size*/) override {
    return Take(kError, state, 1);
  }

  absl::StatusOr<HookState> SaveOwn() const override {
    COXSWAIN_ASSIGN_OR_RETURN(HookState state, Hook::SaveOwn());
    for (const ParameterSpec& parameter : parameters_) {
      Add(kOwnError, parameter, errors_.at(parameter.name), state);
    }
    return state;
  }
  absl::Status LoadOwn(const HookState& state, double error_scale) override {
    COXSWAIN_RETURN_IF_ERROR(CheckErrorScale(spec(), error_scale));
    return Take(kOwnError, state, error_scale);
  }
  double ErrorNorm() const override {
    double sum = 0;
    for (const auto& [name, error] : errors_) {
      for (const double value : error) sum += value * value;
    }
    return std::sqrt(sum);
  }

 private:
  // By its place in the parameter, so that buckets make no difference.
  bool IsSent(int64_t element) const {
    return (element + step()) % parts_ == 0;
  }

  // Stages what is not sent. One more element is NaN if any is not finite, also
  // one that is not sent: all ranks then see it in the sum.
  void Pack(const Bucket& bucket, int ranks, Values& sent) {
    sent.clear();
    float witness = 0;
    for (const GradientSlot& slot : bucket.gradients) {
      const auto* gradient =
          static_cast<const float*>(bucket.Gradient(slot).data);
      const std::string& name = NameOfSlot(slot);
      Values& left = staged_[name] = errors_[name];
      for (int64_t i = 0; i < slot.count; ++i) {
        float& value = left[static_cast<size_t>(i)];
        value += gradient[i];
        if (!std::isfinite(value)) witness = value - value;  // NaN
        if (IsSent(i)) {
          sent.push_back(std::exchange(value, 0) / static_cast<float>(ranks));
        }
      }
    }
    sent.push_back(witness);
  }

  // Writes the average. Where it is not finite, the same on all ranks, nothing
  // of the bucket is remembered.
  void Unpack(const Bucket& bucket, const Values& sum) {
    const bool good = AllFinite(sum);
    auto next = sum.begin();
    for (const GradientSlot& slot : bucket.gradients) {
      auto* gradient = static_cast<float*>(bucket.Gradient(slot).data);
      for (int64_t i = 0; i < slot.count; ++i) {
        gradient[i] = !good       ? std::numeric_limits<float>::quiet_NaN()
                      : IsSent(i) ? *next++
                                  : 0;
      }
      if (!good) staged_.erase(NameOfSlot(slot));
    }
  }

  const std::string& NameOfSlot(const GradientSlot& slot) const {
    return parameters_[static_cast<size_t>(slot.parameter)].name;
  }

  static void Add(const char* kind, const ParameterSpec& parameter,
                  const Values& values, HookState& state) {
    state.tensors.push_back(
        {kind, parameter.name, parameter.shape, DType::kFloat32,
         std::string(reinterpret_cast<const char*>(values.data()),
                     values.size() * sizeof(float))});
  }

  // Changes nothing unless all of the state fits.
  absl::Status Take(const std::string& kind, const HookState& state,
                    double scale) {
    std::map<std::string, Values> taken;
    for (const StateTensor& tensor : state.tensors) {
      const ParameterSpec* owner = nullptr;
      for (const ParameterSpec& parameter : parameters_) {
        if (parameter.name == tensor.parameter) owner = &parameter;
      }
      if (owner == nullptr || tensor.kind != kind ||
          taken.find(owner->name) != taken.end()) {
        return UnfitTensor(spec(), tensor, "is none of this model's errors");
      }
      Values& values = taken[owner->name];
      COXSWAIN_ASSIGN_OR_RETURN(
          values, ReadTensor<float>(spec(), tensor, owner->shape));
      for (float& value : values) value *= static_cast<float>(scale);
    }
    COXSWAIN_RETURN_IF_ERROR(PlainHook::LoadState(state, 0, 1));
    for (auto& [name, error] : errors_) {
      const auto found = taken.find(name);
      if (found == taken.end()) {
        error.assign(error.size(), 0);
      } else {
        error = std::move(found->second);
      }
    }
    return absl::OkStatus();
  }

  const int64_t parts_;
  std::vector<ParameterSpec> parameters_;
  // By parameter: as of the last commit, and after the step under way.
  std::map<std::string, Values> errors_;
  std::map<std::string, Values> staged_;
  std::map<int, Values> sent_;  // by bucket
};

}  // namespace

absl::Status RegisterCyclic() {
  HookRow row;
  row.description.name = "cyclic";
  row.description.help = "every parts-th element in turn, with error feedback";
  row.description.options = {
      IntOption("parts", 4, 1, 1024, "steps until each element was sent")};
  row.make = [](std::string spec, OptionValues values, std::unique_ptr<Hook>) {
    return std::make_unique<CyclicHook>(spec, values.Int("parts"));
  };
  return RegisterHook(std::move(row));
}

}  // namespace coxswain::examples
