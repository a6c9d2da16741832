// The keys by which the workers of a generation encrypt what they exchange,
// from a coordinator that is spoken to with TLS.
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/mutex.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "client/comm/work.h"
#include "client/rpc/forwarding_coordinator_stub.h"
#include "client/rpc/stub_factory.h"
#include "client/session/session.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/coordinator.h"
#include "tests/security/test_certificates.h"
#include "tests/support/in_threads.h"

namespace coxswain::data_encryption_test {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;
using testing::SizeIs;
using testing::UnorderedElementsAre;

constexpr absl::Duration kTimeout = absl::Seconds(60);
constexpr char kJob[] = "mnist";

// The keys that answers to Join had, by generation: of those that arrived.
class SeenKeys {
 public:
  void Note(int64_t generation, const std::string& key) {
    MutexLock lock(&mutex_);
    keys_[generation].push_back(key);
    noted_.NotifyAll();
  }
  std::map<int64_t, std::vector<std::string>> all() {
    MutexLock lock(&mutex_);
    return keys_;
  }
  // Returns whether there was one within `timeout`.
  bool AwaitOne(absl::Duration timeout) {
    MutexLock lock(&mutex_);
    return noted_.WaitFor(&mutex_, timeout,
                          [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
                            return !keys_.empty();
                          });
  }

 private:
  Mutex mutex_;
  CondVar noted_;
  std::map<int64_t, std::vector<std::string>> keys_ ABSL_GUARDED_BY(mutex_);
};

class NotesKeys : public ForwardingCoordinatorStub {
 public:
  // `lose` is called with each answer; true: it does not arrive.
  NotesKeys(std::shared_ptr<CoordinatorStub> stub, SeenKeys* seen,
            std::function<bool(const v1::JoinResponse&)> lose)
      : ForwardingCoordinatorStub(std::move(stub)),
        seen_(*seen),
        lose_(std::move(lose)) {}

  absl::Status Call(absl::string_view method,
                    const google::protobuf::MessageLite& request,
                    google::protobuf::MessageLite* response,
                    const CallOptions& options) override {
    absl::Status status = stub().Call(method, request, response, options);
    const auto* const joined = dynamic_cast<v1::JoinResponse*>(response);
    if (status.ok() && joined != nullptr) {
      if (lose_ != nullptr && lose_(*joined)) {
        response->Clear();
        return absl::UnavailableError("the connection was lost");
      }
      seen_.Note(joined->generation(), joined->data_key());
    }
    return status;
  }

 private:
  SeenKeys& seen_;
  const std::function<bool(const v1::JoinResponse&)> lose_;
};

class DataEncryptionTest : public testing::Test {
 protected:
  DataEncryptionTest()
      : files_(absl::StrCat(
            "data-encryption-",
            testing::UnitTest::GetInstance()->current_test_info()->name())),
        of_job_(files_.Job(kJob)) {}

  // Again: on the same port, with the same state.
  void Serve(bool tls) {
    server::CoordinatorOptions options;
    options.listen = absl::StrCat("127.0.0.1:", port_);
    options.state_dir = files_.Path("state");
    options.membership.last_call = last_call_;
    // Of a rank that waits for one that cannot connect; longer than what a
    // rank waits before it calls a restarted coordinator again.
    options.membership.rejoin_grace = absl::Seconds(3);
    if (tls) options.security.tls = files_.Coordinator();
    ASSERT_OK_AND_ASSIGN(coordinator_, server::Coordinator::Start(options));
    if (port_ == 0) port_ = coordinator_->port();
  }

  SessionOptions OptionsOf(int slot, bool tls) {
    SessionOptions options;
    options.coordinator = absl::StrCat("127.0.0.1:", port_);
    if (tls) options.security.tls = of_job_;
    options.job = kJob;
    options.identity = {"host-a", slot};
    options.local_rank = slot;
    options.world_size = 2;
    options.backend = "tcp";
    options.join_timeout = kTimeout;
    options.collective_timeout = kTimeout;
    options.stub_factory =
        [this, slot, security = options.security](const std::string& address) {
          return std::make_shared<NotesKeys>(
              ConnectWithoutRetries(address, security), &seen_,
              slot == 1 ? lose_ : nullptr);
        };
    return options;
  }

