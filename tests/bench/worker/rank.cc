#include "tests/bench/worker/rank.h"

#include <ATen/Parallel.h>
#include <sys/resource.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/status_macros.h"
#include "client/comm/backends/registry.h"
#include "hooks/registry/registry.h"
#include "tests/support/file_store.h"

namespace coxswain::bench {
namespace {

using ::torch::Tensor;

constexpr absl::Duration kTimeout = absl::Minutes(2);
constexpr int64_t kPieceBytes = 25 << 20;

absl::Duration CpuTime() {
  rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  return absl::DurationFromTimeval(usage.ru_utime) +
         absl::DurationFromTimeval(usage.ru_stime);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Rank>> Rank::Create(
    const RankOptions& options, std::shared_ptr<Network> network) {
  at::set_num_threads(1);
  auto rank = std::unique_ptr<Rank>(new Rank);
  rank->options_ = options;
  rank->network_ = std::move(network);
  COXSWAIN_RETURN_IF_ERROR(rank->Connect(options));
  return rank;
}

absl::Status Rank::Connect(const RankOptions& options) {
  CommunicatorOptions where;
  where.id = "bench";
  where.rank = options.rank;
  where.size = options.size;
  where.address = options.address;
  where.store = std::make_shared<FileStore>(options.store);
  where.timeout = kTimeout;
  COXSWAIN_ASSIGN_OR_RETURN(communicator_,
                            coxswain::Connect(options.backend, where));
  COXSWAIN_ASSIGN_OR_RETURN(std::unique_ptr<Hook> hook, MakeHook(options.hook));
  torch::DistributedDataParallelOptions ddp;
  ddp.gradient_as_bucket_view = options.view;
  ddp.reducer.statistics = options.statistics;
  ddp.accumulation_steps = options.accumulation_steps;
  ddp.trace_file = options.trace;
  ddp.zero = options.zero;
  COXSWAIN_ASSIGN_OR_RETURN(
      ddp_, torch::DistributedDataParallel::Create(
                network_, communicator_.get(), std::move(hook), ddp));
  return absl::OkStatus();
}

absl::Status Rank::Barrier() {
  return communicator_->Barrier()->Wait(kTimeout);
}

void Rank::ZeroGradients() {
  for (Tensor& parameter : network_->parameters()) {
    Tensor& gradient = parameter.mutable_grad();
    if (!gradient.defined()) continue;
    if (options_.view) {
      gradient.zero_();
    } else {
      gradient.reset();
    }
  }
}

Tensor Rank::Forward(Timing& timing) {
  ZeroGradients();
  const absl::Time begun = Clock::Real()->Now();
  Tensor loss = network_->Loss();
  timing.forward = Clock::Real()->Now() - begun;
  return loss;
}

absl::StatusOr<Timing> Rank::Time(Timing timing,
                                  const std::function<absl::Status()>& action) {
  COXSWAIN_RETURN_IF_ERROR(Barrier());
  const ReducerTotals before = ddp_->reducer().totals();
  const absl::Duration cpu = CpuTime();
  const absl::Time begun = Clock::Real()->Now();
  COXSWAIN_RETURN_IF_ERROR(action());
  timing.wall = Clock::Real()->Now() - begun;
  timing.cpu = CpuTime() - cpu;
  const ReducerTotals after = ddp_->reducer().totals();
  timing.in_hook = after.in_hook - before.in_hook;
  timing.in_collectives = after.in_collectives - before.in_collectives;
  timing.in_finish = after.in_finish - before.in_finish;
  return timing;
}

absl::Status Rank::ExchangeNow() {
  COXSWAIN_RETURN_IF_ERROR(ddp_->Synchronize());
  return ddp_->FinishStep();
}

absl::StatusOr<Timing> Rank::Compute() {
  Timing timing;
  const auto scope = ddp_->NoSync();
  const Tensor loss = Forward(timing);
  return Time(timing, [&] { return ddp_->Backward(loss); });
}

absl::StatusOr<Timing> Rank::Step() {
  Timing timing;
  const Tensor loss = Forward(timing);
  return Time(timing, [&] { return ddp_->Backward(loss); });
}

absl::StatusOr<Timing> Rank::StepInTurn() {
  Timing timing;
  std::unique_ptr<torch::NoSyncScope> scope(
      new torch::NoSyncScope(ddp_->NoSync()));
  const Tensor loss = Forward(timing);
  return Time(timing, [&] {
    COXSWAIN_RETURN_IF_ERROR(ddp_->Backward(loss));
    scope.reset();
    return ExchangeNow();
  });
}

absl::StatusOr<Timing> Rank::Exchange() {
  Timing timing;
  {
    const auto scope = ddp_->NoSync();
    COXSWAIN_RETURN_IF_ERROR(ddp_->Backward(Forward(timing)));
  }
  return Time(timing, [&] { return ExchangeNow(); });
}

absl::StatusOr<Timing> Rank::Micro() {
  ZeroGradients();
  absl::Duration forward;
  COXSWAIN_ASSIGN_OR_RETURN(Timing timing, Time({}, [&] {
                              const auto scope = ddp_->NoSync();
                              const absl::Time begun = Clock::Real()->Now();
                              const Tensor loss = network_->Loss();
                              forward = Clock::Real()->Now() - begun;
                              return ddp_->Backward(loss);
                            }));
  timing.forward = forward;
  return timing;
}

absl::Status Rank::RunLocally() {
  const auto scope = ddp_->NoSync();
  return ddp_->Backward(network_->Loss());
}

absl::Status Rank::RunInTurn() {
  COXSWAIN_RETURN_IF_ERROR(RunLocally());
  return ExchangeNow();
}

absl::Status Rank::RunMicro(const std::string& kind, bool last, bool in_turn) {
  double scale = 1;
  if (kind == "accumulate") scale = ddp_->Accumulate().loss_scale;
  if (in_turn && last) return RunInTurn();
  if (kind == "no_sync" && !last) return RunLocally();
  return ddp_->Backward(network_->Loss() * scale);
}

absl::StatusOr<Timing> Rank::Window(const std::string& kind, int micro_batches,
                                    bool in_turn) {
  const bool each = kind == "baseline";
  ZeroGradients();
  Timing total;
  // Ranks run on without waiting for each other, as in training.
  COXSWAIN_RETURN_IF_ERROR(Barrier());
  for (int micro = 0; micro < micro_batches; ++micro) {
    if (each && micro > 0) ZeroGradients();
    const bool last = each || micro == micro_batches - 1;
    const absl::Time begun = Clock::Real()->Now();
    COXSWAIN_RETURN_IF_ERROR(RunMicro(kind, last, in_turn));
    total.wall += Clock::Real()->Now() - begun;
  }
  return total;
}

absl::Status Rank::Misplaced() {
  const Tensor loss = network_->Loss();
  const auto scope = ddp_->NoSync();
  return ddp_->Backward(loss);
}

absl::Status Rank::MakeOptimizer() {
  if (adam_ != nullptr) return absl::OkStatus();
  adam_ = std::make_unique<::torch::optim::Adam>(
      network_->parameters(), ::torch::optim::AdamOptions(1e-3));
  if (options_.zero == 0) return absl::OkStatus();
  COXSWAIN_ASSIGN_OR_RETURN(sharded_,
                            torch::ShardedOptimizer::Create(*ddp_, *adam_));
  return absl::OkStatus();
}

absl::StatusOr<Timing> Rank::Train() {
  COXSWAIN_RETURN_IF_ERROR(MakeOptimizer());
  return Time({}, [&]() -> absl::Status {
    COXSWAIN_RETURN_IF_ERROR(ddp_->Backward(network_->Loss()));
    return sharded_ != nullptr ? sharded_->Step().status()
                               : ddp_->StepOptimizer(*adam_).status();
  });
}

absl::StatusOr<Timing> Rank::AllReduce(int64_t bytes) {
  std::vector<Tensor> pieces;
  for (; bytes > 0; bytes -= kPieceBytes) {
    const int64_t size = std::min(bytes, kPieceBytes);
    pieces.push_back(::torch::ones({size / 4}));
  }
  return Time({}, [&] {
    std::vector<WorkPtr> works;
    for (const Tensor& piece : pieces) {
      const Span span{piece.data_ptr(), piece.numel(), DType::kFloat32, {}};
      works.push_back(communicator_->AllReduce(span));
    }
    for (const WorkPtr& work : works) {
      COXSWAIN_RETURN_IF_ERROR(work->Wait(kTimeout));
    }
    return absl::OkStatus();
  });
}

absl::Status Rank::ChangeBuckets(const BucketPlanOptions& buckets) {
  return ddp_->ChangeBuckets(buckets);
}

}  // namespace coxswain::bench
