#include "client/torch/pipeline/torch_stage.h"

#include <torch/nn/module.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/optim/adam.h>

#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "client/comm/shm/shm_communicator.h"
#include "client/pipeline/pipeline_executor.h"
#include "schedule/pipeline/generate.h"
#include "schedule/pipeline/schedule.h"
#include "tests/conformance/connected_group.h"

namespace coxswain::torch {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr int kStages = 4;
constexpr int kWidth = 12;
constexpr int kSteps = 20;

// A stage's layers: tanh(LayerNorm(Linear(x))), where a mask of integers that
// goes through all stages silences rows. The first one embeds nothing, the last
// one ends in a sum.
struct Layers : ::torch::nn::Module {
  explicit Layers(int stage, ::torch::ScalarType type) {
    ::torch::manual_seed(100 + stage);
    linear = register_module("linear", ::torch::nn::Linear(kWidth, kWidth));
    norm = register_module(
        "norm",
        ::torch::nn::LayerNorm(::torch::nn::LayerNormOptions({kWidth})));
    to(type);
  }
  Tensors forward(const Tensors& inputs) {
    const auto mask = inputs[1].to(inputs[0].scalar_type()).unsqueeze(1);
    return {::torch::tanh(norm(linear(inputs[0]))) * mask, inputs[1]};
  }
  ::torch::nn::Linear linear{nullptr};
  ::torch::nn::LayerNorm norm{nullptr};
};

// Rows differ from one micro-batch to the next.
Tensors InputsOf(int step, int micro_batch, ::torch::ScalarType type) {
  ::torch::manual_seed(step * 1000 + micro_batch);
  const int64_t rows = 3 + (micro_batch * 5 + step) % 9;
  return {::torch::randn({rows, kWidth}).to(type),
          ::torch::randint(0, 2, {rows}, ::torch::kInt64)};
}

TorchStage::Loss LossOf(int micro_batches) {
  return [micro_batches](int, const Tensors& outputs) {
    return outputs[0].pow(2).sum() / micro_batches;
  };
}

struct Trained {
  std::vector<double> losses;
  std::vector<::torch::Tensor> parameters;  // by stage
};

// Adds a step's losses, in the order of the micro-batches.
void AddLosses(const std::map<int, ::torch::Tensor>& losses, Trained* trained) {
  for (const auto& [micro_batch, loss] : losses) {
    trained->losses.push_back(loss.item<double>());
  }
}

Trained InOneProcess(int micro_batches, ::torch::ScalarType type) {
  std::vector<std::shared_ptr<Layers>> stages;
  std::vector<::torch::Tensor> parameters;
  for (int stage = 0; stage < kStages; ++stage) {
    stages.push_back(std::make_shared<Layers>(stage, type));
    for (const auto& one : stages.back()->parameters()) {
      parameters.push_back(one);
    }
  }
  ::torch::optim::Adam optimizer(parameters, 1e-2);
  Trained trained;
  for (int step = 0; step < kSteps; ++step) {
    for (int i = 0; i < micro_batches; ++i) {
      Tensors x = InputsOf(step, i, type);
      for (const auto& stage : stages) x = stage->forward(x);
      const auto loss = LossOf(micro_batches)(i, x);
      loss.backward();
      trained.losses.push_back(loss.item<double>());
    }
    optimizer.step();
    optimizer.zero_grad();
  }
  trained.parameters = parameters;
  return trained;
}

pipeline::Schedule ScheduleOf(const std::string& text, int ranks,
                              int micro_batches) {
  auto schedule = pipeline::MakeSchedule(text, ranks, micro_batches);
  EXPECT_OK(schedule);
  return *std::move(schedule);
}

// One rank of a pipeline.
struct Rank {
  std::vector<std::shared_ptr<Layers>> layers;
  std::vector<std::unique_ptr<TorchStage>> stages;
  std::unique_ptr<::torch::optim::Adam> optimizer;
  std::unique_ptr<PipelineExecutor> executor;
};

class PipelineTest : public testing::Test {
 protected:
  // Where `chunks` * ranks are fewer than kStages, a stage has several layers.
  void Make(const pipeline::Schedule& schedule, ::torch::ScalarType type) {
    ranks_.clear();
    group_.clear();
    type_ = type;
    group_ = ConnectGroup(schedule.ranks(), absl::Minutes(1), ConnectShm);
    const int each = kStages / schedule.stages();
    for (int rank = 0; rank < schedule.ranks(); ++rank) {
      Rank one;
      std::vector<::torch::Tensor> parameters;
      std::vector<StageRunner*> runners;
      for (const int stage : schedule.StagesOf(rank)) {
        std::vector<std::shared_ptr<Layers>> layers;
        for (int i = stage * each; i < (stage + 1) * each; ++i) {
          layers.push_back(std::make_shared<Layers>(i, type));
          for (const auto& p : layers.back()->parameters()) {
            parameters.push_back(p);
          }
          one.layers.push_back(layers.back());
        }
        std::vector<StageLayer> of_stage;
        for (const auto& layer : layers) {
          of_stage.push_back({[layer](const Tensors& inputs) {
                                return layer->forward(inputs);
                              },
                              {}});
          for (const auto& p : layer->parameters()) {
            of_stage.back().parameters.push_back({p, p});
          }
        }
        one.stages.push_back(std::make_unique<TorchStage>(of_stage));
        if (stage + 1 == schedule.stages()) {
          one.stages.back()->SetLoss(LossOf(schedule.micro_batches()));
        }
        runners.push_back(one.stages.back().get());
      }
      one.optimizer = std::make_unique<::torch::optim::Adam>(parameters, 1e-2);
      ASSERT_OK_AND_ASSIGN(
          one.executor, PipelineExecutor::Create(
                            schedule, group_[static_cast<size_t>(rank)].get(),
                            std::move(runners), {}));
      ranks_.push_back(std::move(one));
    }
  }

