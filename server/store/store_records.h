#ifndef COXSWAIN_SERVER_STORE_STORE_RECORDS_H_
#define COXSWAIN_SERVER_STORE_STORE_RECORDS_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/store/store_change.h"

namespace coxswain::server {

// The records of a generation's store (proto/state.proto): one for each key,
// and one for each remembered answer, numbered in their order.
constexpr char kStoreTables[] = "store/";  // before the generation
constexpr char kStoreKey = 'k';            // begins the key of a record
constexpr char kStoreAnswer = 'a';

std::string StoreKeyRecord(absl::string_view key);
std::string StoreAnswerRecord(uint64_t sequence);

struct RememberedAnswer {
  uint64_t sequence = 0;
  StoreRequestKey request;
  StoreAnswer answer;
};
std::string EncodeAnswer(const StoreRequestKey& request,
                         const StoreAnswer& answer);
// DATA_LOSS if it is no record of a store.
absl::Status CheckStoreRecord(absl::string_view key, absl::string_view value);
// DATA_LOSS if it is no such record.
absl::StatusOr<RememberedAnswer> DecodeAnswer(absl::string_view key,
                                              absl::string_view value);

// The answers kept for repeated requests of one generation: the last ones, as
// the limits allow. A part of StoreScope: one thread at a time.
class StoreAnswers {
 public:
  StoreAnswers(size_t max_count, size_t max_bytes)
      : max_count_(max_count), max_bytes_(max_bytes) {}

  // Null if there is none.
  const StoreAnswer* Find(const StoreRequestKey& request) const;

  // For the record of an answer that is to come.
  uint64_t NextSequence() { return next_sequence_++; }

  // An answer whose record is durable. Forgets the oldest past the limits.
  void Remember(RememberedAnswer remembered);

  // Returns the records of forgotten answers, at most `count`: the caller
  // deletes them, or gives them back if that has failed.
  std::vector<uint64_t> TakeForgotten(size_t count);
  void GiveBack(const std::vector<uint64_t>& forgotten);

 private:
  void ForgetOldest();

  const size_t max_count_;
  const size_t max_bytes_;
  std::map<StoreRequestKey, RememberedAnswer> answers_;
  std::deque<StoreRequestKey> order_;
  size_t bytes_ = 0;
  uint64_t next_sequence_ = 1;
  std::deque<uint64_t> forgotten_;
};

}  // namespace coxswain::server

#endif  // COXSWAIN_SERVER_STORE_STORE_RECORDS_H_
