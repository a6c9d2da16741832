#include "tests/bench/scale/light_worker.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <chrono>
#include <deque>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/mutex.h"
#include "base/unique_fd.h"
#include "grpcpp/create_channel_posix.h"
#include "tests/bench/scale/unary_call.h"

namespace coxswain::bench {
namespace {

using Rendezvous = v1::Rendezvous::StubInterface::async_interface;
using GroupCalls = v1::Group::StubInterface::async_interface;
using StoreCalls = v1::Store::StubInterface::async_interface;

// For calls that return only a status.
template <typename Response>
auto StatusTo(const LightWorker::Done& done) {
  return [done](const absl::Status& status, const Response&) { done(status); };
}

absl::StatusOr<UniqueFd> ConnectLoopback(int port) {
  UniqueFd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!fd.valid()) return absl::ErrnoToStatus(errno, "socket");
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (connect(fd.get(), reinterpret_cast<sockaddr*>(&address),
              sizeof(address)) != 0) {
    return absl::ErrnoToStatus(errno, "connect");
  }
  fcntl(fd.get(), F_SETFL, fcntl(fd.get(), F_GETFL) | O_NONBLOCK);
  return fd;
}

tcp_info InfoOf(int fd) {
  tcp_info info = {};
  socklen_t size = sizeof(info);
  getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size);
  return info;
}

}  // namespace

// The Attach stream. gRPC calls OnDone last; the destructor waits for it.
class LightWorker::Stream
    : public grpc::ClientBidiReactor<v1::AttachRequest, v1::AttachEvent> {
 public:
  Stream(v1::Rendezvous::Stub* stub, const v1::Fence& fence, Done done,
         OnAbort on_abort)
      : done_(std::move(done)), on_abort_(std::move(on_abort)) {
    stub->async()->Attach(&context_, this);
    AddHold();
    StartRead(&event_);
    StartCall();
    v1::AttachRequest hello;
    *hello.mutable_hello()->mutable_fence() = fence;
    Send(hello);
  }
  ~Stream() override {
    context_.TryCancel();
    MutexLock lock(&mutex_);
    ended_cv_.WaitForWork(
        &mutex_, [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return ended_; });
  }

  void Send(const v1::AttachRequest& request) {
    MutexLock lock(&mutex_);
    if (over_) return;
    writes_.push_back(request);
    if (writes_.size() == 1) StartWrite(&writes_.front());
  }

  void OnReadDone(bool ok) override {
    if (!ok) {
      {
        MutexLock lock(&mutex_);
        over_ = true;
      }
      RemoveHold();
      return;
    }
    if (event_.has_attached()) Answer(absl::OkStatus());
    if (event_.has_abort()) on_abort_(event_.abort().reason());
    event_.Clear();
    StartRead(&event_);
  }

  void OnWriteDone(bool ok) override {
    MutexLock lock(&mutex_);
    writes_.pop_front();
    if (!ok || over_) {
      writes_.clear();
    } else if (!writes_.empty()) {
      StartWrite(&writes_.front());
    }
  }

  void OnDone(const grpc::Status& status) override {
    Answer(FromGrpcStatus(status));
    MutexLock lock(&mutex_);
    ended_ = true;
    ended_cv_.NotifyAll();
  }

 private:
  void Answer(const absl::Status& status) {
    if (done_ != nullptr) std::exchange(done_, nullptr)(status);
  }

  grpc::ClientContext context_;
  v1::AttachEvent event_;
  Done done_;  // null once called
  const OnAbort on_abort_;
  Mutex mutex_;
  CondVar ended_cv_;
  bool over_ ABSL_GUARDED_BY(mutex_) = false;  // nothing can be sent
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  std::deque<v1::AttachRequest> writes_ ABSL_GUARDED_BY(mutex_);
};

LightWorker::LightWorker(Place place) : place_(std::move(place)) {}
LightWorker::~LightWorker() = default;

absl::Status LightWorker::Connect(int port) {
  auto fd = ConnectLoopback(port);
  if (!fd.ok()) return fd.status();
  fd_ = fd->Release();
  grpc::ChannelArguments arguments;
  // Not those of this program, whose threads they share.
  arguments.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  channel_ = grpc::CreateCustomInsecureChannelFromFd("worker", fd_, arguments);
  rendezvous_ = v1::Rendezvous::NewStub(channel_);
  group_ = v1::Group::NewStub(channel_);
  store_ = v1::Store::NewStub(channel_);
  return absl::OkStatus();
}

v1::JoinRequest LightWorker::MakeJoin() const {
  v1::JoinRequest request;
  request.set_job(place_.job);
  request.mutable_identity()->set_node(absl::StrCat("node-", place_.node));
  request.mutable_identity()->set_slot(place_.slot);
  request.set_incarnation(place_.incarnation);
  request.set_launcher_id(place_.launcher);
  request.set_host(absl::StrCat("node-", place_.node));
  request.set_address("127.0.0.1");
  request.set_timeout_ms(std::chrono::milliseconds(kCallTimeout).count());
  request.set_after_generation(last_generation_);
  v1::Manifest* manifest = request.mutable_manifest();
  manifest->set_world_size(place_.world_size);
  manifest->set_min_world_size(place_.min_world_size);
  manifest->set_hook("allreduce");
  manifest->set_accumulation_steps(1);
  return request;
}

