// Whether ranks hold what `coxswain plan memory` counts: each tensor of
// libtorch's and each bucket, at the most that a rank has at once in two steps.
//
// Left out are messages between stages, and the data, which the ranks share
// here. A message that was received is not in libtorch's memory; one that waits
// to be sent is, and how many do depends on how fast the ranks are: so an
// output of a layer is small beside what is compared.

#include <ATen/Parallel.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>

#include <cstdint>
#include <memory>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/mesh.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "client/comm/shm/shm_communicator.h"
#include "client/torch/distributed_data_parallel.h"
#include "client/torch/shard/sharded_optimizer.h"
#include "client/torch/tensor/initial_values.h"
#include "client/torch/tensor/parallel_linear.h"
#include "client/torch/test_ranks.h"
#include "hooks/allreduce.h"
#include "hooks/registry/planned_hook.h"
#include "schedule/memory/model.h"
#include "schedule/memory/rank_memory.h"
#include "tests/conformance/connected_group.h"
#include "tests/integration/counted_memory.h"
#include "tests/integration/pipeline_ranks.h"
#include "tests/support/in_threads.h"

namespace coxswain::torch::planned_memory_test {
namespace {

namespace optim = ::torch::optim;
using memory::Configuration;
using ::torch::Tensor;

constexpr int64_t kWidth = 128;
constexpr int64_t kInner = 256;
constexpr int kLayers = 24;
constexpr int64_t kRows = 64;
// Of what passes from one layer to the next.
constexpr int64_t kUnit = kRows * kWidth * 4;
constexpr int64_t kBucketBytes = 1 << 16;
constexpr int kSteps = 2;
constexpr double kTolerance = 0.05;

struct BlockImpl : ::torch::nn::Module {
  BlockImpl()
      : linear(register_module("linear", ::torch::nn::Linear(kWidth, kWidth))) {
  }
  Tensor forward(const Tensor& x) { return ::torch::tanh(linear(x)); }

  ::torch::nn::Linear linear;
};

// What tp divides: two products, whose middle is wider.
class DividedBlock : public ::torch::nn::Module {
 public:
  static absl::StatusOr<std::shared_ptr<DividedBlock>> Create(
      const LayerContext& context) {
    auto block = std::make_shared<DividedBlock>();
    COXSWAIN_ASSIGN_OR_RETURN(
        block->up_,
        ColumnParallelLinear::Create(context.parallel, {kWidth, kInner}));
    COXSWAIN_ASSIGN_OR_RETURN(
        block->down_,
        RowParallelLinear::Create(context.parallel, {kInner, kWidth}));
    block->register_module("up", block->up_);
    block->register_module("down", block->down_);
    return block;
  }
  Tensor forward(const Tensor& x) {
    return ::torch::tanh(down_->forward(::torch::tanh(up_->forward(x))));
  }

 private:
  std::shared_ptr<ColumnParallelLinear> up_;
  std::shared_ptr<RowParallelLinear> down_;
};

// They keep their middles, which are divided, and their outputs, which are
// whole, as are the gradients of these.
memory::Model DividedModelOf() {
  const std::string layer = absl::StrCat(
      R"("parameters": [{"shape": [)", kInner, ",", kWidth,
      R"(], "tp": 0}, {"shape": [)", kInner, R"(], "tp": 0}, {"shape": [)",
      kWidth, ",", kInner, R"(], "tp": 1}, )", kWidth, R"(], "output": )",
      kUnit, R"(, "working": )", 2 * kUnit, R"(, "activations": {"tp": )",
      kUnit / kWidth * kInner, R"(, "whole": )");
  return memory::ParseModel(absl::StrCat(R"({"layers": [{"repeat": )",
                                         kLayers - 1, ",", layer, kUnit, "}},{",
                                         layer, 2 * kUnit, "}}]}"))
      .value();
}

// Its layers keep their outputs, the last one also what the loss squares. A
// backward pass holds two gradients of such outputs at a time.
memory::Model ModelOf() {
  const std::string layer = absl::StrCat(
      R"("parameters": [)", kWidth * kWidth, ",", kWidth, R"(], "output": )",
      kUnit, R"(, "working": )", 2 * kUnit, R"(, "activations": )");
  return memory::ParseModel(absl::StrCat(R"({"layers": [{"repeat": )",
                                         kLayers - 1, ",", layer, kUnit, "},{",
                                         layer, 2 * kUnit, "}]}"))
      .value();
}

const Tensor& Data() {
  static const Tensor data = ::torch::ones({kRows, kWidth}) * 0.1;
  return data;
}

std::unique_ptr<optim::Optimizer> OptimizerOf(
    const Configuration& configuration, const std::vector<Tensor>& parameters) {
  if (configuration.optimizer == "adam") {
    return std::make_unique<optim::Adam>(parameters, optim::AdamOptions(1e-3));
  }
  return std::make_unique<optim::SGD>(
      parameters, optim::SGDOptions(1e-3).momentum(
                      configuration.optimizer == "momentum" ? 0.9 : 0));
}

// By rank: what it held at most.
using Peaks = std::vector<int64_t>;

struct Whole : ::torch::nn::Module {
  Whole() {
    for (int i = 0; i < kLayers; ++i) {
      layers.push_back(register_module(absl::StrCat("layer", i),
                                       std::make_shared<BlockImpl>()));
    }
  }
  Tensor Loss() {
    Tensor x = Data();
    for (const auto& layer : layers) x = layer->forward(x);
    return (x - Data()).square().mean();
  }

