#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "server/state/direct_writer.h"
#include "server/state/group_commit.h"
#include "tests/conformance/state_writer_conformance.h"

namespace coxswain::server {
namespace {

INSTANTIATE_TEST_SUITE_P(Direct, StateWriterConformance,
                         testing::Values(StateWriterMaker{
                             "direct", [](StateStore* store) {
                               return std::make_unique<DirectWriter>(store);
                             }}));

TEST(DirectWriterTest, EverythingHasHappenedWhenACallReturns) {
  ScriptedStateStore store;
  DirectWriter writer(&store);
  bool written = false;
  writer.Write(StateBatch().Put("table", "key", "value"),
               [&](const absl::Status& status) { written = status.ok(); });
  EXPECT_TRUE(written);
  bool after = false;
  writer.AfterWritten([&] { after = true; });
  EXPECT_TRUE(after);
}

INSTANTIATE_TEST_SUITE_P(Group, StateWriterConformance,
                         testing::Values(StateWriterMaker{
                             "group", [](StateStore* store) {
                               return std::make_unique<GroupCommit>(store);
                             }}));

class GroupCommitTest : public testing::Test {
 protected:
  // Makes everything that is written from now on wait for one commit.
  void HoldACommit(GroupCommit* writer) {
    store_.Hold();
    writer->Write(StateBatch().Put("table", "first", "x"), log_.Note("first"));
    ASSERT_TRUE(store_.WaitForApplies(1));
  }

  ScriptedStateStore store_;
  CallbackLog log_;
};

TEST_F(GroupCommitTest, AThousandWritesNeedFewCommits) {
  constexpr int kThreads = 10;
  constexpr int kWrites = 100;
  GroupCommit writer(&store_);
  HoldACommit(&writer);
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < kWrites; ++i) {
        writer.Write(StateBatch().Put("table", absl::StrCat(t, "-", i), "x"),
                     log_.Note("later"));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  store_.Release();
  WaitUntilWritten(&writer);
  EXPECT_EQ(log_.lines().size(), 1 + kThreads * kWrites);
  // As few as the limit allows.
  constexpr size_t kMost = StateStore::kMaxWrites;
  EXPECT_EQ(store_.applies(), 1 + (kThreads * kWrites + kMost - 1) / kMost);
  EXPECT_EQ(store_.most_writes(), kMost);
  EXPECT_EQ(store_.List("table")->size(), 1 + kThreads * kWrites);
}

TEST_F(GroupCommitTest, LargeBatchesAreNotPutTogetherPastTheLimit) {
  GroupCommit writer(&store_);
  HoldACommit(&writer);
  const std::string half(StateStore::kMaxBytes / 2, 'v');
  for (const char* key : {"a", "b", "c"}) {
    writer.Write(StateBatch().Put("table", key, half), log_.Note(key));
  }
  store_.Release();
  WaitUntilWritten(&writer);
  EXPECT_THAT(log_.lines(), testing::ElementsAre("first", "a", "b", "c"));
  EXPECT_EQ(store_.applies(), 4u);
}

TEST_F(GroupCommitTest, BatchesCommittedTogetherFailAlone) {
  GroupCommit writer(&store_);
  HoldACommit(&writer);
  store_.Refuse("bad");
  for (const char* key : {"a", "bad", "b"}) {
    writer.Write(StateBatch().Put("table", key, "x"), log_.Note(key));
  }
  store_.Release();
  WaitUntilWritten(&writer);
  EXPECT_THAT(log_.lines(),
              testing::ElementsAre("first", "a", "bad failed", "b"));
  EXPECT_EQ(store_.Get("table", "b").value_or("missing"), "x");
}

TEST_F(GroupCommitTest, NoCallbackComesBeforeItsCommit) {
  GroupCommit writer(&store_);
  HoldACommit(&writer);
  writer.Write(StateBatch().Put("table", "key", "x"), log_.Note("key"));
  writer.AfterWritten([this] { log_.Add("after"); });
  EXPECT_THAT(log_.lines(), testing::IsEmpty());
  store_.Release();
  WaitUntilWritten(&writer);
  EXPECT_THAT(log_.lines(), testing::ElementsAre("first", "key", "after"));
}

TEST_F(GroupCommitTest, TheDestructorCommitsWhatIsQueuedAndCallsBack) {
  auto writer = std::make_unique<GroupCommit>(&store_);
  HoldACommit(writer.get());
  for (int i = 0; i < 300; ++i) {
    writer->Write(StateBatch().Put("table", absl::StrCat(i), "x"),
                  log_.Note("later"));
  }
  store_.Release();
  writer.reset();
  EXPECT_EQ(log_.lines().size(), 301u);
  EXPECT_EQ(store_.List("table")->size(), 301u);
}

}  // namespace
}  // namespace coxswain::server
