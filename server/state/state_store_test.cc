#include <atomic>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "server/state/memory_state_store.h"
#include "server/state/sqlite_state_store.h"
#include "sqlite3.h"
#include "tests/conformance/state_store_conformance.h"

namespace coxswain::server::state_store_test {
namespace {

INSTANTIATE_TEST_SUITE_P(Memory, StateStoreConformance,
                         testing::Values(StateStoreMaker{
                             "memory", [] {
                               return std::make_unique<MemoryStateStore>();
                             }}));

TEST(MemoryStateStoreTest, FailedWriteChangesNothing) {
  MemoryStateStore store;
  ASSERT_OK(store.Put("table", "key", "old"));
  store.FailWrites(absl::UnavailableError("disk full"));
  EXPECT_THAT(store.Put("table", "key", "new"),
              StatusIs(absl::StatusCode::kUnavailable, "disk full"));
  EXPECT_EQ(store.Get("table", "key").value_or("missing"), "old");
}

using testing::AllOf;
using testing::HasSubstr;

std::string NewPath() {
  static std::atomic<int> count{0};
  return absl::StrCat(testing::TempDir(), "/state-", getpid(), "-", count++,
                      ".sqlite");
}

std::string ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

void WriteFile(const std::string& path, const std::string& bytes) {
  std::ofstream file(path, std::ios::binary);
  file << bytes;
}

void RunSql(const std::string& path, const char* sql) {
  sqlite3* db = nullptr;
  ASSERT_EQ(sqlite3_open(path.c_str(), &db), SQLITE_OK);
  ASSERT_EQ(sqlite3_exec(db, sql, nullptr, nullptr, nullptr), SQLITE_OK);
  ASSERT_EQ(sqlite3_close(db), SQLITE_OK);
}

// Remembers where a store of this test is.
std::map<const StateStore*, std::string>& Paths() {
  static auto* paths = new std::map<const StateStore*, std::string>();
  return *paths;
}

std::unique_ptr<StateStore> OpenAt(const std::string& path) {
  std::unique_ptr<StateStore> store =
      std::move(SqliteStateStore::Open(path)).value();
  Paths()[store.get()] = path;
  return store;
}

INSTANTIATE_TEST_SUITE_P(Sqlite, StateStoreConformance,
                         testing::Values(StateStoreMaker{
                             "sqlite", [] { return OpenAt(NewPath()); },
                             [](std::unique_ptr<StateStore> store) {
                               const std::string path = Paths()[store.get()];
                               store.reset();
                               return OpenAt(path);
                             }}));

TEST(SqliteStateStoreTest, RecordsSurviveReopening) {
  const std::string path = NewPath();
  {
    ASSERT_OK_AND_ASSIGN(auto store, SqliteStateStore::Open(path));
    ASSERT_OK(store->Put("table", "key", "value"));
  }
  ASSERT_OK_AND_ASSIGN(auto store, SqliteStateStore::Open(path));
  EXPECT_EQ(store->Get("table", "key").value_or("missing"), "value");
}

TEST(SqliteStateStoreTest, SecondOwnerIsRefused) {
  const std::string path = NewPath();
  ASSERT_OK_AND_ASSIGN(auto store, SqliteStateStore::Open(path));
  EXPECT_THAT(SqliteStateStore::Open(path),
              StatusIs(absl::StatusCode::kUnavailable,
                       HasSubstr("another coordinator")));
}

TEST(SqliteStateStoreTest, NewerFormatIsRefusedAndLeftUntouched) {
  const std::string path = NewPath();
  ASSERT_OK(SqliteStateStore::Open(path));
  RunSql(path, "PRAGMA user_version = 99");
  const std::string before = ReadFile(path);
  EXPECT_THAT(SqliteStateStore::Open(path),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr(path), HasSubstr("format 99"),
                             HasSubstr("newer coordinator"))));
  EXPECT_EQ(ReadFile(path), before);
}

TEST(SqliteStateStoreTest, FileOfAnotherProgramIsRefusedAndLeftUntouched) {
  const std::string path = NewPath();
  RunSql(path, "CREATE TABLE theirs (x)");
  const std::string before = ReadFile(path);
  EXPECT_THAT(SqliteStateStore::Open(path),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("another program")));
  EXPECT_EQ(ReadFile(path), before);
}

TEST(SqliteStateStoreTest, FileThatIsNoDatabaseIsRefusedAndLeftUntouched) {
  const std::string path = NewPath();
  WriteFile(path, "these are not the bytes of a database file at all");
  const std::string before = ReadFile(path);
  EXPECT_THAT(SqliteStateStore::Open(path),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("backup")));
  EXPECT_EQ(ReadFile(path), before);
}

TEST(SqliteStateStoreTest, DamagedDatabaseIsRefusedAndLeftUntouched) {
  const std::string path = NewPath();
  {
    ASSERT_OK_AND_ASSIGN(auto store, SqliteStateStore::Open(path));
    for (int i = 0; i < 200; ++i) {
      ASSERT_OK(
          store->Put("table", absl::StrCat("key", i), std::string(100, 'x')));
    }
  }
  std::string bytes = ReadFile(path);
  ASSERT_GT(bytes.size(), 8192u);
  // Every page behind the first.
  for (size_t i = 4096; i < bytes.size(); ++i) bytes[i] = '\x55';
  WriteFile(path, bytes);
  EXPECT_THAT(SqliteStateStore::Open(path),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr(path)));
  EXPECT_EQ(ReadFile(path), bytes);
}

TEST(SqliteStateStoreTest, MissingFolderIsAClearError) {
  EXPECT_THAT(SqliteStateStore::Open("/nonexistent/state.sqlite"),
              StatusIs(absl::StatusCode::kUnavailable,
                       HasSubstr("/nonexistent/state.sqlite")));
}

}  // namespace
}  // namespace coxswain::server::state_store_test