  // Two workers join, sum something and leave. Returns how each has ended.
  std::vector<absl::Status> RunJob(bool tls, bool plain_on_one = false) {
    std::vector<absl::Status> ends(2);
    InThreads(2, [&](int slot) {
      SessionOptions options = OptionsOf(slot, tls);
      options.plain_data = plain_on_one && slot == 1;
      absl::Status& end = ends[static_cast<size_t>(slot)];
      auto session = Session::Join(options, {});
      end = session.status();
      if (!session.ok()) return;
      auto world = (*session)->World();
      end = world.status();
      if (!world.ok()) return;
      end = SumUp((*world)->communicator(), slot);
      if (end.ok()) end = (*session)->Leave("done");
    });
    return ends;
  }

  static absl::Status SumUp(Communicator& communicator, int slot) {
    EXPECT_EQ(communicator.backend(), "tcp");
    std::vector<float> data(100000, static_cast<float>(slot + 1));
    Span span;
    span.data = data.data();
    span.count = static_cast<int64_t>(data.size());
    COXSWAIN_RETURN_IF_ERROR(communicator.AllReduce(span)->Wait(kTimeout));
    EXPECT_EQ(data, std::vector<float>(data.size(), 3));
    return absl::OkStatus();
  }

  // As RunJob, but whose generation ends joins the next one.
  void RunElasticJob() {
    InThreads(2, [&](int slot) {
      auto session = Session::Join(OptionsOf(slot, /*tls=*/true), {});
      absl::Status end;
      for (int generations = 0; generations < 4; ++generations) {
        ASSERT_OK(session);
        auto world = (*session)->World();
        end = world.status();
        if (world.ok()) end = SumUp((*world)->communicator(), slot);
        if (end.ok()) break;
        failures_.Note((*session)->generation(), std::string(end.message()));
        session = (*session)->Rejoin();
      }
      EXPECT_OK(end);
      EXPECT_OK((*session)->Leave("done"));
    });
  }

  // A member trains, and a worker that does not as it does wants to join.
  void ExpectNewcomerIsRefused(bool members_encrypt) {
    last_call_ = absl::Milliseconds(200);
    Serve(/*tls=*/true);
    SessionOptions member = OptionsOf(0, /*tls=*/true);
    member.min_world_size = 1;
    member.plain_data = !members_encrypt;
    SessionOptions newcomer = OptionsOf(1, /*tls=*/true);
    newcomer.min_world_size = 1;
    newcomer.plain_data = members_encrypt;
    newcomer.catch_up_address = "127.0.0.1:7";
    newcomer.catch_up_secret = 1;
    ASSERT_OK_AND_ASSIGN(const auto session, Session::Join(member, {}));
    EXPECT_EQ(session->world_size(), 1);
    EXPECT_THAT(Session::Join(newcomer, {}),
                StatusIs(absl::StatusCode::kFailedPrecondition,
                         AllOf(HasSubstr("already runs with another manifest"),
                               HasSubstr("setting data_encryption: "))));
    EXPECT_OK(session->status()) << "the member has noticed it";
    EXPECT_OK(session->World());
    EXPECT_OK(session->Leave("done"));
  }

  std::string AllOfTheState() {
    std::string all;
    for (const auto& entry :
         std::filesystem::recursive_directory_iterator(files_.Path("state"))) {
      if (!entry.is_regular_file()) continue;
      std::ifstream file(entry.path(), std::ios::binary);
      all.append(std::istreambuf_iterator<char>(file), {});
    }
    return all;
  }

