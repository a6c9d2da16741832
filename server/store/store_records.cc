#include "server/store/store_records.h"

#include <algorithm>
#include <utility>

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

const StoreAnswer* StoreAnswers::Find(const StoreRequestKey& request) const {
  const auto it = answers_.find(request);
  return it == answers_.end() ? nullptr : &it->second.answer;
}

void StoreAnswers::Remember(RememberedAnswer remembered) {
  next_sequence_ = std::max(next_sequence_, remembered.sequence + 1);
  const StoreRequestKey request = remembered.request;
  const uint64_t sequence = remembered.sequence;
  const size_t bytes = remembered.answer.compare_set.value.size();
  if (!answers_.emplace(request, std::move(remembered)).second) {
    // One id for two keys at once: the first answer counts.
    forgotten_.push_back(sequence);
    return;
  }
  bytes_ += bytes;
  order_.push_back(request);
  while (answers_.size() > max_count_ || bytes_ > max_bytes_) ForgetOldest();
}

void StoreAnswers::ForgetOldest() {
  const auto oldest = answers_.find(order_.front());
  order_.pop_front();
  forgotten_.push_back(oldest->second.sequence);
  bytes_ -= oldest->second.answer.compare_set.value.size();
  answers_.erase(oldest);
}

std::vector<uint64_t> StoreAnswers::TakeForgotten(size_t count) {
  std::vector<uint64_t> taken;
  while (!forgotten_.empty() && taken.size() < count) {
    taken.push_back(forgotten_.front());
    forgotten_.pop_front();
  }
  return taken;
}

void StoreAnswers::GiveBack(const std::vector<uint64_t>& forgotten) {
  forgotten_.insert(forgotten_.end(), forgotten.begin(), forgotten.end());
}

}  // namespace coxswain::server
