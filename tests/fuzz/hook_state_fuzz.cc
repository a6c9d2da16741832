// What checkpoints hold: states of hooks, and the shards that they are in.

#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/crc32c.h"
#include "client/checkpoint/training_state.h"
#include "client/device/tensor.h"
#include "client/reduce/hook_state.h"
#include "hooks/registry/registry.h"
#include "tests/fuzz/decoders.h"

namespace coxswain {
namespace {

// Of the golden states in the corpus.
std::vector<ParameterSpec> Model() {
  std::vector<ParameterSpec> parameters(3);
  parameters[0].name = "layer1.weight";
  parameters[0].shape = {8, 6};
  parameters[1].name = "layer1.bias";
  parameters[1].shape = {6};
  parameters[2].name = "layer2.weight";
  parameters[2].shape = {6, 8};
  parameters[2].dtype = DType::kFloat64;
  return parameters;
}

// As an attacker would: with a checksum that fits.
std::string WithChecksum(absl::string_view input) {
  std::string bytes(input);
  constexpr size_t kTail = sizeof(uint32_t);
  if (bytes.size() < kTail) return bytes;
  const uint32_t crc =
      Crc32c(absl::string_view(bytes).substr(0, bytes.size() - kTail));
  std::memcpy(bytes.data() + bytes.size() - kTail, &crc, kTail);
  return bytes;
}

// A hook takes it or stays as it was.
void LoadInto(const HookState& state) {
  const auto made = MakeHook(state.spec);
  if (!made.ok()) return;
  Hook& hook = **made;
  if (!hook.Configure(Model(), /*world_size=*/2).ok()) return;
  const int64_t step = hook.step();
  if (!hook.LoadState(state, /*rank=*/1, /*world_size=*/2).ok()) {
    COXSWAIN_CHECK(hook.step() == step);
  }
  hook.LoadOwn(state, /*error_scale=*/0.5).IgnoreError();
  hook.SaveOwn().IgnoreError();
  hook.ErrorNorm();
}

}  // namespace

void FuzzHookState(absl::string_view input) {
  const std::string bytes = WithChecksum(input);
  auto state = ParseHookState(bytes);
  if (!state.ok()) return;
  const std::string again = SerializeHookState(*state);
  const auto same = ParseHookState(again);
  COXSWAIN_CHECK(same.ok() && SerializeHookState(*same) == again);
  LoadInto(*state);
  HookState other = *state;
  other.tensors.clear();
  const auto merged = MergeHookStates({*std::move(state), std::move(other)});
  if (merged.ok()) LoadInto(*merged);
}

void FuzzTrainingShard(absl::string_view input) {
  const auto shard = ParseTrainingShard(input);
  if (!shard.ok()) return;
  const std::string again = SerializeTrainingShard(*shard);
  const auto same = ParseTrainingShard(again);
  COXSWAIN_CHECK(same.ok() && SerializeTrainingShard(*same) == again);
}

}  // namespace coxswain
