#include "tests/conformance/hook_case_steps.h"

#include <cmath>
#include <utility>

namespace coxswain {

std::vector<ParameterSpec> Parameters(const HookCase& hook) {
  std::vector<ParameterSpec> parameters = OddParameters(hook.dtype);
  for (ParameterSpec& parameter : parameters) parameter.device = hook.device;
  return parameters;
}

HookWorld MakeWorld(const HookCase& hook, int size,
                    HookWorld::Buckets buckets) {
  if (hook.make == nullptr) {
    return HookWorld(hook.spec, Parameters(hook), size, std::move(buckets));
  }
  return HookWorld(hook.make, Parameters(hook), size, std::move(buckets));
}

std::vector<Gradients> LocalGradients(const HookCase& hook, int size,
                                      int64_t step) {
  std::vector<Gradients> local;
  for (int rank = 0; rank < size; ++rank) {
    local.push_back(NormalGradients(Parameters(hook), kStream, rank, step));
  }
  return local;
}

HookWorld::Buckets OtherBuckets(const HookCase& hook, size_t number) {
  HookWorld::Buckets buckets(number);
  const size_t count = Parameters(hook).size();
  for (size_t i = 0; i < count; ++i) {
    buckets[i * number / count].push_back(static_cast<int>(i));
  }
  return buckets;
}

std::vector<Gradients> Exchange(const HookCase& hook, HookWorld& world,
                                const std::vector<Gradients>& local) {
  if (hook.ranks_differ && world.hook(0).started()) {
    return world.ExchangeApart(local);
  }
  return {world.Exchange(local)};
}

std::vector<Gradients> Step(const HookCase& hook, HookWorld& world,
                            const std::vector<Gradients>& local) {
  auto results = Exchange(hook, world, local);
  world.Commit();
  return results;
}

std::vector<std::vector<Gradients>> RunSteps(const HookCase& hook,
                                             HookWorld& world, int64_t from,
                                             int64_t to) {
  std::vector<std::vector<Gradients>> results;
  for (int64_t step = from; step < to; ++step) {
    results.push_back(
        Step(hook, world, LocalGradients(hook, world.size(), step)));
  }
  return results;
}

bool AllFinite(const std::vector<Gradients>& results) {
  for (const Gradients& gradients : results) {
    for (const auto& values : gradients) {
      for (const double value : values) {
        if (!std::isfinite(value)) return false;
      }
    }
  }
  return true;
}

}  // namespace coxswain