  std::vector<std::shared_ptr<BlockImpl>> layers;
};

int64_t TrainReplica(const Configuration& configuration,
                     std::unique_ptr<Communicator> inner) {
  CountingCommunicator communicator(std::move(inner), OwnLedger());
  const auto model = std::make_shared<Whole>();
  const auto optimizer = OptimizerOf(configuration, model->parameters());
  schedule::Plan plan = PlanOf(configuration.accumulation);
  plan.terms.sync_each_batch = configuration.sync_each_batch;
  DistributedDataParallelOptions options;
  options.plan = plan;
  options.gradient_as_bucket_view = configuration.gradient_as_bucket_view;
  options.zero = configuration.zero;
  options.reducer.rebuild = false;
  options.reducer.buckets = {kBucketBytes, kBucketBytes};
  // This pass is faster than any exchange.
  options.reducer.bucket_wait = kSoon;
  auto ddp = DistributedDataParallel::Create(
      model, &communicator, MakeAllReduceHook("allreduce"), options);
  EXPECT_OK(ddp);
  std::unique_ptr<ShardedOptimizer> sharded;
  if (configuration.zero > 0) {
    auto made = ShardedOptimizer::Create(**ddp, *optimizer);
    EXPECT_OK(made);
    sharded = *std::move(made);
  }
  for (int step = 0; step <= kSteps; ++step) {
    if (step == 1) OwnLedger()->BeginPeak();
    for (int i = 0; i < configuration.accumulation; ++i) {
      const MicroBatch micro = (*ddp)->Accumulate();
      EXPECT_OK((*ddp)->Backward(model->Loss(), micro));
    }
    EXPECT_OK(sharded != nullptr ? sharded->Step()
                                 : (*ddp)->StepOptimizer(*optimizer));
  }
  return OwnLedger()->peak();
}

Peaks TrainReplicas(const Configuration& configuration) {
  const int size = configuration.mesh.size();
  Peaks peaks(static_cast<size_t>(size));
  auto group = ConnectGroup(size, kSoon, ConnectShm);
  InThreads(size, [&](int rank) {
    at::set_num_threads(1);
    OwnLedger() = std::make_shared<Ledger>();
    const auto at = static_cast<size_t>(rank);
    peaks[at] = TrainReplica(configuration, std::move(group[at]));
  });
  return peaks;
}

bool IsDivided(const Configuration& configuration) {
  return configuration.mesh.extent("tp") > 1;
}

Peaks TrainPipeline(const Configuration& configuration) {
  const int size = configuration.mesh.size();
  PipelineProgram program;
  for (int i = 0; i < kLayers; ++i) {
    const std::string name = absl::StrCat("layer", i);
    program.model.layers.push_back(
        IsDivided(configuration)
            ? MeshLayerOf(name, DividedBlock::Create)
            : LayerOf(name, [] { return std::make_shared<BlockImpl>(); }));
  }
  if (IsDivided(configuration)) {
    program.model.seed = 7;
    program.model.initial_values = UsualInitialValues;
  }
  program.loss = [](const Tensors& outputs, const Tensors& targets) {
    return (outputs[0] - targets[0]).square().mean();
  };
  program.options.mesh = configuration.mesh.ToString();
  program.options.ddp.accumulation_steps = configuration.accumulation;
  program.options.ddp.terms.pipeline = configuration.pipeline;
  program.options.ddp.zero = configuration.zero;
  program.options.ddp.gradient_as_bucket_view =
      configuration.gradient_as_bucket_view;
  program.options.ddp.make_hook = MakePlannedHook;
  program.options.ddp.reducer.rebuild = false;
  program.options.ddp.reducer.buckets = {kBucketBytes, kBucketBytes};
  program.data = [](int, int64_t) {
    PipelineBatch batch;
    batch.inputs = batch.targets = {Data()};
    return batch;
  };
  program.make_optimizer = [&](const std::vector<Tensor>& parameters) {
    return OptimizerOf(configuration, parameters);
  };
  Peaks peaks(static_cast<size_t>(size));
  const auto body = [&](Pipeline& pipeline, Session& session,
                        PipelineEnd* end) -> absl::Status {
    for (int step = 0; step <= kSteps; ++step) {
      if (step == 1) OwnLedger()->BeginPeak();
      COXSWAIN_RETURN_IF_ERROR(
          PipelineJob::Step(pipeline, program, 0, end).status());
    }
    // Of the session's back end, and not libtorch's: the buckets, and with zero
    // the parameters, which are cut like them.
    int64_t buckets = 0;
    for (const Bucket& bucket : pipeline.ddp().reducer().buckets()) {
      buckets += bucket.data.bytes();
    }
    if (configuration.zero > 0) buckets *= 2;
    peaks[static_cast<size_t>(session.rank())] = OwnLedger()->peak() + buckets;
    return absl::OkStatus();
  };
  PipelineJob job;
  const auto ends = job.Run(
      size,
      [&](int) {
        OwnLedger() = std::make_shared<Ledger>();
        return program;
      },
      body);
  for (const PipelineEnd& end : ends) EXPECT_OK(end.status);
  return peaks;
}

struct Case {
  std::string mesh;
  std::string pipeline;
  std::string optimizer;
  int accumulation = 1;
  int zero = 0;
  bool view = false;
  bool each = false;

