#include "client/rpc/retrying_stub.h"

#include <algorithm>
#include <limits>
#include <string>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "client/rpc/forwarding_coordinator_stub.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/message.h"
#include "transport/error_detail.h"

namespace coxswain {
namespace {

using ::google::protobuf::FieldDescriptor;
using ::google::protobuf::Message;

const FieldDescriptor* FenceField(const Message& request) {
  const FieldDescriptor* field =
      request.GetDescriptor()->FindFieldByName("fence");
  const bool is_fence = field != nullptr &&
                        field->message_type() == v1::Fence::descriptor() &&
                        !field->is_repeated();
  return is_fence ? field : nullptr;
}

// A request of a member, as it is sent at some moment. The original outlives
// it, and is what is sent first: most requests are sent once.
class MemberRequest {
 public:
  MemberRequest(const Message& original, const FieldDescriptor* fence)
      : original_(original), fence_(fence) {}

  const Message& At(int64_t term, absl::Duration elapsed) {
    const auto& said = static_cast<const v1::Fence&>(
        original_.GetReflection()->GetMessage(original_, fence_));
    if (said.term() == term && elapsed < absl::Milliseconds(1)) {
      return original_;
    }
    copy_.reset(original_.New());
    copy_->CopyFrom(original_);
    static_cast<v1::Fence*>(
        copy_->GetReflection()->MutableMessage(copy_.get(), fence_))
        ->set_term(term);
    Shorten(elapsed);
    return *copy_;
  }

 private:
  // A wait of 0 has a meaning of its own, so a millisecond is left.
  void Shorten(absl::Duration elapsed) {
    const FieldDescriptor* timeout =
        copy_->GetDescriptor()->FindFieldByName("timeout_ms");
    if (timeout == nullptr) return;
    const auto* reflection = copy_->GetReflection();
    const int64_t whole = reflection->GetInt64(*copy_, timeout);
    if (whole <= 0) return;
    const int64_t left = whole - absl::ToInt64Milliseconds(elapsed);
    reflection->SetInt64(copy_.get(), timeout, std::max<int64_t>(1, left));
  }

  const Message& original_;
  const FieldDescriptor* const fence_;
  std::unique_ptr<Message> copy_;
};

// "Store/Set" of "/coxswain.v1.Store/Set".
absl::string_view OperationOf(absl::string_view method) {
  absl::ConsumePrefix(&method, "/coxswain.v1.");
  return method;
}

class RetryingStub : public ForwardingCoordinatorStub {
 public:
  RetryingStub(std::shared_ptr<CoordinatorStub> stub, const RetryPolicy& policy,
               std::shared_ptr<const CurrentTerm> term)
      : ForwardingCoordinatorStub(std::move(stub)),
        policy_(policy),
        term_(std::move(term)) {}

  absl::Status Call(absl::string_view method,
                    const google::protobuf::MessageLite& request,
                    google::protobuf::MessageLite* response,
                    const CallOptions& options) override {
    const auto* message = dynamic_cast<const Message*>(&request);
    const FieldDescriptor* fence =
        term_ == nullptr || message == nullptr ? nullptr : FenceField(*message);
    if (fence == nullptr) {
      return Repeat(method, options, [&](absl::Duration left) {
        CallOptions attempt = options;
        attempt.timeout = left;
        return stub().Call(method, request, response, attempt);
      });
    }
    MemberRequest repeatable(*message, fence);
    const absl::Time began = policy_.clock->Now();
    const auto once = [&](int64_t term, absl::Duration left) {
      CallOptions attempt = options;
      attempt.timeout = left;
      // Another coordinator of a list is to get what is left by then.
      attempt.retry = false;
      return stub().Call(method,
                         repeatable.At(term, policy_.clock->Now() - began),
                         response, attempt);
    };
    return Repeat(method, options, [&](absl::Duration left) {
      return InTheTermOfTheDay(left, options.cancel, once);
    });
  }

 private:
  template <typename Attempt>
  absl::Status Repeat(absl::string_view method, const CallOptions& options,
                      const Attempt& attempt) const {
    if (!options.retry) return attempt(options.timeout);
    return CallWithRetries(policy_, options, OperationOf(method), address(),
                           attempt);
  }

  template <typename Once>
  absl::Status InTheTermOfTheDay(absl::Duration left, CancelSignal* cancel,
                                 const Once& once) {
    const absl::Time deadline = policy_.clock->Now() + left;
    while (true) {
      const int64_t term = term_->Get();
      absl::Status status = once(term, left);
      const std::optional<int64_t> theirs = TermOfStaleFence(status);
      if (!theirs.has_value()) return status;
      // One that has been replaced, and has yet to notice.
      if (*theirs < term) return absl::UnavailableError(status.message());
      left = deadline - policy_.clock->Now();
      const bool renewed = term_->WaitForNewer(term, left, cancel);
      if (cancel != nullptr && !cancel->status().ok()) return cancel->status();
      left = deadline - policy_.clock->Now();
      if (left <= absl::ZeroDuration()) return NotAccepted(status);
      if (renewed) continue;
      return term_->closed() ? once(*theirs, left) : NotAccepted(status);
    }
  }

  absl::Status NotAccepted(const absl::Status& answer) const {
    return absl::UnavailableError(absl::StrCat(
        "the coordinator at ", stub().address(), " was started again, and has ",
        "not accepted the stream of this worker yet (", answer.message(), ")"));
  }

  const RetryPolicy policy_;
  const std::shared_ptr<const CurrentTerm> term_;  // null: not of a member
};

}  // namespace

int64_t CurrentTerm::Get() const {
  MutexLock lock(&state_->mutex);
  return state_->term;
}

void CurrentTerm::Raise(int64_t term) {
  MutexLock lock(&state_->mutex);
  state_->term = std::max(state_->term, term);
  state_->changed.NotifyAll();
}

void CurrentTerm::Close() {
  MutexLock lock(&state_->mutex);
  state_->closed = true;
  state_->changed.NotifyAll();
}

bool CurrentTerm::closed() const {
  MutexLock lock(&state_->mutex);
  return state_->closed;
}

bool CurrentTerm::WaitForNewer(int64_t term, absl::Duration timeout,
                               CancelSignal* cancel) const {
  const auto cancelled = [cancel]() {
    return cancel != nullptr && !cancel->status().ok();
  };
  uint64_t id = 0;
  if (cancel != nullptr) {
    id = cancel->OnRaise([state = state_]() {
      MutexLock lock(&state->mutex);
      state->changed.NotifyAll();
    });
  }
  bool newer = false;
  {
    State& state = *state_;
    MutexLock lock(&state.mutex);
    state.changed.WaitFor(
        &state.mutex, timeout, [&]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
          return state.term > term || state.closed || cancelled();
        });
    newer = state.term > term;
  }
  if (cancel != nullptr) cancel->Forget(id);
  return newer && !cancelled();
}

std::shared_ptr<CoordinatorStub> MakeRetryingStub(
    std::shared_ptr<CoordinatorStub> stub, const RetryPolicy& policy,
    std::shared_ptr<const CurrentTerm> term) {
  return std::make_shared<RetryingStub>(std::move(stub), policy,
                                        std::move(term));
}

std::optional<int64_t> TermOfStaleFence(const absl::Status& status) {
  const v1::ErrorDetail detail = DetailOf(status);
  if (detail.stale_fence().field() != "term") return std::nullopt;
  int64_t term = 0;
  // One without its term is taken for a newer one.
  return absl::SimpleAtoi(detail.stale_fence().expected(), &term)
             ? term
             : std::numeric_limits<int64_t>::max();
}

}  // namespace coxswain
