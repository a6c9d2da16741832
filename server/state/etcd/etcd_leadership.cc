#include "server/state/etcd/etcd_leadership.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/logging.h"
#include "base/status_macros.h"

namespace coxswain::server {
namespace {

constexpr char kFormat[] = "1";
// After a failed renewal: there is not much time.
constexpr absl::Duration kRetryPause = absl::Milliseconds(100);
// For the release of the lease, which otherwise ends by itself.
constexpr absl::Duration kRevokeTimeout = absl::Seconds(1);

void AddRead(const std::string& key, etcdserverpb::TxnRequest* request) {
  request->add_success()->mutable_request_range()->set_key(key);
}

void AddUnchanged(const std::string& key, int64_t revision,
                  etcdserverpb::TxnRequest* request) {
  auto* compare = request->add_compare();
  compare->set_target(etcdserverpb::Compare::MOD);
  compare->set_key(key);
  compare->set_mod_revision(revision);
}

// Returns the value of a key that was read as the `index`-th of a transaction.
const etcdserverpb::KeyValue* FoundAt(const etcdserverpb::TxnResponse& response,
                                      int index) {
  if (index >= response.responses_size()) return nullptr;
  const auto& range = response.responses(index).response_range();
  return range.kvs_size() == 0 ? nullptr : &range.kvs(0);
}

absl::Status CheckFormat(const std::string& format, const std::string& prefix) {
  if (format.empty() || format == kFormat) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "the state under '", prefix, "' in etcd has format '", format,
      "', this coordinator knows ", kFormat,
      "; it was left as it is: run the newer coordinator, or name another "
      "prefix"));
}

}  // namespace

absl::StatusOr<std::unique_ptr<EtcdLeadership>> EtcdLeadership::Campaign(
    const EtcdOptions& options, EtcdClient* client, CancelSignal* cancel,
    const OnWait& on_wait) {
  CancelSignal never;
  if (cancel == nullptr) cancel = &never;
  std::string waits_for = kFormat;  // no leader's name
  const auto note = [&](const std::string& leader, const absl::Status& why) {
    if (leader == waits_for || on_wait == nullptr) return;
    waits_for = leader;
    on_wait(leader, why);
  };
  while (cancel->status().ok()) {
    std::unique_ptr<EtcdLeadership> candidate(
        new EtcdLeadership(options, client));
    std::string leader;
    const absl::StatusOr<bool> leads = candidate->LookAndTry(&leader);
    if (leads.ok() && *leads) return candidate;
    if (absl::IsFailedPrecondition(leads.status())) return leads.status();
    if (!leads.ok() || !leader.empty()) note(leader, leads.status());
    cancel->WaitFor(options.look_interval);
  }
  return cancel->status();
}

absl::StatusOr<bool> EtcdLeadership::LookAndTry(std::string* leader) {
  COXSWAIN_ASSIGN_OR_RETURN(const View view, Look());
  COXSWAIN_RETURN_IF_ERROR(CheckFormat(view.format, options_.prefix));
  *leader = view.leader;
  if (!view.leader.empty()) return false;
  return TryToLead(view);
}

absl::StatusOr<EtcdLeadership::View> EtcdLeadership::Look() {
  etcdserverpb::TxnRequest request;
  AddRead(keys_.Leader(), &request);
  AddRead(keys_.Format(), &request);
  AddRead(keys_.Commit(), &request);
  COXSWAIN_ASSIGN_OR_RETURN(const auto response,
                            client_->Txn(request, options_.call_timeout));
  View view;
  if (const auto* leader = FoundAt(response, 0)) {
    view.leader = leader->value().empty() ? "?" : leader->value();
  }
  if (const auto* format = FoundAt(response, 1)) {
    view.format = format->value();
    view.format_revision = format->mod_revision();
  }
  if (const auto* commit = FoundAt(response, 2)) {
    view.commit_revision = commit->mod_revision();
  }
  return view;
}

