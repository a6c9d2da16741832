#include "server/state/memory_state_store.h"

#include <memory>

#include "base/status_matchers.h"
#include "tests/conformance/state_store_conformance.h"

namespace coxswain::server {
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

}  // namespace
}  // namespace coxswain::server
