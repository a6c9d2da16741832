#include "server/state/cluster_records.h"

#include <unistd.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/random.h"
#include "base/status_matchers.h"
#include "proto/state.pb.h"
#include "proto/types.pb.h"
#include "server/state/memory_state_store.h"
#include "server/state/quarantine.h"
#include "server/state/sqlite_state_store.h"
#include "sqlite3.h"

namespace coxswain::server {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::ElementsAre;
using testing::Field;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

const std::vector<std::string>& Keys() {
  static const auto* const keys = new std::vector<std::string>{
      "schema", "id", "next_term", "next_generation", "next_plan_version"};
  return *keys;
}

class CountedRandom : public RandomSource {
 public:
  uint64_t Next() override { return Mix64(++count_); }

 private:
  uint64_t count_ = 0;
};

ClusterRecords SomeRecords() {
  ClusterRecords records;
  records.id = "cafe";
  records.next_term = 3;
  records.next_generation = 17;
  records.next_plan_version = 5;
  return records;
}

void Fill(StateStore* store) {
  StateBatch batch;
  PutClusterRecords(SomeRecords(), &batch);
  batch.Put("jobs", "job", "?").Put("members/41", "block/0", "?");
  ASSERT_OK(store->Apply(batch));
}

void ExpectSame(const ClusterRecords& read, const ClusterRecords& written) {
  EXPECT_EQ(read.id, written.id);
  EXPECT_EQ(read.next_term, written.next_term);
  EXPECT_EQ(read.next_generation, written.next_generation);
  EXPECT_EQ(read.next_plan_version, written.next_plan_version);
}

const auto kRefused =
    StatusIs(absl::StatusCode::kDataLoss,
             AllOf(HasSubstr("--repair-state"), HasSubstr("backup")));

TEST(ClusterRecordsTest, AnEmptyStoreIsANewState) {
  MemoryStateStore store;
  ASSERT_OK_AND_ASSIGN(const ClusterRecords records, ReadClusterRecords(store));
  EXPECT_EQ(records.id, "");
  EXPECT_EQ(records.next_term, 1);
  EXPECT_EQ(records.next_generation, 1);
  EXPECT_FALSE(records.next_plan_version.has_value());
}

TEST(ClusterRecordsTest, WhatIsWrittenIsRead) {
  MemoryStateStore store;
  Fill(&store);
  ASSERT_OK_AND_ASSIGN(ClusterRecords records, ReadClusterRecords(store));
  ExpectSame(records, SomeRecords());
  StateBatch batch;
  PutNextGeneration(18, &batch);
  PutNextPlanVersion(6, &batch);
  ASSERT_OK(store.Apply(batch));
  ASSERT_OK_AND_ASSIGN(records, ReadClusterRecords(store));
  EXPECT_EQ(records.next_generation, 18);
  EXPECT_EQ(records.next_plan_version, 6);
  EXPECT_EQ(*ReadNextPlanVersion(store), 6);
}

// Missing, cut off, with any byte changed, and without a checksum.
TEST(ClusterRecordsTest, ARecordThatIsNotAsItWasWrittenIsRefused) {
  MemoryStateStore store;
  Fill(&store);
  for (const std::string& key : Keys()) {
    SCOPED_TRACE(key);
    ASSERT_OK_AND_ASSIGN(const std::string good, store.Get("cluster", key));
    std::vector<std::string> wrong = {"", "0", "-1", "7", "?", good + " "};
    for (size_t i = 0; i < good.size(); ++i) {
      wrong.push_back(good.substr(0, i));
      wrong.push_back(good);
      wrong.back()[i] ^= 1;
    }
    for (const std::string& value : wrong) {
      ASSERT_OK(store.Put("cluster", key, value));
      EXPECT_THAT(ReadClusterRecords(store), kRefused) << value;
    }
    ASSERT_OK(store.Delete("cluster", key));
    EXPECT_THAT(ReadClusterRecords(store), kRefused);
    ASSERT_OK(store.Put("cluster", key, good));
  }
  ASSERT_OK_AND_ASSIGN(const ClusterRecords records, ReadClusterRecords(store));
  ExpectSame(records, SomeRecords());
}

TEST(ClusterRecordsTest, JobsWithoutTheClusterAreRefused) {
  MemoryStateStore store;
  Fill(&store);
  ASSERT_OK(store.Apply(StateBatch().DeleteTable("cluster")));
  EXPECT_THAT(ReadClusterRecords(store), kRefused);
}

TEST(ClusterRecordsTest, ANewerSchemaIsRefusedAndNotRepaired) {
  MemoryStateStore newer;
  Fill(&newer);
  // As the coordinator that knows schema 4 writes it.
  ASSERT_OK(newer.Put("cluster", "schema", "4 1512f314"));
  const absl::Status refused = ReadClusterRecords(newer).status();
  EXPECT_THAT(refused, StatusIs(absl::StatusCode::kFailedPrecondition,
                                HasSubstr("newer")));
  CountedRandom random;
  EXPECT_EQ(RepairClusterRecords(&random, &newer), refused);
  EXPECT_EQ(newer.Get("cluster", "schema").value_or(""), "4 1512f314");
}

TEST(ClusterRecordsTest, AStateFromBeforeThereWasASchemaIsRead) {
  MemoryStateStore store;
  ASSERT_OK(store.Apply(StateBatch()
                            .Put("cluster", "id", "cafe")
                            .Put("cluster", "next_term", "4")));
  ASSERT_OK_AND_ASSIGN(ClusterRecords records, ReadClusterRecords(store));
  EXPECT_EQ(records.id, "cafe");
  EXPECT_EQ(records.next_term, 4);
  EXPECT_EQ(records.next_generation, 1);
  ASSERT_OK(store.Apply(StateBatch()
                            .Put("cluster", "next_generation", "9")
                            .Put("jobs", "job", "?")));
  ASSERT_OK_AND_ASSIGN(records, ReadClusterRecords(store));
  EXPECT_EQ(records.next_generation, 9);
  EXPECT_FALSE(records.next_plan_version.has_value());
  for (const char* key : {"id", "next_term", "next_generation"}) {
    ASSERT_OK_AND_ASSIGN(const std::string good, store.Get("cluster", key));
    ASSERT_OK(store.Delete("cluster", key));
    EXPECT_THAT(ReadClusterRecords(store), kRefused) << key;
    ASSERT_OK(store.Put("cluster", key, ""));
    EXPECT_THAT(ReadClusterRecords(store), kRefused) << key;
    ASSERT_OK(store.Put("cluster", key, good));
  }
}

TEST(ClusterRecordsTest, ARepairBeginsANewClusterWithHigherNumbers) {
  CountedRandom random;
  for (const std::string& key : Keys()) {
    SCOPED_TRACE(key);
    MemoryStateStore store;
    Fill(&store);
    ASSERT_OK(store.Put("cluster", key, "lost\xff"));
    ASSERT_OK(RepairClusterRecords(&random, &store));
    ASSERT_OK_AND_ASSIGN(const ClusterRecords records,
                         ReadClusterRecords(store));
    EXPECT_THAT(records.id, SizeIs(32));
    EXPECT_GE(records.next_term, 3);
    EXPECT_GT(records.next_generation, 41);
    EXPECT_GE(*records.next_plan_version, 5);
    EXPECT_EQ(store.Get("jobs", "job").value_or(""), "?");
    ASSERT_OK_AND_ASSIGN(const auto quarantined, ListQuarantined(store));
    EXPECT_THAT(quarantined,
                Contains(AllOf(Field(&QuarantinedRecord::table, "cluster"),
                               Field(&QuarantinedRecord::key, key),
                               Field(&QuarantinedRecord::bytes, 5u))));
    // Once is enough.
    ASSERT_OK(RepairClusterRecords(&random, &store));
    ASSERT_OK_AND_ASSIGN(const ClusterRecords again, ReadClusterRecords(store));
    ExpectSame(again, records);
  }
}

// Whatever is lost of the numbers, and however often.
TEST(ClusterRecordsTest, RepairsInARowGiveNoNumberTwice) {
  CountedRandom random;
  MemoryStateStore store;
  Fill(&store);
  ClusterRecords last = SomeRecords();
  const std::vector<std::function<absl::Status()>> losses = {
      [&] { return store.Put("cluster", "next_term", "?"); },
      [&] { return store.Put("cluster", "next_plan_version", ""); },
      [&] { return store.Delete("cluster", "next_generation"); },
      [&] { return store.Apply(StateBatch().DeleteTable("cluster")); },
      [&] { return store.Put("cluster", "id", "?"); },
      [&] { return store.Apply(StateBatch().DeleteTable("cluster")); }};
  for (int round = 0; round < 3; ++round) {
    for (const auto& lose : losses) {
      // As it is used.
      last.next_term += 3;
      last.next_generation += 4;
      *last.next_plan_version += 5;
      StateBatch used;
      PutClusterRecords(last, &used);
      ASSERT_OK(store.Apply(used));
      ASSERT_OK(lose());
      ASSERT_OK(RepairClusterRecords(&random, &store));
      ASSERT_OK_AND_ASSIGN(const ClusterRecords next,
                           ReadClusterRecords(store));
      EXPECT_GE(next.next_term, last.next_term);
      EXPECT_GE(next.next_generation, last.next_generation);
      EXPECT_GE(*next.next_plan_version, *last.next_plan_version);
      last = next;
    }
  }
}

// Also when the quarantine has been emptied since an earlier repair.
TEST(ClusterRecordsTest, ARepairGoesAboveWhatJobsAndPlansHave) {
  constexpr int64_t kHigh = int64_t{1} << 40;
  CountedRandom random;
  MemoryStateStore store;
  Fill(&store);
  state::v1::Job job;
  job.set_generation(kHigh);
  v1::Plan current;
  current.set_version(kHigh + 1);
  v1::Plan next;
  next.set_version(kHigh + 2);
  ASSERT_OK(
      store.Apply(StateBatch()
                      .DeleteTable("cluster")
                      .Put("jobs", "job", job.SerializeAsString())
                      .Put("jobs", "other", "?")
                      .Put("plan.current", "job", current.SerializeAsString())
                      .Put("plan.next", "job", next.SerializeAsString())));
  ASSERT_OK(RepairClusterRecords(&random, &store));
  ASSERT_OK_AND_ASSIGN(const ClusterRecords records, ReadClusterRecords(store));
  EXPECT_GT(records.next_generation, kHigh);
  EXPECT_GT(*records.next_plan_version, kHigh + 2);
}

class CountedStore : public MemoryStateStore {
 public:
  absl::Status Apply(const StateBatch& batch) override {
    ++batches;
    return MemoryStateStore::Apply(batch);
  }
  int batches = 0;
};

// So that it is done or not, whenever the coordinator dies.
TEST(ClusterRecordsTest, ARepairIsOneBatch) {
  CountedRandom random;
  CountedStore store;
  Fill(&store);
  ASSERT_OK(store.Put("cluster", "next_term", "?"));
  store.batches = 0;
  ASSERT_OK(RepairClusterRecords(&random, &store));
  EXPECT_EQ(store.batches, 1);
  EXPECT_THAT(*ListQuarantined(store), SizeIs(5));
}

TEST(ClusterRecordsTest, ARepairDoesNothingToANewState) {
  CountedRandom random;
  MemoryStateStore store;
  ASSERT_OK(RepairClusterRecords(&random, &store));
  EXPECT_THAT(*store.Tables(""), IsEmpty());
}

TEST(QuarantineTest, RecordsAreKeptByteForByteEachTime) {
  MemoryStateStore store;
  const std::string key("a\0/b", 4);
  for (const std::string& value : {std::string("\0\xff", 2), std::string()}) {
    ASSERT_OK(store.Put("table/7", key, value));
    ASSERT_OK(
        QuarantineRecords({{"table/7", key, value, "job", "why"}}, &store));
  }
  EXPECT_THAT(*store.Tables("table/"), IsEmpty());
  ASSERT_OK_AND_ASSIGN(const auto quarantined, ListQuarantined(store));
  ASSERT_THAT(quarantined, SizeIs(2));
  for (const QuarantinedRecord& record : quarantined) {
    EXPECT_EQ(record.table, "table/7");
    EXPECT_EQ(record.key, key);
    EXPECT_EQ(record.job, "job");
    EXPECT_EQ(record.reason, "why");
    EXPECT_TRUE(record.name_known);
  }
  ASSERT_OK_AND_ASSIGN(const auto values, store.List("quarantine"));
  EXPECT_EQ(values[0].second, std::string("\0\xff", 2));
  EXPECT_EQ(values[1].second, "");
}

TEST(QuarantineTest, MoreThanOneBatchHoldsIsMoved) {
  MemoryStateStore store;
  std::vector<UnreadableRecord> records;
  for (int i = 0; i < 300; ++i) {
    records.push_back({"t", absl::StrCat(i), std::string(10000, 'x'), "", "?"});
    ASSERT_OK(store.Put("t", records.back().key, records.back().value));
  }
  ASSERT_OK(QuarantineRecords(records, &store));
  EXPECT_THAT(*store.List("t"), IsEmpty());
  EXPECT_THAT(*ListQuarantined(store), SizeIs(300));
}

TEST(QuarantineTest, WhatSqliteFindsDamagedIsMoved) {
  const std::string path =
      absl::StrCat(testing::TempDir(), "/quarantine-", getpid(), ".sqlite");
  const auto spoil = [&path](const std::string& where) {
    sqlite3* db = nullptr;
    ASSERT_EQ(sqlite3_open(path.c_str(), &db), SQLITE_OK);
    const std::string sql =
        absl::StrCat("UPDATE state SET crc = crc + 1 WHERE ", where);
    EXPECT_EQ(sqlite3_exec(db, sql.c_str(), nullptr, nullptr, nullptr),
              SQLITE_OK);
    sqlite3_close(db);
  };
  {
    ASSERT_OK_AND_ASSIGN(const auto store, SqliteStateStore::Open(path));
    Fill(store.get());
    ASSERT_OK(store->Put("plan.a", "job", "1"));
    ASSERT_OK(store->Put("plan.b", "job", "2"));
    ASSERT_OK(store->Put("plan.b", "other", "3"));
  }
  spoil("room = CAST('plan.a' AS BLOB) OR room = CAST('members/41' AS BLOB)");
  for (int start = 0; start < 2; ++start) {
    ASSERT_OK_AND_ASSIGN(const auto store, SqliteStateStore::Open(path));
    if (start == 0) {
      EXPECT_THAT(store->List("plan.a"),
                  StatusIs(absl::StatusCode::kDataLoss, testing::_));
    }
    ASSERT_OK(QuarantineDamaged({"plan.a", "plan.b"}, store.get()));
    EXPECT_THAT(*store->List("plan.a"), IsEmpty());
    EXPECT_THAT(*store->List("plan.b"),
                ElementsAre(StateStore::Record("other", "3")));
    EXPECT_THAT(*store->List("members/41"), IsEmpty());
    EXPECT_EQ(store->Get("jobs", "job").value_or(""), "?");
    ASSERT_OK_AND_ASSIGN(const auto quarantined, ListQuarantined(*store));
    EXPECT_THAT(quarantined, SizeIs(3));
    EXPECT_THAT(quarantined,
                Contains(AllOf(Field(&QuarantinedRecord::table, "plan.a"),
                               Field(&QuarantinedRecord::name_known, false))));
    EXPECT_THAT(quarantined,
                Contains(AllOf(Field(&QuarantinedRecord::table, "plan.b"),
                               Field(&QuarantinedRecord::name_known, true))));
    EXPECT_OK(ReadClusterRecords(*store));
  }
  // What is in quarantine itself is kept there, and read again.
  spoil("room = CAST('quarantine' AS BLOB)");
  ASSERT_OK_AND_ASSIGN(const auto store, SqliteStateStore::Open(path));
  ASSERT_OK(QuarantineDamaged({}, store.get()));
  EXPECT_THAT(*ListQuarantined(*store), SizeIs(3));
}

TEST(QuarantineTest, TheClusterIsLeftWhereItIs) {
  const std::string path =
      absl::StrCat(testing::TempDir(), "/cluster-", getpid(), ".sqlite");
  {
    ASSERT_OK_AND_ASSIGN(const auto store, SqliteStateStore::Open(path));
    Fill(store.get());
  }
  sqlite3* db = nullptr;
  ASSERT_EQ(sqlite3_open(path.c_str(), &db), SQLITE_OK);
  EXPECT_EQ(sqlite3_exec(db,
                         "UPDATE state SET value = x'00' WHERE key = "
                         "CAST('next_term' AS BLOB)",
                         nullptr, nullptr, nullptr),
            SQLITE_OK);
  sqlite3_close(db);
  ASSERT_OK_AND_ASSIGN(const auto store, SqliteStateStore::Open(path));
  EXPECT_THAT(ReadClusterRecords(*store), kRefused);
  ASSERT_OK(QuarantineDamaged({}, store.get()));
  EXPECT_THAT(*ListQuarantined(*store), IsEmpty());
  EXPECT_THAT(ReadClusterRecords(*store), kRefused);
  CountedRandom random;
  ASSERT_OK(RepairClusterRecords(&random, store.get()));
  EXPECT_OK(ReadClusterRecords(*store));
  EXPECT_THAT(*ListQuarantined(*store), SizeIs(5));
}

TEST(QuarantineTest, DamageOfItIsNoObstacleToARepair) {
  const std::string path =
      absl::StrCat(testing::TempDir(), "/repair-", getpid(), ".sqlite");
  {
    ASSERT_OK_AND_ASSIGN(const auto store, SqliteStateStore::Open(path));
    Fill(store.get());
    ASSERT_OK(QuarantineRecords({{"members/41", "block/0", "?", "", "why"}},
                                store.get()));
  }
  sqlite3* db = nullptr;
  ASSERT_EQ(sqlite3_open(path.c_str(), &db), SQLITE_OK);
  EXPECT_EQ(sqlite3_exec(db, "UPDATE state SET crc = crc + 1", nullptr, nullptr,
                         nullptr),
            SQLITE_OK);
  sqlite3_close(db);
  ASSERT_OK_AND_ASSIGN(const auto store, SqliteStateStore::Open(path));
  EXPECT_THAT(ReadClusterRecords(*store), kRefused);
  CountedRandom random;
  ASSERT_OK(RepairClusterRecords(&random, store.get()));
  EXPECT_OK(ReadClusterRecords(*store));
  // The first, the job's record, and those of the cluster.
  EXPECT_THAT(*ListQuarantined(*store), SizeIs(7));
}

}  // namespace
}  // namespace coxswain::server
