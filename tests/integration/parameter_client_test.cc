#include "client/parameter/parameter_client.h"

#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "client/session/session.h"
#include "server/coordinator.h"
#include "tests/support/in_threads.h"
#include "tests/support/parameter_server.h"

namespace coxswain {
namespace {

template <typename T>
T ValueOf(absl::StatusOr<T> result) {
  EXPECT_OK(result);
  return result.ok() ? *std::move(result) : T();
}

using testing::_;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr absl::Duration kSoon = absl::Seconds(20);

Span SpanOf(std::vector<float>* data) {
  Span span;
  span.data = data->data();
  span.count = static_cast<int64_t>(data->size());
  return span;
}

// More than two chunks.
std::vector<float> Values(float first) {
  std::vector<float> values(600'001);
  std::iota(values.begin(), values.end(), first);
  return values;
}

TEST(ParameterClientTest, ALateJoinerPullsTheNewestVersion) {
  ParameterServer server;
  ParameterClient writer(server.MakeMemberContext("job", 1));
  ParameterClient reader(server.MakeMemberContext("job", 1));
  std::vector<float> old = Values(0), current = Values(7), pulled = Values(1);
  ASSERT_OK(writer.Push("layer.weight", 10, SpanOf(&old)));
  ASSERT_OK(writer.Push("layer.weight", 20, SpanOf(&current)));
  ASSERT_OK_AND_ASSIGN(
      const auto description,
      reader.Pull("layer.weight", 0, absl::ZeroDuration(), SpanOf(&pulled)));
  EXPECT_EQ(description.version, 20);
  EXPECT_EQ(pulled, current);
  EXPECT_THAT(writer.Push("layer.weight", 20, SpanOf(&old)),
              StatusIs(absl::StatusCode::kAlreadyExists, _));
  // One version is held, and not two.
  const auto bytes = static_cast<int64_t>(4 * current.size());
  EXPECT_GE(server.parameters().bytes(), bytes);
  EXPECT_LT(server.parameters().bytes(), 2 * bytes);
}

TEST(ParameterClientTest, APullWaitsForThePush) {
  ParameterServer server;
  ParameterClient writer(server.MakeMemberContext("job", 1));
  ParameterClient reader(server.MakeMemberContext("job", 1));
  std::vector<float> current = Values(3), pulled = Values(0);
  EXPECT_THAT(reader.Pull("w", 5, absl::ZeroDuration(), SpanOf(&pulled)),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("'w'")));
  EXPECT_THAT(reader.Pull("w", 5, absl::Milliseconds(50), SpanOf(&pulled)),
              StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("'w'")));
  // Less than the unit of the request is no wait of 0.
  EXPECT_THAT(reader.Pull("w", 5, absl::Microseconds(1), SpanOf(&pulled)),
              StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("'w'")));
  std::thread pulling(
      [&] { EXPECT_OK(reader.Pull("w", 5, kSoon, SpanOf(&pulled))); });
  EXPECT_OK(writer.Push("w", 6, SpanOf(&current)));
  pulling.join();
  EXPECT_EQ(pulled, current);
}

TEST(ParameterClientTest, PartsAreSummedInTheirOrder) {
  ParameterServer server;
  ParameterClient client(server.MakeMemberContext("job", 1));
  std::vector<float> large(3, 1e8f), small(3, 1.0f), minus(3, -1e8f), sum(3);
  // 1 in the order of the parts, and 0 in that of their arrival.
  EXPECT_EQ(ValueOf(client.PushPart("g", 1, SpanOf(&small), {2, 3})), false);
  EXPECT_EQ(ValueOf(client.PushPart("g", 1, SpanOf(&minus), {1, 3})), false);
  EXPECT_EQ(ValueOf(client.PushPart("g", 1, SpanOf(&large), {0, 3})), true);
  ASSERT_OK(client.Pull("g", 1, kSoon, SpanOf(&sum)));
  EXPECT_THAT(sum, ElementsAre(1, 1, 1));
}

