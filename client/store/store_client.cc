#include "client/store/store_client.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/store/reopening_watch.h"

namespace coxswain {
absl::Status StoreClient::Set(absl::string_view key, absl::string_view value) {
  v1::SetRequest request;
  *request.mutable_fence() = membership_->NewRequest();
  request.set_key(std::string(key));
  request.set_value(std::string(value));
  return membership_->Outcome(
      membership_->stub().StoreSet(request, membership_->Call()).status());
}

absl::StatusOr<std::string> StoreClient::Get(absl::string_view key,
                                             absl::Duration timeout) {
  v1::GetRequest request;
  *request.mutable_fence() = membership_->fence();
  request.set_key(std::string(key));
  request.set_timeout_ms(TimeoutMillis(timeout));
  auto response =
      membership_->stub().StoreGet(request, membership_->WaitingCall(timeout));
  if (!response.ok()) return membership_->Outcome(response.status());
  return std::move(*response->mutable_value());
}

absl::StatusOr<int64_t> StoreClient::Add(absl::string_view key,
                                         int64_t amount) {
  v1::AddRequest request;
  *request.mutable_fence() = membership_->NewRequest();
  request.set_key(std::string(key));
  request.set_amount(amount);
  auto response = membership_->stub().StoreAdd(request, membership_->Call());
  if (!response.ok()) return membership_->Outcome(response.status());
  return response->value();
}

absl::StatusOr<CompareSetResult> StoreClient::CompareSet(
    absl::string_view key, absl::string_view expected,
    absl::string_view desired) {
  v1::CompareSetRequest request;
  *request.mutable_fence() = membership_->NewRequest();
  request.set_key(std::string(key));
  request.set_expected(std::string(expected));
  request.set_desired(std::string(desired));
  auto response =
      membership_->stub().StoreCompareSet(request, membership_->Call());
  if (!response.ok()) return membership_->Outcome(response.status());
  return CompareSetResult{std::move(*response->mutable_value()),
                          response->swapped()};
}

absl::Status StoreClient::Wait(const std::vector<std::string>& keys,
                               absl::Duration timeout) {
  v1::WaitRequest request;
  *request.mutable_fence() = membership_->fence();
  request.mutable_keys()->Assign(keys.begin(), keys.end());
  request.set_timeout_ms(TimeoutMillis(timeout));
  return membership_->Outcome(
      membership_->stub()
          .StoreWait(request, membership_->WaitingCall(timeout))
          .status());
}

absl::StatusOr<bool> StoreClient::DeleteKey(absl::string_view key) {
  v1::DeleteKeyRequest request;
  *request.mutable_fence() = membership_->NewRequest();
  request.set_key(std::string(key));
  auto response =
      membership_->stub().StoreDeleteKey(request, membership_->Call());
  if (!response.ok()) return membership_->Outcome(response.status());
  return response->existed();
}

std::unique_ptr<StoreWatch> StoreClient::Watch(
    absl::string_view key, std::function<void(const StoreEvent&)> on_event,
    std::function<void(const absl::Status&)> on_end) {
  return OpenReopeningWatch(membership_, std::string(key), std::move(on_event),
                            std::move(on_end));
}

absl::Status StoreRendezvous::Set(absl::string_view key,
                                  absl::string_view value) {
  return store_.Set(absl::StrCat(prefix_, "/", key), value);
}

absl::StatusOr<std::string> StoreRendezvous::Get(absl::string_view key,
                                                 absl::Duration timeout) {
  return store_.Get(absl::StrCat(prefix_, "/", key), timeout);
}

}  // namespace coxswain
