#include "client/rpc/grpc_coordinator_stub.h"

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <thread>

#include "absl/strings/cord.h"
#include "base/grpc_status.h"
#include "base/mutex.h"
#include "base/status_matchers.h"
#include "client/rpc/call_context.h"
#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"
#include "proto/checkpoint.grpc.pb.h"
#include "proto/rendezvous.grpc.pb.h"
#include "proto/store.grpc.pb.h"
#include "transport/error_detail.h"

namespace coxswain {
namespace {

using ::testing::HasSubstr;

// A flag that threads wait for.
class Notification {
 public:
  void Notify() {
    MutexLock lock(&mutex_);
    notified_ = true;
    cv_.NotifyAll();
  }
  bool Wait() {
    MutexLock lock(&mutex_);
    return cv_.WaitFor(
        &mutex_, absl::Seconds(20),
        [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return notified_; });
  }

 private:
  Mutex mutex_;
  CondVar cv_;
  bool notified_ ABSL_GUARDED_BY(mutex_) = false;
};

class StoreService : public v1::Store::Service {
 public:
  grpc::Status Add(grpc::ServerContext*, const v1::AddRequest* request,
                   v1::AddResponse* response) override {
    response->set_value(request->amount() + 1);
    return grpc::Status::OK;
  }
  grpc::Status Set(grpc::ServerContext*, const v1::SetRequest*,
                   v1::SetResponse*) override {
    v1::ErrorDetail detail;
    detail.mutable_stale_fence()->set_field("generation");
    return ToGrpcStatus(
        WithDetail(absl::FailedPreconditionError("stale"), detail));
  }
  // Waits until the client gives up.
  grpc::Status Get(grpc::ServerContext* context, const v1::GetRequest*,
                   v1::GetResponse*) override {
    entered.Notify();
    while (!context->IsCancelled()) std::this_thread::yield();
    return grpc::Status(grpc::StatusCode::CANCELLED, "gone");
  }
  grpc::Status Watch(grpc::ServerContext* context, const v1::WatchRequest*,
                     grpc::ServerWriter<v1::WatchEvent>* writer) override {
    v1::WatchEvent event;
    event.set_value("now");
    writer->Write(event);
    while (!context->IsCancelled()) std::this_thread::yield();
    return grpc::Status(grpc::StatusCode::CANCELLED, "gone");
  }
  Notification entered;
};

class RendezvousService : public v1::Rendezvous::Service {
 public:
  // Answers each heartbeat with an abort that repeats its step; step -1 ends.
  grpc::Status Attach(
      grpc::ServerContext*,
      grpc::ServerReaderWriter<v1::AttachEvent, v1::AttachRequest>* stream)
      override {
    v1::AttachRequest request;
    while (stream->Read(&request)) {
      if (request.heartbeat().step() < 0) {
        return grpc::Status(grpc::StatusCode::ABORTED, "over");
      }
      v1::AttachEvent event;
      event.mutable_abort()->set_reason(
          std::to_string(request.heartbeat().step()));
      stream->Write(event);
    }
    return grpc::Status::OK;
  }
};

class GrpcCoordinatorStubTest : public ::testing::Test {
 protected:
  GrpcCoordinatorStubTest() {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(),
                             &port_);
    builder.RegisterService(&store_);
    builder.RegisterService(&rendezvous_);
    server_ = builder.BuildAndStart();
    stub_ = MakeGrpcCoordinatorStub("127.0.0.1:" + std::to_string(port_));
  }
  ~GrpcCoordinatorStubTest() override {
    server_->Shutdown(std::chrono::system_clock::now());
  }

