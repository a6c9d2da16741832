#include "capi/exchange.h"

#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/random.h"
#include "base/status_macros.h"
#include "capi/call.h"
#include "capi/open_session.h"
#include "capi/resumed_hooks.h"
#include "hooks/registry/planned_hook.h"

namespace coxswain::capi {

absl::Status StreamExchange::NoteDecision(bool commit) {
  COXSWAIN_RETURN_IF_ERROR(stream_->CheckExchanged());
  decided_ = commit;
  return commit ? absl::OkStatus() : Settle();
}

absl::Status StreamExchange::Settle() {
  const std::optional<bool> decided = std::exchange(decided_, std::nullopt);
  return decided.has_value() ? stream_->End(*decided) : absl::OkStatus();
}

absl::StatusOr<Hook*> StreamExchange::SettledHook() {
  COXSWAIN_RETURN_IF_ERROR(Settle());
  return stream_->hook();
}

absl::StatusOr<HookState> StreamExchange::Release(bool undo_last,
                                                  absl::Duration limit) {
  const bool commit =
      !undo_last && std::exchange(decided_, std::nullopt).value_or(false);
  return stream_->Release(
      commit, absl::AbortedError("the generation has ended"), limit);
}

absl::Status StreamExchange::ChangeParameters(
    uint64_t hash, std::vector<ParameterSpec> parameters) {
  COXSWAIN_RETURN_IF_ERROR(Settle());
  COXSWAIN_RETURN_IF_ERROR(stream_->ChangeParameters(std::move(parameters)));
  parameters_ = hash;
  return absl::OkStatus();
}

absl::Status StreamExchange::Begin(const schedule::Plan& plan,
                                   schedule::Ticket* ticket) {
  COXSWAIN_RETURN_IF_ERROR(Settle());
  COXSWAIN_RETURN_IF_ERROR(stream_->Follow(plan));
  saved_ = std::string();  // may be as large as the model
  const uint64_t given = ticket->layout != 0 ? ticket->layout : parameters_;
  ticket->layout = StableHash(absl::StrCat(given, ":", stream_->layout()));
  if (ticket->digest == 0) ticket->digest = stream_->digest();
  return absl::OkStatus();
}

absl::Status Explained(Session& session, const absl::Status& status) {
  // These are not of the generation.
  if (absl::IsInvalidArgument(status) || absl::IsUnimplemented(status) ||
      absl::IsFailedPrecondition(status) || absl::IsResourceExhausted(status) ||
      absl::IsUnknown(status)) {
    return status;
  }
  return Explain(session, status);
}

absl::StatusOr<std::shared_ptr<StreamExchange>> FindExchange(
    const OpenSession& open, const char* stream) {
  COXSWAIN_ASSIGN_OR_RETURN(const std::string name, StreamOf(stream));
  auto found = open.ExchangeOf(name);
  if (found != nullptr) return found;
  return absl::FailedPreconditionError(
      absl::StrCat("the stream \"", name,
                   "\" exchanges no gradients: call cx_exchange_open first"));
}

namespace {

absl::Status OpenExchange(OpenSession& open, const std::string& stream,
                          std::vector<ParameterSpec> parameters) {
  const uint64_t hash = HashParameters(parameters);
  if (const auto exchange = open.ExchangeOf(stream)) {
    return exchange->ChangeParameters(hash, std::move(parameters));
  }
  Session& session = *open.session;
  std::vector<int> ranks(static_cast<size_t>(session.world_size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  auto group = session.CreateGroup(absl::StrCat("exchange/", stream), ranks);
  if (!group.ok()) return Explained(session, group.status());
  BucketStream::Options options;
  options.communicator = &(*group)->communicator();
  options.clock = Clock::Real();
  COXSWAIN_ASSIGN_OR_RETURN(options.gate, session.schedule().Gate(stream));
  options.timeout = open.collective_timeout;
  options.make_hook = MakePlannedHook;
  options.explain = [&session](const absl::Status& status) {
    return Explained(session, status);
  };
  COXSWAIN_ASSIGN_OR_RETURN(
      auto made, BucketStream::Create(std::move(options), std::move(parameters),
                                      open.plan()));
  const auto exchange = std::make_shared<StreamExchange>(*std::move(group),
                                                         hash, std::move(made));
  COXSWAIN_RETURN_IF_ERROR(LoadResumed(open, stream, *exchange));
  return open.AddExchange(stream, exchange);
}

absl::StatusOr<Bucket> BucketOf(const cx_bucket& given) {
  Bucket bucket;
  bucket.index = given.index;
  bucket.last = given.last != 0;
  COXSWAIN_ASSIGN_OR_RETURN(
      bucket.data, SpanOf(given.data, given.count, given.dtype, "bucket.data"));
  if (given.slot_count > 0) {
    COXSWAIN_RETURN_IF_ERROR(CheckPresent(given.slots, "bucket.slots"));
  }
  for (size_t i = 0; i < given.slot_count; ++i) {
    const cx_slot& slot = given.slots[i];
    GradientSlot& gradient = bucket.gradients.emplace_back();
    gradient.parameter = slot.parameter;
    gradient.offset = slot.offset;
    gradient.count = slot.count;
  }
  return bucket;
}

// Waits for an exchange, in slices.
class ExchangeCall : public Call {
 public:
  ExchangeCall(std::shared_ptr<OpenSession> open,
               std::shared_ptr<StreamExchange> exchange)
      : open_(std::move(open)), exchange_(std::move(exchange)) {}

  std::optional<absl::Status> Wait(absl::Duration slice) override {
    return exchange_->stream().Wait(slice);
  }
  void Cancel(const absl::Status& why, absl::Duration limit) override {
    exchange_->stream().Abort(why);
    (void)exchange_->stream().Wait(limit);
  }

 private:
  // Destroyed last: an exchange uses it.
  const std::shared_ptr<OpenSession> open_;
  const std::shared_ptr<StreamExchange> exchange_;
};

}  // namespace
}  // namespace coxswain::capi

namespace capi = coxswain::capi;

cx_code cx_exchange_open(cx_session session, const char* stream,
                         const cx_parameter* parameters, size_t parameter_count,
                         cx_call* call) {
  return capi::Guarded(call, [&]() -> capi::Answer {
    COXSWAIN_ASSIGN_OR_RETURN(const auto open, capi::Find(session));
    COXSWAIN_ASSIGN_OR_RETURN(const std::string name, capi::StreamOf(stream));
    COXSWAIN_ASSIGN_OR_RETURN(auto specs,
                              capi::ParametersOf(parameters, parameter_count));
    if (specs.empty()) return capi::InvalidArgument("parameters", "has none");
    capi::Work work;
    work.run = [open, name, specs = std::move(specs)]() {
      return capi::OpenExchange(*open, name, specs);
    };
    return capi::Do(call, std::move(work));
  });
}

cx_code cx_exchange_bucket(cx_session session, const char* stream,
                           const cx_bucket* bucket) {
  return capi::Guarded([&]() -> capi::Answer {
    COXSWAIN_ASSIGN_OR_RETURN(const auto open, capi::Find(session));
    COXSWAIN_ASSIGN_OR_RETURN(const cx_bucket given,
                              capi::ReadStruct(bucket, "bucket"));
    COXSWAIN_ASSIGN_OR_RETURN(auto handed, capi::BucketOf(given));
    COXSWAIN_ASSIGN_OR_RETURN(const auto exchange,
                              capi::FindExchange(*open, stream));
    COXSWAIN_RETURN_IF_ERROR(exchange->Settle());
    return exchange->stream().Add(std::move(handed));
  });
}

cx_code cx_exchange_wait(cx_session session, const char* stream,
                         cx_call* call) {
  return capi::Guarded(call, [&]() -> capi::Answer {
    COXSWAIN_ASSIGN_OR_RETURN(const auto open, capi::Find(session));
    COXSWAIN_ASSIGN_OR_RETURN(const auto exchange,
                              capi::FindExchange(*open, stream));
    return capi::Await(call,
                       std::make_shared<capi::ExchangeCall>(open, exchange));
  });
}
