#include "server/store/store_records.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/state.pb.h"
#include "server/state/record.h"

namespace coxswain::server {

std::string StoreKeyRecord(absl::string_view key) {
  return absl::StrCat(std::string(1, kStoreKey), key);
}

std::string StoreAnswerRecord(uint64_t sequence) {
  return NumberedKey(kStoreAnswer, sequence);
}

std::string EncodeAnswer(const StoreRequestKey& request,
                         const StoreAnswer& answer) {
  state::v1::StoreAnswer proto;
  proto.set_operation(static_cast<unsigned char>(std::get<0>(request)));
  proto.set_incarnation(std::get<1>(request));
  proto.set_request_id(std::get<2>(request));
  proto.set_number(answer.number);
  proto.set_swapped(answer.compare_set.swapped);
  proto.set_value(answer.compare_set.value);
  return SerializeRecord(proto);
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
  const std::optional<uint64_t> sequence = NumberOfKey(key);
  state::v1::StoreAnswer proto;
  if (!sequence.has_value() || !ParseRecord(value, &proto) ||
      proto.operation() == 0 || proto.operation() > 0xff) {
    return absl::DataLossError(
        absl::StrCat("a remembered answer of the store cannot be read (",
                     value.size(), " bytes)"));
  }
  RememberedAnswer remembered;
  remembered.sequence = *sequence;
  remembered.request = {static_cast<char>(proto.operation()),
                        proto.incarnation(), proto.request_id()};
  remembered.answer.number = proto.number();
  remembered.answer.compare_set.swapped = proto.swapped();
  remembered.answer.compare_set.value = std::move(*proto.mutable_value());
  return remembered;
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