  int port_ = 0;
  StoreService store_;
  RendezvousService rendezvous_;
  std::unique_ptr<grpc::Server> server_;
  std::shared_ptr<CoordinatorStub> stub_;
};

v1::AttachRequest HeartbeatOf(int64_t step) {
  v1::AttachRequest request;
  request.mutable_heartbeat()->set_step(step);
  return request;
}

TEST_F(GrpcCoordinatorStubTest, MakesTheTypedCall) {
  v1::AddRequest request;
  request.set_amount(41);
  ASSERT_OK_AND_ASSIGN(const auto response, stub_->StoreAdd(request, {}));
  EXPECT_EQ(response.value(), 42);
  EXPECT_TRUE(stub_->Connected());
}

TEST_F(GrpcCoordinatorStubTest, KeepsTheTypedDetailOfAnError) {
  const absl::Status status = stub_->StoreSet({}, {}).status();
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kFailedPrecondition,
                               HasSubstr("stale")));
  const v1::ErrorDetail detail = DetailOf(status);
  EXPECT_EQ(detail.stale_fence().field(), "generation");
}

TEST_F(GrpcCoordinatorStubTest, EndsAtTheDeadline) {
  CallOptions options;
  options.timeout = absl::Milliseconds(50);
  EXPECT_THAT(stub_->StoreGet({}, options),
              StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("")));
}

TEST_F(GrpcCoordinatorStubTest, ARaisedSignalEndsAWaitingCall) {
  CancelSignal cancel;
  std::thread raiser([&]() {
    EXPECT_TRUE(store_.entered.Wait());
    cancel.Raise(absl::AbortedError("rank 1 was lost"));
  });
  CallOptions options;
  options.cancel = &cancel;
  EXPECT_THAT(
      stub_->StoreGet({}, options),
      StatusIs(absl::StatusCode::kAborted, HasSubstr("rank 1 was lost")));
  raiser.join();
}

TEST_F(GrpcCoordinatorStubTest, AMissingCoordinatorIsUnavailable) {
  const auto stub = MakeGrpcCoordinatorStub("127.0.0.1:1");
  EXPECT_THAT(stub->StoreSet({}, {}),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("")));
  EXPECT_FALSE(stub->Connected());
}

TEST_F(GrpcCoordinatorStubTest, AttachCarriesEventsInOrderAndItsEnd) {
  Notification ended;
  std::string reasons;
  absl::Status end;
  StreamCallbacks<v1::AttachEvent> callbacks;
  callbacks.on_event = [&](const v1::AttachEvent& event) {
    reasons += event.abort().reason();
  };
  callbacks.on_end = [&](const absl::Status& status) {
    end = status;
    ended.Notify();
  };
  const auto stream = stub_->Attach(callbacks);
  for (int64_t step = 1; step <= 5; ++step) {
    EXPECT_TRUE(stream->Send(HeartbeatOf(step)));
  }
  stream->Send(HeartbeatOf(-1));
  ASSERT_TRUE(ended.Wait());
  EXPECT_EQ(reasons, "12345");
  EXPECT_THAT(end, StatusIs(absl::StatusCode::kAborted, HasSubstr("over")));
  EXPECT_FALSE(stream->Send(HeartbeatOf(6)));
}

TEST_F(GrpcCoordinatorStubTest, NoCallbackRunsAfterAStreamIsDestroyed) {
  for (int round = 0; round < 20; ++round) {
    auto alive = std::make_unique<Notification>();
    StreamCallbacks<v1::AttachEvent> callbacks;
    callbacks.on_event = [&](const v1::AttachEvent&) { alive->Notify(); };
    callbacks.on_end = [&](const absl::Status&) { alive->Notify(); };
    auto stream = stub_->Attach(callbacks);
    stream->Send(HeartbeatOf(1));
    if (round % 2 == 0) {
      ASSERT_TRUE(alive->Wait());
    }
    stream.reset();
    alive.reset();
  }
}

TEST_F(GrpcCoordinatorStubTest, AttachWithoutAServerEndsUnavailable) {
  Notification ended;
  absl::Status end;
  StreamCallbacks<v1::AttachEvent> callbacks;
  callbacks.on_event = [](const v1::AttachEvent&) {};
  callbacks.on_end = [&](const absl::Status& status) {
    end = status;
    ended.Notify();
  };
  const auto stub = MakeGrpcCoordinatorStub("127.0.0.1:1");
  const auto stream = stub->Attach(callbacks);
  stream->Send(HeartbeatOf(1));
  ASSERT_TRUE(ended.Wait());
  EXPECT_THAT(end, StatusIs(absl::StatusCode::kUnavailable, HasSubstr("")));
}

