#include "tests/integration/pipeline_ranks.h"

#include <ATen/Parallel.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/optim/adam.h>
#include <torch/utils.h>

#include <atomic>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "client/rpc/stub_factory.h"
#include "client/torch/pipeline/rank_layers.h"
#include "gtest/gtest.h"
#include "hooks/registry/planned_hook.h"
#include "schedule/pipeline/stage_cut.h"
#include "tests/support/in_threads.h"
#include "tests/support/quick_coordinator.h"

namespace coxswain::torch {
namespace {

using ::torch::Tensor;

constexpr absl::Duration kTimeout = absl::Seconds(60);
constexpr char kJob[] = "job";

ValuesByName ValuesOf(const ::torch::nn::Module& module) {
  ValuesByName values;
  for (const auto& item : module.named_parameters()) {
    values[item.key()] = item.value().detach().clone();
  }
  return values;
}

}  // namespace

std::unique_ptr<::torch::optim::Optimizer> MakeAdam(
    const std::vector<Tensor>& parameters) {
  return std::make_unique<::torch::optim::Adam>(
      parameters, ::torch::optim::AdamOptions(1e-2));
}

// ---- jobs ----

PipelineJob::PipelineJob() {
  at::set_num_threads(1);
  static std::atomic<int> jobs = 0;
  server::CoordinatorOptions options = QuickCoordinator();
  options.listen = "127.0.0.1:0";
  absl::StrAppend(&options.state_dir, "-", ++jobs);
  auto started = server::Coordinator::Start(options);
  EXPECT_OK(started);
  coordinator_ = std::move(started).value();
  operator_ =
      ConnectCoordinator(absl::StrCat("127.0.0.1:", coordinator_->port()), {});
}

std::vector<PipelineEnd> PipelineJob::Run(
    int ranks, const std::function<PipelineProgram(int rank)>& program,
    const Body& body) {
  std::vector<PipelineEnd> ends(static_cast<size_t>(ranks));
  InThreads(ranks, [&](int slot) {
    at::set_num_threads(1);
    PipelineEnd& end = ends[static_cast<size_t>(slot)];
    PipelineProgram own = program(slot);
    SessionOptions options;
    options.coordinator = operator_->address();
    options.job = kJob;
    options.identity = {"host-a", slot};
    options.host = "host-a";
    options.world_size = ranks;
    options.mesh = own.options.mesh;
    options.join_timeout = options.collective_timeout = kTimeout;
    if (own.before_join) own.before_join(options);
    const auto run = [&]() -> absl::Status {
      COXSWAIN_ASSIGN_OR_RETURN(const JobManifest manifest,
                                DescribeJob(own.model, own.options));
      COXSWAIN_ASSIGN_OR_RETURN(const std::unique_ptr<Session> session,
                                Session::Join(options, manifest));
      if (own.after_join) own.after_join(own, *session);
      const auto train = [&]() -> absl::Status {
        COXSWAIN_ASSIGN_OR_RETURN(
            const std::unique_ptr<Pipeline> pipeline,
            own.mesh_loss
                ? Pipeline::Create(*session, own.model, own.mesh_loss,
                                   own.options)
                : Pipeline::Create(*session, own.model, own.loss, own.options));
        const std::vector<Tensor> parameters = pipeline->module()->parameters();
        const auto optimizer = own.make_optimizer
                                   ? own.make_optimizer(parameters)
                                   : MakeAdam(parameters);
        COXSWAIN_RETURN_IF_ERROR(pipeline->UseOptimizer(*optimizer));
        end.data_index = pipeline->data_index();
        COXSWAIN_RETURN_IF_ERROR(body(*pipeline, *session, &end));
        end.values = ValuesOf(*pipeline->module());
        end.boxes = pipeline->boxes();
        end.replicated = pipeline->replicated();
        return absl::OkStatus();
      };
      const absl::Status status = train();
      if (own.before_leave) own.before_leave();
      session->Leave(status.ok() ? "done" : status.message(), !status.ok())
          .IgnoreError();
      return status;
    };
    end.status = run();
  });
  return ends;
}

std::vector<PipelineBatch> PipelineJob::NextOf(const Pipeline& pipeline,
                                               const PipelineProgram& program,
                                               int micro_batches,
                                               PipelineEnd* end) {
  std::vector<PipelineBatch> batches;
  for (int i = 0; i < micro_batches; ++i) {
    PipelineBatch batch = program.data(pipeline.data_index(), end->taken++);
    if (!pipeline.has_inputs()) batch.inputs.clear();
    if (!pipeline.has_targets()) {
      batch.targets.clear();
      batch.weight.reset();
    }
    batches.push_back(std::move(batch));
  }
  return batches;
}

absl::StatusOr<PipelineResult> PipelineJob::Step(Pipeline& pipeline,
                                                 const PipelineProgram& program,
                                                 int micro_batches,
                                                 PipelineEnd* end) {
  const int count = micro_batches > 0 ? micro_batches : pipeline.window();
  COXSWAIN_ASSIGN_OR_RETURN(
      PipelineResult result,
      pipeline.Step(NextOf(pipeline, program, count, end)));
  end->losses.insert(end->losses.end(), result.losses.begin(),
                     result.losses.end());
  return result;
}

PipelineJob::Body PipelineJob::Steps(const PipelineProgram& program,
                                     int steps) {
  return [&program, steps](Pipeline& pipeline, Session&,
                           PipelineEnd* end) -> absl::Status {
    for (int step = 0; step < steps; ++step) {
      COXSWAIN_ASSIGN_OR_RETURN(const PipelineResult result,
                                Step(pipeline, program, 0, end));
      EXPECT_TRUE(result.stepped);
    }
    return absl::OkStatus();
  };
}

std::vector<PipelineEnd> PipelineJob::Train(int ranks,
                                            const PipelineProgram& program,
                                            int steps) {
  std::vector<PipelineEnd> ends = Run(
      ranks, [&](int) { return program; }, Steps(program, steps));
  for (const PipelineEnd& end : ends) EXPECT_OK(end.status);
  return ends;
}

absl::Status PipelineJob::Propose(
    const std::function<void(v1::Plan&)>& change) {
  v1::DescribeRequest describe;
  describe.set_job(kJob);
  COXSWAIN_ASSIGN_OR_RETURN(const v1::DescribeResponse described,
                            operator_->Describe(describe, {}));
  v1::ProposePlanRequest request;
  request.set_job(kJob);
  request.set_expected_version(described.jobs(0).plan().version());
  *request.mutable_plan() = described.jobs(0).plan();
  change(*request.mutable_plan());
  request.mutable_plan()->set_at_step(schedule::Plan::kAtNextStep);
  request.mutable_fence()->set_cluster_id(described.cluster_id());
  request.mutable_fence()->set_term(described.term());
  request.mutable_fence()->set_job(kJob);
  request.mutable_fence()->set_request_id(
      static_cast<uint64_t>(described.jobs(0).plan().version()) + 4711);
  return operator_->ProposePlan(request, {}).status();
}

absl::Status PipelineJob::Await(
    const std::function<bool(const v1::WhyResponse&)>& done) {
  const absl::Time end = Clock::Real()->Now() + kTimeout;
  v1::WhyRequest request;
  request.set_job(kJob);
  while (Clock::Real()->Now() < end) {
    COXSWAIN_ASSIGN_OR_RETURN(const v1::WhyResponse why,
                              operator_->Why(request, {}));
    if (done(why)) return absl::OkStatus();
  }
  return absl::DeadlineExceededError("the coordinator does not see it");
}

// ---- one process ----

namespace {

void ExpectTied(const std::vector<StageLayer>& layers, size_t ties) {
  size_t found = 0;
  for (const StageLayer& layer : layers) {
    for (const StageParameter& one : layer.parameters) {
      EXPECT_EQ(one.used.data_ptr(), one.trained.data_ptr());
      if (!one.used.is_same(one.trained)) ++found;
    }
  }
  EXPECT_EQ(found, ties);
}

}  // namespace

OneProcess InOneProcess(const PipelineProgram& program, const Windows& windows,
                        double max_norm) {
  const int count = static_cast<int>(program.model.layers.size());
  auto made = RankLayers::Make(program.model,
                               pipeline::StageCut::Even(count, 1).value(), {0});
  EXPECT_OK(made);
  const RankLayers& whole = **made;
  const std::vector<StageLayer> layers = whole.LayersOf(0);
  ExpectTied(layers, program.model.ties.size());
  const auto optimizer = MakeAdam(whole.module()->parameters());
  OneProcess result;
  std::map<size_t, int64_t> taken;
  for (const std::vector<int>& window : windows) {
    std::vector<PipelineBatch> batches;
    double weight = 0;
    const auto first = static_cast<size_t>(window[0]);
    for (size_t d = 0; d < window.size(); ++d) {
      for (int i = 0; i < window[d]; ++i) {
        batches.push_back(program.data(static_cast<int>(d), taken[d]++));
        weight += batches.back().weight.value_or(1);
      }
    }
    for (size_t i = 0; i < batches.size(); ++i) {
      const double own = batches[i].weight.value_or(1);
      if (own == 0) {
        if (i < first) result.losses.push_back(0);
        continue;
      }
      Tensors x = batches[i].inputs;
      for (const StageLayer& layer : layers) x = layer.compute(x);
      const Tensor loss = program.loss(x, batches[i].targets);
      (loss * (own / weight)).backward();
      if (i < first) result.losses.push_back(loss.item<double>());
    }
    if (max_norm > 0) {
      ::torch::nn::utils::clip_grad_norm_(whole.module()->parameters(),
                                          max_norm);
    }
    optimizer->step();
    optimizer->zero_grad();
  }
  ExpectTied(layers, program.model.ties.size());
  result.values = ValuesOf(*whole.module());
  return result;
}

namespace {

Tensor OwnPartOf(Tensor whole, const std::string& name,
                 const ParameterBoxes& boxes) {
  const auto box = boxes.find(name);
  if (box == boxes.end()) return whole;
  for (size_t d = 0; d < box->second.shape.size(); ++d) {
    whole = whole.slice(static_cast<int64_t>(d), box->second.box.begin[d],
                        box->second.box.end[d]);
  }
  return whole;
}

}  // namespace

void ExpectValues(const std::vector<PipelineEnd>& ends,
                  const ValuesByName& expected, double tolerance) {
  std::map<std::string, int> found;
  for (size_t rank = 0; rank < ends.size(); ++rank) {
    for (const auto& [name, value] : ends[rank].values) {
      const auto at = expected.find(name);
      if (at == expected.end()) continue;  // the second of a tie
      ++found[name];
      const Tensor part = OwnPartOf(at->second, name, ends[rank].boxes);
      const double difference = (value - part).abs().max().item<double>();
      EXPECT_LE(difference, tolerance * at->second.abs().max().item<double>())
          << name << " on rank " << rank;
    }
  }
  EXPECT_EQ(found.size(), expected.size());
}

// ---- models ----

namespace {

struct Block : ::torch::nn::Module {
  Block(int64_t width, ::torch::ScalarType type) {
    linear = register_module("linear", ::torch::nn::Linear(width, width));
    norm = register_module(
        "norm", ::torch::nn::LayerNorm(::torch::nn::LayerNormOptions({width})));
    to(type);
  }
  Tensor forward(const Tensor& x) { return ::torch::tanh(norm(linear(x))); }

