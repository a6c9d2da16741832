// What leaves hold of the coordinator's memory: nothing where they are refused,
// and nothing once their generation is over.
#include <malloc.h>
#include <unistd.h>

#include <cstdint>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "tests/support/process_status.h"
#include "tests/system/restart/memory_state.h"
#include "tests/system/restart/wire_server.h"

namespace coxswain {
namespace {

int64_t MemoryMib() {
  // What was freed is given back first.
  malloc_trim(0);
  return StatusKib(getpid(), "VmRSS") >> 10;
}

class LeaveMemoryTest : public testing::Test {
 protected:
  void SetUp() override { ASSERT_OK(server_.Start()); }

  WireServer server_{absl::StrCat(testing::TempDir(), "/memory-", getpid()),
                     std::make_shared<MemoryState>()};
};

TEST_F(LeaveMemoryTest, RefusedLeavesHoldNothing) {
  WireWorker worker(&server_, "job", 0);
  ASSERT_OK(worker.Join());
  const int64_t before = MemoryMib();
  ASSERT_GT(before, 0);
  for (int i = 0; i < 20; ++i) {
    v1::LeaveRequest leave;
    v1::Decision* const last = leave.add_positions()->mutable_last();
    last->set_stream(absl::StrCat("stream-", i));
    last->set_reason(std::string(30 << 20, 'x'));
    leave.add_positions()->mutable_last()->set_stream("!!");
    EXPECT_THAT(worker.Leave(leave),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         testing::HasSubstr("name of a stream")));
  }
  EXPECT_LT(MemoryMib() - before, 200) << "of 600 MiB that were sent";
}

TEST_F(LeaveMemoryTest, LeavesHoldNothingOnceTheirGenerationIsOver) {
  const auto run = [this](int number) {
    WireWorker worker(&server_, absl::StrCat("job-", number), 0);
    ASSERT_OK(worker.Join());
    v1::LeaveRequest leave;
    leave.set_fallback_epoch(1);
    for (int i = 0; i < 64; ++i) {
      v1::Decision* const last = leave.add_positions()->mutable_last();
      last->set_stream(absl::StrCat("stream-", i));
      for (std::string* text :
           {last->mutable_reason(), last->mutable_stop(),
            last->mutable_regroup(), last->mutable_checkpoint()}) {
        *text = std::string(4096, 'x');
      }
      last->mutable_plan()->set_version(1);
      last->mutable_plan()->set_hook(std::string(4096, 'h'));
    }
    ASSERT_OK(worker.Leave(leave));
  };
  run(0);
  const int64_t before = MemoryMib();
  ASSERT_GT(before, 0);
  for (int number = 1; number <= 200; ++number) run(number);
  EXPECT_EQ(server_.Describe().jobs_size(), 201);
  EXPECT_LT(MemoryMib() - before, 50)
      << "they have sent 256 MiB, of which 100 MiB are kept until the end";
}

}  // namespace
}  // namespace coxswain
