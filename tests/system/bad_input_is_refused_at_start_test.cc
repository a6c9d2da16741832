#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/crc32c.h"
#include "base/grpc_status.h"
#include "base/random.h"
#include "base/status_matchers.h"
#include "base/unique_fd.h"
#include "grpcpp/grpcpp.h"
#include "nlohmann/json.hpp"
#include "proto/checkpoint.grpc.pb.h"
#include "proto/rendezvous.grpc.pb.h"
#include "tests/system/scenario.h"

namespace coxswain {
namespace {

using testing::AllOf;
using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Le;
using testing::Not;
using testing::SizeIs;

// Returns the options of one of the launchers of a job of two workers.
std::vector<std::string> OneOfTwo(const ServedCoordinator& coordinator,
                                  const std::string& node) {
  return {"--nnodes", "2",    "--node",        node,
          "--job",    "rows", "--coordinator", coordinator.address()};
}

void ExpectExit(Process& process, int status) {
  const auto exit = process.Wait(kTimeout);
  ASSERT_OK(exit);
  EXPECT_EQ(exit->Status(), status) << process.err();
}

struct BadSpec {
  const char* spec;
  std::vector<std::string> error;
};

TEST(BadInputTest, AWrongHookSpecIsRefusedWithTheRightForm) {
  const std::vector<BadSpec> cases = {
      {"powersdg(rank=2)",
       {"there is no hook 'powersdg'", "the hooks are acp_sgd, allreduce, "}},
      {"powersgd(rnk=2)",
       {"powersgd has no option 'rnk'", "rank (1 to 1024)",
        "start_step (0 or more)"}},
      {"powersgd(rank=0)", {"rank must be between 1 and 1024, got 0"}},
      {"powersgd(rank=2", {"character 16", "')'"}},
      {"allreduce(bf16)", {"allreduce takes no inner hook"}},
  };
  for (const BadSpec& test : cases) {
    SCOPED_TRACE(test.spec);
    auto launcher = Start(Launcher({"--nproc", "2"}, {"--hook", test.spec}));
    ExpectExit(*launcher, 1);
    const auto errors = LinesWith(launcher->err(), "toy_worker: hook spec");
    EXPECT_THAT(errors, SizeIs(2)) << launcher->err();
    for (const std::string& text : test.error) {
      EXPECT_THAT(errors, Each(HasSubstr(text)));
    }
    EXPECT_THAT(launcher->out(), IsEmpty()) << "a worker has joined";
    EXPECT_THAT(StrayProcesses(), IsEmpty());
  }
}

TEST(BadInputTest, WorkersWithDifferentModelsGetTheDifference) {
  ServedCoordinator coordinator;
  auto bow = Start(Launcher(OneOfTwo(coordinator, "bow"), {"--steps", "3"}));
  ASSERT_OK(coordinator.process().WaitForStderr("worker=bow/0", kTimeout));
  auto other =
      Start(Launcher(OneOfTwo(coordinator, "stroke"),
                     {"--steps", "3", "--hidden", "40", "--extra-parameter"}));
  ExpectExit(*other, 1);
  ExpectExit(*bow, 1);
  for (const Process* launcher : {other.get(), bow.get()}) {
    EXPECT_THAT(
        launcher->err(),
        AllOf(HasSubstr("the workers of job 'rows' differ"),
              HasSubstr("number of parameters: 4 on rank 0 (bow/0); 5 on rank "
                        "1 (stroke/0)"),
              HasSubstr("parameter 0: layer1.weight float32[48,64] on rank 0 "
                        "(bow/0); layer1.weight float32[40,64] on rank 1 "
                        "(stroke/0)"),
              HasSubstr("parameter 4: nothing on rank 0 (bow/0); extra.scale "
                        "float32[3] on rank 1 (stroke/0)"),
              Not(HasSubstr("layer2.bias"))))
        << "equal ones are not listed";
  }

  // The right ones find their places at once.
  bow = Start(Launcher(OneOfTwo(coordinator, "bow"), {"--steps", "3"}));
  auto right =
      Start(Launcher(OneOfTwo(coordinator, "stroke"), {"--steps", "3"}));
  ExpectExit(*right, 0);
  ExpectExit(*bow, 0);
  coordinator.Stop();
  EXPECT_THAT(StrayProcesses(), IsEmpty());
}

TEST(BadInputTest, OneLauncherWithTwoModelsEnds) {
  const std::string script = absl::StrCat(
      "[ $COXSWAIN_LOCAL_RANK = 0 ] || more=--extra-parameter; exec ",
      kToyWorker, " $more");
  auto launcher = Start({kCoxswain, "run", "--nproc", "2", "--exit-grace",
                         "100ms", "--", "/bin/sh", "-c", script});
  ExpectExit(*launcher, 1);
  EXPECT_THAT(launcher->err(), HasSubstr("extra.scale float32[3]"));
  EXPECT_THAT(launcher->err(), HasSubstr("coxswain: first failure: worker "));
  EXPECT_THAT(StrayProcesses(), IsEmpty());
}

TEST(BadInputTest, ASecondJobOfTheSameNameIsRefusedAndTheFirstGoesOn) {
  ServedCoordinator coordinator;
  Latch latch;
  const std::vector<std::string> run_options = {
      "--nproc", "2", "--job", "rows", "--coordinator", coordinator.address()};
  auto with_node = [&](const std::string& node) {
    auto options = run_options;
    options.insert(options.end(), {"--node", node});
    return options;
  };
  auto first =
      Start(Launcher(with_node("bow"), {"--steps", "5", "--wait-at", "2",
                                        "--latch", latch.path(), "--digest"}));
  ASSERT_OK(first->WaitForStdout("rank 0 at step 2\n", kTimeout));
  ASSERT_OK(first->WaitForStdout("rank 1 at step 2\n", kTimeout));

  auto clashing = Start(
      Launcher(with_node("stroke"), {"--hook", "bf16", "--accumulate", "2"}));
  ExpectExit(*clashing, 1);
  const std::string& err = clashing->err();
  EXPECT_THAT(
      LinesWith(err, "toy_worker: "),
      AllOf(SizeIs(2), Each(HasSubstr("job 'rows' already runs with another "
                                      "manifest"))));
  EXPECT_THAT(
      LinesWith(err, "hook: "),
      AllOf(SizeIs(2), Each(HasSubstr("hook: allreduce on bow/0, bf16 here"))));
  EXPECT_THAT(LinesWith(err, "accumulation_steps: "),
              AllOf(SizeIs(2), Each(HasSubstr("1 on bow/0, 2 here"))));

  auto equal = Start(Launcher(with_node("stroke"), {}));
  ExpectExit(*equal, 1);
  EXPECT_THAT(equal->err(),
              HasSubstr("job 'rows' is running with all 2 ranks taken; choose "
                        "another --job name or wait"));

  latch.Open();
  ExpectExit(*first, 0);
  const auto digests = DigestsByRank(first->out());
  ASSERT_THAT(digests, SizeIs(2));
  EXPECT_THAT(digests.at(0), SizeIs(5));
  EXPECT_EQ(digests.at(0), digests.at(1));
  coordinator.Stop();
  EXPECT_THAT(StrayProcesses(), IsEmpty());
}

void SetDeadline(grpc::ClientContext* context) {
  context->set_deadline(std::chrono::system_clock::now() +
                        absl::ToChronoSeconds(kTimeout));
}

// A member of a job of one that speaks with the coordinator by hand.
class BareMember {
 public:
  explicit BareMember(const std::string& address)
      : channel_(
            grpc::CreateChannel(address, grpc::InsecureChannelCredentials())),
        checkpoints_(v1::Checkpoint::NewStub(channel_)) {}

