#include "client/elastic/hook_errors.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/crc32c.h"
#include "client/reduce/hybrid_hook.h"

namespace coxswain {
namespace {

constexpr char kWorldSize[] = "world_size";

bool IsOwn(const StateTensor& tensor) {
  return absl::StartsWith(tensor.kind, "own_");
}

void DropOwn(HookState* state) {
  auto& tensors = state->tensors;
  tensors.erase(std::remove_if(tensors.begin(), tensors.end(), IsOwn),
                tensors.end());
}

}  // namespace

uint32_t SharedChecksum(const HookState& state) {
  // Not of the serialised form: that ends with its own checksum, so all of one
  // length have the same.
  uint32_t checksum = Crc32c(absl::StrCat(state.spec, "\n", state.step));
  for (const auto& [name, value] : state.options) {
    checksum = Crc32c(absl::StrCat(name, "=", value, "\n"), checksum);
  }
  for (const StateTensor& tensor : state.tensors) {
    if (IsOwn(tensor)) continue;
    checksum = Crc32c(tensor.kind, checksum);
    checksum = Crc32c(tensor.parameter, checksum);
    checksum = Crc32c(tensor.data, checksum);
  }
  return checksum;
}

HookState WithErrorsOf(HookState shared, const HookState& own) {
  DropOwn(&shared);
  if (shared.spec != own.spec) return shared;
  // Part of a hook's errors may be kept in proportion to it.
  const auto world = own.options.find(OptionKeyIn(own, kWorldSize));
  if (world != own.options.end()) shared.options[world->first] = world->second;
  std::copy_if(own.tensors.begin(), own.tensors.end(),
               std::back_inserter(shared.tensors), IsOwn);
  return shared;
}

bool ErrorsBelongTogether(const HookState& state) {
  const auto mode = state.options.find(OptionKeyIn(state, "mode"));
  return mode != state.options.end() && mode->second == "pytorch";
}

}  // namespace coxswain
