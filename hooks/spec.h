#ifndef COXSWAIN_HOOKS_SPEC_H_
#define COXSWAIN_HOOKS_SPEC_H_

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace coxswain {

// The syntax of a hook spec, without meaning:
//
//   spec     = name [ "(" [ argument { "," argument } ] ")" ]
//   argument = name "=" value | spec
//
// as in `powersgd(rank=4, start_step=1000)` or `fp16(powersgd(rank=4))`. A
// name consists of letters, digits and '_', a value also of '.', '+' and '-'.
// White space between these is ignored. Limits: kMaxSpecLength characters,
// kMaxSpecDepth names inside one another.

inline constexpr size_t kMaxSpecLength = 1024;
inline constexpr int kMaxSpecDepth = 4;

struct SpecOption {
  std::string name;
  std::string value;
  size_t position = 0;  // of the name in the text, from 1
};

struct Spec {
  std::string name;
  size_t position = 0;
  std::vector<SpecOption> options;
  std::vector<Spec> inner;
};

// INVALID_ARGUMENT names the place in the text and what was expected.
absl::StatusOr<Spec> ParseSpec(absl::string_view text);

// Returns whether a text can stand for a hook or an option, or for a value.
bool IsSpecName(absl::string_view text);
bool IsSpecValue(absl::string_view text);

// An INVALID_ARGUMENT that shows the spec and the position.
absl::Status SpecError(absl::string_view text, size_t position,
                       absl::string_view message);

// Makes such errors for a Spec, whatever it was read from and whatever its
// positions count.
using SpecErrorAt =
    std::function<absl::Status(size_t position, absl::string_view message)>;

}  // namespace coxswain

#endif  // COXSWAIN_HOOKS_SPEC_H_
