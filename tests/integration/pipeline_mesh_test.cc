// Pipelines of layers that the ranks along tp divide: what their data, calls
// and errors come to.

#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <cmath>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "client/comm/backends/registry.h"
#include "client/comm/communicator.h"
#include "client/torch/tensor/initial_values.h"
#include "client/torch/tensor/parallel_linear.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/integration/pipeline_ranks.h"

namespace coxswain::torch::pipeline_mesh_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::torch::Tensor;
using ModulePtr = std::shared_ptr<::torch::nn::Module>;

constexpr double kExact = 1e-12;
constexpr int64_t kWidth = 12;
constexpr int64_t kInner = 19;  // comes out uneven on two and on four ranks

// x + Row(tanh(Column(LayerNorm(x)))).
struct Divided : ::torch::nn::Module {
  static absl::StatusOr<std::shared_ptr<Divided>> Create(
      const LayerContext& context, ::torch::ScalarType type) {
    auto module = std::make_shared<Divided>();
    ParallelLinearOptions linear;
    linear.in_features = kWidth;
    linear.out_features = kInner;
    COXSWAIN_ASSIGN_OR_RETURN(
        module->up, ColumnParallelLinear::Create(context.parallel, linear));
    std::swap(linear.in_features, linear.out_features);
    COXSWAIN_ASSIGN_OR_RETURN(
        module->down, RowParallelLinear::Create(context.parallel, linear));
    module->norm = module->register_module(
        "norm",
        ::torch::nn::LayerNorm(::torch::nn::LayerNormOptions({kWidth})));
    module->register_module("up", module->up);
    module->register_module("down", module->down);
    module->to(type);
    return module;
  }
  Tensor forward(const Tensor& x) {
    return x + down->forward(::torch::tanh(up->forward(norm(x))));
  }
  ::torch::nn::LayerNorm norm{nullptr};
  std::shared_ptr<ColumnParallelLinear> up;
  std::shared_ptr<RowParallelLinear> down;
};

// The ends of what is divided along the sequence, if that is.
struct Border : ::torch::nn::Module {
  Border(TensorParallelPtr parallel, bool begins)
      : parallel(std::move(parallel)), begins(begins) {}
  Tensor forward(const Tensor& x) {
    if (!parallel->sequence()) return x;
    return begins ? ScatterToSequence(x, parallel)
                  : GatherFromSequence(x, parallel);
  }
  const TensorParallelPtr parallel;
  const bool begins;
};

PipelineLayer BorderOf(const std::string& name, bool begins) {
  return MeshLayerOf(name,
                     [begins](const LayerContext& context)
                         -> absl::StatusOr<std::shared_ptr<Border>> {
                       return std::make_shared<Border>(context.parallel,
                                                       begins);
                     });
}

// Three such blocks, and a layer that each rank has whole. Micro-batches weigh
// their rows, of which there are a multiple of four.
PipelineProgram DividedBlocks(const std::string& mesh, bool sequence = false,
                              ::torch::ScalarType type = ::torch::kFloat64) {
  PipelineProgram program = Mlp(1, type);
  const PipelineLayer whole = program.model.layers[0];
  program.model.layers = {BorderOf("begin", true)};
  for (int i = 0; i < 3; ++i) {
    program.model.layers.push_back(MeshLayerOf(
        absl::StrCat("divided", i), [type](const LayerContext& context) {
          return Divided::Create(context, type);
        }));
  }
  program.model.layers.push_back(whole);
  program.model.layers.push_back(BorderOf("end", false));
  program.model.initial_values = UsualInitialValues;
  program.options.mesh = mesh;
  program.options.sequence = sequence;
  program.options.ddp.terms.weighting = schedule::Weighting::kTokens;
  program.data = [data = program.data](int data_index, int64_t number) {
    PipelineBatch batch = data(data_index, number);
    const int64_t rows = 4 * (1 + (number + data_index) % 3);
    for (Tensor* tensor : {&batch.inputs[0], &batch.targets[0]}) {
      *tensor = ::torch::cat({*tensor, *tensor, *tensor, *tensor}, 0)
                    .slice(0, 0, rows)
                    .contiguous();
    }
    batch.weight = static_cast<double>(rows);
    return batch;
  };
  return program;
}

