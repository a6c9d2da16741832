#ifndef COXSWAIN_SERVER_STORE_STORE_TEST_CALLS_H_
#define COXSWAIN_SERVER_STORE_STORE_TEST_CALLS_H_

#include <chrono>
#include <cstdint>
#include <future>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/store/key_value_store.h"

namespace coxswain::server {

// Turns an answer by callback into a value, for tests.
template <typename T>
class PendingAnswer {
 public:
  void operator()(const T& answer) const { promise_->set_value(answer); }
  // An answer that never comes is UNKNOWN.
  T Wait() const {
    std::future<T> future = promise_->get_future();
    if (future.wait_for(std::chrono::seconds(60)) ==
        std::future_status::ready) {
      return future.get();
    }
    return T(absl::UnknownError("no answer"));
  }

 private:
  std::shared_ptr<std::promise<T>> promise_ =
      std::make_shared<std::promise<T>>();
};

inline absl::Status Set(KeyValueStore* store, const Fence& fence,
                        absl::string_view key, absl::string_view value) {
  const PendingAnswer<absl::Status> answer;
  store->Set(fence, key, value, answer);
  return answer.Wait();
}

inline absl::StatusOr<int64_t> Add(KeyValueStore* store, const Fence& fence,
                                   absl::string_view key, int64_t amount) {
  const PendingAnswer<absl::StatusOr<int64_t>> answer;
  store->Add(fence, key, amount, answer);
  return answer.Wait();
}

inline absl::StatusOr<CompareSetResult> CompareSet(KeyValueStore* store,
                                                   const Fence& fence,
                                                   absl::string_view key,
                                                   absl::string_view expected,
                                                   absl::string_view desired) {
  const PendingAnswer<absl::StatusOr<CompareSetResult>> answer;
  store->CompareSet(fence, key, expected, desired, answer);
  return answer.Wait();
}

inline absl::StatusOr<bool> DeleteKey(KeyValueStore* store, const Fence& fence,
                                      absl::string_view key) {
  const PendingAnswer<absl::StatusOr<bool>> answer;
  store->DeleteKey(fence, key, answer);
  return answer.Wait();
}

inline absl::StatusOr<std::string> GetNow(KeyValueStore* store,
                                          const Fence& fence,
                                          absl::string_view key) {
  const PendingAnswer<absl::StatusOr<std::string>> answer;
  store->Get(fence, key, absl::ZeroDuration(), answer);
  return answer.Wait();
}

}  // namespace coxswain::server

#endif  // COXSWAIN_SERVER_STORE_STORE_TEST_CALLS_H_