  // A step of each rank on a thread; what each ends with.
  std::vector<absl::Status> Run(int step) {
    std::vector<absl::Status> ends(ranks_.size());
    std::vector<Tensors> inputs;
    const auto& schedule = ranks_[0].executor->schedule();
    for (int i = 0; i < schedule.micro_batches(); ++i) {
      inputs.push_back(InputsOf(step, i, type_));
    }
    ranks_[0].stages[0]->SetInputs(inputs);
    std::vector<std::thread> threads;
    for (size_t rank = 0; rank < ranks_.size(); ++rank) {
      threads.emplace_back([&, rank] {
        ends[rank] = ranks_[rank].executor->Run();
        if (!ends[rank].ok()) return;
        ranks_[rank].optimizer->step();
        ranks_[rank].optimizer->zero_grad();
      });
    }
    for (std::thread& thread : threads) thread.join();
    return ends;
  }

  Trained Train() {
    Trained trained;
    const auto& schedule = ranks_[0].executor->schedule();
    const auto last =
        static_cast<size_t>(schedule.rank_of_stage(schedule.stages() - 1));
    for (int step = 0; step < kSteps; ++step) {
      for (const absl::Status& status : Run(step)) EXPECT_OK(status);
      AddLosses(ranks_[last].stages.back()->losses(), &trained);
    }
    for (int layer = 0; layer < kStages; ++layer) {
      const int stage = layer / (kStages / schedule.stages());
      const int rank = schedule.rank_of_stage(stage);
      const std::vector<int> own = schedule.StagesOf(rank);
      int before = 0;
      for (const int one : own) {
        if (one < stage) before += kStages / schedule.stages();
      }
      const int at = before + layer % (kStages / schedule.stages());
      for (const auto& p : ranks_[static_cast<size_t>(rank)]
                               .layers[static_cast<size_t>(at)]
                               ->parameters()) {
        trained.parameters.push_back(p);
      }
    }
    return trained;
  }

