#include "server/state/etcd/etcd_state_store.h"

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/status_matchers.h"
#include "tests/conformance/state_store_conformance.h"
#include "tests/support/etcd_server.h"
#include "tests/support/tcp_relay.h"

namespace coxswain::server {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Pair;

constexpr absl::Duration kTimeout = absl::Seconds(30);
// etcd gives no shorter one with its default election timeout.
constexpr absl::Duration kLease = absl::Seconds(2);
const absl::Duration kTakeover = kLease + absl::Seconds(2);

// One etcd for all tests that leave it alone.
EtcdServer& Shared() {
  static auto* const server = new std::unique_ptr<EtcdServer>(new EtcdServer);
  // Not by a static's destructor alone: gtest's own end comes first.
  static const bool registered = std::atexit([] { server->reset(); }) == 0;
  EXPECT_TRUE(registered);
  return **server;
}

EtcdOptions OptionsFor(const std::string& endpoint) {
  static std::atomic<int> count{0};
  EtcdOptions options;
  options.endpoints = {endpoint};
  options.prefix = absl::StrCat("test-", count++, "/");
  options.name = "first";
  options.lease = kLease;
  return options;
}

std::unique_ptr<EtcdStateStore> MustOpen(const EtcdOptions& options) {
  auto store = EtcdStateStore::Open(options, nullptr, nullptr);
  EXPECT_OK(store);
  return store.ok() ? std::move(store).value() : nullptr;
}

// Campaigns on a thread of its own.
class Candidate {
 public:
  explicit Candidate(EtcdOptions options) {
    options.name = "second";
    thread_ = std::thread([this, options] {
      auto store = EtcdStateStore::Open(
          options, &cancel_, [this](const std::string& leader, const auto&) {
            MutexLock lock(&mutex_);
            waits_for_ = leader;
            changed_.NotifyAll();
          });
      MutexLock lock(&mutex_);
      status_ = store.status();
      if (store.ok()) store_ = std::move(store).value();
      since_ = Clock::Real()->Now();
      done_ = true;
      changed_.NotifyAll();
    });
  }
  ~Candidate() {
    Cancel();
    thread_.join();
  }

  void Cancel() { cancel_.Raise(absl::CancelledError("enough")); }
  bool WaitsFor(const std::string& leader) {
    MutexLock lock(&mutex_);
    return changed_.WaitFor(
        &mutex_, kTimeout,
        [&]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return waits_for_ == leader; });
  }
  // Returns null if it does not lead in time.
  EtcdStateStore* Lead(absl::Duration timeout) {
    MutexLock lock(&mutex_);
    changed_.WaitFor(&mutex_, timeout,
                     [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return done_; });
    return store_.get();
  }
  absl::Status status() {
    Lead(kTimeout);
    MutexLock lock(&mutex_);
    return status_;
  }
  absl::Time since() {
    MutexLock lock(&mutex_);
    return since_;
  }

 private:
  CancelSignal cancel_;
  Mutex mutex_;
  CondVar changed_;
  std::string waits_for_ ABSL_GUARDED_BY(mutex_) = "?";
  bool done_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<EtcdStateStore> store_ ABSL_GUARDED_BY(mutex_);
  absl::Time since_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;
};

// A key as etcd has it.
etcdserverpb::KeyValue ReadKey(const EtcdOptions& options,
                               const std::string& key) {
  EtcdClient client({Shared().endpoint()});
  etcdserverpb::RangeRequest request;
  request.set_key(options.prefix + key);
  auto response = client.Range(request, kTimeout);
  EXPECT_OK(response);
  return response.ok() && response->kvs_size() == 1 ? response->kvs(0)
                                                    : etcdserverpb::KeyValue();
}

// Ends the leader's lease, as if it had not been renewed.
void EndLease(const EtcdOptions& options) {
  EtcdClient client({Shared().endpoint()});
  ASSERT_OK(client.RevokeLease(ReadKey(options, "leader").lease(), kTimeout));
}

INSTANTIATE_TEST_SUITE_P(Etcd, StateStoreConformance,
                         testing::Values(StateStoreMaker{
                             "etcd", [] {
                               return MustOpen(OptionsFor(Shared().endpoint()));
                             }}));