struct Case {
  std::string mesh;
  int ranks = 4;
  bool sequence = false;
  int zero = 0;
  std::string pipeline = "1f1b";
};
std::string NameOf(const testing::TestParamInfo<Case>& info) {
  std::string name;
  for (const char c : absl::StrCat(info.param.mesh, info.param.pipeline,
                                   info.param.sequence ? "sequence" : "",
                                   "zero", info.param.zero)) {
    if (std::isalnum(static_cast<unsigned char>(c)) != 0) name.push_back(c);
  }
  return name;
}

class MeshTest : public testing::TestWithParam<Case> {
 protected:
  PipelineProgram Program() const {
    PipelineProgram program =
        DividedBlocks(GetParam().mesh, GetParam().sequence);
    program.options.ddp.zero = GetParam().zero;
    program.options.ddp.terms.pipeline = GetParam().pipeline;
    return program;
  }
  // Expects that those with losses, of the first data index, have these.
  static void ExpectLosses(const std::vector<PipelineEnd>& ends,
                           const std::vector<double>& expected) {
    int found = 0;
    for (const PipelineEnd& end : ends) {
      if (end.losses.empty() || end.data_index != 0) continue;
      ++found;
      ASSERT_EQ(end.losses.size(), expected.size());
      for (size_t i = 0; i < expected.size(); ++i) {
        EXPECT_NEAR(end.losses[i], expected[i], kExact) << "loss " << i;
      }
    }
    EXPECT_EQ(found, 2) << "along tp";
  }
};

INSTANTIATE_TEST_SUITE_P(
    Meshes, MeshTest,
    testing::Values(Case{"dp=2,tp=2"}, Case{"dp=2,tp=2", 4, true, 1},
                    Case{"pp=2,dp=2,tp=2", 8, true},
                    Case{"pp=2,dp=2,tp=2", 8, false, 1, "zb_h1"}),
    NameOf);

// Whichever groups are one.
TEST(PipelineBytesTest, EachCollectiveIsCountedOnce) {
  for (const auto& [mesh, ranks] :
       std::vector<std::pair<std::string, int>>{{"pp=2", 2},
                                                {"tp=2", 2},
                                                {"dp=2", 2},
                                                {"pp=2,tp=2", 4},
                                                {"dp=2,tp=2", 4},
                                                {"pp=2,dp=2,tp=2", 8}}) {
    SCOPED_TRACE(mesh);
    const PipelineProgram program = DividedBlocks(mesh);
    // By slot: all that the session has connected.
    std::vector<std::vector<const Communicator*>> connected(
        static_cast<size_t>(ranks));
    const auto ends = PipelineJob().Run(
        ranks,
        [&](int slot) {
          PipelineProgram own = program;
          own.before_join = [&connected, slot](SessionOptions& options) {
            options.connect = [&connected, slot](
                                  const std::string& backend,
                                  const CommunicatorOptions& group)
                -> absl::StatusOr<std::unique_ptr<Communicator>> {
              COXSWAIN_ASSIGN_OR_RETURN(std::unique_ptr<Communicator> made,
                                        Connect(backend, group));
              connected[static_cast<size_t>(slot)].push_back(made.get());
              return made;
            };
          };
          return own;
        },
        [&](Pipeline& pipeline, Session& session,
            PipelineEnd* end) -> absl::Status {
          COXSWAIN_RETURN_IF_ERROR(
              PipelineJob::Step(pipeline, program, 0, end).status());
          int64_t all = 0;
          const auto slot = static_cast<size_t>(session.rank());
          for (const Communicator* const one : connected[slot]) {
            if (one->size() > 1) all += one->payload_bytes();
          }
          const AxisBytes bytes = pipeline.payload_bytes();
          EXPECT_EQ(bytes.pp + bytes.data + bytes.tp, all);
          const Mesh& axes = session.mesh();
          EXPECT_EQ(bytes.pp > 0, axes.extent("pp") > 1);
          EXPECT_EQ(bytes.data > 0, axes.extent("dp") > 1);
          EXPECT_EQ(bytes.tp > 0, axes.extent("tp") > 1);
          return absl::OkStatus();
        });
    for (const PipelineEnd& end : ends) EXPECT_OK(end.status);
  }
}