  TestCertificates files_;
  const TlsFiles of_job_;
  SeenKeys seen_;
  SeenKeys failures_;  // messages in place of keys
  std::function<bool(const v1::JoinResponse&)> lose_;  // answers to slot 1
  absl::Duration last_call_ = absl::Seconds(5);
  int port_ = 0;
  std::unique_ptr<server::Coordinator> coordinator_;
};

TEST_F(DataEncryptionTest, EachGenerationHasAKeyThatIsKeptNowhere) {
  Serve(/*tls=*/true);
  testing::internal::CaptureStderr();
  for (int round = 0; round < 2; ++round) {
    for (const absl::Status& end : RunJob(/*tls=*/true)) EXPECT_OK(end);
  }
  coordinator_.reset();
  const std::string log = testing::internal::GetCapturedStderr();
  EXPECT_THAT(log, HasSubstr("generation_began"));
  const std::string state = AllOfTheState();
  EXPECT_THAT(state, HasSubstr(kJob));
  const auto keys = seen_.all();
  ASSERT_EQ(keys.size(), 2u);
  for (const auto& [generation, of_ranks] : keys) {
    ASSERT_EQ(of_ranks.size(), 2u);
    EXPECT_EQ(of_ranks[0], of_ranks[1]);
    const std::string& key = of_ranks[0];
    ASSERT_EQ(key.size(), 32u);
    for (const std::string& text : {log, state}) {
      EXPECT_EQ(text.find(key), std::string::npos);
      // As a log would show it, or a part of it.
      const std::string part = key.substr(8, 8);
      for (const std::string& shown :
           {absl::BytesToHexString(part), absl::CHexEscape(part),
            absl::CEscape(part)}) {
        EXPECT_EQ(text.find(shown), std::string::npos);
      }
    }
  }
  EXPECT_NE(keys.begin()->second[0], keys.rbegin()->second[0]);
}

// The answer alone: the coordinator that gave it still has the key.
TEST_F(DataEncryptionTest, AWorkerThatAsksAgainHasTheKeyOfTheOthers) {
  Serve(/*tls=*/true);
  bool lost = false;
  lose_ = [&](const v1::JoinResponse&) { return !std::exchange(lost, true); };
  for (const absl::Status& end : RunJob(/*tls=*/true)) EXPECT_OK(end);
  EXPECT_TRUE(lost);
  const auto keys = seen_.all();
  ASSERT_EQ(keys.size(), 1u);
  ASSERT_EQ(keys.begin()->second.size(), 2u);
  EXPECT_EQ(keys.begin()->second[0], keys.begin()->second[1]);
  EXPECT_EQ(keys.begin()->second[0].size(), 32u);
}

// With the coordinator its key is gone: that generation ends, and in the next
// one all have the same again.
TEST_F(DataEncryptionTest, AnAnswerLostInARestartEndsItsGeneration) {
  Serve(/*tls=*/true);
  bool lost = false;
  lose_ = [&](const v1::JoinResponse&) {
    if (std::exchange(lost, true)) return false;
    // Else the restart may lose both answers.
    EXPECT_TRUE(seen_.AwaitOne(kTimeout));
    coordinator_.reset();
    Serve(/*tls=*/true);
    return true;
  };
  RunElasticJob();
  EXPECT_TRUE(lost);
  const auto keys = seen_.all();
  ASSERT_EQ(keys.size(), 2u);
  EXPECT_THAT(keys.begin()->second, UnorderedElementsAre("", SizeIs(32)));
  const std::vector<std::string>& next = keys.rbegin()->second;
  EXPECT_THAT(next, ElementsAre(SizeIs(32), SizeIs(32)));
  EXPECT_EQ(next[0], next[1]);
  EXPECT_THAT(keys.begin()->second, Not(Contains(next[0])));
  const auto failures = failures_.all();
  ASSERT_EQ(failures.size(), 1u);
  EXPECT_THAT(failures.begin()->second,
              Contains(AllOf(HasSubstr("to be encrypted"),
                             HasSubstr("lost it in a restart"))));
}

TEST_F(DataEncryptionTest, InPlainTextThereIsNoKey) {
  Serve(/*tls=*/false);
  for (const absl::Status& end : RunJob(/*tls=*/false)) EXPECT_OK(end);
  for (const auto& [generation, of_ranks] : seen_.all()) {
    for (const std::string& key : of_ranks) EXPECT_EQ(key, "");
  }
}

TEST_F(DataEncryptionTest, OneThatDoesNotEncryptIsAnError) {
  Serve(/*tls=*/true);
  for (const absl::Status& end : RunJob(/*tls=*/true, /*plain_on_one=*/true)) {
    EXPECT_THAT(end, StatusIs(absl::StatusCode::kFailedPrecondition,
                              HasSubstr("setting data_encryption: ")));
  }
}

// Otherwise the members would regroup with it, and could not connect.
TEST_F(DataEncryptionTest, ANewcomerThatDoesNotEncryptIsRefused) {
  ExpectNewcomerIsRefused(/*members_encrypt=*/true);
}

TEST_F(DataEncryptionTest, ANewcomerThatAloneEncryptsIsRefused) {
  ExpectNewcomerIsRefused(/*members_encrypt=*/false);
}

}  // namespace
}  // namespace coxswain::data_encryption_test
