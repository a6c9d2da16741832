#include "client/comm/memory_store.h"

#include <thread>

#include "base/status_matchers.h"

namespace coxswain {
namespace {

using testing::HasSubstr;

TEST(MemoryStoreTest, GetWaitsForSet) {
  MemoryStore store;
  std::thread setter([&] { EXPECT_OK(store.Set("key", "value")); });
  const auto value = store.Get("key", absl::Seconds(20));
  setter.join();
  ASSERT_OK(value);
  EXPECT_EQ(*value, "value");
}

TEST(MemoryStoreTest, AMissingKeyIsADeadlineError) {
  MemoryStore store;
  EXPECT_THAT(store.Get("lost", absl::ZeroDuration()),
              StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("lost")));
}

TEST(MemoryStoreTest, TheLastValueStays) {
  MemoryStore store;
  EXPECT_OK(store.Set("key", "old"));
  EXPECT_OK(store.Set("key", absl::string_view("n\0w", 3)));
  const auto value = store.Get("key", absl::ZeroDuration());
  ASSERT_OK(value);
  EXPECT_EQ(*value, std::string("n\0w", 3));
}

}  // namespace
}  // namespace coxswain