  ::torch::ScalarType type_ = ::torch::kFloat32;
  std::vector<std::unique_ptr<Communicator>> group_;
  std::vector<Rank> ranks_;
};

struct Case {
  const char* schedule;
  int ranks;
};

class BitsTest : public PipelineTest,
                 public testing::WithParamInterface<Case> {};

TEST_P(BitsTest, AreThoseOfAccumulationInOneProcess) {
  ::torch::set_num_threads(1);
  for (const int micro_batches : {1, 2, 3, 8}) {
    SCOPED_TRACE(micro_batches);
    ASSERT_NO_FATAL_FAILURE(
        Make(ScheduleOf(GetParam().schedule, GetParam().ranks, micro_batches),
             ::torch::kFloat32));
    const Trained ours = Train();
    const Trained expected = InOneProcess(micro_batches, ::torch::kFloat32);
    EXPECT_EQ(ours.losses, expected.losses);
    ASSERT_EQ(ours.parameters.size(), expected.parameters.size());
    for (size_t i = 0; i < ours.parameters.size(); ++i) {
      EXPECT_TRUE(::torch::equal(ours.parameters[i], expected.parameters[i]))
          << "parameter " << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Schedules, BitsTest,
                         testing::Values(Case{"1f1b", 2}, Case{"1f1b", 4},
                                         Case{"interleaved(chunks=2)", 2},
                                         Case{"gpipe(order=fifo)", 4}),
                         [](const auto& info) {
                           return absl::StrCat("Case", info.index);
                         });

TEST_F(PipelineTest, OtherOrdersOfSumsComeCloseToOneProcess) {
  for (const std::string text : {"gpipe", "zb_h1"}) {
    for (const int ranks : {1, 2, 4}) {
      SCOPED_TRACE(absl::StrCat(text, " of ", ranks));
      ASSERT_NO_FATAL_FAILURE(
          Make(ScheduleOf(text, ranks, 5), ::torch::kFloat64));
      const Trained ours = Train();
      const Trained expected = InOneProcess(5, ::torch::kFloat64);
      ASSERT_EQ(ours.losses.size(), expected.losses.size());
      for (size_t i = 0; i < ours.losses.size(); ++i) {
        EXPECT_NEAR(ours.losses[i], expected.losses[i], 1e-12);
      }
      for (size_t i = 0; i < ours.parameters.size(); ++i) {
        EXPECT_LE((ours.parameters[i] - expected.parameters[i])
                      .abs()
                      .max()
                      .item<double>(),
                  1e-12);
      }
    }
  }
}

// A layer may return what it was given, and one output may be computed from
// another: each gradient counts once.
TEST_F(PipelineTest, HalvesOfABackwardPassAreTheWhole) {
  const auto options = ::torch::TensorOptions().dtype(::torch::kFloat64);
  std::vector<::torch::Tensor> weights;
  for (int i = 0; i < 3; ++i) {
    weights.push_back(::torch::linspace(0.1 + i, 1.0 + i, 4, options)
                          .set_requires_grad(true));
  }
  const auto layer = [&](int i) -> StageLayer {
    const ::torch::Tensor w = weights[static_cast<size_t>(i)];
    return {[w](const Tensors& x) -> Tensors {
              const auto y = (x[0] * w).sin();
              return {y, x[1], y * y + x[1]};
            },
            {{w, w}}};
  };
  std::vector<double> x = {1, 2, 3, 4};
  // How a backward pass comes, in a step with halves or without.
  enum class Pass { kWhole, kHalves, kWholeAmongHalves };
  const auto run = [&](Pass pass) {
    for (const auto& w : weights) w.mutable_grad() = ::torch::Tensor();
    TorchStage stage({layer(0), layer(1), layer(2)});
    EXPECT_OK(stage.Begin(1, /*halves=*/pass != Pass::kWhole));
    const auto activation = [&] {
      return Activation{
          DType::kFloat64,
          {4},
          std::shared_ptr<void>(std::shared_ptr<void>(), x.data())};
    };
    stage.SetLoss([](int, const Tensors& y) {
      return (y[0] * y[2]).sum() + y[1].square().sum();
    });
    Activations outputs;
    Activations gradients;
    EXPECT_OK(stage.Forward(0, {activation(), activation()}, &outputs));
    if (pass == Pass::kHalves) {
      EXPECT_OK(stage.BackwardInput(0, {}, &gradients));
      for (const auto& w : weights) EXPECT_FALSE(w.grad().defined());
      EXPECT_OK(stage.BackwardWeight(0));
      EXPECT_FALSE(stage.BackwardWeight(0).ok());
    } else {
      EXPECT_OK(stage.Backward(0, {}, &gradients));
    }
    Tensors all;
    for (const Activation& one : gradients) {
      all.push_back(::torch::from_blob(one.memory.get(), {4}, options).clone());
    }
    for (const auto& w : weights) all.push_back(w.grad().clone());
    return all;
  };
  const Tensors whole = run(Pass::kWhole);
  ASSERT_EQ(whole.size(), 5u);
  for (const Pass pass : {Pass::kHalves, Pass::kWholeAmongHalves}) {
    const Tensors other = run(pass);
    ASSERT_EQ(other.size(), 5u);
    for (size_t i = 0; i < whole.size(); ++i) {
      EXPECT_TRUE(::torch::allclose(other[i], whole[i], 1e-12, 1e-12)) << i;
    }
  }
}

// Otherwise all layers but one would go without gradients.
TEST_F(PipelineTest, HalvesThatTheStepDoesNotHaveAreRefused) {
  const auto layer = [](const Tensors& x) -> Tensors { return {x[0] * 2}; };
  TorchStage stage({StageLayer{layer, {}}, StageLayer{layer, {}}});
  stage.SetInputs({{::torch::ones({2})}});
  stage.SetLoss([](int, const Tensors& y) { return y[0].sum(); });
  ASSERT_OK(stage.Begin(1, /*halves=*/false));
  Activations none;
  ASSERT_OK(stage.Forward(0, {}, &none));
  EXPECT_THAT(stage.BackwardInput(0, {}, &none),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("the step has only whole ones")));
  TorchStage whole(layer);
  EXPECT_THAT(whole.Begin(1, /*halves=*/true),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("make it of layers")));
}

TEST_F(PipelineTest, AnExceptionOfAStageIsAnErrorOnAllRanks) {
  ASSERT_NO_FATAL_FAILURE(Make(ScheduleOf("1f1b", 4, 2), ::torch::kFloat32));
  ranks_[3].stages[0]->SetLoss([](int micro_batch, const Tensors& outputs) {
    if (micro_batch == 1) throw std::runtime_error("no label");
    return outputs[0].sum();
  });
  const auto ends = Run(0);
  EXPECT_THAT(ends[3],
              StatusIs(absl::StatusCode::kInternal,
                       HasSubstr("stage 3, 3F1: the forward pass: no label")));
  for (size_t rank = 0; rank < 3; ++rank) {
    EXPECT_FALSE(ends[rank].ok()) << rank;
  }
  EXPECT_THAT(ends[2], StatusIs(absl::StatusCode::kUnavailable,
                                AllOf(HasSubstr("rank 3"), HasSubstr("3F1"))));
}

TEST_F(PipelineTest, TooFewInputsAndTypesThatDoNotTravelAreNamed) {
  ASSERT_NO_FATAL_FAILURE(Make(ScheduleOf("1f1b", 2, 2), ::torch::kFloat32));
  TorchStage first([](const Tensors& inputs) { return inputs; });
  Activations outputs;
  EXPECT_THAT(first.Forward(0, {}, &outputs),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("call SetInputs before each step")));
  first.SetInputs({{::torch::ones({2}, ::torch::kBool)}});
  EXPECT_THAT(
      first.Begin(2, /*halves=*/false),
      StatusIs(absl::StatusCode::kFailedPrecondition,
               HasSubstr("inputs for 1 micro-batches, and a step has 2")));
  ASSERT_OK(first.Begin(1, /*halves=*/false));
  EXPECT_THAT(first.Forward(0, {}, &outputs),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("a tensor of Bool cannot be passed on")));
}

// As a mask that is there in some micro-batches only.
TEST_F(PipelineTest, ATensorThatIsNotThereStaysSo) {
  TorchStage next([](const Tensors& inputs) -> Tensors {
    EXPECT_FALSE(inputs[1].defined());
    return {inputs[0] * 2, inputs[1]};
  });
  std::vector<float> values = {1, 2};
  const Activation x = {
      DType::kFloat32,
      {2},
      std::shared_ptr<void>(std::shared_ptr<void>(), values.data())};
  const Activation none = {DType::kFloat32, {}, nullptr, /*absent=*/true};
  Activations outputs;
  ASSERT_OK(next.Forward(0, {x, none}, &outputs));
  ASSERT_EQ(outputs.size(), 2u);
  EXPECT_TRUE(outputs[1].absent);
  Activations gradients;
  ASSERT_OK(next.Backward(0, {x, none}, &gradients));
  ASSERT_EQ(gradients.size(), 2u);
  EXPECT_EQ(static_cast<float*>(gradients[0].memory.get())[1], 4);
  EXPECT_TRUE(gradients[1].absent);
}

}  // namespace
}  // namespace coxswain::torch
