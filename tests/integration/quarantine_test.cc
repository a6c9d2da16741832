// A record of the state that cannot be read costs its job a generation or a
// plan, and other jobs nothing: coordinators that are restarted on a state in
// which one record was damaged meanwhile, under real sessions of two jobs.

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "proto/state.pb.h"
#include "proto/types.pb.h"
#include "server/http/site.h"
#include "server/state/quarantine.h"
#include "server/state/state_store.h"
#include "sqlite3.h"
#include "tests/integration/stored_jobs.h"
#include "tests/support/environment.h"

namespace coxswain {
namespace {

using server::StateStore;
using ::testing::AnyOf;
using ::testing::Contains;
using ::testing::Field;
using ::testing::HasSubstr;
using Kind = SessionEvent::Kind;

constexpr int64_t kHuge = int64_t{1} << 60;

// What becomes of the bytes of a record.
struct Spoiled {
  std::string name;
  std::function<std::string(const std::string&)> bytes;
};

template <typename Proto>
std::function<std::string(const std::string&)> Edited(
    const std::function<void(Proto*)>& edit) {
  return [edit](const std::string& bytes) {
    Proto proto;
    EXPECT_TRUE(proto.ParseFromString(bytes));
    edit(&proto);
    return proto.SerializeAsString();
  };
}

std::string Ranks(int64_t rank) {
  state::v1::GroupRanks ranks;
  ranks.add_ranks(rank);
  return ranks.SerializeAsString();
}

std::string Axes(int64_t size) {
  state::v1::Mesh mesh;
  auto* const axis = mesh.add_axes();
  axis->set_name("dp");
  axis->set_size(size);
  return mesh.SerializeAsString();
}

std::string Position(int64_t round) {
  state::v1::Position position;
  position.set_round(round);
  position.set_outcome(state::v1::Position::COMMIT);
  return position.SerializeAsString();
}

// The record of a table whose key begins so, or the one that is made up.
struct Target {
  std::string table;
  bool of_generation = false;  // its number is a part of the table's name
  std::string key;             // how the key begins
  // The new bytes if the state has no such record; else they come from
  // `spoils`.
  bool made_up = false;
  bool plan = false;  // the job loses its plan
  std::vector<Spoiled> spoils;
};

std::vector<Target> Targets() {
  const Spoiled garbage = {"garbage", [](const std::string&) {
                             return std::string("\xff\xfe\xff\0?", 5);
                           }};
  const Spoiled cut = {"cut", [](const std::string& bytes) {
                         return bytes.substr(0, bytes.size() - 1);
                       }};
  const auto fixed = [](const std::string& name, const std::string& bytes) {
    return Spoiled{name, [bytes](const std::string&) { return bytes; }};
  };
  using Job = state::v1::Job;
  using Block = state::v1::MemberBlock;
  const std::vector<Spoiled> plans = {
      garbage,
      cut,
      {"version", Edited<v1::Plan>([](auto* p) { p->set_version(kHuge); })},
      {"unused version",
       Edited<v1::Plan>([](auto* p) { p->set_version(1000); })},
      {"at_step", Edited<v1::Plan>([](auto* p) { p->set_at_step(-7); })}};
  return {
      {"jobs",
       false,
       "hit",
       false,
       false,
       {garbage,
        cut,
        {"generation", Edited<Job>([](auto* j) { j->set_generation(kHuge); })},
        {"unused generation",
         Edited<Job>([](auto* j) { j->set_generation(99); })},
        {"world", Edited<Job>([](auto* j) { j->set_world_size(-1); })},
        {"format", Edited<Job>([](auto* j) { j->set_format(77); })}}},
      {"members/",
       true,
       "block/",
       false,
       false,
       {garbage, cut, fixed("empty", ""), {"rank", Edited<Block>([](auto* b) {
                                             b->mutable_members(0)
                                                 ->mutable_member()
                                                 ->set_rank(77);
                                           })}}},
      {"members/", true, "gone/99999999", true, false, {fixed("rank", "")}},
      {"manifest/", true, "", false, false, {garbage, cut}},
      {"plan.current", false, "hit", false, true, plans},
      {"plan.manifest", false, "hit", false, true, {garbage, cut}},
      {"plan.next", false, "hit", true, true, {garbage}},
      {"plan.before", false, "hit", true, true, {garbage}},
      {"schedule/",
       true,
       "train",
       true,
       false,
       {garbage, fixed("cut", Position(3).substr(0, 2)),
        fixed("number", Position(-3))}},
      {"store/", true, "a", false, false, {garbage, cut}},
      {"store/", true, "x", true, false, {garbage}},
      {"group/", true, "b", false, false, {garbage, cut}},
      {"group/",
       true,
       "gother",
       true,
       false,
       {garbage, fixed("rank", Ranks(1000000)),
        fixed("bits", Ranks(1ll << 40))}},
      {"group/",
       true,
       "mgrid",
       false,
       false,
       {garbage, cut, fixed("size", Axes(1ll << 30)), fixed("zero", Axes(0))}},
  };
}

class QuarantineTest : public StoredJobsTest {
 protected:
  std::string TableOf(const Target& target) const {
    return target.of_generation ? absl::StrCat(target.table, hit_->generation())
                                : target.table;
  }
  // Spoils the record while no coordinator runs; returns what it is now.
  StateStore::Record Spoil(const Target& target, const Spoiled& spoiled) {
    const auto state = Acquire();
    const std::string table = TableOf(target);
    StateStore::Record record = {target.key, ""};
    if (!target.made_up) {
      const auto records = state->store().List(table);
      EXPECT_OK(records);
      const auto found =
          std::find_if(records->begin(), records->end(), [&](const auto& one) {
            return absl::StartsWith(one.first, target.key);
          });
      EXPECT_TRUE(found != records->end()) << table;
      if (found == records->end()) return record;
      record = *found;
    }
    record.second = spoiled.bytes(record.second);
    EXPECT_OK(state->store().Put(table, record.first, record.second));
    return record;
  }