TEST(EtcdStateStoreTest, TheNextLeaderFindsWhatTheFirstHasWritten) {
  const EtcdOptions options = OptionsFor(Shared().endpoint());
  auto first = MustOpen(options);
  ASSERT_OK(first->Put("table", "key", "value"));
  Candidate second(options);
  EXPECT_TRUE(second.WaitsFor("first"));
  // It releases the lead: no coordinator waits for the lease.
  const absl::Time before = Clock::Real()->Now();
  first.reset();
  EtcdStateStore* const store = second.Lead(kTimeout);
  ASSERT_NE(store, nullptr);
  EXPECT_LT(second.since() - before, kLease / 2);
  EXPECT_EQ(store->Get("table", "key").value_or("missing"), "value");
  ASSERT_OK(store->Put("table", "key", "newer"));
}

TEST(EtcdStateStoreTest, ACampaignCanBeCancelled) {
  const EtcdOptions options = OptionsFor(Shared().endpoint());
  const auto first = MustOpen(options);
  Candidate second(options);
  EXPECT_TRUE(second.WaitsFor("first"));
  second.Cancel();
  EXPECT_THAT(second.status(),
              StatusIs(absl::StatusCode::kCancelled, "enough"));
  EXPECT_TRUE(first->Held());
}

TEST(EtcdStateStoreTest, ALeaderThatIsCutOffStopsBeforeTheNextOneLeads) {
  TcpRelay relay(Shared().port());
  EtcdOptions options = OptionsFor(absl::StrCat("127.0.0.1:", relay.port()));
  auto first = MustOpen(options);
  options.endpoints = {Shared().endpoint()};
  Candidate second(options);
  EXPECT_TRUE(second.WaitsFor("first"));

  const absl::Time cut = Clock::Real()->Now();
  relay.Set(TcpRelay::Mode::kHoldAll);
  EtcdStateStore* const store = second.Lead(kTimeout);
  // By the clock, also where no thread has had the time to raise `lost`.
  EXPECT_FALSE(first->Held());
  ASSERT_NE(store, nullptr);
  EXPECT_THAT(first->lost().status(),
              StatusIs(absl::StatusCode::kAborted, HasSubstr("not renewed")));
  EXPECT_LE(second.since() - cut, kTakeover);
  RecordProperty(
      "takeover_ms",
      static_cast<int>(absl::ToInt64Milliseconds(second.since() - cut)));
  EXPECT_THAT(first->Put("table", "key", "late"),
              StatusIs(absl::StatusCode::kAborted,
                       HasSubstr("does not lead any more")));
}

TEST(EtcdStateStoreTest, ALeaderWithoutItsLeaseChangesNothing) {
  const EtcdOptions options = OptionsFor(Shared().endpoint());
  auto first = MustOpen(options);
  ASSERT_OK(first->Put("table", "key", "old"));
  EndLease(options);
  // By its own clock it leads: by etcd it does not.
  EXPECT_THAT(first->Put("table", "key", "new"),
              StatusIs(absl::StatusCode::kAborted, HasSubstr("has ended")));
  EXPECT_FALSE(first->Held());
  EXPECT_EQ(first->Get("table", "key").value_or("missing"), "old");
  EXPECT_THAT(first->Put("table", "key", "new"),
              StatusIs(absl::StatusCode::kAborted, testing::_));
}

TEST(EtcdStateStoreTest, ADeposedLeaderChangesNothingAndLearnsWhoLeads) {
  const EtcdOptions options = OptionsFor(Shared().endpoint());
  auto first = MustOpen(options);
  Candidate second(options);
  EXPECT_TRUE(second.WaitsFor("first"));
  EndLease(options);
  EtcdStateStore* const store = second.Lead(kTakeover);
  ASSERT_NE(store, nullptr);
  ASSERT_OK(store->Put("table", "key", "second's"));
  EXPECT_THAT(first->Put("table", "key", "first's"),
              StatusIs(absl::StatusCode::kAborted,
                       testing::AnyOf(HasSubstr("second leads"),
                                      HasSubstr("has ended"))));
  EXPECT_EQ(store->Get("table", "key").value_or("missing"), "second's");
  EXPECT_TRUE(store->Held());
}

