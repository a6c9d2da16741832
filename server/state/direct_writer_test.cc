#include "server/state/direct_writer.h"

#include <memory>

#include "base/status_matchers.h"
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

}  // namespace
}  // namespace coxswain::server