// The second data index has fewer micro-batches: in the last window of the
// first epoch, and none in the second epoch's last one.
TEST_P(MeshTest, ShortWindowsAndStepsWithoutDataCountAsInOneProcess) {
  PipelineProgram program = Program();
  program.options.ddp.terms.uneven_data = schedule::UnevenData::kWaitForAll;
  const auto ends = PipelineJob().Run(
      GetParam().ranks, [&](int) { return program; },
      [&](Pipeline& pipeline, Session&, PipelineEnd* end) -> absl::Status {
        const bool second = pipeline.data_index() == 1;
        for (int epoch = 0; epoch < 2; ++epoch) {
          std::vector<int> windows = {4, 3};
          if (second) {
            windows = epoch == 0 ? std::vector<int>{4, 2} : std::vector<int>{4};
          }
          for (const int count : windows) {
            COXSWAIN_RETURN_IF_ERROR(
                PipelineJob::Step(pipeline, program, count, end).status());
          }
          while (true) {
            COXSWAIN_ASSIGN_OR_RETURN(const bool more,
                                      pipeline.StepWithoutData());
            if (!more) break;
          }
        }
        EXPECT_EQ(pipeline.ddp().optimizer_steps(), 4);
        return absl::OkStatus();
      });
  for (const PipelineEnd& end : ends) EXPECT_OK(end.status);
  const OneProcess alone =
      InOneProcess(program, {{4, 4}, {3, 2}, {4, 4}, {3, 0}});
  ExpectValues(ends, alone.values, kExact);
  ExpectLosses(ends, alone.losses);
}

TEST_P(MeshTest, EvaluationsChangeNothingAndCarriedWindowsGoOn) {
  PipelineProgram program = Program();
  program.options.ddp.terms.tail = schedule::TailPolicy::kCarry;
  const auto ends = PipelineJob().Run(
      GetParam().ranks, [&](int) { return program; },
      [&](Pipeline& pipeline, Session&, PipelineEnd* end) -> absl::Status {
        for (const int count : {4, 2, 2, 4}) {
          PipelineEnd aside = *end;
          COXSWAIN_ASSIGN_OR_RETURN(const PipelineResult seen,
                                    pipeline.Evaluate(PipelineJob::NextOf(
                                        pipeline, program, count, &aside)));
          COXSWAIN_ASSIGN_OR_RETURN(
              const PipelineResult result,
              PipelineJob::Step(pipeline, program, count, end));
          EXPECT_EQ(seen.losses, result.losses);
        }
        EXPECT_EQ(pipeline.ddp().optimizer_steps(), 3);
        return absl::OkStatus();
      });
  for (const PipelineEnd& end : ends) EXPECT_OK(end.status);
  ExpectValues(ends, InOneProcess(program, {{4, 4}, {4, 4}, {4, 4}}).values,
               kExact);
}

// Shards have different sizes on the ranks, and with them the places of
// gradients in buckets that have any: a hook that scales blocks of a bucket
// would round replicated gradients in another way on each, and so would the sum
// of three.
void ExpectSameBits(const PipelineProgram& program, int ranks) {
  const auto ends = PipelineJob().Train(ranks, program, 10);
  ASSERT_GE(ends[0].replicated.size(), 9u);
  EXPECT_NE(ends[0].values.at("divided0.up.weight").numel(),
            ends[3].values.at("divided0.up.weight").numel());
  for (const PipelineEnd& end : ends) {
    EXPECT_EQ(end.replicated, ends[0].replicated);
    for (const std::string& name : end.replicated) {
      EXPECT_TRUE(end.values.at(name).equal(ends[0].values.at(name))) << name;
    }
  }
}

