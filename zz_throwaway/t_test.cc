#include "zz_throwaway/sub/echo.grpc.pb.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "absl/strings/cord.h"
#include "gtest/gtest.h"
#include "gmock/gmock.h"
#include "grpcpp/grpcpp.h"
#include "grpcpp/ext/proto_server_reflection_plugin.h"
#include "grpcpp/health_check_service_interface.h"
#include <thread>
class S : public zz::v1::Echo::CallbackService {
  grpc::ServerUnaryReactor* Say(grpc::CallbackServerContext* c, const zz::v1::Fence* r, zz::v1::Fence* o) override {
    *o = *r; auto* x = c->DefaultReactor(); x->Finish(grpc::Status::OK); return x; }
};
TEST(T, Echo) {
  grpc::EnableDefaultHealthCheckService(true);
  grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  S s; grpc::ServerBuilder b; int port = 0; b.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  b.RegisterService(&s); auto server = b.BuildAndStart();
  auto stub = zz::v1::Echo::NewStub(grpc::CreateChannel(absl::StrFormat("127.0.0.1:%d", port), grpc::InsecureChannelCredentials()));
  grpc::ClientContext c; zz::v1::Fence a, r; a.set_id("hi"); EXPECT_TRUE(stub->Say(&c, a, &r).ok()); EXPECT_EQ(r.id(), "hi");
  absl::StatusOr<absl::Cord> x = absl::InternalError(absl::FormatTime(absl::UnixEpoch()));
  EXPECT_THAT(std::string(x.status().message()), testing::HasSubstr("19"));
  server->Shutdown();
}
#include <mutex>
#include <condition_variable>
TEST(T, Async) {
  S s; grpc::ServerBuilder b; int port = 0; b.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  b.RegisterService(&s); auto server = b.BuildAndStart();
  auto stub = zz::v1::Echo::NewStub(grpc::CreateChannel(absl::StrFormat("127.0.0.1:%d", port), grpc::InsecureChannelCredentials()));
  struct Call { grpc::ClientContext c; zz::v1::Fence a, r; grpc::Status st; };
  std::mutex mu; std::condition_variable cv; int done = 0;
  for (int i = 0; i < 200; ++i) {
    auto* c = new Call; c->a.set_id(std::string(i + 1, 'x'));
    stub->async()->Say(&c->c, &c->a, &c->r, [&, c](grpc::Status st) { c->st = st; EXPECT_TRUE(st.ok()); EXPECT_EQ(c->r.id().size(), c->a.id().size()); std::lock_guard<std::mutex> l(mu); ++done; cv.notify_all(); delete c; });
  }
  std::unique_lock<std::mutex> l(mu); cv.wait(l, [&] { return done == 200; });
  server->Shutdown();
}
TEST(T, Retry) {
  auto stub = zz::v1::Echo::NewStub(grpc::CreateChannel("127.0.0.1:1", grpc::InsecureChannelCredentials()));
  std::vector<std::thread> ts;
  for (int t = 0; t < 4; ++t) ts.emplace_back([&] { for (int i = 0; i < 20; ++i) { grpc::ClientContext c; zz::v1::Fence a, r; c.set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(50)); EXPECT_FALSE(stub->Say(&c, a, &r).ok()); } });
  for (auto& t : ts) t.join();
}
#ifdef RACE
TEST(T, Race) { int x = 0; std::thread a([&] { ++x; }); ++x; a.join(); }
#endif
