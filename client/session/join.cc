#include "client/session/join.h"

#include <algorithm>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/backoff.h"
#include "base/error_detail.h"
#include "base/logging.h"
#include "base/mutex.h"

namespace coxswain {
namespace {

// The coordinator's own answer to a round that took too long comes first.
constexpr absl::Duration kAnswerMargin = absl::Seconds(5);

// Says every now and then what Join waits for, on a thread of its own.
class WaitingNotice {
 public:
  WaitingNotice(const SessionOptions& options, const CoordinatorStub& stub,
                int world_size)
      : options_(options), stub_(stub), world_size_(world_size) {
    thread_ = std::thread([this]() { Run(); });
  }
  ~WaitingNotice() {
    {
      MutexLock lock(&mutex_);
      stop_ = true;
      stop_cv_.NotifyAll();
    }
    thread_.join();
  }

  void SetLastError(const absl::Status& error) {
    MutexLock lock(&mutex_);
    last_error_ = error;
  }

 private:
  void Run() {
    while (true) {
      absl::Status error;
      {
        MutexLock lock(&mutex_);
        if (stop_cv_.WaitFor(
                &mutex_, options_.notice_interval,
                [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return stop_; })) {
          return;
        }
        error = last_error_;
      }
      const std::string notice = Describe(error);
      LogInfo("waiting", {{"job", options_.job}, {"for", notice}});
      if (options_.on_waiting != nullptr) options_.on_waiting(notice);
    }
  }

  std::string Describe(const absl::Status& error) const {
    if (stub_.Connected()) {
      return absl::StrCat("the other members of job '", options_.job, "' (",
                          world_size_, " in all) to join at ", stub_.address());
    }
    return absl::StrCat(
        "the coordinator at ", stub_.address(), ": ",
        error.ok() ? "it has not answered yet" : std::string(error.message()));
  }

  const SessionOptions& options_;
  const CoordinatorStub& stub_;
  const int world_size_;
  Mutex mutex_;
  CondVar stop_cv_;
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status last_error_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;
};

absl::Status NeverAnswered(const SessionOptions& options,
                           const absl::Status& last) {
  return absl::DeadlineExceededError(absl::StrCat(
      "could not join job '", options.job, "' within ",
      absl::FormatDuration(options.join_timeout), ": the coordinator at ",
      options.coordinator, " never answered (last error: ",
      last.ok() ? "none" : std::string(last.message()),
      "). Start it with `coxswain serve` or check --coordinator"));
}

// The coordinator's refusal, in a user's words, with its typed detail.
absl::Status Refused(const SessionOptions& options,
                     const absl::Status& answer) {
  absl::string_view said = answer.message();
  std::string differences;
  const auto payload = answer.GetPayload(kErrorDetailUrl);
  v1::ErrorDetail detail;
  if (payload.has_value() && detail.ParseFromString(std::string(*payload))) {
    for (const std::string& line : detail.manifest_mismatch().differences()) {
      absl::StrAppend(&differences, "\n  ", line);
    }
  }
  // After its first line the message only lists the first of them.
  if (!differences.empty()) said = said.substr(0, said.find('\n'));
  const std::string message =
      absl::StrCat("could not join job '", options.job, "' at ",
                   options.coordinator, ": ", said, differences);
  absl::Status status(answer.code(), message);
  if (payload.has_value()) status.SetPayload(kErrorDetailUrl, *payload);
  return status;
}

// Whether only processes on the same host can reach this address.
bool IsLoopback(absl::string_view address) {
  return address == "localhost" || address == "::1" ||
         absl::StartsWith(address, "127.");
}

absl::StatusOr<v1::JoinResponse> AskOnce(const SessionOptions& options,
                                         CoordinatorStub& stub,
                                         absl::Duration left,
                                         v1::JoinRequest* request) {
  if (request->address().empty()) {
    auto address = LocalAddressTowards(options.coordinator);
    if (!address.ok()) return address.status();
    request->set_address(*address);
  }
  request->set_timeout_ms(
      std::max<int64_t>(1, absl::ToInt64Milliseconds(left)));
  CallOptions call;
  call.timeout = left + kAnswerMargin;
  call.retry = false;
  return stub.Join(*request, call);
}

}  // namespace

absl::StatusOr<v1::JoinResponse> JoinJob(const SessionOptions& options,
                                         CoordinatorStub& stub,
                                         v1::JoinRequest* request) {
  WaitingNotice notice(options, stub, request->manifest().world_size());
  Backoff backoff(options.retry_base, options.retry_cap, options.random);
  const absl::Time deadline = options.clock->Now() + options.join_timeout;
  const CancelSignal never;
  absl::Status last;
  for (absl::Duration left = options.join_timeout; left > absl::ZeroDuration();
       left = deadline - options.clock->Now()) {
    auto response = AskOnce(options, stub, left, request);
    if (response.ok()) return response;
    last = response.status();
    // With a connection, DEADLINE_EXCEEDED is the coordinator's own and says
    // who is missing.
    if (absl::IsDeadlineExceeded(last) && !stub.Connected()) break;
    if (!absl::IsUnavailable(last)) return Refused(options, last);
    notice.SetLastError(last);
    never.WaitFor(std::min(backoff.Next(), left));
  }
  return NeverAnswered(options, last);
}

absl::Status CheckAddresses(const v1::JoinResponse& joined) {
  const v1::Member* local = nullptr;
  bool several_hosts = false;
  for (const v1::Member& member : joined.members()) {
    if (local == nullptr && IsLoopback(member.address())) local = &member;
    several_hosts = several_hosts || member.host() != joined.members(0).host();
  }
  if (local == nullptr || !several_hosts) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "rank ", local->rank(), " on host ", local->host(), " listens at ",
      local->address(), ", where workers on the other hosts cannot reach it. ",
      "Set COXSWAIN_BIND_ADDRESS on that host, or give its `coxswain run` ",
      "--bind-address, to an address of its network"));
}

}  // namespace coxswain