  absl::Status Join() {
    v1::JoinRequest request;
    request.set_job("bare");
    request.mutable_identity()->set_node("bow");
    request.set_incarnation(7);
    request.set_timeout_ms(60'000);
    request.mutable_manifest()->set_world_size(1);
    request.mutable_manifest()->set_hook("allreduce");
    request.mutable_manifest()->set_accumulation_steps(1);
    v1::JoinResponse response;
    grpc::ClientContext context;
    SetDeadline(&context);
    const grpc::Status status =
        v1::Rendezvous::NewStub(channel_)->Join(&context, request, &response);
    fence_.set_cluster_id(response.cluster_id());
    fence_.set_term(response.term());
    fence_.set_job("bare");
    fence_.set_generation(response.generation());
    fence_.set_incarnation(7);
    return FromGrpcStatus(status);
  }

  absl::StatusOr<std::string> Begin() {
    v1::BeginRequest request;
    *request.mutable_fence() = NewFence();
    request.set_step(3);
    request.set_shards(1);
    v1::BeginResponse response;
    grpc::ClientContext context;
    SetDeadline(&context);
    const grpc::Status status =
        checkpoints_->Begin(&context, request, &response);
    if (!status.ok()) return FromGrpcStatus(status);
    return response.checkpoint_id();
  }

  absl::Status Upload(const std::string& id, const std::string& bytes,
                      uint32_t whole_crc, uint32_t chunk_crc) {
    v1::UploadResponse response;
    grpc::ClientContext context;
    SetDeadline(&context);
    const auto writer = checkpoints_->Upload(&context, &response);
    v1::UploadRequest message;
    v1::UploadHeader* header = message.mutable_header();
    *header->mutable_fence() = NewFence();
    header->set_checkpoint_id(id);
    header->set_bytes(bytes.size());
    header->set_crc32c(whole_crc);
    writer->Write(message);  // if it fails, Finish returns why
    message.mutable_chunk()->set_data(bytes);
    message.mutable_chunk()->set_crc32c(chunk_crc);
    writer->Write(message);
    writer->WritesDone();
    return FromGrpcStatus(writer->Finish());
  }

  absl::Status Commit(const std::string& id) {
    v1::CommitRequest request;
    *request.mutable_fence() = NewFence();
    request.set_checkpoint_id(id);
    v1::CommitResponse response;
    grpc::ClientContext context;
    SetDeadline(&context);
    return FromGrpcStatus(checkpoints_->Commit(&context, request, &response));
  }

  absl::StatusOr<std::string> Download(const std::string& id) {
    v1::DownloadRequest request;
    request.set_job("bare");
    request.set_checkpoint_id(id);
    grpc::ClientContext context;
    SetDeadline(&context);
    const auto reader = checkpoints_->Download(&context, request);
    std::string bytes;
    v1::DownloadChunk message;
    while (reader->Read(&message)) bytes += message.chunk().data();
    const grpc::Status status = reader->Finish();
    if (!status.ok()) return FromGrpcStatus(status);
    return bytes;
  }

 private:
  v1::Fence NewFence() {
    fence_.set_request_id(fence_.request_id() + 1);
    return fence_;
  }

  const std::shared_ptr<grpc::Channel> channel_;
  const std::unique_ptr<v1::Checkpoint::Stub> checkpoints_;
  v1::Fence fence_;
};

TEST(BadInputTest, AnUploadWithAWrongChecksumIsRefusedAndLoggedOnce) {
  ServedCoordinator coordinator;
  auto connected = std::make_unique<BareMember>(coordinator.address());
  BareMember& member = *connected;
  ASSERT_OK(member.Join());
  ASSERT_OK_AND_ASSIGN(const std::string id, member.Begin());
  const std::string bytes(300'000, 'x');
  const uint32_t right = Crc32c(bytes);
  const uint32_t wrong = right ^ 1;
  for (int i = 0; i < 3; ++i) {
    EXPECT_THAT(member.Upload(id, bytes, right, wrong),
                StatusIs(absl::StatusCode::kDataLoss,
                         AllOf(HasSubstr("shard 0"), HasSubstr("CRC-32C"),
                               HasSubstr("upload the shard again"))));
    EXPECT_THAT(member.Upload(id, bytes, wrong, right),
                StatusIs(absl::StatusCode::kDataLoss, HasSubstr("CRC-32C")));
  }
  EXPECT_THAT(member.Commit(id),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("0")));

  // Nothing is lost: the same shard, whole, is taken and kept.
  EXPECT_OK(member.Upload(id, bytes, right, right));
  EXPECT_THAT(member.Upload(id, bytes, wrong, right),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("CRC-32C")));
  EXPECT_OK(member.Commit(id));
  ASSERT_OK_AND_ASSIGN(const std::string kept, member.Download(id));
  EXPECT_EQ(kept, bytes);
  connected.reset();  // or the coordinator would wait for it to hang up
  // The others of that minute are counted.
  const std::string log = coordinator.Stop();
  EXPECT_THAT(LinesWith(log, " upload_refused "), SizeIs(1));
  EXPECT_THAT(LinesWith(log, "of=upload_refused lines=6"), SizeIs(1));
}

UniqueFd Connect(int port) {
  UniqueFd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(port);
  EXPECT_EQ(
      connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)),
      0);
  return fd;
}