  friend std::ostream& operator<<(std::ostream& out, const Case& one) {
    return out << one.mesh << " " << one.pipeline << " " << one.optimizer
               << " accumulation=" << one.accumulation << " zero=" << one.zero
               << " view=" << one.view << " sync_each_batch=" << one.each;
  }
};

class PlannedMemoryTest : public ::testing::TestWithParam<Case> {
 private:
  const CountedTensors counted_;
};

TEST_P(PlannedMemoryTest, ARankHoldsWhatIsPlanned) {
  const Case& now = GetParam();
  Configuration configuration;
  configuration.mesh = Mesh::Parse(now.mesh).value();
  configuration.pipeline = now.pipeline;
  configuration.optimizer = now.optimizer;
  configuration.accumulation = now.accumulation;
  configuration.zero = now.zero;
  configuration.gradient_as_bucket_view = now.view;
  configuration.sync_each_batch = now.each;
  configuration.bucket_bytes = kBucketBytes;
  (void)Data();  // made by no rank
  ASSERT_OK_AND_ASSIGN(
      const memory::Estimate estimate,
      memory::EstimateMemory(
          IsDivided(configuration) ? DividedModelOf() : ModelOf(),
          configuration));
  const Peaks peaks = now.pipeline.empty() ? TrainReplicas(configuration)
                                           : TrainPipeline(configuration);
  for (size_t rank = 0; rank < peaks.size(); ++rank) {
    const int number = static_cast<int>(rank);
    const Mesh& mesh = configuration.mesh;
    const memory::RankMemory& planned = estimate.Of(
        number / (mesh.size() / mesh.extent("pp")), number % mesh.extent("tp"));
    const auto expected =
        static_cast<double>(planned.total() - planned.messages);
    EXPECT_NEAR(static_cast<double>(peaks[rank]) / expected, 1, kTolerance)
        << "rank " << rank << " held " << peaks[rank] << ", planned "
        << expected << ": parameters " << planned.parameters << ", gradients "
        << planned.gradients << ", buckets " << planned.buckets
        << ", optimizer " << planned.optimizer << ", activations "
        << planned.activations << ", working " << planned.working;
  }
}

// mesh, pipeline, optimizer, accumulation, zero, view, sync_each_batch
INSTANTIATE_TEST_SUITE_P(
    Configurations, PlannedMemoryTest,
    ::testing::Values(Case{"dp=2", "", "adam", 1, 0, true},
                      Case{"dp=2", "", "sgd", 1, 0, false},
                      Case{"dp=2", "", "momentum", 3, 0, false},
                      Case{"dp=2", "", "adam", 3, 0, true, true},
                      Case{"shard=4", "", "adam", 1, 1},
                      Case{"shard=2", "", "momentum", 3, 1, false, true},
                      Case{"shard=4", "", "adam", 1, 2},
                      Case{"shard=2", "", "adam", 3, 2},
                      Case{"shard=2", "", "adam", 3, 2, false, true},
                      Case{"pp=2,dp=1", "1f1b", "adam", 4},
                      Case{"pp=2,dp=1", "gpipe", "sgd", 4},
                      Case{"pp=2,dp=1", "interleaved(chunks=2)", "momentum", 4},
                      Case{"pp=2,dp=1", "zb_h1", "sgd", 4},
                      Case{"pp=2,dp=2", "1f1b", "adam", 4, 1},
                      Case{"dp=1,tp=2", "1f1b", "adam", 2},
                      Case{"dp=1,tp=3", "gpipe", "momentum", 3},
                      Case{"dp=2,tp=2", "1f1b", "adam", 2, 1},
                      Case{"pp=2,dp=1,tp=2", "1f1b", "sgd", 4}));

}  // namespace
}  // namespace coxswain::torch::planned_memory_test
