#include "server/state/earlier_records.h"

#include <unistd.h>

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/random.h"
#include "base/status_matchers.h"
#include "proto/state.pb.h"
#include "proto/types.pb.h"
#include "server/state/cluster_records.h"
#include "server/state/earlier_forms.h"
#include "server/state/memory_state_store.h"
#include "server/state/quarantine.h"
#include "server/state/record.h"
#include "server/state/sqlite_state_store.h"
#include "sqlite3.h"
#include "tests/conformance/scripted_state_store.h"

namespace coxswain::server {
namespace {

using testing::IsEmpty;
using testing::SizeIs;

// As coordinators of these schemas have written them: an older coordinator
// refuses the last two.
constexpr char kSchema1[] = "1 20e3e708";
constexpr char kSchema2[] = "2 33b314fc";
constexpr char kSchema3[] = "3 c1d897ff";

template <size_t kSize>
std::string Bytes(const char (&text)[kSize]) {
  return std::string(text, kSize - 1);
}

struct Example {
  std::string table;
  StateStore::Record earlier;  // as a coordinator of schema 1 wrote it
  StateStore::Record now;
};

std::string AnswerOf(char operation, uint64_t incarnation, uint64_t request_id,
                     int64_t number, bool swapped, const std::string& value) {
  state::v1::StoreAnswer answer;
  answer.set_operation(static_cast<unsigned char>(operation));
  answer.set_incarnation(incarnation);
  answer.set_request_id(request_id);
  answer.set_number(number);
  answer.set_swapped(swapped);
  answer.set_value(value);
  return SerializeRecord(answer);
}

std::string PositionOf(bool full) {
  state::v1::Position position;
  position.set_outcome(state::v1::Position::COMMIT);
  if (!full) return SerializeRecord(position);
  position.set_round(41);
  position.set_step(40);
  position.set_next_step_known(true);
  position.set_next_step(41);
  position.set_outcome(state::v1::Position::SKIP);
  position.set_reason("rank 1: loss is nan\nround 7\n");
  position.set_stop("a \xff \\ byte");
  position.set_regroup("rank 3 drains: SIGTERM");
  position.set_checkpoint("checkpoint_every=41");
  v1::Plan& plan = *position.mutable_plan();
  plan.set_version(3);
  plan.set_accumulation_steps(1);
  plan.set_hook("bf16");
  plan.set_compression_start_step(-1);
  (*plan.mutable_terms())["max_steps"] = "99";
  plan.set_at_step(41);
  return SerializeRecord(position);
}

std::string SomeRanks() {
  state::v1::GroupRanks ranks;
  for (const int rank : {5, 0, (1 << 20) - 1}) ranks.add_ranks(rank);
  return SerializeRecord(ranks);
}

std::vector<Example> Examples() {
  state::v1::Mesh mesh;
  mesh.add_axes()->set_name("dp");
  mesh.mutable_axes(0)->set_size(2);
  mesh.add_axes()->set_name("t\xff");
  mesh.mutable_axes(1)->set_size(4);
  state::v1::Barrier barrier;
  barrier.add_incarnations(0x8123456789abcdef);
  barrier.add_request_ids(77);
  barrier.add_incarnations(3);
  barrier.add_request_ids(0xfedcba9876543210);
  state::v1::QuarantineNote note;
  note.set_job("job");
  note.set_reason("the plan cannot be read");
  const std::string name("00000001/plan.next\0job", 22);
  return {
      {"store/7", {"kkey", "value"}, {"kkey", "value"}},
      // Values are the workers' own, whatever they look like.
      {"store/7",
       {"kround", Bytes("\0\0\0\0\0\0\0\1")},
       {"kround", Bytes("\0\0\0\0\0\0\0\1")}},
      {"store/7",
       {Bytes("a\0\0\0\0\0\0\1\2"),
        Bytes("\0\0\0\0\0\0\0a\x81\x23\x45\x67\x89\xab\xcd\xef"
              "\xfe\xdc\xba\x98\x76\x54\x32\x10"
              "\xff\xff\xff\xff\xff\xff\xff\xfb"
              "\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0")},
       {"a0000000000000102",
        AnswerOf('a', 0x8123456789abcdef, 0xfedcba9876543210, -5, false, "")}},
      {"store/7",
       {Bytes("a\0\0\0\0\0\0\1\3"),
        Bytes("\0\0\0\0\0\0\0c\0\0\0\0\0\0\0\1\0\0\0\0\0\0\0\2"
              "\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0"
              "\0\0\0\0\0\0\0\3v\0\xff")},
       {"a0000000000000103",
        AnswerOf('c', 1, 2, 0, false, std::string("v\0\xff", 3))}},
      {"store/8",
       {Bytes("a\0\0\0\0\0\0\0\1"),
        Bytes("\0\0\0\0\0\0\0c\0\0\0\0\0\0\0\1\0\0\0\0\0\0\0\2"
              "\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\1"
              "\0\0\0\0\0\0\0\0")},
       {"a0000000000000001", AnswerOf('c', 1, 2, 0, true, "")}},
      {"group/7",
       {"gsome",
        Bytes("\0\0\0\0\0\0\0\5\0\0\0\0\0\0\0\0\0\0\0\0\0\x0f\xff\xff")},
       {"gsome", SomeRanks()}},
      {"group/7", {"gall", ""}, {"gall", ""}},
      {"group/7",
       {"mgrid\xff", Bytes("\0\0\0\0\0\0\0\2dp\0\0\0\0\0\0\0\2"
                           "\0\0\0\0\0\0\0\2t\xff\0\0\0\0\0\0\0\4")},
       {"mgrid\xff", SerializeRecord(mesh)}},
      {"group/7",
       {Bytes("b\0\0\0\0\0\0\0\7"),
        Bytes("\x81\x23\x45\x67\x89\xab\xcd\xef\0\0\0\0\0\0\0M"
              "\0\0\0\0\0\0\0\3\xfe\xdc\xba\x98\x76\x54\x32\x10")},
       {"b0000000000000007", SerializeRecord(barrier)}},
      {"group/8", {Bytes("b\0\0\0\0\0\0\0\1"), ""}, {"b0000000000000001", ""}},
      {"schedule/7",
       {"train",
        "round 41\nstep 40\nnext_step 41\ncommit 0\n"
        "reason rank 1: loss is nan\\nround 7\\n\n"
        "stop a \\377 \\\\ byte\nregroup rank 3 drains: SIGTERM\n"
        "checkpoint checkpoint_every=41\n"
        "plan \\010\\003\\020\\001\\032\\004bf16 "
        "\\377\\377\\377\\377\\377\\377\\377\\377\\377\\001*\\017\\n\\t"
        "max_steps\\022\\002998)\n"},
       {"train", PositionOf(true)}},
      {"schedule/7",
       {"teacher", "round 0\nstep 0\ncommit 1\nreason \nstop \nregroup \n"},
       {"teacher", PositionOf(false)}},
      {"quarantine", {name, "\xff"}, {name, "\xff"}},
      {"quarantine.notes",
       {name, Bytes("\0\0\0\0\0\0\0\3job\0\0\0\0\0\0\0\x17"
                    "the plan cannot be read")},
       {name, SerializeRecord(note)}},
      {"plan.current", {"job", "\x08\1"}, {"job", "\x08\1"}},
  };
}

// A state of schema 1 with these records.
void FillEarlier(StateStore* store) {
  ClusterRecords cluster;
  cluster.id = "cafe";
  cluster.next_term = 3;
  cluster.next_generation = 9;
  cluster.next_plan_version = 5;
  state::v1::Job job;
  job.set_generation(7);
  StateBatch batch;
  PutClusterRecords(cluster, &batch);
  batch.Put("jobs", "job", SerializeRecord(job));
  for (const Example& example : Examples()) {
    batch.Put(example.table, example.earlier.first, example.earlier.second);
  }
  ASSERT_OK(store->Apply(batch));
  ASSERT_OK(store->Put("cluster", "schema", kSchema1));
}

using Tables = std::map<std::string, std::vector<StateStore::Record>>;

Tables Everything(const StateStore& store) {
  Tables tables;
  const std::vector<std::string> names = *store.Tables("");
  for (const std::string& table : names) {
    tables[table] = *store.List(table);
  }
  return tables;
}

// Checks also that nothing is left of the earlier records.
void ExpectTakenOver(const StateStore& store) {
  EXPECT_EQ(store.Get("cluster", "schema").value_or(""), kSchema3);
  Tables found = Everything(store);
  EXPECT_THAT(found["cluster"], SizeIs(5));
  EXPECT_THAT(found["jobs"], SizeIs(1));
  found.erase("cluster");
  found.erase("jobs");
  std::map<std::string, std::map<std::string, std::string>> wanted;
  for (const Example& one : Examples()) wanted[one.table].insert(one.now);
  ASSERT_EQ(found.size(), wanted.size());
  for (const auto& [table, records] : wanted) {
    EXPECT_EQ(found[table],
              std::vector<StateStore::Record>(records.begin(), records.end()))
        << table;
  }
}

TEST(EarlierRecordsTest, TheFormsOfTestsAreThoseOfSchema1) {
  for (const Example& example : Examples()) {
    EXPECT_EQ(EarlierForm(example.table, example.now), example.earlier)
        << example.table << " " << example.now.first;
  }
}

TEST(EarlierRecordsTest, AStateOfSchema1IsTakenOver) {
  MemoryStateStore store;
  FillEarlier(&store);
  ASSERT_OK(TakeOverRecords({}, &store));
  ExpectTakenOver(store);
  ASSERT_OK_AND_ASSIGN(const ClusterRecords cluster, ReadClusterRecords(store));
  EXPECT_EQ(cluster.schema, kStateSchema);
  EXPECT_EQ(cluster.id, "cafe");
  EXPECT_EQ(cluster.next_plan_version, 5);
  ASSERT_OK_AND_ASSIGN(const auto quarantined, ListQuarantined(store));
  ASSERT_THAT(quarantined, SizeIs(1));
  EXPECT_EQ(quarantined[0].job, "job");
  EXPECT_EQ(quarantined[0].reason, "the plan cannot be read");
  EXPECT_TRUE(quarantined[0].name_known);
}

TEST(EarlierRecordsTest, AStateOfTheLatestSchemaIsNotTouched) {
  ScriptedStateStore store;
  FillEarlier(&store);
  ASSERT_OK(TakeOverRecords({}, &store));
  store.CrashAfter(0);
  EXPECT_OK(TakeOverRecords({}, &store));
  ExpectTakenOver(store);
}

TEST(EarlierRecordsTest, ANewStateStaysEmpty) {
  ScriptedStateStore store;
  store.CrashAfter(0);
  ASSERT_OK(TakeOverRecords({}, &store));
  EXPECT_THAT(*store.Tables(""), IsEmpty());
}

// What a dead coordinator leaves is refused by one of schema 1, as soon as
// there is a record that it would misread, and the next one goes on with it.
TEST(EarlierRecordsTest, ACoordinatorMayDieAtAnyMomentOfIt) {
  constexpr int kMany = 300;
  const auto fill = [](StateStore* store) {
    FillEarlier(store);
    for (int i = 0; i < kMany; ++i) {
      ASSERT_OK(store->Put("group/8", "b" + EarlierNumber(1000 + i),
                           EarlierNumber(i) + EarlierNumber(i)));
    }
  };
  ScriptedStateStore whole;
  fill(&whole);
  ASSERT_OK(TakeOverRecords({}, &whole));
  const Tables wanted = Everything(whole);
  ASSERT_EQ(wanted.at("group/8").size(), kMany + 1u);
  int batches = 0;
  for (;; ++batches) {
    SCOPED_TRACE(batches);
    ScriptedStateStore store;
    fill(&store);
    const Tables before = Everything(store);
    store.CrashAfter(batches);
    const absl::Status died = TakeOverRecords({}, &store);
    store.CrashAfter(-1);
    if (died.ok()) break;
    const bool begun = Everything(store) != before;
    EXPECT_EQ(begun, batches > 0);
    EXPECT_EQ(store.Get("cluster", "schema").value_or(""),
              begun ? kSchema2 : kSchema1);
    ASSERT_OK(TakeOverRecords({}, &store));
    EXPECT_EQ(Everything(store), wanted);
  }
  EXPECT_GT(batches, 5);  // the schema twice, and more than one between
}

TEST(EarlierRecordsTest, WhatCannotBeReadGoesIntoQuarantineAsItIs) {
  const std::vector<std::pair<std::string, StateStore::Record>> records = {
      {"store/7", {Bytes("a\0\0\0\0\0\0\0\1"), "?"}},
      {"store/7", {Bytes("a\0\0\0\0\0\0\0\2"), ""}},
      {"store/7",
       {Bytes("a\0\0\0\0\0\0\0\3"), std::string(48, '\0')}},  // no operation
      {"group/7", {Bytes("b\0\0\0\0\0\0\0\1"), std::string(24, 'x')}},
      {"group/7", {"gcut", std::string(7, '\0')}},
      {"group/7", {"mcut", EarlierText("dp") + std::string(7, '\0')}},
      {"schedule/7", {"cut", "round 3\nstep 4\nrea"}},
      {"schedule/7", {"lacks", "round 3\nstep 4\ncommit 1\nreason \n"}},
      {"schedule/7",
       {"number",
        "round 99999999999999999999\nstep 1\ncommit 1\nreason \nstop \n"
        "regroup \n"}},
      {"schedule/7",
       {"plan",
        "round 3\nstep 1\ncommit 1\nreason \nstop \nregroup \nplan x\n"}},
  };
  for (const auto& [table, record] : records) {
    SCOPED_TRACE(absl::StrCat(table, " ", record.first));
    ScriptedStateStore store;
    FillEarlier(&store);
    const size_t before = store.List(table)->size();
    ASSERT_OK(store.Put(table, record.first, record.second));
    ASSERT_OK(TakeOverRecords({}, &store));
    ASSERT_OK_AND_ASSIGN(const auto quarantined, ListQuarantined(store));
    ASSERT_THAT(quarantined, SizeIs(2));
    EXPECT_EQ(quarantined[1].table, table);
    EXPECT_EQ(quarantined[1].key, record.first);
    EXPECT_EQ(quarantined[1].job, "job");
    EXPECT_TRUE(quarantined[1].name_known);
    EXPECT_EQ(store.List("quarantine")->at(1).second, record.second);
    EXPECT_EQ(store.List(table)->size(), before);
  }
}

// Their form is not known: the components find that they are no messages.
TEST(EarlierRecordsTest, WhatIsOfNoKnownFormIsLeftToTheComponents) {
  MemoryStateStore store;
  FillEarlier(&store);
  const std::vector<std::pair<std::string, StateStore::Record>> records = {
      {"store/7", {"x", "?"}},        {"store/7", {"", "?"}},
      {"group/7", {"b", "?"}},        {"group/7", {"gname", "?"}},
      {"group/7", {"", Bytes("\0")}}, {"schedule/7", {"odd", "nonsense"}},
  };
  for (const auto& [table, record] : records) {
    ASSERT_OK(store.Put(table, record.first, record.second));
  }
  ASSERT_OK(TakeOverRecords({}, &store));
  EXPECT_THAT(*ListQuarantined(store), SizeIs(1));
  for (const auto& [table, record] : records) {
    EXPECT_EQ(store.Get(table, record.first).value_or("none"), record.second);
  }
}

// A coordinator without schemas wrote no mark of plan versions.
TEST(EarlierRecordsTest, AStateFromBeforeThereWasASchemaIsTakenOver) {
  v1::Plan plan;
  plan.set_version(6);
  for (const bool readable : {true, false}) {
    MemoryStateStore store;
    FillEarlier(&store);
    ASSERT_OK(store.Apply(StateBatch()
                              .DeleteTable("cluster")
                              .Put("cluster", "id", "cafe")
                              .Put("cluster", "next_term", "7")
                              .Put("cluster", "next_generation", "9")
                              .Put("plan.next", "job", SerializeRecord(plan))
                              .Put("plan.current", "job",
                                   readable ? SerializeRecord(plan) : "\xff")));
    ASSERT_OK(TakeOverRecords({}, &store));
    EXPECT_EQ(store.Get("cluster", "schema").value_or(""), kSchema3);
    EXPECT_EQ(store.Get("group/7", "gsome").value_or(""), SomeRanks());
    ASSERT_OK_AND_ASSIGN(const ClusterRecords cluster,
                         ReadClusterRecords(store));
    EXPECT_EQ(cluster.next_term, 7);
    EXPECT_EQ(cluster.next_generation, 9);
    // Whatever version the one had that cannot be read.
    const int64_t version = *cluster.next_plan_version;
    EXPECT_TRUE(readable ? version == 7 : version > int64_t{1} << 32);
  }
}

// Where the schema is lost, the records may have any form.
TEST(EarlierRecordsTest, ARepairedStateIsTakenOver) {
  class SomeRandom : public RandomSource {
   public:
    uint64_t Next() override { return Mix64(++count_); }

   private:
    uint64_t count_ = 0;
  };
  SomeRandom random;
  for (const char* key : {"schema", "next_term"}) {
    for (const bool earlier : {true, false}) {
      MemoryStateStore store;
      FillEarlier(&store);
      if (!earlier) {
        ASSERT_OK(TakeOverRecords({}, &store));
      }
      ASSERT_OK(store.Put("cluster", key, "?"));
      ASSERT_OK(RepairClusterRecords(&random, &store));
      const bool known = !earlier && std::string(key) != "schema";
      EXPECT_EQ(store.Get("cluster", "schema").value_or(""),
                known ? kSchema3 : kSchema2);
      ASSERT_OK(TakeOverRecords({}, &store));
      EXPECT_EQ(store.Get("cluster", "schema").value_or(""), kSchema3);
      for (const Example& example : Examples()) {
        EXPECT_EQ(store.Get(example.table, example.now.first).value_or("none"),
                  example.now.second);
      }
      // The records of the cluster and the one before.
      EXPECT_THAT(*ListQuarantined(store), SizeIs(6));
    }
  }
}

TEST(EarlierRecordsTest, AFileWithADamagedRecordIsTakenOver) {
  const std::string path =
      absl::StrCat(testing::TempDir(), "/earlier-", getpid(), ".sqlite");
  {
    ASSERT_OK_AND_ASSIGN(const auto store, SqliteStateStore::Open(path));
    FillEarlier(store.get());
    ASSERT_OK(store->Put("group/7", "gworse", EarlierNumber(1)));
  }
  sqlite3* db = nullptr;
  ASSERT_EQ(sqlite3_open(path.c_str(), &db), SQLITE_OK);
  EXPECT_EQ(sqlite3_exec(db,
                         "UPDATE state SET crc = crc + 1 WHERE key = "
                         "CAST('gworse' AS BLOB)",
                         nullptr, nullptr, nullptr),
            SQLITE_OK);
  sqlite3_close(db);
  ASSERT_OK_AND_ASSIGN(const auto store, SqliteStateStore::Open(path));
  ASSERT_OK(TakeOverRecords({}, store.get()));
  ASSERT_OK_AND_ASSIGN(const auto quarantined, ListQuarantined(*store));
  ASSERT_THAT(quarantined, SizeIs(2));
  EXPECT_EQ(quarantined[1].key, "gworse");
  EXPECT_EQ(quarantined[1].reason, kWrongChecksum);
  const std::string key = store->List("quarantine")->at(1).first;
  ASSERT_OK(store->Delete("quarantine", key));
  ASSERT_OK(store->Delete("quarantine.notes", key));
  ExpectTakenOver(*store);
}

}  // namespace
}  // namespace coxswain::server
