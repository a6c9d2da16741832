#ifndef COXSWAIN_SERVER_STORE_STORE_ANSWERS_H_
#define COXSWAIN_SERVER_STORE_STORE_ANSWERS_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <vector>

#include "server/store/store_records.h"

namespace coxswain::server {

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

  // The records of forgotten answers, at most `count`: the caller deletes
  // them, or gives them back if that has failed.
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

#endif  // COXSWAIN_SERVER_STORE_STORE_ANSWERS_H_