// A port where connections are accepted and nothing is ever answered.
class SilentServer {
 public:
  SilentServer() : socket_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    auto* const any = reinterpret_cast<sockaddr*>(&address);
    EXPECT_EQ(bind(socket_, any, size), 0);
    EXPECT_EQ(listen(socket_, 8), 0);
    EXPECT_EQ(getsockname(socket_, any, &size), 0);
    port_ = ntohs(address.sin_port);
  }
  ~SilentServer() { close(socket_); }
  std::string address() const { return "127.0.0.1:" + std::to_string(port_); }

 private:
  const int socket_;
  int port_ = 0;
};

TEST_F(GrpcCoordinatorStubTest, HeartbeatsDoNotFillTheQueueOfTickets) {
  const SilentServer silent;
  StreamCallbacks<v1::AttachEvent> callbacks;
  callbacks.on_event = [](const v1::AttachEvent&) {};
  callbacks.on_end = [](const absl::Status&) {};
  const auto stub = MakeGrpcCoordinatorStub(silent.address());
  const auto stream = stub->Attach(callbacks);
  v1::AttachRequest ticket;
  ticket.mutable_ticket()->set_stream("train");
  for (int i = 0; i < 16; ++i) EXPECT_TRUE(stream->Send(HeartbeatOf(i)));
  EXPECT_FALSE(stream->Send(HeartbeatOf(16)));
  for (int i = 16; i < 256; ++i) EXPECT_TRUE(stream->Send(ticket)) << i;
  EXPECT_FALSE(stream->Send(ticket));
}

TEST_F(GrpcCoordinatorStubTest, ARaisedSignalEndsAWatch) {
  CancelSignal cancel;
  Notification seen, ended;
  absl::Status end;
  StreamCallbacks<v1::WatchEvent> callbacks;
  callbacks.on_event = [&](const v1::WatchEvent& event) {
    EXPECT_EQ(event.value(), "now");
    seen.Notify();
  };
  callbacks.on_end = [&](const absl::Status& status) {
    end = status;
    ended.Notify();
  };
  const auto stream = stub_->Watch({}, &cancel, callbacks);
  ASSERT_TRUE(seen.Wait());
  cancel.Raise(absl::AbortedError("rank 1 was lost"));
  ASSERT_TRUE(ended.Wait());
  EXPECT_THAT(
      end, StatusIs(absl::StatusCode::kAborted, HasSubstr("rank 1 was lost")));
}

TEST(ExplainResetTest, NamesAProxyWhereNoStatusCame) {
  const auto after = [](grpc::StatusCode code, const char* message) {
    return CancelLink(nullptr, nullptr).Translate({code, message});
  };
  EXPECT_THAT(after(grpc::StatusCode::CANCELLED,
                    "Received RST_STREAM with error code 8"),
              StatusIs(absl::StatusCode::kCancelled,
                       testing::HasSubstr("a proxy in front")));
  EXPECT_THAT(after(grpc::StatusCode::UNKNOWN, "Stream removed"),
              StatusIs(absl::StatusCode::kUnknown,
                       testing::HasSubstr("a proxy in front")));
  // A coordinator's own error.
  EXPECT_THAT(after(grpc::StatusCode::CANCELLED, "the rank is gone"),
              StatusIs(absl::StatusCode::kCancelled, "the rank is gone"));
}

TEST(ExplainResetTest, ACallThatWasEndedToFreeMemoryIsTriedAgain) {
  const auto after = [](const char* message) {
    return CancelLink(nullptr, nullptr)
        .Translate({grpc::StatusCode::RESOURCE_EXHAUSTED, message});
  };
  EXPECT_THAT(after("Received RST_STREAM with error code 11"),
              StatusIs(absl::StatusCode::kUnavailable,
                       testing::HasSubstr("--max-held-mib")));
  // A coordinator's own error.
  EXPECT_THAT(
      after("1024 jobs are known"),
      StatusIs(absl::StatusCode::kResourceExhausted, "1024 jobs are known"));
}

}  // namespace
}  // namespace coxswain
