#include "server/store/store_change.h"

#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace coxswain::server {
namespace {

using Value = std::optional<std::string>;

absl::StatusOr<StoreEffect> EvaluateAdd(const StoreChange& change,
                                        const Value& value) {
  int64_t current = 0;
  if (value.has_value() && !absl::SimpleAtoi(*value, &current)) {
    return absl::FailedPreconditionError(
        absl::StrCat("cannot add to key \"", change.key, "\": its value (",
                     value->size(), " bytes) is not a decimal number"));
  }
  StoreEffect effect;
  if (__builtin_add_overflow(current, change.amount, &effect.answer.number)) {
    return absl::FailedPreconditionError(absl::StrCat(
        "cannot add ", change.amount, " to key \"", change.key, "\": ", current,
        " + ", change.amount, " does not fit 64 bits"));
  }
  effect.changes = true;
  effect.value = absl::StrCat(effect.answer.number);
  return effect;
}

absl::StatusOr<StoreEffect> EvaluateCompareSet(const StoreChange& change,
                                               const Value& value) {
  if (!value.has_value() && !change.expected.empty()) {
    return absl::NotFoundError(
        absl::StrCat("key \"", change.key, "\" is missing, and a value of ",
                     change.expected.size(), " bytes was expected"));
  }
  StoreEffect effect;
  effect.changes = !value.has_value() || *value == change.expected;
  effect.answer.compare_set.swapped = effect.changes;
  if (effect.changes) {
    effect.value = change.value;
  } else {
    effect.answer.compare_set.value = *value;
  }
  return effect;
}

}  // namespace

absl::StatusOr<StoreEffect> Evaluate(const StoreChange& change,
                                     const Value& value) {
  StoreEffect effect;
  switch (change.kind) {
    case StoreChange::Kind::kAdd:
      return EvaluateAdd(change, value);
    case StoreChange::Kind::kCompareSet:
      return EvaluateCompareSet(change, value);
    case StoreChange::Kind::kSet:
      effect.changes = true;
      effect.value = change.value;
      break;
    case StoreChange::Kind::kDelete:
      effect.changes = value.has_value();
      effect.answer.number = value.has_value() ? 1 : 0;
      break;
  }
  return effect;
}

}  // namespace coxswain::server
