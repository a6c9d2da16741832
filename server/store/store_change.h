#ifndef COXSWAIN_SERVER_STORE_STORE_CHANGE_H_
#define COXSWAIN_SERVER_STORE_STORE_CHANGE_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <tuple>

#include "absl/status/statusor.h"

namespace coxswain::server {

// Operation, incarnation, request id.
using StoreRequestKey = std::tuple<char, uint64_t, uint64_t>;

struct CompareSetResult {
  std::string value;  // what stands after the call
  bool swapped = false;
};

// What a request to change one key asks for.
struct StoreChange {
  enum class Kind : char {
    kSet = 's',
    kAdd = 'a',
    kCompareSet = 'c',
    kDelete = 'd',
  };
  Kind kind = Kind::kSet;
  std::string key;
  std::string value;     // to be set, by kSet or kCompareSet
  std::string expected;  // kCompareSet
  int64_t amount = 0;    // kAdd

  size_t ByteSize() const {
    return key.size() + value.size() + expected.size();
  }
};

// What is remembered of a change for a repeated request. The value of a swap
// is not: the repeated request has it.
struct StoreAnswer {
  int64_t number = 0;  // kAdd: the sum; kDelete: whether there was a key
  CompareSetResult compare_set;
};

// Runs once, without a lock held.
using StoreChangeDone = std::function<void(absl::StatusOr<StoreAnswer>)>;

// What a change does to its key.
struct StoreEffect {
  StoreAnswer answer;
  bool changes = false;
  std::optional<std::string> value;  // after it; unset: no such key
};

// Of a change of a key with this value; unset: no such key.
//   FAILED_PRECONDITION  kAdd: the value is not a decimal number, or the sum
//                        does not fit 64 bits
//   NOT_FOUND            kCompareSet: no such key, and a value was expected
absl::StatusOr<StoreEffect> Evaluate(const StoreChange& change,
                                     const std::optional<std::string>& value);

}  // namespace coxswain::server

#endif  // COXSWAIN_SERVER_STORE_STORE_CHANGE_H_
