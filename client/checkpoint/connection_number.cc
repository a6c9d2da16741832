#include "client/checkpoint/connection_number.h"

#include <memory>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/mutex.h"
#include "base/status_macros.h"

namespace coxswain {
namespace {

constexpr char kKey[] = "checkpoint/connection";
constexpr char kNone[] = "0";

}  // namespace

absl::StatusOr<int64_t> ConnectionNumber::Next() {
  if (rank_ == 0) {
    COXSWAIN_RETURN_IF_ERROR(store_.Set(kKey, absl::StrCat(++last_)));
    return last_;
  }
  COXSWAIN_ASSIGN_OR_RETURN(last_, Await());
  return last_;
}

absl::StatusOr<int64_t> ConnectionNumber::Await() {
  Mutex mutex;
  CondVar changed;
  int64_t number = 0;
  absl::Status ended;
  const std::unique_ptr<StoreWatch> watch = store_.Watch(
      kKey,
      [&](const StoreEvent& event) {
        MutexLock lock(&mutex);
        if (event.deleted || !absl::SimpleAtoi(event.value, &number)) {
          number = 0;
        }
        changed.NotifyAll();
      },
      [&](const absl::Status& why) {
        MutexLock lock(&mutex);
        ended = why.ok() ? absl::AbortedError("the store has ended") : why;
        changed.NotifyAll();
      });
  MutexLock lock(&mutex);
  const bool came = changed.WaitFor(
      &mutex, timeout_, [&] { return number > last_ || !ended.ok(); });
  if (number > last_) return number;
  if (came) return ended;
  return absl::DeadlineExceededError(absl::StrCat(
      "rank 0 has not connected the checkpoint anew after ",
      absl::FormatDuration(timeout_), " (the last attempt was number ", last_,
      "); its log says what it is doing"));
}

void ConnectionNumber::GiveUp() {
  if (rank_ == 0) store_.Set(kKey, kNone).IgnoreError();
}

}  // namespace coxswain
