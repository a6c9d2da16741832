#include "tests/integration/synchronisation_rank.h"

#include <ATen/Parallel.h>

#include <thread>
#include <utility>

#include "absl/time/time.h"
#include "base/status_matchers.h"
#include "client/comm/in_process/in_process_world.h"
#include "hooks/registry/registry.h"

namespace coxswain {
namespace {

constexpr absl::Duration kDeadline = absl::Seconds(60);

HookWorld::Buckets BucketsOf(const Reducer& reducer) {
  HookWorld::Buckets buckets;
  for (const Bucket& bucket : reducer.buckets()) {
    buckets.emplace_back();
    for (const GradientSlot& slot : bucket.gradients) {
      buckets.back().push_back(slot.parameter);
    }
  }
  return buckets;
}

}  // namespace

TestRank::TestRank(const Setting& setting, int rank,
                   std::unique_ptr<Communicator> communicator)
    : setting_(setting),
      communicator_(std::move(communicator)),
      net_(std::make_shared<TinyNet>(static_cast<uint64_t>(rank))),
      sampler_(MakeSampler(rank, setting.size)),
      optimizer_(*net_) {}

void TestRank::Wrap(int accumulation_steps) {
  torch::DistributedDataParallelOptions options;
  options.accumulation_steps = accumulation_steps;
  options.gradient_as_bucket_view = setting_.view;
  // Some programs run several forwards ahead.
  options.forward_in_scope = false;
  options.reducer.timeout = kDeadline;
  // Several buckets, also for this small network.
  options.reducer.buckets = {256, 1024};
  ASSERT_OK_AND_ASSIGN(auto hook, MakeHook(setting_.hook.spec));
  ASSERT_OK_AND_ASSIGN(auto averager, MakeAverager(setting_.hook.spec));
  ASSERT_OK_AND_ASSIGN(ddp_, torch::DistributedDataParallel::Create(
                                 net_, communicator_.get(), std::move(hook),
                                 options, std::move(averager)));
  ASSERT_GT(ddp_->reducer().buckets().size(), 1u);
  start_ = CopyOfParameters(*net_);
}

Samples TestRank::NextBatch() {
  if (sampler_.batches_left() == 0) sampler_.NextEpoch();
  return *sampler_.NextBatch();
}

void TestRank::Record(bool exchanges,
                      const std::function<absl::Status()>& backward) {
  Pass pass;
  pass.exchanged = exchanges;
  pass.buckets = BucketsOf(ddp_->reducer());
  const int64_t before = communicator_->payload_bytes();
  ASSERT_OK(backward());
  pass.bytes = communicator_->payload_bytes() - before;
  pass.hook_step = ddp_->hook().step();
  pass.gradients = CopyOfGradients(*net_);
  passes_.push_back(std::move(pass));
  if (!exchanges) return;
  const Tensors parameters = net_->parameters();
  for (size_t i = 0; i < parameters.size(); ++i) {
    const Span view = ddp_->reducer().GradientView(static_cast<int>(i));
    EXPECT_EQ(parameters[i].grad().data_ptr() == view.data, setting_.view)
        << "parameter " << i;
  }
}

void TestRank::Backward(const ::torch::Tensor& loss, bool exchanges) {
  Record(exchanges, [&] { return ddp_->Backward(loss); });
}

void TestRank::Step() {
  optimizer_.sgd.step();
  optimizer_.schedule.step();
  Pass& pass = passes_.back();
  pass.stepped = true;
  pass.rate = optimizer_.rate();
  pass.trained = CopyOfParameters(*net_);
  ASSERT_OK(ddp_->AfterOptimizerStep());
  pass.averaged = CopyOfParameters(*net_);
  pass.diverged = ddp_->averager() != nullptr && ddp_->averager()->diverged();
  ClearGradients(*net_, /*undefine=*/steps_++ % 2 == 1);
}

std::vector<std::unique_ptr<TestRank>> RunJob(
    const Setting& setting, int accumulation_steps,
    const std::function<void(TestRank&)>& program) {
  const auto world = InProcessWorld::Create(setting.size, kDeadline);
  std::vector<std::unique_ptr<TestRank>> ranks;
  for (int rank = 0; rank < setting.size; ++rank) {
    ranks.push_back(
        std::make_unique<TestRank>(setting, rank, world->MakeRank(rank)));
  }
  std::vector<std::thread> threads;
  for (auto& rank : ranks) {
    threads.emplace_back([&, rank = rank.get()] {
      at::set_num_threads(1);
      rank->Wrap(accumulation_steps);
      if (!testing::Test::HasFatalFailure()) program(*rank);
      // No rank is to wait for one that has failed.
      if (testing::Test::HasFatalFailure()) {
        rank->communicator().Abort("the test has failed");
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return ranks;
}

}  // namespace coxswain
