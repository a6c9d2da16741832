#ifndef COXSWAIN_SERVER_STORE_STORE_RECORDS_H_
#define COXSWAIN_SERVER_STORE_STORE_RECORDS_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/ids.h"
#include "server/store/store_change.h"

namespace coxswain::server {

// The records of a generation's store: one for each key, and one for each
// remembered answer, numbered in their order.
constexpr char kStoreTables[] = "store/";  // before the generation
constexpr char kStoreKey = 'k';            // begins the key of a record
constexpr char kStoreAnswer = 'a';

inline std::string StoreTable(Generation generation) {
  return absl::StrCat(kStoreTables, generation.value());
}

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

}  // namespace coxswain::server

#endif  // COXSWAIN_SERVER_STORE_STORE_RECORDS_H_
