#include "server/state/etcd/etcd_client.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "grpcpp/grpcpp.h"
#include "server/state/etcd/etcd.grpc.pb.h"

namespace coxswain::server {
namespace {

absl::string_view AdviceFor(absl::string_view message) {
  if (absl::StrContains(message, "space exceeded")) {
    return "; compact and defragment it, disarm its alarm, and have it compact "
           "by itself (--auto-compaction-retention)";
  }
  if (absl::StrContains(message, "too large") ||
      absl::StrContains(message, "larger than max")) {
    return "; its --max-request-bytes must be at least its default of 1.5 MiB";
  }
  return "";
}

absl::StatusCode CodeOf(const grpc::Status& status) {
  switch (status.error_code()) {
    case grpc::StatusCode::RESOURCE_EXHAUSTED:
    case grpc::StatusCode::INVALID_ARGUMENT:  // Of ours: only its size.
      return absl::StatusCode::kResourceExhausted;
    case grpc::StatusCode::UNAUTHENTICATED:
    case grpc::StatusCode::PERMISSION_DENIED:
    case grpc::StatusCode::UNIMPLEMENTED:
      return absl::StatusCode::kFailedPrecondition;
    case grpc::StatusCode::OUT_OF_RANGE:
      return absl::StatusCode::kOutOfRange;
    default:
      return absl::StatusCode::kUnavailable;
  }
}

// The only place where etcd's errors are translated. `what` was tried at
// `endpoint`.
absl::Status FromEtcdStatus(const grpc::Status& status, absl::string_view what,
                            absl::string_view endpoint) {
  if (status.ok()) return absl::OkStatus();
  const std::string& message = status.error_message();
  return absl::Status(CodeOf(status),
                      absl::StrCat("etcd at ", endpoint, ": ", what, ": ",
                                   message, AdviceFor(message)));
}

// To be reached; a member that answers is connected at once.
constexpr absl::Duration kConnectTimeout = absl::Milliseconds(500);

std::chrono::system_clock::time_point After(absl::Duration timeout) {
  return std::chrono::system_clock::now() +
         std::chrono::microseconds(absl::ToInt64Microseconds(timeout));
}

std::shared_ptr<grpc::Channel> Connect(const std::string& endpoint) {
  grpc::ChannelArguments arguments;
  // A proxy of the environment is for the web, not for the cluster.
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  // A lease does not wait: an etcd that was restarted must be found again at
  // once, and only the caller knows what may be repeated.
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 1000);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 500);
  arguments.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);
  arguments.SetMaxReceiveMessageSize(-1);  // As large as what was written.
  return grpc::CreateCustomChannel(endpoint, grpc::InsecureChannelCredentials(),
                                   arguments);
}

// Sends one request, as if it were a call with one answer.
grpc::Status KeepAliveOnce(etcdserverpb::Lease::Stub* lease,
                           grpc::ClientContext* context, int64_t id,
                           etcdserverpb::LeaseKeepAliveResponse* response) {
  etcdserverpb::LeaseKeepAliveRequest request;
  request.set_id(id);
  const auto stream = lease->LeaseKeepAlive(context);
  const bool answered = stream->Write(request) && stream->Read(response);
  if (answered) context->TryCancel();  // Its status is not needed.
  const grpc::Status status = stream->Finish();
  if (answered) return grpc::Status::OK;
  return !status.ok()
             ? status
             : grpc::Status(grpc::StatusCode::UNAVAILABLE,
                            "it has closed the connection without an answer");
}

}  // namespace

struct EtcdClient::Member {
  explicit Member(const std::string& endpoint_in)
      : endpoint(endpoint_in),
        channel(Connect(endpoint)),
        kv(channel),
        lease(channel) {}

  const std::string endpoint;
  const std::shared_ptr<grpc::Channel> channel;
  etcdserverpb::KV::Stub kv;
  etcdserverpb::Lease::Stub lease;
};

EtcdClient::EtcdClient(const std::vector<std::string>& endpoints) {
  for (const std::string& endpoint : endpoints) {
    members_.push_back(std::make_unique<Member>(endpoint));
  }
}

EtcdClient::~EtcdClient() = default;

template <typename Call>
absl::Status EtcdClient::CallOne(const char* what, absl::Duration timeout,
                                 Call call) {
  timeout = std::max(timeout, absl::Milliseconds(1));
  size_t turn = turn_;
  Member& member = *members_[turn % members_.size()];
  grpc::ClientContext context;
  context.set_deadline(After(timeout));
  // After a call that fails at once no thread would drive the connection that
  // is being made: without a thread in a call, gRPC does nothing.
  const bool connected = member.channel->WaitForConnected(
      After(std::min(timeout, kConnectTimeout)));
  const absl::Status status = FromEtcdStatus(
      connected ? call(&member, &context)
                : grpc::Status(grpc::StatusCode::UNAVAILABLE, "no connection"),
      what, member.endpoint);
  // Unless another thread has passed the turn on already.
  if (absl::IsUnavailable(status)) {
    turn_.compare_exchange_strong(turn, turn + 1);
  }
  return status;
}

absl::StatusOr<etcdserverpb::RangeResponse> EtcdClient::Range(
    const etcdserverpb::RangeRequest& request, absl::Duration timeout) {
  etcdserverpb::RangeResponse response;
  absl::Status status = CallOne("read", timeout, [&](auto* member, auto* call) {
    return member->kv.Range(call, request, &response);
  });
  if (!status.ok()) return status;
  return response;
}

absl::StatusOr<etcdserverpb::TxnResponse> EtcdClient::Txn(
    const etcdserverpb::TxnRequest& request, absl::Duration timeout) {
  etcdserverpb::TxnResponse response;
  absl::Status status =
      CallOne("transaction", timeout, [&](auto* member, auto* call) {
        return member->kv.Txn(call, request, &response);
      });
  if (!status.ok()) return status;
  return response;
}

absl::StatusOr<etcdserverpb::LeaseGrantResponse> EtcdClient::GrantLease(
    const etcdserverpb::LeaseGrantRequest& request, absl::Duration timeout) {
  etcdserverpb::LeaseGrantResponse response;
  absl::Status status =
      CallOne("lease", timeout, [&](auto* member, auto* call) {
        return member->lease.LeaseGrant(call, request, &response);
      });
  if (!status.ok()) return status;
  return response;
}

absl::Status EtcdClient::RevokeLease(int64_t id, absl::Duration timeout) {
  etcdserverpb::LeaseRevokeRequest request;
  request.set_id(id);
  etcdserverpb::LeaseRevokeResponse response;
  return CallOne("end of a lease", timeout, [&](auto* member, auto* call) {
    return member->lease.LeaseRevoke(call, request, &response);
  });
}

absl::StatusOr<absl::Duration> EtcdClient::KeepAlive(int64_t id,
                                                     absl::Duration timeout) {
  etcdserverpb::LeaseKeepAliveResponse response;
  absl::Status status =
      CallOne("renewal of a lease", timeout, [&](auto* member, auto* call) {
        return KeepAliveOnce(&member->lease, call, id, &response);
      });
  if (!status.ok()) return status;
  return absl::Seconds(std::max<int64_t>(response.ttl(), 0));
}

}  // namespace coxswain::server