absl::StatusOr<bool> EtcdLeadership::TryToLead(const View& view) {
  COXSWAIN_RETURN_IF_ERROR(Grant());
  const absl::StatusOr<bool> created = CreateKey(view);
  if (!created.ok() || !*created) {
    // Also where it is not known: with the lease goes the key.
    Revoke();
    return created;
  }
  thread_ = std::thread([this] { KeepAlive(); });
  return true;
}

absl::Status EtcdLeadership::Grant() {
  const absl::Time asked = options_.clock->Now();
  etcdserverpb::LeaseGrantRequest request;
  request.set_ttl(
      absl::ToInt64Seconds(absl::Ceil(options_.lease, absl::Seconds(1))));
  COXSWAIN_ASSIGN_OR_RETURN(
      const auto response, client_->GrantLease(request, options_.call_timeout));
  lease_ = response.id();
  ttl_ = absl::Seconds(response.ttl());
  MutexLock lock(&mutex_);
  deadline_ = asked + ttl_;
  return absl::OkStatus();
}

// Only if no coordinator leads, and none has led since the read.
absl::StatusOr<bool> EtcdLeadership::CreateKey(const View& view) {
  etcdserverpb::TxnRequest request;
  AddUnchanged(keys_.Leader(), 0, &request);
  AddUnchanged(keys_.Format(), view.format_revision, &request);
  AddUnchanged(keys_.Commit(), view.commit_revision, &request);
  auto* leader = request.add_success()->mutable_request_put();
  leader->set_key(keys_.Leader());
  leader->set_value(options_.name);
  leader->set_lease(lease_);
  auto* format = request.add_success()->mutable_request_put();
  format->set_key(keys_.Format());
  format->set_value(kFormat);
  COXSWAIN_ASSIGN_OR_RETURN(const auto response,
                            client_->Txn(request, options_.call_timeout));
  create_revision_ = response.header().revision();
  commit_revision_ = view.commit_revision;
  return response.succeeded();
}

EtcdLeadership::~EtcdLeadership() {
  stop_.Raise(absl::CancelledError("the lead is released"));
  if (!thread_.joinable()) return;
  thread_.join();
  if (Held()) Revoke();
}

void EtcdLeadership::Revoke() {
  client_->RevokeLease(lease_, std::min(kRevokeTimeout, options_.call_timeout))
      .IgnoreError();
}

absl::Duration EtcdLeadership::Left() {
  absl::Duration left;
  {
    MutexLock lock(&mutex_);
    left = deadline_ - options_.clock->Now();
  }
  if (!lost_.status().ok()) return absl::ZeroDuration();
  if (left > absl::ZeroDuration()) return left;
  Lose(absl::StrCat("the lease of ", absl::FormatDuration(ttl_),
                    " in etcd was not renewed in time"));
  return absl::ZeroDuration();
}

void EtcdLeadership::Lose(absl::string_view why) {
  lost_.Raise(absl::AbortedError(
      absl::StrCat("this coordinator does not lead any more: ", why)));
}

void EtcdLeadership::KeepAlive() {
  absl::Duration pause = Interval();
  while (!stop_.WaitFor(pause)) {
    if (!Held()) return;
    pause = std::min(Renew(), Left());
  }
}

absl::Duration EtcdLeadership::Renew() {
  const absl::Time asked = options_.clock->Now();
  const absl::StatusOr<absl::Duration> renewed =
      client_->KeepAlive(lease_, std::min(Interval(), Left()));
  if (!renewed.ok()) {
    if (!trouble_) {
      LogWarning("lease_not_renewed", {{"reason", renewed.status().message()}});
    }
    trouble_ = true;
    return kRetryPause;
  }
  if (*renewed == absl::ZeroDuration()) {
    Lose("its lease in etcd has ended");
    return kRetryPause;
  }
  if (trouble_) LogInfo("lease_renewed");
  trouble_ = false;
  MutexLock lock(&mutex_);
  deadline_ = asked + *renewed;
  return Interval();
}

}  // namespace coxswain::server
