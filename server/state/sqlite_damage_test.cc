// A state file that is damaged, or not ours, is refused and left untouched;
// one that a crash has left behind is not taken for damaged.
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/random.h"
#include "base/status_matchers.h"
#include "server/state/quarantine.h"
#include "server/state/sqlite_state_store.h"
#include "sqlite3.h"

namespace coxswain::server::sqlite_damage_test {
namespace {

using testing::AnyOf;
using testing::HasSubstr;

// What is on the disk: the bytes of the file and of what SQLite puts beside it.
using Files = std::map<std::string, std::string>;

std::string NewPath() {
  static std::atomic<int> count{0};
  return absl::StrCat(testing::TempDir(), "/damage-", getpid(), "-", count++,
                      ".sqlite");
}

Files ReadFiles(const std::string& path) {
  Files files;
  for (const char* suffix : {"", "-wal", "-shm", "-journal"}) {
    const std::string name = path + suffix;
    if (!std::filesystem::exists(name)) continue;
    std::ifstream file(name, std::ios::binary);
    files[suffix] = std::string(std::istreambuf_iterator<char>(file), {});
  }
  return files;
}

std::string WriteFiles(const Files& files) {
  const std::string path = NewPath();
  for (const auto& [suffix, bytes] : files) {
    std::ofstream(path + suffix, std::ios::binary) << bytes;
  }
  return path;
}

// Small records, and some that need pages of their own.
std::vector<StateStore::Record> SomeRecords() {
  std::vector<StateStore::Record> records;
  for (int i = 0; i < 60; ++i) {
    records.emplace_back(absl::StrCat("key", i / 10, i % 10),
                         std::string(i % 7 == 0 ? 6000 : 40 + i, 'a' + i % 26));
  }
  return records;
}

void Fill(StateStore* store) {
  for (const auto& [key, value] : SomeRecords()) {
    ASSERT_OK(store->Put("table", key, value));
  }
}

// The files of a store that was closed.
Files SomeFiles() {
  const std::string path = NewPath();
  {
    const auto store = SqliteStateStore::Open(path);
    EXPECT_OK(store);
    if (store.ok()) Fill(store->get());
  }
  Files files = ReadFiles(path);
  EXPECT_EQ(files.size(), 1u);
  EXPECT_GT(files[""].size(), 10u * 4096);
  return files;
}

// The files as a crash leaves them: changes in the log only.
Files CrashedFiles() {
  const std::string path = WriteFiles(SomeFiles());
  const auto store = SqliteStateStore::Open(path);
  EXPECT_OK(store);
  EXPECT_OK((*store)->Put("table", "key00", "changed"));
  Files files = ReadFiles(path);
  EXPECT_GT(files["-wal"].size(), 4096u);
  return files;
}

template <typename Matcher>
void ExpectRefusedUntouched(const Files& files, const Matcher& matcher) {
  const std::string path = WriteFiles(files);
  EXPECT_THAT(SqliteStateStore::Open(path).status(), matcher);
  EXPECT_TRUE(ReadFiles(path) == files) << "something was changed";
}

const auto kDamaged =
    StatusIs(absl::StatusCode::kDataLoss, HasSubstr("left as it is"));
const auto kForeign = StatusIs(absl::StatusCode::kFailedPrecondition,
                               HasSubstr("another program"));

// Of a store that is open: the record is found, and the others are as they
// were.
void ExpectOneRecordLost(size_t damaged, StateStore* store) {
  ASSERT_OK(QuarantineDamaged({}, store));
  ASSERT_OK_AND_ASSIGN(const auto rest, store->List("table"));
  const auto all = SomeRecords();
  EXPECT_EQ(rest.size(), all.size() - damaged);
  for (const StateStore::Record& record : rest) {
    EXPECT_THAT(all, testing::Contains(record));
  }
  ASSERT_OK_AND_ASSIGN(const auto quarantined, ListQuarantined(*store));
  EXPECT_EQ(quarantined.size(), damaged);
}

// Wherever a byte is wrong, either it is noticed or it means nothing.
TEST(SqliteDamageTest, AFlippedByteIsNeverTakenForData) {
  const Files good = SomeFiles();
  const CounterRandom random(1, 1);
  int refused = 0;
  int lost = 0;
  for (int i = 0; i < 300; ++i) {
    Files files = good;
    std::string& bytes = files[""];
    // The first page, which describes the others, more often.
    const size_t end = i % 4 == 0 ? 4096 : bytes.size();
    const size_t at = random.Bits(2 * i) % end;
    bytes[at] ^= static_cast<char>(1 + random.Bits(2 * i + 1) % 255);
    const std::string path = WriteFiles(files);
    auto store = SqliteStateStore::Open(path);
    if (!store.ok()) {
      ++refused;
      EXPECT_THAT(store.status().code(),
                  AnyOf(absl::StatusCode::kDataLoss,
                        absl::StatusCode::kFailedPrecondition))
          << store.status();
      EXPECT_TRUE(ReadFiles(path) == files) << "byte " << at;
    } else {
      ASSERT_OK_AND_ASSIGN(const auto damaged, (*store)->FindDamaged());
      if (damaged.empty()) {
        EXPECT_EQ((*store)->List("table").value(), SomeRecords()) << at;
      } else {
        ++lost;
        ExpectOneRecordLost(damaged.size(), store->get());
      }
      store->reset();
    }
    std::filesystem::remove(path);
  }
  EXPECT_GT(refused, 5);
  EXPECT_GT(lost, 100);
}

TEST(SqliteDamageTest, ACutFileIsRefused) {
  const Files good = SomeFiles();
  const size_t size = good.at("").size();
  for (const size_t cut :
       {size_t{1}, size_t{50}, size_t{99}, size_t{100}, size_t{4095},
        size_t{4096}, size_t{4097}, size / 2, size - 4096, size - 1}) {
    SCOPED_TRACE(cut);
    Files files = good;
    files[""].resize(cut);
    ExpectRefusedUntouched(files, kDamaged);
  }
}

TEST(SqliteDamageTest, WhatACrashLeavesIsNoDamage) {
  const std::string path = WriteFiles(CrashedFiles());
  ASSERT_OK_AND_ASSIGN(const auto store, SqliteStateStore::Open(path));
  EXPECT_EQ(store->Get("table", "key00").value_or("missing"), "changed");
  EXPECT_EQ(store->List("table")->size(), SomeRecords().size());
}

TEST(SqliteDamageTest, ACrashBeforeAnythingIsInTheFileIsNoDamage) {
  Files files;
  {
    const std::string path = NewPath();
    ASSERT_OK_AND_ASSIGN(const auto store, SqliteStateStore::Open(path));
    ASSERT_OK(store->Put("table", "key", "value"));
    files = ReadFiles(path);
  }
  ASSERT_EQ(files.count("-wal"), 1u);
  const std::string path = WriteFiles(files);
  ASSERT_OK_AND_ASSIGN(const auto store, SqliteStateStore::Open(path));
  EXPECT_EQ(store->Get("table", "key").value_or("missing"), "value");
}

// A commit of which only a part reached the disk: it was not acknowledged.
TEST(SqliteDamageTest, ACutLogEndsWithItsLastWholeCommit) {
  Files files = CrashedFiles();
  files["-wal"].resize(files["-wal"].size() - 1);
  const std::string path = WriteFiles(files);
  ASSERT_OK_AND_ASSIGN(const auto store, SqliteStateStore::Open(path));
  EXPECT_EQ(*store->List("table"), SomeRecords());
}

TEST(SqliteDamageTest, ADamagedFileKeepsItsLog) {
  Files files = CrashedFiles();
  const size_t rest = files[""].size() - 4096;
  files[""].replace(4096, rest, std::string(rest, '\x55'));
  ExpectRefusedUntouched(files, kDamaged);
}

TEST(SqliteDamageTest, AnEmptyFileWithALogIsRefused) {
  Files files = CrashedFiles();
  files[""].clear();
  ExpectRefusedUntouched(files, kDamaged);
  files.erase("");
  ExpectRefusedUntouched(files, kDamaged);
}

TEST(SqliteDamageTest, ANewerFormatInTheLogOnlyIsRefused) {
  const std::string path = WriteFiles(SomeFiles());
  sqlite3* db = nullptr;
  ASSERT_EQ(sqlite3_open(path.c_str(), &db), SQLITE_OK);
  ASSERT_EQ(
      sqlite3_exec(db, "PRAGMA user_version = 99", nullptr, nullptr, nullptr),
      SQLITE_OK);
  Files files = ReadFiles(path);
  files.erase("-shm");  // lives as long as its process
  ASSERT_EQ(sqlite3_close(db), SQLITE_OK);
  ASSERT_EQ(files.count("-wal"), 1u);
  ExpectRefusedUntouched(files, StatusIs(absl::StatusCode::kFailedPrecondition,
                                         HasSubstr("format 99")));
}

// SQLite would undo its unfinished changes as soon as it read it.
TEST(SqliteDamageTest, AFileOfAnotherProgramKeepsItsJournal) {
  const std::string path = NewPath();
  sqlite3* db = nullptr;
  ASSERT_EQ(sqlite3_open(path.c_str(), &db), SQLITE_OK);
  const auto run = [&](const char* sql) {
    ASSERT_EQ(sqlite3_exec(db, sql, nullptr, nullptr, nullptr), SQLITE_OK);
  };
  run("CREATE TABLE theirs (x)");
  run("INSERT INTO theirs VALUES (randomblob(100000))");
  run("PRAGMA cache_size = 2");
  run("BEGIN");
  run("UPDATE theirs SET x = randomblob(100000)");
  const Files files = ReadFiles(path);
  ASSERT_EQ(sqlite3_close(db), SQLITE_OK);
  ASSERT_EQ(files.count("-journal"), 1u);
  ASSERT_GT(files.at("-journal").size(), 4096u);
  ExpectRefusedUntouched(files, kForeign);
}

TEST(SqliteDamageTest, AFileOfAnotherProgramKeepsItsLog) {
  const std::string path = NewPath();
  sqlite3* db = nullptr;
  ASSERT_EQ(sqlite3_open(path.c_str(), &db), SQLITE_OK);
  ASSERT_EQ(
      sqlite3_exec(db, "PRAGMA journal_mode = WAL; CREATE TABLE theirs (x)",
                   nullptr, nullptr, nullptr),
      SQLITE_OK);
  Files files = ReadFiles(path);
  files.erase("-shm");
  ASSERT_EQ(sqlite3_close(db), SQLITE_OK);
  ASSERT_EQ(files.count("-wal"), 1u);
  ExpectRefusedUntouched(files, kForeign);
}

TEST(SqliteDamageTest, AFileOfTheFirstFormatIsBroughtUpToDate) {
  const std::string path = NewPath();
  sqlite3* db = nullptr;
  ASSERT_EQ(sqlite3_open(path.c_str(), &db), SQLITE_OK);
  ASSERT_EQ(
      sqlite3_exec(db,
                   "CREATE TABLE state (room BLOB NOT NULL, key BLOB NOT NULL, "
                   "value BLOB NOT NULL, PRIMARY KEY (room, key)) WITHOUT "
                   "ROWID;"
                   "PRAGMA application_id = 1129273427;"
                   "PRAGMA user_version = 1;"
                   "INSERT INTO state VALUES (x'74', x'6b', x'0076')",
                   nullptr, nullptr, nullptr),
      SQLITE_OK);
  ASSERT_EQ(sqlite3_close(db), SQLITE_OK);
  for (int opened = 0; opened < 2; ++opened) {
    ASSERT_OK_AND_ASSIGN(const auto store, SqliteStateStore::Open(path));
    EXPECT_EQ(store->Get("t", "k").value_or("missing"), std::string("\0v", 2));
    ASSERT_OK(store->Put("t", "new", "value"));
  }
}

}  // namespace
}  // namespace coxswain::server::sqlite_damage_test