TEST(EtcdStateStoreTest, ALostAnswerIsFoundOutAndNothingIsDoneTwice) {
  TcpRelay relay(Shared().port());
  const EtcdOptions options =
      OptionsFor(absl::StrCat("127.0.0.1:", relay.port()));
  auto store = MustOpen(options);
  ASSERT_OK(store->Put("table", "key", "old"));
  const std::string key =
      absl::StrCat("state/table", std::string(1, '\0'), "key");

  relay.Set(TcpRelay::Mode::kHoldAnswers);
  absl::Status status = absl::UnknownError("not done");
  std::thread writer([&] { status = store->Put("table", "key", "new"); });
  etcdserverpb::KeyValue written;
  const absl::Time deadline = Clock::Real()->Now() + kLease;
  while (written.value() != "new" && Clock::Real()->Now() < deadline) {
    written = ReadKey(options, key);
  }
  EXPECT_EQ(written.value(), "new");
  relay.Break();
  relay.Set(TcpRelay::Mode::kOpen);
  writer.join();
  EXPECT_OK(status);
  EXPECT_EQ(ReadKey(options, key).mod_revision(), written.mod_revision());
  EXPECT_OK(store->Put("table", "key", "newest"));
  EXPECT_EQ(store->Get("table", "key").value_or("missing"), "newest");
}

// The copy of the first try may come as long as the mark is the same.
TEST(EtcdStateStoreTest, ARefusalAfterALostTryIsFinal) {
  EtcdServer server("--max-request-bytes 100000");
  TcpRelay relay(server.port());
  EtcdOptions options = OptionsFor(absl::StrCat("127.0.0.1:", relay.port()));
  options.lease = absl::Seconds(20);
  options.call_timeout = absl::Milliseconds(300);
  auto store = MustOpen(options);
  ASSERT_NE(store, nullptr);
  ASSERT_OK(store->Put("table", "key", "old"));
  EtcdClient client({server.endpoint()});
  etcdserverpb::RangeRequest commit;
  commit.set_key(options.prefix + "commit");
  ASSERT_OK_AND_ASSIGN(const auto before, client.Range(commit, kTimeout));

  relay.Set(TcpRelay::Mode::kHoldAll);
  absl::Status status;
  std::thread writer(
      [&] { status = store->Put("table", "key", std::string(200000, 'x')); });
  // Longer than one try.
  EXPECT_FALSE(store->lost().WaitFor(2 * options.call_timeout));
  relay.Break();
  relay.Set(TcpRelay::Mode::kOpen);
  writer.join();
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kUnavailable, testing::_));
  ASSERT_OK_AND_ASSIGN(const auto after, client.Range(commit, kTimeout));
  EXPECT_GT(after.kvs(0).mod_revision(), before.kvs(0).mod_revision());
  EXPECT_EQ(store->Get("table", "key").value_or("missing"), "old");
  EXPECT_OK(store->Put("table", "key", "new"));
}

TEST(EtcdStateStoreTest, ARestartOfEtcdDelaysWritesAndLosesNothing) {
  EtcdServer server;
  EtcdOptions options = OptionsFor(server.endpoint());
  options.lease = absl::Seconds(20);
  auto store = MustOpen(options);
  ASSERT_OK(store->Put("table", "before", "1"));
  server.Kill();
  absl::StatusOr<std::string> read = absl::UnknownError("not done");
  std::thread reader([&] { read = store->Get("table", "before"); });
  absl::Status status = absl::UnknownError("not done");
  std::thread writer([&] { status = store->Put("table", "during", "2"); });
  server.Restart();
  writer.join();
  reader.join();
  EXPECT_EQ(read.value_or(std::string(read.status().message())), "1");
  EXPECT_OK(status);
  ASSERT_OK(store->Put("table", "after", "3"));
  ASSERT_OK_AND_ASSIGN(const auto records, store->List("table"));
  EXPECT_THAT(records, ElementsAre(Pair("after", "3"), Pair("before", "1"),
                                   Pair("during", "2")));
}

TEST(EtcdStateStoreTest, WithoutEtcdACampaignReportsItAndGoesOn) {
  TcpRelay relay(Shared().port());
  EtcdOptions options = OptionsFor(absl::StrCat("127.0.0.1:", relay.port()));
  relay.Set(TcpRelay::Mode::kHoldAll);
  options.call_timeout = absl::Milliseconds(300);
  Candidate candidate(options);
  EXPECT_TRUE(candidate.WaitsFor(""));
  relay.Set(TcpRelay::Mode::kOpen);
  EXPECT_NE(candidate.Lead(kTimeout), nullptr);
}