void Send(const UniqueFd& fd, const std::string& bytes) {
  // The other side may have closed already.
  send(fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
}

// Reads until the other side closes; false at the deadline.
bool WaitUntilClosed(const UniqueFd& fd) {
  char data[4096];
  pollfd readable = {fd.get(), POLLIN, 0};
  while (poll(&readable, 1, absl::ToInt64Milliseconds(kTimeout)) > 0) {
    if (read(fd.get(), data, sizeof(data)) <= 0) return true;
  }
  return false;
}

std::string RandomBytes(uint64_t stream) {
  const CounterRandom random(/*seed=*/1, stream);
  std::string bytes;
  for (int i = 0; i < 2000; ++i) {
    bytes += static_cast<char>(random.Bits(i) & 0xff);
  }
  return bytes;
}

std::string Status(const ServedCoordinator& coordinator) {
  auto status = Start(
      {kCoxswain, "status", "--json", "--coordinator", coordinator.address()});
  ExpectExit(*status, 0);
  return status->out();
}

TEST(BadInputTest, GarbageAtThePortDisturbsNoWorker) {
  ServedCoordinator coordinator;
  Latch latch;
  auto launcher = Start(Launcher(
      {"--nproc", "2", "--job", "rows", "--coordinator", coordinator.address()},
      {"--steps", "40", "--wait-at", "20", "--latch", latch.path(),
       "--digest"}));
  ASSERT_OK(launcher->WaitForStdout("rank 0 at step 20\n", kTimeout));
  ASSERT_OK(launcher->WaitForStdout("rank 1 at step 20\n", kTimeout));

  for (int i = 0; i < 20; ++i) {
    const UniqueFd fd = Connect(coordinator.port());
    Send(fd, RandomBytes(i));
    EXPECT_TRUE(WaitUntilClosed(fd));
  }
  const std::string preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
  const std::string settings = std::string("\x00\x00\x00\x04\x00", 5) +
                               std::string("\x00\x00\x00\x00", 4);
  for (const std::string& text :
       {std::string("GET / HTTP/1.1\r\nHost: coxswain\r\n\r\n"),
        // A frame of a length that is not allowed.
        preface + settings +
            std::string("\xff\xff\xff\x00\x00\x00\x00\x00\x01", 9)}) {
    const UniqueFd fd = Connect(coordinator.port());
    Send(fd, text);
    EXPECT_TRUE(WaitUntilClosed(fd)) << text;
  }
  // Half a frame, and a connection that stays open to the end.
  UniqueFd half = Connect(coordinator.port());
  Send(half, preface + settings + std::string("\x00\x00\x40\x01\x04", 5));

  const auto status = nlohmann::json::parse(Status(coordinator));
  ASSERT_THAT(status["jobs"], SizeIs(1));
  const auto& job = status["jobs"][0];
  EXPECT_EQ(job["state"], "running");
  EXPECT_EQ(job["generation"], 1);
  ASSERT_THAT(job["members"], SizeIs(2));
  for (const auto& member : job["members"]) {
    EXPECT_EQ(member["state"], "attached");
  }

  latch.Open();
  ExpectExit(*launcher, 0);
  const auto digests = DigestsByRank(launcher->out());
  ASSERT_THAT(digests, SizeIs(2));
  EXPECT_THAT(digests.at(0), SizeIs(40));
  EXPECT_EQ(digests.at(0), digests.at(1));
  half.Close();
  const std::string log = coordinator.Stop();
  EXPECT_THAT(log, Not(HasSubstr("lost")));
  EXPECT_THAT(LinesWith(log, " connection_refused "),
              ElementsAre(AllOf(HasSubstr(" W "), HasSubstr("peer=127.0.0.1 "),
                                HasSubstr("it does not speak HTTP/2"))))
      << "one line for all of a peer's garbage";
  // Only the job's own events: a stranger cannot fill the log.
  EXPECT_THAT(LinesWith(log, " W "), SizeIs(Le(2))) << log;
  EXPECT_LT(LinesWith(log, "").size(), 30u) << log;
  EXPECT_THAT(StrayProcesses(), IsEmpty());
}

}  // namespace
}  // namespace coxswain
