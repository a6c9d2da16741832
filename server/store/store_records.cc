#include "server/store/store_records.h"

#include "absl/strings/str_cat.h"
#include "server/state/record_bytes.h"

namespace coxswain::server {

std::string StoreKeyRecord(absl::string_view key) {
  return absl::StrCat(std::string(1, kStoreKey), key);
}

std::string StoreAnswerRecord(uint64_t sequence) {
  std::string record(1, kStoreAnswer);
  AppendNumber(sequence, &record);
  return record;
}

std::string EncodeAnswer(const StoreRequestKey& request,
                         const StoreAnswer& answer) {
  std::string bytes;
  AppendNumber(static_cast<unsigned char>(std::get<0>(request)), &bytes);
  AppendNumber(std::get<1>(request), &bytes);
  AppendNumber(std::get<2>(request), &bytes);
  AppendNumber(static_cast<uint64_t>(answer.number), &bytes);
  AppendNumber(answer.compare_set.swapped ? 1 : 0, &bytes);
  AppendString(answer.compare_set.value, &bytes);
  return bytes;
}

absl::Status CheckStoreRecord(absl::string_view key, absl::string_view value) {
  // No key of a store is empty.
  if (key.size() > 1 && key[0] == kStoreKey) return absl::OkStatus();
  if (!key.empty() && key[0] == kStoreAnswer) {
    return DecodeAnswer(key, value).status();
  }
  return absl::DataLossError("a record of the store is of no known kind");
}

absl::StatusOr<RememberedAnswer> DecodeAnswer(absl::string_view key,
                                              absl::string_view value) {
  RecordReader name(key.substr(1));
  RecordReader reader(value);
  RememberedAnswer remembered;
  remembered.sequence = name.Number();
  const char operation = static_cast<char>(reader.Number());
  const uint64_t incarnation = reader.Number();
  const uint64_t request_id = reader.Number();
  remembered.request = {operation, incarnation, request_id};
  remembered.answer.number = static_cast<int64_t>(reader.Number());
  remembered.answer.compare_set.swapped = reader.Number() != 0;
  remembered.answer.compare_set.value = reader.String();
  if (name.complete() && reader.complete()) return remembered;
  return absl::DataLossError(
      absl::StrCat("a remembered answer of the store cannot be read (",
                   value.size(), " bytes)"));
}

}  // namespace coxswain::server