TEST(ReplicatedTest, KeepTheirBitsBesideUnevenParts) {
  for (const bool sequence : {false, true}) {
    for (const int zero : {0, 1}) {
      for (const std::string hook : {"allreduce", "int8"}) {
        SCOPED_TRACE(absl::StrCat(hook, " ", sequence, " zero ", zero));
        PipelineProgram program =
            DividedBlocks("dp=2,tp=4", sequence, ::torch::kFloat32);
        program.options.hook = hook;
        program.options.ddp.zero = zero;
        ExpectSameBits(program, 8);
      }
    }
  }
}

TEST(ReplicatedTest, KeepTheirBitsInSumsOfThree) {
  for (const int zero : {0, 1}) {
    SCOPED_TRACE(absl::StrCat("zero ", zero));
    PipelineProgram program =
        DividedBlocks("dp=3,tp=2", /*sequence=*/false, ::torch::kFloat32);
    program.options.ddp.zero = zero;
    ExpectSameBits(program, 6);
  }
}

// ---- errors ----

// Ranks of "pp=2,dp=2,tp=2"; of one that computes stage 1, with the second
// data and as the second along tp.
constexpr int kFails = 7;

// Runs steps in which that rank's last layer but one calls this in its seventh
// forward pass: of the second step.
std::vector<PipelineEnd> RunFailing(
    const std::function<void(const LayerContext&)>& fail) {
  const PipelineProgram program = DividedBlocks("pp=2,dp=2,tp=2");
  return PipelineJob().Run(
      8,
      [&](int rank) {
        PipelineProgram own = program;
        if (rank != kFails) return own;
        const auto context = std::make_shared<LayerContext>();
        PipelineLayer& layer = own.model.layers[3];
        layer.make_on_mesh =
            [context, make = layer.make_on_mesh](const LayerContext& given) {
              *context = given;
              return make(given);
            };
        layer.forward = [context, fail, forward = layer.forward, calls = 0](
                            ::torch::nn::Module* module,
                            const Tensors& x) mutable {
          if (++calls == 7) fail(*context);
          return forward(module, x);
        };
        return own;
      },
      PipelineJob::Steps(program, 3));
}

TEST(MeshErrorsTest, ACollectiveThatFailsOnOneRankEndsAllWithItsName) {
  const auto ends = RunFailing([](const LayerContext& context) {
    context.parallel->Fail(absl::UnavailableError("the cable is out"));
  });
  EXPECT_THAT(ends[kFails].status.message(),
              HasSubstr("stage 1, 1F2: tensor parallelism, rank 1 of 2: the "
                        "cable is out"));
  for (const PipelineEnd& end : ends) {
    EXPECT_FALSE(end.status.ok());
    EXPECT_THAT(end.status.message(), HasSubstr("the cable is out"));
  }
}

TEST(MeshErrorsTest, ALayerThatThrowsOnOneRankEndsAll) {
  const auto ends = RunFailing(
      [](const LayerContext&) { throw std::runtime_error("no memory"); });
  EXPECT_THAT(ends[kFails].status.message(),
              HasSubstr("stage 1, 1F2: the forward pass: no memory"));
  for (const PipelineEnd& end : ends) {
    EXPECT_FALSE(end.status.ok());
    EXPECT_THAT(end.status.message(), HasSubstr("no memory"));
  }
}