  void ExpectOtherGoesOn() { ExpectGoesOn(other_.get()); }
  // Requests of a worker of the old generation are refused, whether or not it
  // has received the end; and it does receive it.
  static void ExpectFenced(Session* session) {
    EXPECT_THAT(session->store().Set("late", "word").code(),
                AnyOf(absl::StatusCode::kAborted,
                      absl::StatusCode::kFailedPrecondition));
    while (true) {
      const auto event = session->events().Next(kTimeout);
      ASSERT_OK(event);
      if (event->kind == Kind::kGenerationEnded) break;
    }
    EXPECT_EQ(session->status().code(), absl::StatusCode::kAborted);
  }
  // The worker of the old generation is fenced off, and the next generation has
  // higher numbers.
  void ExpectHitBeginsAgain(bool loses_plan) {
    const int64_t generation = hit_->generation();
    const int64_t version = hit_->plan().version;
    ExpectFenced(hit_.get());
    auto next = hit_->Rejoin();
    ASSERT_OK(next);
    EXPECT_GT((*next)->generation(), generation);
    EXPECT_GT((*next)->generation(), other_->generation());
    if (loses_plan) {
      EXPECT_GT((*next)->plan().version, version);
    } else {
      EXPECT_GE((*next)->plan().version, version);
    }
    EXPECT_OK((*next)->store().Set("word", "value"));
    hit_ = *std::move(next);
  }
  void ExpectQuarantined(const std::string& table,
                         const StateStore::Record& record) {
    const auto& quarantined = coordinator_->view().quarantined;
    // The newest one: earlier rounds may have lost the same record.
    const auto found =
        std::find_if(quarantined.rbegin(), quarantined.rend(),
                     [&](const server::QuarantinedRecord& one) {
                       return one.table == table && one.key == record.first;
                     });
    ASSERT_TRUE(found != quarantined.rend());
    EXPECT_EQ(found->bytes, record.second.size());
    EXPECT_NE(found->reason, "");
    const auto events = coordinator_->view().journal->Read("", 0, 1000);
    EXPECT_TRUE(std::any_of(events.begin(), events.end(), [](const auto& one) {
      return one.event == "record_quarantined" && one.level == "error";
    }));
  }
  // Its bytes, in the store itself.
  void ExpectKept(const std::string& table, const StateStore::Record& record) {
    const auto state = Acquire();
    const auto records = state->store().List("quarantine");
    ASSERT_OK(records);
    const std::string end =
        absl::StrCat("/", table, std::string(1, '\0'), record.first);
    EXPECT_TRUE(std::any_of(
        records->begin(), records->end(), [&](const StateStore::Record& one) {
          return absl::EndsWith(one.first, end) && one.second == record.second;
        }));
  }
};

TEST_P(QuarantineTest, EveryRecordThatIsSpoiledCostsItsJobOnly) {
  ASSERT_OK(Start());
  RunJobs();
  for (Target& target : Targets()) {
    // What the bytes mean is the same in all stores; where they are is not.
    if (GetParam() != "sqlite" && !EverySetting()) target.spoils.resize(1);
    for (const Spoiled& spoiled : target.spoils) {
      if (HasFatalFailure() || other_ == nullptr || hit_ == nullptr) return;
      SCOPED_TRACE(
          absl::StrCat(target.table, " ", target.key, ": ", spoiled.name));
      coordinator_.reset();
      const std::string table = TableOf(target);
      const StateStore::Record record = Spoil(target, spoiled);
      ASSERT_OK(Start());
      ExpectQuarantined(table, record);
      ExpectOtherGoesOn();
      ExpectHitBeginsAgain(target.plan);
      if (HasFatalFailure()) return;
      // Records for the next round.
      ASSERT_OK(hit_->CreateMesh("grid", {{"dp", 1}}));
      ASSERT_OK(hit_->Barrier("", "tag", kTimeout));
      coordinator_.reset();
      ExpectKept(table, record);
      ASSERT_OK(Start());
      // And nothing more is lost by the next start.
      ExpectOtherGoesOn();
      while (true) {
        const auto event = hit_->events().Next(kTimeout);
        ASSERT_OK(event);
        ASSERT_NE(event->kind, Kind::kGenerationEnded) << hit_->status();
        if (event->kind == Kind::kReattached) break;
      }
    }
  }
  LeaveAll();
}

// A version that only a lost proposal had is not given out again.
TEST_P(QuarantineTest, NoPlanVersionIsUsedTwice) {
  ASSERT_OK(Start());
  RunJobs();
  const int64_t first = hit_->plan().version;
  coordinator_.reset();
  const Target current = {"plan.current", false, "hit", false, true, {}};
  Spoil(current, {"garbage", [](const std::string&) { return "?"; }});
  ASSERT_OK(Start());
  ExpectOtherGoesOn();
  ExpectHitBeginsAgain(true);
  if (HasFatalFailure()) return;
  const int64_t second = hit_->plan().version;
  EXPECT_GT(second, first);
  coordinator_.reset();
  Spoil(current, {"garbage", [](const std::string&) { return "?"; }});
  ASSERT_OK(Start());
  ExpectOtherGoesOn();
  ExpectHitBeginsAgain(true);
  if (HasFatalFailure()) return;
  EXPECT_GT(hit_->plan().version, second);
  LeaveAll();
}

TEST_P(QuarantineTest, PageAndMetricsShowWhatIsInQuarantine) {
  ASSERT_OK(Start());
  server::Site site;
  site.Show(coordinator_->view());
  EXPECT_THAT(site.Answer({"/api/v1/jobs", {}, ""}).body,
              HasSubstr("\"quarantined\":[],\"quarantined_count\":0"));
  EXPECT_THAT(site.Answer({"/metrics", {}, ""}).body,
              HasSubstr("coxswain_state_quarantined_records 0"));
  site.Hide();
  coordinator_.reset();
  {
    const auto state = Acquire();
    ASSERT_OK(state->store().Put("jobs", "lost\xff", "?"));
  }
  ASSERT_OK(Start());
  site.Show(coordinator_->view());
  const std::string jobs = site.Answer({"/api/v1/jobs", {}, ""}).body;
  EXPECT_THAT(jobs, HasSubstr("\"quarantined_count\":1"));
  EXPECT_THAT(jobs, HasSubstr("\"table\":\"jobs\""));
  EXPECT_THAT(jobs, HasSubstr("\"key\":\"lost\\\\xff\""));
  EXPECT_THAT(site.Answer({"/metrics", {}, ""}).body,
              HasSubstr("coxswain_state_quarantined_records 1"));
  site.Hide();
}

TEST_P(QuarantineTest, TheStartIsRefusedWithoutTheNumbersUntilTheRepair) {
  // The jobs of a name begin again once their fenced members have timed out.
  grace_ = absl::Milliseconds(500);
  for (const char* key :
       {"schema", "id", "next_term", "next_generation", "next_plan_version"}) {
    SCOPED_TRACE(key);
    ASSERT_OK(Start());
    RunJobs();
    const int64_t generation = hit_->generation();
    const std::string cluster = coordinator_->view().membership->cluster_id();
    coordinator_.reset();
    {
      const auto state = Acquire();
      ASSERT_OK(state->store().Put("cluster", key, "7"));
    }
    const absl::Status refused = Start();
    EXPECT_EQ(refused.code(), absl::StatusCode::kDataLoss);
    EXPECT_THAT(refused.message(), HasSubstr(absl::StrCat("'", key, "'")));
    EXPECT_THAT(refused.message(), HasSubstr("--repair-state"));
    EXPECT_THAT(refused.message(), HasSubstr("docs/durability.md"));
    {
      const auto state = Acquire();
      EXPECT_EQ(state->store().Get("cluster", key).value_or(""), "7");
    }
    ASSERT_OK(Start(/*repair=*/true));
    EXPECT_NE(coordinator_->view().membership->cluster_id(), cluster);
    EXPECT_THAT(coordinator_->view().quarantined,
                Contains(Field(&server::QuarantinedRecord::key, key)));
    // Every worker of the old cluster is fenced off.
    for (Session* session : {other_.get(), hit_.get()}) {
      ExpectFenced(session);
    }
    const auto again = Join("third");
    ASSERT_NE(again, nullptr);
    EXPECT_GT(again->generation(), generation);
    EXPECT_OK(again->Leave("done"));
    // The repair of a state that is well changes nothing.
    const std::string repaired = coordinator_->view().membership->cluster_id();
    coordinator_.reset();
    ASSERT_OK(Start(/*repair=*/true));
    EXPECT_EQ(coordinator_->view().membership->cluster_id(), repaired);
    // They leave while a coordinator can receive it.
    hit_ = nullptr;
    other_ = nullptr;
    coordinator_.reset();
  }
}

INSTANTIATE_TEST_SUITE_P(Stores, QuarantineTest,
                         ::testing::Values("sqlite", "etcd"),
                         [](const auto& info) { return info.param; });

// Of SQLite only: bytes that change on the disk do not match the checksum.
class DamagedFileTest : public QuarantineTest {
 protected:
  void RunSql(const std::string& sql) {
    sqlite3* db = nullptr;
    ASSERT_EQ(sqlite3_open(absl::StrCat(folder_, "/state.sqlite").c_str(), &db),
              SQLITE_OK);
    EXPECT_EQ(sqlite3_exec(db, sql.c_str(), nullptr, nullptr, nullptr),
              SQLITE_OK)
        << sqlite3_errmsg(db);
    sqlite3_close(db);
  }
};

TEST_P(DamagedFileTest, ARecordWithAWrongChecksumCostsItsJobOnly) {
  ASSERT_OK(Start());
  RunJobs();
  for (const char* table : {"jobs", "members/", "manifest/", "plan.current",
                            "plan.manifest", "store/", "group/"}) {
    SCOPED_TRACE(table);
    coordinator_.reset();
    const bool numbered = absl::EndsWith(table, "/");
    const std::string name =
        numbered ? absl::StrCat(table, hit_->generation()) : table;
    RunSql(absl::StrCat(
        "UPDATE state SET value = CAST(value || x'21' AS BLOB) WHERE room = "
        "CAST('",
        name, "' AS BLOB)", numbered ? "" : " AND key = CAST('hit' AS BLOB)"));
    ASSERT_OK(Start());
    EXPECT_THAT(coordinator_->view().quarantined,
                Contains(Field(&server::QuarantinedRecord::table, name)));
    ExpectOtherGoesOn();
    ExpectHitBeginsAgain(absl::StartsWith(table, "plan."));
    if (HasFatalFailure()) return;
    ASSERT_OK(hit_->CreateMesh("grid", {{"dp", 1}}));
  }
  LeaveAll();
}

TEST_P(DamagedFileTest, AWrongChecksumOfTheNumbersRefusesTheStart) {
  ASSERT_OK(Start());
  RunJobs();
  coordinator_.reset();
  RunSql("UPDATE state SET crc = crc + 1 WHERE room = CAST('cluster' AS BLOB)");
  const absl::Status refused = Start();
  EXPECT_EQ(refused.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(refused.message(), HasSubstr("--repair-state"));
  ASSERT_OK(Start(/*repair=*/true));
  ExpectFenced(hit_.get());
}

INSTANTIATE_TEST_SUITE_P(Sqlite, DamagedFileTest, ::testing::Values("sqlite"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace coxswain
