#include "tests/integration/gpt_model_for_test.h"

#include <torch/nn/functional.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/utils.h>

#include <cmath>
#include <limits>
#include <stdexcept>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "client/torch/tensor/initial_values.h"
#include "client/torch/tensor/mesh_dropout.h"
#include "client/torch/tensor/parallel_attention.h"
#include "client/torch/tensor/parallel_linear.h"
#include "client/torch/tensor/vocab_parallel.h"
#include "gtest/gtest.h"
#include "hooks/registry/planned_hook.h"

namespace coxswain::torch {
namespace {

namespace F = ::torch::nn::functional;
using ::torch::Tensor;
using ModulePtr = std::shared_ptr<::torch::nn::Module>;

constexpr int kBlocks = 4;
constexpr int64_t kIgnored = -100;
constexpr absl::Duration kGptTimeout = absl::Seconds(60);

::torch::nn::LayerNorm NormOf(int64_t features) {
  return ::torch::nn::LayerNorm(::torch::nn::LayerNormOptions({features}));
}

// ---- on a mesh ----

struct GptPositions : ::torch::nn::Module {
  Tensor forward(const Tensor& x) {
    const int64_t own = x.size(1);
    const int64_t begin = parallel->sequence() ? parallel->rank() * own : 0;
    return dropout->forward(x + weight.slice(0, begin, begin + own));
  }
  static absl::StatusOr<ModulePtr> Make(const GptForTest& gpt,
                                        const LayerContext& context) {
    auto module = std::make_shared<GptPositions>();
    module->parallel = context.parallel;
    module->weight = module->register_parameter(
        "weight", ::torch::zeros({gpt.length, gpt.features}));
    COXSWAIN_ASSIGN_OR_RETURN(
        module->dropout, MeshDropout::Create("positions.dropout", gpt.dropout,
                                             context.place, context.parallel));
    module->register_module("dropout", module->dropout);
    module->to(::torch::kFloat64);
    return module;
  }
  TensorParallelPtr parallel;
  Tensor weight;
  std::shared_ptr<MeshDropout> dropout;
};

struct GptMeshBlock : ::torch::nn::Module {
  Tensor forward(Tensor x) {
    x = x + attention->forward(norm1->forward(x));
    const Tensor inner = F::gelu(up->forward(norm2->forward(x)));
    return x + dropout->forward(down->forward(inner));
  }
  static absl::StatusOr<ModulePtr> Make(const GptForTest& gpt,
                                        const std::string& name,
                                        const LayerContext& context) {
    auto module = std::make_shared<GptMeshBlock>();
    module->norm1 = module->register_module("norm1", NormOf(gpt.features));
    module->norm2 = module->register_module("norm2", NormOf(gpt.features));
    ParallelAttentionOptions attention;
    attention.features = gpt.features;
    attention.heads = gpt.heads;
    COXSWAIN_ASSIGN_OR_RETURN(
        attention.dropout,
        MeshDropout::Create(absl::StrCat(name, ".attention.dropout"),
                            gpt.dropout, context.place, context.parallel));
    COXSWAIN_ASSIGN_OR_RETURN(
        module->attention,
        ParallelSelfAttention::Create(context.parallel, attention));
    module->register_module("attention", module->attention);
    ParallelLinearOptions linear;
    linear.in_features = gpt.features;
    linear.out_features = gpt.inner;
    COXSWAIN_ASSIGN_OR_RETURN(
        module->up, ColumnParallelLinear::Create(context.parallel, linear));
    module->register_module("up", module->up);
    std::swap(linear.in_features, linear.out_features);
    COXSWAIN_ASSIGN_OR_RETURN(
        module->down, RowParallelLinear::Create(context.parallel, linear));
    module->register_module("down", module->down);
    COXSWAIN_ASSIGN_OR_RETURN(
        module->dropout,
        MeshDropout::Create(absl::StrCat(name, ".dropout"), gpt.dropout,
                            context.place, context.parallel));
    module->register_module("dropout", module->dropout);
    module->to(::torch::kFloat64);
    return module;
  }
  ::torch::nn::LayerNorm norm1{nullptr}, norm2{nullptr};
  std::shared_ptr<ParallelSelfAttention> attention;
  std::shared_ptr<ColumnParallelLinear> up;
  std::shared_ptr<RowParallelLinear> down;
  std::shared_ptr<MeshDropout> dropout;
};

// A layer of a module of type M with forward(Tensor).
template <typename M>
PipelineLayer MeshLayer(
    const std::string& name,
    std::function<absl::StatusOr<ModulePtr>(const LayerContext&)> make) {
  PipelineLayer layer;
  layer.name = name;
  layer.make_on_mesh = std::move(make);
  layer.forward = [](::torch::nn::Module* module, const Tensors& x) -> Tensors {
    return {dynamic_cast<M&>(*module).forward(x[0])};
  };
  return layer;
}

}  // namespace

PipelineModel GptModelOf(const GptForTest& gpt) {
  PipelineModel model;
  model.seed = gpt.seed;
  model.initial_values = UsualInitialValues;
  model.layers.push_back(MeshLayer<VocabParallelEmbedding>(
      "embedding",
      [gpt](const LayerContext& context) -> absl::StatusOr<ModulePtr> {
        COXSWAIN_ASSIGN_OR_RETURN(
            const auto module,
            VocabParallelEmbedding::Create(context.parallel, gpt.vocabulary,
                                           gpt.features));
        module->to(::torch::kFloat64);
        return module;
      }));
  model.layers.push_back(
      MeshLayer<GptPositions>("positions", [gpt](const LayerContext& context) {
        return GptPositions::Make(gpt, context);
      }));
  for (int i = 0; i < kBlocks; ++i) {
    const std::string name = absl::StrCat("block", i);
    model.layers.push_back(
        MeshLayer<GptMeshBlock>(name, [gpt, name](const LayerContext& context) {
          return GptMeshBlock::Make(gpt, name, context);
        }));
  }
  model.layers.push_back(LayerOf("norm", [gpt] {
    auto module = NormOf(gpt.features).ptr();
    module->to(::torch::kFloat64);
    return module;
  }));
  model.layers.push_back(MeshLayer<ColumnParallelLinear>(
      "head", [gpt](const LayerContext& context) -> absl::StatusOr<ModulePtr> {
        ParallelLinearOptions linear;
        linear.in_features = gpt.features;
        linear.out_features = gpt.vocabulary;
        linear.bias = false;
        COXSWAIN_ASSIGN_OR_RETURN(
            const auto module,
            ColumnParallelLinear::Create(context.parallel, linear));
        module->to(::torch::kFloat64);
        return module;
      }));
  model.ties = {{"embedding.weight", "head.weight"}};
  return model;
}

MeshLoss GptLossOf(const GptForTest& gpt) {
  return [gpt](const LayerContext& context, const Tensors& outputs,
               const Tensors& targets) {
    const Tensor losses = VocabParallelCrossEntropy(
        outputs[0], targets[0], gpt.vocabulary, context.parallel, kIgnored);
    return losses.sum() / (targets[0] != kIgnored).sum();
  };
}

PipelineBatch GptBatchOf(const GptForTest& gpt, int64_t number) {
  const int64_t samples = 1 + number % 2;
  const int64_t length =
      gpt.lengths_differ ? gpt.length * (4 - number % 3) / 4 : gpt.length;
  const Tensor count = ::torch::arange(samples * length, ::torch::kInt64);
  const Tensor tokens =
      ((count * 17 + number * 31 + count * count * (number % 5)) %
       gpt.vocabulary)
          .view({samples, length});
  Tensor targets = (tokens * 5 + 3) % gpt.vocabulary;
  const Tensor ignored = count % (3 + number % 7) == 1;
  targets.masked_fill_(ignored.view_as(targets), kIgnored);
  if (number % 29 == 7) targets.fill_(kIgnored);
  PipelineBatch batch;
  batch.inputs = {tokens};
  batch.targets = {targets};
  batch.weight = (targets != kIgnored).sum().item<double>();
  return batch;
}

PipelineProgram GptProgramOf(const GptForTest& gpt, const std::string& mesh,
                             int data_ranks) {
  PipelineProgram program;
  program.model = GptModelOf(gpt);
  program.mesh_loss = GptLossOf(gpt);
  PipelineOptions& options = program.options;
  options.mesh = mesh;
  options.executor.timeout = kGptTimeout;
  options.ddp.accumulation_steps = gpt.micro_batches / data_ranks;
  options.ddp.make_hook = MakePlannedHook;
  // Several of each rank's.
  options.ddp.reducer.buckets = {8000, 24000};
  options.ddp.reducer.max_norm = gpt.max_norm;
  options.ddp.terms.commit_vote = true;
  options.ddp.terms.weighting = schedule::Weighting::kTokens;
  program.data = [gpt, data_ranks](int data_index, int64_t number) {
    return GptBatchOf(gpt, number * data_ranks + data_index);
  };
  return program;
}

// ---- in one process ----

namespace {

using Place = std::shared_ptr<const DropoutPlace>;

std::shared_ptr<MeshDropout> DenseDropout(const GptForTest& gpt,
                                          const std::string& name,
                                          const Place& place) {
  auto dropout = MeshDropout::Create(name, gpt.dropout, place, nullptr);
  EXPECT_OK(dropout);
  return *std::move(dropout);
}

struct GptDenseAttention : ::torch::nn::Module {
  GptDenseAttention(const GptForTest& gpt, const std::string& name,
                    const Place& place)
      : heads(gpt.heads) {
    qkv = register_module("qkv",
                          ::torch::nn::Linear(gpt.features, 3 * gpt.features));
    out =
        register_module("out", ::torch::nn::Linear(gpt.features, gpt.features));
    dropout = register_module(
        "dropout", DenseDropout(gpt, absl::StrCat(name, ".dropout"), place));
  }
  Tensor forward(const Tensor& x) {
    const int64_t batch = x.size(0);
    const int64_t length = x.size(1);
    const int64_t width = x.size(2) / heads;
    // By head, and within it query, key and value.
    const Tensor all = qkv(x).view({batch, length, heads, 3, width});
    const auto part = [&](int64_t which) {
      return all.select(3, which).transpose(1, 2);
    };
    const Tensor scores = part(0).matmul(part(1).transpose(-2, -1)) /
                          std::sqrt(static_cast<double>(width));
    const Tensor later =
        ::torch::ones({length, length}, ::torch::kBool).triu(1);
    const Tensor seen =
        scores.masked_fill(later, -std::numeric_limits<double>::infinity())
            .softmax(-1);
    return out(dropout->forward(seen).matmul(part(2)).transpose(1, 2).reshape(
        {batch, length, heads * width}));
  }
  const int64_t heads;
  ::torch::nn::Linear qkv{nullptr}, out{nullptr};
  std::shared_ptr<MeshDropout> dropout;
};

struct GptDenseBlock : ::torch::nn::Module {
  GptDenseBlock(const GptForTest& gpt, const std::string& name,
                const Place& place) {
    norm1 = register_module("norm1", NormOf(gpt.features));
    norm2 = register_module("norm2", NormOf(gpt.features));
    attention = register_module(
        "attention", std::make_shared<GptDenseAttention>(
                         gpt, absl::StrCat(name, ".attention"), place));
    up = register_module("up", ::torch::nn::Linear(gpt.features, gpt.inner));
    down =
        register_module("down", ::torch::nn::Linear(gpt.inner, gpt.features));
    dropout = register_module(
        "dropout", DenseDropout(gpt, absl::StrCat(name, ".dropout"), place));
  }
  Tensor forward(Tensor x) {
    x = x + attention->forward(norm1(x));
    return x + dropout->forward(down(F::gelu(up(norm2(x)))));
  }
  ::torch::nn::LayerNorm norm1{nullptr}, norm2{nullptr};
  std::shared_ptr<GptDenseAttention> attention;
  ::torch::nn::Linear up{nullptr}, down{nullptr};
  std::shared_ptr<MeshDropout> dropout;
};

// Its parameters have the names that they have in the job.
struct GptDensePositions : ::torch::nn::Module {
  GptDensePositions(const GptForTest& gpt, const Place& place) {
    weight = register_parameter("weight",
                                ::torch::zeros({gpt.length, gpt.features}));
    dropout = DenseDropout(gpt, "positions.dropout", place);
  }
  Tensor forward(const Tensor& x) {
    return dropout->forward(x + weight.slice(0, 0, x.size(1)));
  }
  Tensor weight;
  std::shared_ptr<MeshDropout> dropout;
};

struct GptDense : ::torch::nn::Module {
  GptDense(const GptForTest& gpt, const Place& place) {
    embedding = register_module(
        "embedding", ::torch::nn::Embedding(gpt.vocabulary, gpt.features));
    positions = register_module(
        "positions", std::make_shared<GptDensePositions>(gpt, place));
    for (int i = 0; i < kBlocks; ++i) {
      const std::string name = absl::StrCat("block", i);
      blocks.push_back(register_module(
          name, std::make_shared<GptDenseBlock>(gpt, name, place)));
    }
    norm = register_module("norm", NormOf(gpt.features));
    to(::torch::kFloat64);
  }
  // The mean over the targets that count.
  Tensor Loss(const PipelineBatch& batch) {
    Tensor x = positions->forward(embedding(batch.inputs[0]));
    for (const auto& block : blocks) x = block->forward(x);
    return F::cross_entropy(
        F::linear(norm(x), embedding->weight).flatten(0, 1),
        batch.targets[0].flatten(),
        F::CrossEntropyFuncOptions().ignore_index(kIgnored));
  }
  ::torch::nn::Embedding embedding{nullptr};
  std::shared_ptr<GptDensePositions> positions;
  std::vector<std::shared_ptr<GptDenseBlock>> blocks;
  ::torch::nn::LayerNorm norm{nullptr};
};

ValuesByName CopyOf(const ::torch::nn::Module& module) {
  ValuesByName values;
  for (const auto& item : module.named_parameters()) {
    values[item.key()] = item.value().detach().clone();
  }
  return values;
}

}  // namespace

GptInOneProcess TrainGptInOneProcess(const GptForTest& gpt, int steps) {
  const auto place = std::make_shared<DropoutPlace>();
  place->seed = gpt.seed;
  GptDense model(gpt, place);
  EXPECT_OK(InitialiseByName(model, gpt.seed, {}));
  GptInOneProcess result;
  result.initial = CopyOf(model);
  const auto optimizer = MakeAdam(model.parameters());
  for (int step = 0; step < steps; ++step) {
    std::vector<PipelineBatch> batches;
    double weight = 0;
    for (int i = 0; i < gpt.micro_batches; ++i) {
      batches.push_back(GptBatchOf(gpt, step * gpt.micro_batches + i));
      weight += *batches.back().weight;
    }
    place->step = step;
    for (int i = 0; i < gpt.micro_batches; ++i) {
      const PipelineBatch& batch = batches[static_cast<size_t>(i)];
      place->micro_batch = i;
      result.losses.push_back(0);
      if (*batch.weight == 0) continue;
      const Tensor loss = model.Loss(batch);
      (loss * (*batch.weight / weight)).backward();
      result.losses.back() = loss.item<double>();
    }
    double squares = 0;
    for (const Tensor& parameter : model.parameters()) {
      squares += parameter.grad().square().sum().item<double>();
    }
    result.norms.push_back(std::sqrt(squares));
    if (gpt.skipped.count(step) > 0) {
      optimizer->zero_grad();
      continue;
    }
    if (gpt.max_norm > 0 && result.norms.back() > gpt.max_norm) {
      for (const Tensor& parameter : model.parameters()) {
        parameter.mutable_grad().mul_(gpt.max_norm /
                                      (result.norms.back() + 1e-6));
      }
    }
    optimizer->step();
    optimizer->zero_grad();
  }
  result.values = CopyOf(model);
  return result;
}

// ---- comparing ----

namespace {

PipelineJob::Body BodyOf(const PipelineProgram& program, const GptRun& run,
                         std::vector<GptRank>* ranks) {
  return [&program, run, ranks](Pipeline& pipeline, Session& session,
                                PipelineEnd* end) -> absl::Status {
    GptRank& own = (*ranks)[static_cast<size_t>(session.rank())];
    own.initial = CopyOf(*pipeline.module());
    own.boxes = pipeline.boxes();
    own.has_targets = pipeline.has_targets();
    own.data_index = pipeline.data_index();
    own.data_ranks = pipeline.data_ranks();
    for (int step = 0; step < run.steps; ++step) {
      if (run.before_step) run.before_step(pipeline, session.rank(), step);
      const absl::StatusOr<PipelineResult> result =
          PipelineJob::Step(pipeline, program, 0, end);
      own.end = *end;
      COXSWAIN_RETURN_IF_ERROR(result.status());
      const DistributedDataParallel& ddp = pipeline.ddp();
      EXPECT_EQ(result->stepped, !ddp.skipped());
      own.norms.push_back(ddp.reducer().report().gradient_norm);
      own.reasons.push_back(ddp.skipped() ? ddp.decision().reason : "");
      const LossScale* const scale = pipeline.loss_scale();
      if (scale != nullptr) own.scales.push_back(scale->scale());
    }
    own.end.values = CopyOf(*pipeline.module());
    return absl::OkStatus();
  };
}

}  // namespace

std::vector<GptRank> RunGpt(PipelineJob& job, int ranks,
                            const PipelineProgram& program, const GptRun& run) {
  std::vector<GptRank> result(static_cast<size_t>(ranks));
  const auto ends = job.Run(
      ranks, [&](int) { return program; }, BodyOf(program, run, &result));
  for (size_t i = 0; i < ends.size(); ++i)
    result[i].end.status = ends[i].status;
  return result;
}

std::vector<GptRank> TrainGpt(PipelineJob& job, int ranks,
                              const PipelineProgram& program, int steps) {
  GptRun run;
  run.steps = steps;
  std::vector<GptRank> result = RunGpt(job, ranks, program, run);
  for (const GptRank& one : result) {
    EXPECT_OK(one.end.status);
    for (const std::string& reason : one.reasons) EXPECT_EQ(reason, "");
  }
  return result;
}

Tensor PartOf(const Tensor& whole, const std::string& name,
              const ParameterBoxes& boxes) {
  const auto found = boxes.find(name);
  if (found == boxes.end()) return whole;
  Tensor part = whole;
  const Box& box = found->second.box;
  for (size_t d = 0; d < box.begin.size(); ++d) {
    part = part.slice(static_cast<int64_t>(d), box.begin[d], box.end[d]);
  }
  return part;
}

namespace {

void ExpectClose(const std::vector<double>& actual,
                 const std::vector<double>& expected, double tolerance,
                 const std::string& what) {
  ASSERT_EQ(actual.size(), expected.size()) << what;
  for (size_t i = 0; i < actual.size(); ++i) {
    EXPECT_NEAR(actual[i], expected[i], tolerance) << what << " " << i;
  }
}

}  // namespace

void ExpectAsInOneProcess(const GptForTest& gpt,
                          const std::vector<GptRank>& ranks,
                          const GptInOneProcess& alone,
                          const GptTolerances& tolerances) {
  ValuesByName covered;  // elements of whole parameters that ranks have
  size_t with_targets = 0;
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    const GptRank& one = ranks[rank];
    const std::string who = absl::StrCat("rank ", rank);
    const auto name_in_one = [](const std::string& name) {
      return name == "head.weight" ? std::string("embedding.weight") : name;
    };
    for (const auto& [name, value] : one.initial) {
      const Tensor& whole = alone.initial.at(name_in_one(name));
      EXPECT_TRUE(value.equal(PartOf(whole, name, one.boxes)))
          << name << " begins with other bits on " << who;
      Tensor& elements = covered[name_in_one(name)];
      if (!elements.defined()) {
        elements = ::torch::zeros(whole.sizes(), ::torch::kBool);
      }
      PartOf(elements, name, one.boxes).fill_(true);
    }
    ASSERT_EQ(one.end.values.size(), one.initial.size()) << who;
    for (const auto& [name, value] : one.end.values) {
      const Tensor& whole = alone.values.at(name_in_one(name));
      const double difference =
          (value - PartOf(whole, name, one.boxes)).abs().max().item<double>();
      EXPECT_LE(difference,
                tolerances.values * whole.abs().max().item<double>())
          << name << " on " << who;
    }
    std::vector<double> norms = one.norms;
    for (const int step : gpt.skipped) {
      const auto at = static_cast<size_t>(step);
      if (at < norms.size()) norms[at] = alone.norms[at];
    }
    if (gpt.max_norm > 0) {
      ExpectClose(norms, alone.norms, tolerances.norms,
                  absl::StrCat("norm on ", who, ", of step"));
    }
    if (!one.has_targets) {
      EXPECT_TRUE(one.end.losses.empty()) << who;
      continue;
    }
    ++with_targets;
    std::vector<double> expected;
    for (size_t i = static_cast<size_t>(one.data_index);
         i < alone.losses.size(); i += static_cast<size_t>(one.data_ranks)) {
      expected.push_back(alone.losses[i]);
    }
    EXPECT_EQ(gpt.micro_batches % one.data_ranks, 0);
    ExpectClose(one.end.losses, expected, tolerances.losses,
                absl::StrCat("loss on ", who, ", of micro-batch"));
  }
  EXPECT_GT(with_targets, 0);
  EXPECT_EQ(covered.size(), alone.values.size());
  for (const auto& [name, elements] : covered) {
    EXPECT_TRUE(elements.all().item<bool>())
        << "some of " << name << " are on no rank";
  }
}

}  // namespace coxswain::torch