// What the failed pass has of gradients is zeros: the ranks of other data do
// not step by averages with these.
TEST(MeshErrorsTest, ACollectiveThatFailsInTheLastPassMovesNoParameter) {
  const PipelineProgram program = DividedBlocks("dp=2,tp=2");
  const auto ends = PipelineJob().Run(
      4,
      [&](int rank) {
        PipelineProgram own = program;
        if (rank != 1) return own;
        const auto context = std::make_shared<LayerContext>();
        PipelineLayer& layer = own.model.layers[3];
        layer.make_on_mesh =
            [context, make = layer.make_on_mesh](const LayerContext& given) {
              *context = given;
              return make(given);
            };
        layer.forward = [context, forward = layer.forward, calls = 0](
                            ::torch::nn::Module* module,
                            const Tensors& x) mutable {
          Tensors outputs = forward(module, x);
          if (++calls == 4) {
            outputs[0].register_hook([context](const Tensor&) {
              context->parallel->Fail(
                  absl::UnavailableError("the cable is out"));
            });
          }
          return outputs;
        };
        return own;
      },
      [&](Pipeline& pipeline, Session&, PipelineEnd* end) -> absl::Status {
        EXPECT_EQ(pipeline.window(), 4);
        ValuesByName before;
        for (const auto& item : pipeline.module()->named_parameters()) {
          before[item.key()] = item.value().detach().clone();
        }
        const absl::Status status =
            PipelineJob::Step(pipeline, program, 0, end).status();
        for (const auto& item : pipeline.module()->named_parameters()) {
          EXPECT_TRUE(item.value().equal(before.at(item.key()))) << item.key();
        }
        return status;
      });
  for (const PipelineEnd& end : ends) {
    EXPECT_THAT(end.status.message(), HasSubstr("the cable is out"));
  }
}

// The other ranks along tp compute with more rows than this one.
TEST(MeshErrorsTest, DataThatDifferAlongTpAreNamed) {
  const PipelineProgram program = DividedBlocks("dp=2,tp=2");
  for (const bool of_other_size : {false, true}) {
    SCOPED_TRACE(of_other_size);
    PipelineProgram other = program;
    other.data = [=](int data_index, int64_t number) {
      PipelineBatch batch = program.data(data_index, number);
      if (number != 5) return batch;
      Tensor& input = batch.inputs[0];
      input = of_other_size ? input.slice(0, 0, 2) : input + 1e-9;
      return batch;
    };
    const auto ends = PipelineJob().Run(
        4, [&](int) { return program; },
        [&](Pipeline& pipeline, Session& session,
            PipelineEnd* end) -> absl::Status {
          return PipelineJob::Steps(session.rank() == 1 ? other : program, 3)(
              pipeline, session, end);
        });
    for (const int rank : {0, 1}) {
      EXPECT_THAT(ends[static_cast<size_t>(rank)].status.message(),
                  HasSubstr("rank 1 (dp 0, tp 1) has other micro-batches than "
                            "rank 0 (dp 0, tp 0)"));
    }
    for (const PipelineEnd& end : ends) EXPECT_FALSE(end.status.ok());
  }
}

TEST(MeshErrorsTest, ARankAlongTpThatIsCalledOtherwiseIsNamed) {
  const PipelineProgram program = DividedBlocks("pp=2,dp=2,tp=2");
  const auto ends = PipelineJob().Run(
      8, [&](int) { return program; },
      [&](Pipeline& pipeline, Session& session,
          PipelineEnd* end) -> absl::Status {
        COXSWAIN_RETURN_IF_ERROR(
            PipelineJob::Step(pipeline, program, 0, end).status());
        const int count = session.rank() == 1 ? 3 : 4;
        COXSWAIN_RETURN_IF_ERROR(
            PipelineJob::Step(pipeline, program, count, end).status());
        return PipelineJob::Step(pipeline, program, 0, end).status();
      });
  for (const PipelineEnd& end : ends) {
    EXPECT_THAT(
        end.status.message(),
        AllOf(HasSubstr("a step of 4 micro-batches on rank 0 (pp 0, dp 0, tp "
                        "0), rank 4 (pp 1, dp 0, tp 0)"),
              HasSubstr("a step of 3 micro-batches on rank 1 (pp 0, dp 0, tp "
                        "1)")));
  }
}