void LightWorker::Join(const Done& done) {
  StartCall(static_cast<Rendezvous*>(rendezvous_->async()), &Rendezvous::Join,
            MakeJoin(),
            [this, done](const absl::Status& status, v1::JoinResponse& joined) {
              rank_ = joined.rank();
              last_generation_ = joined.generation();
              fence_.set_cluster_id(joined.cluster_id());
              fence_.set_term(joined.term());
              fence_.set_job(place_.job);
              fence_.set_generation(joined.generation());
              fence_.set_incarnation(place_.incarnation);
              done(status);
            });
}

void LightWorker::GetMembers(int from, const Done& done) {
  v1::MembersRequest request;
  *request.mutable_fence() = NewFence();
  request.set_first_rank(from);
  request.set_count(place_.world_size - from);
  StartCall(static_cast<Rendezvous*>(rendezvous_->async()),
            &Rendezvous::Members, request,
            [this, from, done](const absl::Status& status,
                               const v1::MembersResponse& page) {
              const int next = from + page.members_size();
              const bool over = !status.ok() || page.members().empty() ||
                                next == place_.world_size;
              over ? done(status) : GetMembers(next, done);
            });
}

v1::Fence LightWorker::NewFence() {
  fence_.set_request_id(fence_.request_id() + 1);
  return fence_;
}

void LightWorker::Attach(const Done& done, const OnAbort& on_abort) {
  stream_ =
      std::make_unique<Stream>(rendezvous_.get(), NewFence(), done, on_abort);
}

void LightWorker::Detach() { stream_.reset(); }

void LightWorker::Heartbeat(int64_t step) {
  v1::AttachRequest request;
  request.mutable_heartbeat()->set_step(step);
  request.mutable_heartbeat()->set_collective_sequence(3 * step);
  request.mutable_heartbeat()->set_payload_bytes(step << 20);
  stream_->Send(request);
}

void LightWorker::CreateMesh(int nodes, int slots, const Done& done) {
  v1::CreateMeshRequest request;
  *request.mutable_fence() = NewFence();
  request.set_name("mesh");
  v1::MeshAxis* const axis = request.add_axes();
  axis->set_name("node");
  axis->set_size(nodes);
  v1::MeshAxis* const last = request.add_axes();
  last->set_name("slot");
  last->set_size(slots);
  StartCall(
      static_cast<GroupCalls*>(group_->async()), &GroupCalls::CreateMesh,
      request,
      [this, done](const absl::Status& status, v1::CreateMeshResponse& made) {
        groups_.clear();
        for (const v1::GroupInfo& group : made.groups()) {
          Group& own = groups_.emplace_back();
          own.id = group.communicator_id();
          const v1::RankRange& range = group.range();
          for (int i = 0; i < range.count(); ++i) {
            own.ranks.push_back(range.first() + i * range.stride());
          }
        }
        done(status);
      });
}

void LightWorker::Set(const std::string& key, const std::string& value,
                      const Done& done) {
  v1::SetRequest request;
  *request.mutable_fence() = NewFence();
  request.set_key(key);
  request.set_value(value);
  StartCall(static_cast<StoreCalls*>(store_->async()), &StoreCalls::Set,
            request, StatusTo<v1::SetResponse>(done));
}

void LightWorker::GetAll(std::vector<std::string> keys, const Done& done) {
  if (keys.empty()) return done(absl::OkStatus());
  v1::GetRequest request;
  *request.mutable_fence() = NewFence();
  request.set_key(keys.back());
  request.set_timeout_ms(std::chrono::milliseconds(kCallTimeout).count());
  keys.pop_back();
  StartCall(static_cast<StoreCalls*>(store_->async()), &StoreCalls::Get,
            request,
            [this, keys = std::move(keys), done](const absl::Status& status,
                                                 v1::GetResponse&) {
              status.ok() ? GetAll(keys, done) : done(status);
            });
}

void LightWorker::Barrier(const std::string& tag, const Done& done) {
  v1::BarrierRequest request;
  *request.mutable_fence() = NewFence();
  request.set_tag(tag);
  request.set_timeout_ms(std::chrono::milliseconds(kCallTimeout).count());
  StartCall(static_cast<GroupCalls*>(group_->async()), &GroupCalls::Barrier,
            request, StatusTo<v1::BarrierResponse>(done));
}

void LightWorker::ReportExit(const Place& of, const Done& done) {
  v1::ReportExitRequest request;
  request.set_job(of.job);
  request.set_launcher_id(of.launcher);
  request.mutable_identity()->set_node(absl::StrCat("node-", of.node));
  request.mutable_identity()->set_slot(of.slot);
  request.set_incarnation(of.incarnation);
  request.set_signal(9);
  StartCall(static_cast<Rendezvous*>(rendezvous_->async()),
            &Rendezvous::ReportExit, request,
            StatusTo<v1::ReportExitResponse>(done));
}

int64_t LightWorker::bytes_received() const {
  return static_cast<int64_t>(InfoOf(fd_).tcpi_bytes_received);
}

int64_t LightWorker::bytes_sent() const {
  return static_cast<int64_t>(InfoOf(fd_).tcpi_bytes_acked);
}

}  // namespace coxswain::bench
