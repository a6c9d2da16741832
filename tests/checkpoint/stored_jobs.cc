#include "tests/checkpoint/stored_jobs.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "tests/support/in_threads.h"

namespace coxswain {

StoredJobs::StoredJobs(const std::string& folder) {
  server::CoordinatorOptions options;
  options.state_dir = folder;
  auto started = server::Coordinator::Start(options);
  EXPECT_OK(started);
  if (started.ok()) coordinator_ = *std::move(started);
}

void StoredJobs::Begin() {
  Leave();
  ++jobs_;
  Join();
}

void StoredJobs::Leave() {
  if (session_ == nullptr) return;
  EXPECT_OK(session_->Leave("interrupted"));
  session_.reset();
}

void StoredJobs::Join() {
  SessionOptions options;
  options.coordinator = absl::StrCat("127.0.0.1:", coordinator_->port());
  options.job = absl::StrCat("resume-", jobs_);
  options.identity = {"host-a", 0};
  options.host = "host-a";
  options.world_size = 1;
  auto joined = Session::Join(options, {});
  EXPECT_OK(joined);
  if (joined.ok()) session_ = *std::move(joined);
}

TrainingState StoredJobs::SaveAndLoad(int size, const Save& save) {
  InThreads(size,
            [&](int rank) { EXPECT_OK(save(session_->checkpoints(), rank)); });
  Leave();
  Join();
  auto state = LoadTrainingState(session_->checkpoints());
  EXPECT_OK(state);
  return state.ok() ? *std::move(state) : TrainingState();
}

TrainingState StoredJobs::SaveAndLoad(HookWorld& world, int64_t step) {
  TrainingState state =
      SaveAndLoad(world.size(), [&](CheckpointClient& checkpoints, int rank) {
        return SaveTrainingState(checkpoints, world.communicator(rank), step,
                                 world.hook(rank), {});
      });
  EXPECT_EQ(state.step, step);
  EXPECT_EQ(state.metadata["world_size"], absl::StrCat(world.size()));
  return state;
}

}  // namespace coxswain