TEST(MeshErrorsTest, WeightsThatDifferAlongTpAreNamed) {
  const PipelineProgram program = DividedBlocks("dp=2,tp=2");
  PipelineProgram other = program;
  other.data = [data = program.data](int data_index, int64_t number) {
    PipelineBatch batch = data(data_index, number);
    if (number == 6) batch.weight = 1.5;
    return batch;
  };
  const auto ends = PipelineJob().Run(
      4, [&](int) { return program; },
      [&](Pipeline& pipeline, Session& session,
          PipelineEnd* end) -> absl::Status {
        return PipelineJob::Steps(session.rank() == 3 ? other : program, 3)(
            pipeline, session, end);
      });
  for (const int rank : {2, 3}) {
    EXPECT_THAT(
        ends[static_cast<size_t>(rank)].status.message(),
        AllOf(HasSubstr("weigh micro-batch 2 differently: "),
              HasSubstr("on rank 2 (dp 1, tp 0), 1.5 on rank 3 (dp 1, tp 1)")));
  }
  for (const PipelineEnd& end : ends) EXPECT_FALSE(end.status.ok());
}

// Of more micro-batches than a window has: the second data's last of six counts
// for nothing on one of its ranks, which would compute no loss with the other.
TEST(MeshErrorsTest, WeightsOfLongEvaluationsThatDifferAlongTpAreNamed) {
  const PipelineProgram program = DividedBlocks("dp=2,tp=2");
  PipelineProgram other = program;
  other.data = [data = program.data](int data_index, int64_t number) {
    PipelineBatch batch = data(data_index, number);
    if (number == 5) batch.weight = 0;
    return batch;
  };
  const auto ends = PipelineJob().Run(
      4, [&](int) { return program; },
      [&](Pipeline& pipeline, Session& session,
          PipelineEnd* end) -> absl::Status {
        EXPECT_EQ(pipeline.window(), 4);
        return pipeline
            .Evaluate(PipelineJob::NextOf(
                pipeline, session.rank() == 3 ? other : program, 6, end))
            .status();
      });
  for (const int rank : {2, 3}) {
    EXPECT_THAT(ends[static_cast<size_t>(rank)].status.message(),
                HasSubstr("weigh micro-batches from 4 on differently: rank 2 "
                          "(dp 1, tp 0) and rank 3 (dp 1, tp 1)"));
  }
}

TEST(MeshErrorsTest, AWeightThatIsNoNumberIsRefusedAsThat) {
  for (const char* const mesh : {"dp=2,tp=2", "pp=2,dp=2"}) {
    SCOPED_TRACE(mesh);
    PipelineProgram program = DividedBlocks(mesh);
    program.data = [data = program.data](int data_index, int64_t number) {
      PipelineBatch batch = data(data_index, number);
      if (number == 6) batch.weight = std::nan("");
      return batch;
    };
    const auto ends = PipelineJob().Run(
        4, [&](int) { return program; }, PipelineJob::Steps(program, 3));
    for (const PipelineEnd& end : ends) {
      EXPECT_THAT(end.status.message(),
                  HasSubstr("a micro-batch of weight nan"));
    }
  }
}

// What is whole on each rank along tp would begin with other values.
TEST(MeshErrorsTest, AnotherSeedThanTheOthersIsRefused) {
  const PipelineProgram program = DividedBlocks("dp=2,tp=2");
  const auto ends = PipelineJob().Run(
      4,
      [&](int rank) {
        PipelineProgram own = program;
        if (rank == 3) own.model.seed = 99;
        return own;
      },
      PipelineJob::Steps(program, 1));
  for (const PipelineEnd& end : ends) EXPECT_FALSE(end.status.ok());
  EXPECT_THAT(ends[3].status.message(), HasSubstr("seed: 99"));
}

TEST(MeshErrorsTest, OtherPartsThanTheOthersAreRefusedWhenRanksJoin) {
  const PipelineProgram program = DividedBlocks("dp=2,tp=2");
  const auto ends = PipelineJob().Run(
      4,
      [&](int rank) {
        PipelineProgram own = program;
        if (rank == 3) own.options.sequence = true;
        return own;
      },
      PipelineJob::Steps(program, 1));
  for (const PipelineEnd& end : ends) {
    EXPECT_THAT(end.status.message(), HasSubstr("tensor: "));
  }
}

}  // namespace
}  // namespace coxswain::torch::pipeline_mesh_test