TEST(ParameterClientTest, TheNextGenerationInherits) {
  ParameterServer server;
  std::vector<float> old = Values(1), next = Values(2), pulled = Values(0);
  ParameterClient before(server.MakeMemberContext("job", 1));
  ASSERT_OK(before.Push("w", 900, SpanOf(&old)));
  server.parameters().OnGenerationEnded(
      "job", Generation(1), absl::AbortedError("a member was lost"));
  EXPECT_THAT(before.Push("w", 901, SpanOf(&old)),
              StatusIs(absl::StatusCode::kAborted, _));
  ParameterClient after(server.MakeMemberContext("job", 2));
  ASSERT_OK_AND_ASSIGN(
      const auto inherited,
      after.Pull("w", 0, absl::ZeroDuration(), SpanOf(&pulled)));
  EXPECT_EQ(inherited.generation, 1);
  EXPECT_EQ(pulled, old);
  // It may have gone back to an earlier step.
  ASSERT_OK(after.Push("w", 890, SpanOf(&next)));
  ASSERT_OK_AND_ASSIGN(const auto own, after.Pull("w", 0, absl::ZeroDuration(),
                                                  SpanOf(&pulled)));
  EXPECT_EQ(own.generation, 2);
  EXPECT_EQ(pulled, next);
  // Another job has nothing to do with it.
  ParameterClient other(server.MakeMemberContext("other", 3));
  EXPECT_THAT(other.Pull("w", 0, absl::ZeroDuration(), SpanOf(&pulled)),
              StatusIs(absl::StatusCode::kNotFound, _));
}

TEST(ParameterClientTest, TypesAndLimitsAreChecked) {
  server::ParameterLimits limits;
  limits.max_job_bytes = 4 << 20;
  ParameterServer server(limits);
  ParameterClient client(server.MakeMemberContext("job", 1));
  std::vector<float> values = Values(1), few(3), large(1'200'000);
  ASSERT_OK(client.Push("w", 1, SpanOf(&values)));
  const int64_t held = server.parameters().bytes();
  EXPECT_GE(held, static_cast<int64_t>(4 * values.size()));
  EXPECT_THAT(
      client.Pull("w", 0, kSoon, SpanOf(&few)),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("into 12 bytes")));
  EXPECT_THAT(client.Push("large", 1, SpanOf(&large)),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       HasSubstr("max_job_bytes")));
  EXPECT_THAT(client.PushPart("many", 1, SpanOf(&few), {0, 17}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("17 parts of a parameter in a world of 16")));
  // Earlier results are dropped.
  EXPECT_EQ(server.parameters().bytes(), held);
  EXPECT_EQ(ValueOf(client.Forget("w")), true);
  EXPECT_EQ(ValueOf(client.Forget("w")), false);
  EXPECT_EQ(server.parameters().bytes(), 0);
}

TEST(ParameterClientTest, RanksOfAJobShareThemAndExchangeThroughTheService) {
  server::CoordinatorOptions options;
  options.state_dir = absl::StrCat(testing::TempDir(), "/parameter_client");
  ASSERT_OK_AND_ASSIGN(const auto coordinator,
                       server::Coordinator::Start(options));
  InThreads(2, [&](int slot) {
    SessionOptions session_options;
    session_options.coordinator =
        absl::StrCat("127.0.0.1:", coordinator->port());
    session_options.job = "mnist";
    session_options.identity = {"host-a", slot};
    session_options.host = "host-a";
    session_options.local_rank = slot;
    session_options.world_size = 2;
    session_options.backend = "parameter_server";
    session_options.join_timeout = kSoon;
    session_options.collective_timeout = kSoon;
    ASSERT_OK_AND_ASSIGN(const auto session,
                         Session::Join(session_options, {}));
    ASSERT_OK_AND_ASSIGN(const auto world, session->World());
    EXPECT_EQ(world->communicator().backend(), "parameter_server");
    std::vector<float> values(1000, static_cast<float>(session->rank() + 1));
    EXPECT_OK(world->communicator().AllReduce(SpanOf(&values))->Wait(kSoon));
    EXPECT_EQ(values, std::vector<float>(1000, 3.0f));
    std::vector<float> pulled(1000);
    if (session->rank() == 0) {
      EXPECT_OK(session->parameters().Push("w", 1, SpanOf(&values)));
    }
    EXPECT_OK(session->parameters().Pull("w", 1, kSoon, SpanOf(&pulled)));
    EXPECT_EQ(pulled, values);
    EXPECT_EQ(ValueOf(session->parameters().List()).size(), 1u);
    EXPECT_OK(world->communicator().Barrier()->Wait(kSoon));
    EXPECT_OK(session->Leave("done"));
  });
}

}  // namespace
}  // namespace coxswain
