#include "tests/bench/scale/etcd_barrier.h"

#include <functional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "grpcpp/grpcpp.h"
#include "tests/bench/scale/etcd.grpc.pb.h"
#include "tests/bench/scale/meeting.h"
#include "tests/bench/scale/unary_call.h"

namespace coxswain::bench {
namespace {

constexpr absl::Duration kBarrierTimeout = absl::Minutes(3);
using Done = std::function<void(const absl::Status&)>;

// Waits for the first change of a key, then ends, and deletes itself.
class FirstEvent : public grpc::ClientBidiReactor<etcdserverpb::WatchRequest,
                                                  etcdserverpb::WatchResponse> {
 public:
  FirstEvent(etcdserverpb::Watch::Stub* stub, const std::string& key,
             int64_t revision, Done done)
      : done_(std::move(done)) {
    request_.mutable_create_request()->set_key(key);
    request_.mutable_create_request()->set_start_revision(revision);
    stub->async()->Watch(&context_, this);
    StartWrite(&request_);
    StartRead(&response_);
    StartCall();
  }

  void OnReadDone(bool ok) override {
    if (!ok) return;
    if (response_.events_size() == 0) return StartRead(&response_);
    std::exchange(done_, nullptr)(absl::OkStatus());
    context_.TryCancel();
  }

  void OnDone(const grpc::Status& status) override {
    if (done_ != nullptr) done_(FromGrpcStatus(status));
    delete this;
  }

 private:
  grpc::ClientContext context_;
  etcdserverpb::WatchRequest request_;
  etcdserverpb::WatchResponse response_;
  Done done_;  // null once called
};

}  // namespace

class EtcdBarrier::Client {
 public:
  Client(const std::string& endpoint, int number) : number_(number) {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    const auto channel = grpc::CreateCustomChannel(
        endpoint, grpc::InsecureChannelCredentials(), arguments);
    kv_ = etcdserverpb::KV::NewStub(channel);
    watch_ = etcdserverpb::Watch::NewStub(channel);
  }

  void Enter(const std::string& barrier, int64_t size, const Done& done) {
    Put(absl::StrCat(barrier, "/waiters/", number_),
        [=](const absl::Status& status, int64_t revision) {
          status.ok() ? Look(barrier, size, revision, done) : done(status);
        });
  }

 private:
  using Calls = etcdserverpb::KV::StubInterface::async_interface;

  void Put(const std::string& key,
           const std::function<void(const absl::Status&, int64_t)>& done) {
    etcdserverpb::PutRequest request;
    request.set_key(key);
    StartCall(static_cast<Calls*>(kv_->async()), &Calls::Put, request,
              [done](const absl::Status& status,
                     const etcdserverpb::PutResponse& response) {
                done(status, response.header().revision());
              });
  }

  // A client that waits; `revision` is that of its own key.
  void Look(const std::string& barrier, int64_t size, int64_t revision,
            const Done& done) {
    etcdserverpb::RangeRequest request;
    request.set_key(barrier + "/waiters/");
    request.set_range_end(barrier + "/waiters0");  // behind all of them
    StartCall(static_cast<Calls*>(kv_->async()), &Calls::Range, request,
              [=](const absl::Status& status,
                  const etcdserverpb::RangeResponse& response) {
                if (!status.ok()) return done(status);
                if (response.count() < size) {
                  new FirstEvent(watch_.get(), barrier + "/ready", revision,
                                 done);
                  return;
                }
                Put(barrier + "/ready",
                    [done](const absl::Status& put, int64_t) { done(put); });
              });
  }

  const int number_;
  std::unique_ptr<etcdserverpb::KV::Stub> kv_;
  std::unique_ptr<etcdserverpb::Watch::Stub> watch_;
};

EtcdBarrier::EtcdBarrier(const std::string& endpoint, int clients) {
  for (int i = 0; i < clients; ++i) {
    clients_.push_back(std::make_unique<Client>(endpoint, i));
  }
}

EtcdBarrier::~EtcdBarrier() = default;

absl::StatusOr<absl::Duration> EtcdBarrier::Enter() {
  const std::string barrier = absl::StrCat("barrier-", rounds_++);
  Meeting meeting(clients_.size());
  for (const auto& client : clients_) {
    client->Enter(barrier, static_cast<int64_t>(clients_.size()),
                  meeting.Arriving());
  }
  COXSWAIN_RETURN_IF_ERROR(meeting.Await(kBarrierTimeout));
  return meeting.arrivals().back();
}

}  // namespace coxswain::bench