  ::torch::nn::Linear linear{nullptr};
  ::torch::nn::LayerNorm norm{nullptr};
};

// A matrix of one row for each token.
struct Table : ::torch::nn::Module {
  Table(int64_t rows, int64_t width) {
    weight = register_parameter(
        "weight", ::torch::randn({rows, width}, ::torch::kFloat64) * 0.5);
  }
  Tensor weight;
};

std::function<std::shared_ptr<::torch::nn::Module>()> MakeTable(int64_t rows,
                                                                int64_t width) {
  return [=] { return std::make_shared<Table>(rows, width); };
}

Tensor WeightOf(::torch::nn::Module* module) {
  return dynamic_cast<Table&>(*module).weight;
}

// Numbers that depend on all arguments, of a pure function.
Tensor Numbers(int64_t rows, int64_t columns, int data_index, int64_t number) {
  const double at = 1 + 31.0 * data_index + 7.0 * static_cast<double>(number);
  const Tensor count = ::torch::arange(rows * columns, ::torch::kFloat64);
  return ::torch::sin(count * 12.9898 + at * 78.233).view({rows, columns});
}

Tensor Tokens(int64_t rows, int64_t columns, int64_t vocabulary, int data_index,
              int64_t number) {
  return ((Numbers(rows, columns, data_index, number) + 1) * 0.499 *
          static_cast<double>(vocabulary))
      .to(::torch::kInt64);
}

PipelineOptions OptionsOf() {
  PipelineOptions options;
  options.mesh = "pp=2,dp=*";
  options.ddp.accumulation_steps = 4;
  options.ddp.make_hook = MakePlannedHook;
  options.ddp.reducer.buckets = {300, 900};
  options.executor.timeout = kTimeout;
  return options;
}

Tensor CrossEntropy(const Tensors& outputs, const Tensors& targets) {
  const Tensor& logits = outputs[0];
  return ::torch::nn::functional::cross_entropy(
      logits.reshape({-1, logits.size(-1)}), targets[0].reshape({-1}));
}

}  // namespace

PipelineProgram Mlp(int layers, ::torch::ScalarType type) {
  static constexpr int64_t kWidth = 12;
  PipelineProgram program;
  for (int i = 0; i < layers; ++i) {
    program.model.layers.push_back(LayerOf(absl::StrCat("block", i), [type] {
      return std::make_shared<Block>(kWidth, type);
    }));
  }
  program.model.seed = 11;
  program.loss = [](const Tensors& outputs, const Tensors& targets) {
    return (outputs[0] - targets[0]).square().mean();
  };
  program.options = OptionsOf();
  program.data = [type](int data_index, int64_t number) {
    PipelineBatch batch;
    const int64_t rows = 3 + (number * 5) % 7;
    batch.inputs = {Numbers(rows, kWidth, data_index, number).to(type)};
    batch.targets = {Numbers(rows, kWidth, data_index + 50, number).to(type)};
    return batch;
  };
  return program;
}

PipelineProgram TiedTokens() {
  static constexpr int64_t kVocabulary = 13;
  static constexpr int64_t kWidth = 8;
  PipelineProgram program;
  std::vector<PipelineLayer>& layers = program.model.layers;
  layers.push_back(
      {"embedding", MakeTable(kVocabulary, kWidth),
       [](::torch::nn::Module* module, const Tensors& x) -> Tensors {
         return {::torch::embedding(WeightOf(module), x[0])};
       }});
  for (const char* name : {"first", "second"}) {
    layers.push_back(LayerOf(name, [] {
      return std::make_shared<Block>(kWidth, ::torch::kFloat64);
    }));
  }
  layers.push_back(
      {"head", MakeTable(kVocabulary, kWidth),
       [](::torch::nn::Module* module, const Tensors& x) -> Tensors {
         return {::torch::matmul(x[0], WeightOf(module).t())};
       }});
  program.model.ties = {{"embedding.weight", "head.weight"}};
  program.model.seed = 5;
  program.loss = CrossEntropy;
  program.options = OptionsOf();
  program.options.ddp.terms.weighting = schedule::Weighting::kTokens;
  program.data = [](int data_index, int64_t number) {
    PipelineBatch batch;
    const int64_t length = 2 + (3 * number + 5 * data_index) % 9;
    batch.inputs = {Tokens(2, length, kVocabulary, data_index, number)};
    batch.targets = {Tokens(2, length, kVocabulary, data_index + 50, number)};
    batch.weight = static_cast<double>(2 * length);
    return batch;
  };
  return program;
}

PipelineProgram TiedTokensByHand() {
  PipelineProgram program = TiedTokens();
  program.model.ties.clear();
  const auto table = std::make_shared<std::shared_ptr<::torch::nn::Module>>();
  PipelineLayer& embedding = program.model.layers.front();
  embedding.make = [table, make = embedding.make] { return *table = make(); };
  PipelineLayer& head = program.model.layers.back();
  head.make = nullptr;
  head.forward = [table, forward = head.forward](::torch::nn::Module*,
                                                 const Tensors& x) {
    return forward(table->get(), x);
  };
  return program;
}

PipelineProgram EncoderDecoder() {
  static constexpr int64_t kVocabulary = 11;
  static constexpr int64_t kWidth = 6;
  const auto block = [] {
    return std::make_shared<Block>(kWidth, ::torch::kFloat64);
  };
  const auto apply = [](::torch::nn::Module* module, const Tensor& x) {
    return dynamic_cast<Block&>(*module).forward(x);
  };
  PipelineProgram program;
  std::vector<PipelineLayer>& layers = program.model.layers;
  // {source, mask, target} -> {x, mask, target}
  layers.push_back(
      {"source", MakeTable(kVocabulary, kWidth),
       [](::torch::nn::Module* module, const Tensors& x) -> Tensors {
         return {::torch::embedding(WeightOf(module), x[0]), x[1], x[2]};
       }});
  for (const char* name : {"encoder0", "encoder1"}) {
    layers.push_back(
        {name, block,
         [apply](::torch::nn::Module* module, const Tensors& x) -> Tensors {
           const Tensor mask = x[1].to(::torch::kFloat64).unsqueeze(2);
           return {apply(module, x[0]) * mask, x[1], x[2]};
         }});
  }
  // -> {encoded, mask, y}
  layers.push_back(
      {"target", MakeTable(kVocabulary, kWidth),
       [](::torch::nn::Module* module, const Tensors& x) -> Tensors {
         return {x[0], x[1], ::torch::embedding(WeightOf(module), x[2])};
       }});
  for (const char* name : {"decoder0", "decoder1"}) {
    layers.push_back(
        {name, block,
         [apply](::torch::nn::Module* module, const Tensors& x) -> Tensors {
           const Tensor scores =
               ::torch::matmul(x[2], x[0].transpose(1, 2))
                   .masked_fill((x[1] == 0).unsqueeze(1), -1e9);
           const Tensor seen =
               ::torch::matmul(::torch::softmax(scores, 2), x[0]);
           return {x[0], x[1], apply(module, x[2] + seen)};
         }});
  }
  layers.push_back(
      {"head", MakeTable(kVocabulary, kWidth),
       [](::torch::nn::Module* module, const Tensors& x) -> Tensors {
         return {::torch::matmul(x[2], WeightOf(module).t())};
       }});
  program.model.seed = 3;
  program.loss = CrossEntropy;
  program.options = OptionsOf();
  program.data = [](int data_index, int64_t number) {
    PipelineBatch batch;
    const int64_t length = 3 + (5 * number) % 6;
    const int64_t answer = 2 + (2 * number) % 5;
    const Tensor mask = (Numbers(2, length, data_index + 20, number) > -0.5)
                            .to(::torch::kInt64);
    mask.select(1, 0).fill_(1);
    batch.inputs = {Tokens(2, length, kVocabulary, data_index, number), mask,
                    Tokens(2, answer, kVocabulary, data_index + 30, number)};
    batch.targets = {Tokens(2, answer, kVocabulary, data_index + 50, number)};
    return batch;
  };
  return program;
}

}  // namespace coxswain::torch