TEST(EtcdStateStoreTest, TheNextMemberIsCalledWhereOneIsUnreachable) {
  EtcdOptions options = OptionsFor(Shared().endpoint());
  // No server listens on the first.
  options.endpoints.insert(options.endpoints.begin(), "127.0.0.1:1");
  auto store = MustOpen(options);
  ASSERT_NE(store, nullptr);
  EXPECT_OK(store->Put("table", "key", "value"));
}

TEST(EtcdStateStoreTest, ANewerFormatIsRefusedAndLeftAsItIs) {
  const EtcdOptions options = OptionsFor(Shared().endpoint());
  EtcdClient client({Shared().endpoint()});
  etcdserverpb::TxnRequest request;
  auto* put = request.add_success()->mutable_request_put();
  put->set_key(options.prefix + "format");
  put->set_value("2");
  ASSERT_OK(client.Txn(request, kTimeout));
  EXPECT_THAT(EtcdStateStore::Open(options, nullptr, nullptr),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr("format '2'"), HasSubstr("knows 1"))));
  EXPECT_EQ(ReadKey(options, "format").value(), "2");
  EXPECT_EQ(ReadKey(options, "leader").value(), "");
}

TEST(EtcdStateStoreTest, ABatchAsLargeAsMayBeIsCommitted) {
  auto store = MustOpen(OptionsFor(Shared().endpoint()));
  ASSERT_OK(store->Put("table", "gone", "1"));
  // Each key is put between two ranges that are deleted.
  StateBatch many;
  many.DeleteTable("table");
  while (many.writes().size() < store->limits().writes) {
    many.Put("table", absl::StrCat(many.writes().size()), "x");
  }
  ASSERT_OK(store->Apply(many));
  ASSERT_OK_AND_ASSIGN(auto records, store->List("table"));
  EXPECT_EQ(records.size(), store->limits().writes - 1);

  const std::string large(StateStore::kMaxBytes - 16, '\xff');
  ASSERT_OK(store->Put("table", "large", large));
  EXPECT_EQ(store->Get("table", "large").value_or("missing"), large);
  EXPECT_THAT(store->Put("table", "large", large + large),
              StatusIs(absl::StatusCode::kResourceExhausted, testing::_));
}

TEST(EtcdStateStoreTest, AFullEtcdFailsTheWriteAndNothingElse) {
  // etcd compares the quota with the size as of its last commit.
  EtcdServer server("--quota-backend-bytes 6000000 --backend-batch-limit 1");
  auto store = MustOpen(OptionsFor(server.endpoint()));
  ASSERT_NE(store, nullptr);
  const std::string value(1000000, 'x');
  absl::Status status;
  int written = 0;
  while (status.ok() && written < 20) {
    status = store->Put("table", absl::StrCat("key", written), value);
    if (status.ok()) ++written;
  }
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kUnavailable,
                               HasSubstr("--auto-compaction-retention")));
  EXPECT_TRUE(store->Held());
  EXPECT_THAT(store->Get("table", absl::StrCat("key", written)),
              StatusIs(absl::StatusCode::kNotFound, testing::_));
  ASSERT_OK_AND_ASSIGN(const auto records, store->List("table"));
  EXPECT_EQ(records.size(), written);
  EXPECT_THAT(store->Put("table", "small", "x"),
              StatusIs(absl::StatusCode::kUnavailable, testing::_));
}

TEST(EtcdStateStoreTest, MoreThanOnePageIsListed) {
  auto store = MustOpen(OptionsFor(Shared().endpoint()));
  constexpr int kRecords = 300;
  for (int i = 0; i < kRecords; i += 100) {
    StateBatch batch;
    for (int k = i; k < i + 100; ++k) {
      batch.Put("b", absl::StrCat(1000 + k), absl::StrCat(k));
    }
    ASSERT_OK(store->Apply(batch));
  }
  ASSERT_OK(store->Apply(StateBatch().Put("a", "", "").Put("c", "", "")));
  ASSERT_OK_AND_ASSIGN(const auto records, store->List("b"));
  ASSERT_EQ(records.size(), kRecords);
  EXPECT_THAT(records.back(), Pair("1299", "299"));
  ASSERT_OK_AND_ASSIGN(const auto tables, store->Tables(""));
  EXPECT_THAT(tables, ElementsAre("a", "b", "c"));
  ASSERT_OK(store->Apply(StateBatch().DeleteTable("b")));
  ASSERT_OK_AND_ASSIGN(const auto none, store->List("b"));
  EXPECT_THAT(none, IsEmpty());
}

}  // namespace
}  // namespace coxswain::server
