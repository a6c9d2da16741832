#include "client/torch/shard/sharded_optimizer.h"

#include <torch/optim/lbfgs.h>

#include <cstring>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/mutex.h"
#include "base/status_matchers.h"
#include "client/comm/in_process/loopback_communicator.h"
#include "client/shard/piece_index.h"
#include "client/torch/shard/sharded_program_for_test.h"
#include "client/torch/test_ranks.h"
#include "gmock/gmock.h"
#include "schedule/fake_step_gate.h"

namespace coxswain::torch::sharded_optimizer_test {
namespace {

namespace optim = ::torch::optim;
using testing::AllOf;
using testing::HasSubstr;
using ::torch::Tensor;

DistributedDataParallelOptions Zero(
    int zero, DistributedDataParallelOptions options = SmallBuckets(false)) {
  options.reducer.buckets = {300, 500};
  options.zero = zero;
  return options;
}

ShardedProgram Make(const TestRank& rank,
                    const DistributedDataParallelOptions& options,
                    const MakeOptimizer& make = ElementWise()[1].make) {
  return ShardedProgram(rank.communicator, std::make_unique<AverageHook>(),
                        options, make);
}

// Runs the same program without zero and with, and compares the parameters of
// every rank.
void ExpectEqualToWhole(
    int size, const std::function<DistributedDataParallelOptions(int rank)>& on,
    const std::function<void(ShardedProgram&, int rank)>& run,
    const MakeOptimizer& make = ElementWise()[1].make) {
  std::vector<std::vector<Tensor>> wholes(static_cast<size_t>(size));
  for (const int zero : {0, 1, 2}) {
    OnRanks(size, [&](const TestRank& rank) {
      ShardedProgram program = Make(rank, Zero(zero, on(rank.index)), make);
      run(program, rank.index);
      std::vector<Tensor>& whole = wholes[static_cast<size_t>(rank.index)];
      if (zero == 0) whole = program.model->Values();
      for (size_t i = 0; i < whole.size(); ++i) {
        EXPECT_TRUE(::torch::equal(whole[i], program.model->weights()[i]))
            << "zero=" << zero << ", rank " << rank.index << " of " << size
            << ", parameter " << i;
      }
    });
  }
}

DistributedDataParallelOptions Plain(int) { return SmallBuckets(false); }

TEST(ShardedOptimizerTest, EqualsTheWholeOptimizerBitForBit) {
  for (const NamedOptimizer& named : ElementWise()) {
    SCOPED_TRACE(named.name);
    for (const int size : {1, 2, 3}) {
      ExpectEqualToWhole(
          size, Plain,
          [](ShardedProgram& program, int) {
            for (int step = 0; step < 5; ++step) program.Run(step);
            EXPECT_EQ(program.ddp->optimizer_steps(), 5);
          },
          named.make);
    }
  }
}

TEST(ShardedOptimizerTest, SumsUpMicroBatchesAsThePlanSays) {
  for (const bool each : {false, true}) {
    schedule::Terms terms;
    terms.sync_each_batch = each;
    const schedule::Plan plan = PlanOf(3, terms);
    ExpectEqualToWhole(
        2, [&](int) { return Following(plan); },
        [](ShardedProgram& program, int) {
          for (int batch = 0; batch < 9; ++batch) program.Run(batch);
          EXPECT_EQ(program.ddp->optimizer_steps(), 3);
        });
  }
}

TEST(ShardedOptimizerTest, ClipsByTheNormOfAllSlices) {
  ExpectEqualToWhole(
      1,
      [](int rank) {
        auto options = Plain(rank);
        options.reducer.max_norm = 0.1;
        // Sums of squares are by bucket.
        options.reducer.rebuild = false;
        return options;
      },
      [](ShardedProgram& program, int) {
        for (int step = 0; step < 3; ++step) program.Run(step);
      });
}

TEST(ShardedOptimizerTest, ASkippedStepLeavesParametersAndStateAlone) {
  const schedule::Plan plan = PlanOf(1);
  schedule::FakeSchedule schedules[] = {schedule::FakeSchedule(2, plan),
                                        schedule::FakeSchedule(2, plan),
                                        schedule::FakeSchedule(2, plan)};
  for (schedule::FakeSchedule& schedule : schedules) schedule.SkipAt(1);
  for (const int zero : {1, 2}) {
    OnRanks(2, [&](const TestRank& rank) {
      auto options =
          Zero(zero, Following(plan, schedules[zero].gate(rank.index)));
      ShardedProgram program = Make(rank, options);
      program.Run(0);
      const std::vector<Tensor> before = program.model->Values();
      const auto pieces = program.sharded->Pieces();
      ASSERT_OK(pieces);
      std::vector<std::string> bytes;
      const auto read = [](const Span& span) {
        return std::string(static_cast<const char*>(span.data),
                           static_cast<size_t>(span.bytes()));
      };
      for (const KeptPiece& kept : *pieces) bytes.push_back(read(kept.memory));
      program.Run(1);
      EXPECT_TRUE(program.ddp->skipped());
      for (size_t i = 0; i < before.size(); ++i) {
        EXPECT_TRUE(::torch::equal(before[i], program.model->weights()[i]));
      }
      for (size_t i = 0; i < bytes.size(); ++i) {
        EXPECT_EQ(bytes[i], read((*pieces)[i].memory));
      }
      program.Run(2);
      EXPECT_FALSE(program.ddp->skipped());
      EXPECT_EQ(program.ddp->optimizer_steps(), 2);
    });
  }
}

// What zero=2 saves: .grad, once it has been handed over, and buckets.
TEST(ShardedOptimizerTest, GradientsLastUntilTheyAreExchanged) {
  for (const bool each : {false, true}) {
    schedule::Plan plan = PlanOf(3);
    plan.terms.sync_each_batch = each;
    OnRanks(2, [&](const TestRank& rank) {
      ShardedProgram program = Make(rank, Zero(2, Following(plan)));
      for (int batch = 0; batch < 9; ++batch) {
        program.Run(batch);
        const bool local = !each && batch % 3 < 2;
        for (const Tensor& weight : program.model->weights()) {
          EXPECT_EQ(weight.grad().defined(), local) << "batch " << batch;
        }
      }
      const Reducer& reducer = program.ddp->reducer();
      EXPECT_EQ(reducer.totals().steps, each ? 9 : 3);
      EXPECT_EQ(reducer.GradientView(0).data, nullptr);
      EXPECT_GT(reducer.totals().bucket_memory.peak_bytes, 0);
    });
  }
}

// By vote, which names what this rank sees.
TEST(ShardedOptimizerTest, AllRanksSkipWhatIsNotFiniteInOneSlice) {
  const schedule::Plan plan = PlanOf(1);
  for (const int zero : {1, 2}) {
    OnRanks(3, [&](const TestRank& rank) {
      auto options = Zero(zero, Following(plan));
      options.skip_non_finite = true;
      ShardedProgram program = Make(rank, options);
      program.Run(0);
      const std::vector<Tensor> before = program.model->Values();
      program.ddp->Accumulate();
      Tensor loss = program.model->Loss(1);
      if (rank.index == 1) {
        const Tensor last = program.model->weights()[4].view({-1})[100];
        loss = loss + last * std::numeric_limits<double>::infinity();
      }
      ASSERT_OK(program.ddp->Backward(loss));
      EXPECT_TRUE(program.ddp->skipped());
      EXPECT_THAT(program.ddp->decision().reason,
                  testing::AnyOf(HasSubstr("averages of \"w4\""),
                                 HasSubstr("of other ranks' slices")));
      EXPECT_OK(program.Step());
      for (size_t i = 0; i < before.size(); ++i) {
        EXPECT_TRUE(::torch::equal(before[i], program.model->weights()[i]));
      }
    });
  }
}

TEST(ShardedOptimizerTest, StepsByZerosWhereNoRankUsesAParameter) {
  for (const bool find : {false, true}) {
    ExpectEqualToWhole(
        2,
        [find](int rank) {
          auto options = Plain(rank);
          options.reducer.find_unused_parameters = find;
          return options;
        },
        [](ShardedProgram& program, int rank) {
          // The first is never used, the second in the first step, the third by
          // one rank.
          program.Run(0, 1);
          for (int step = 1; step < 4; ++step) {
            program.Run(step, rank == 0 ? 2 : 3);
          }
        },
        ElementWise()[2].make);
  }
}

TEST(ShardedOptimizerTest, RanksOfUnequalAmountsOfData) {
  ExpectEqualToWhole(
      3,
      [](int rank) {
        auto options = Plain(rank);
        options.reducer.uneven_inputs = true;
        return options;
      },
      [](ShardedProgram& program, int rank) {
        ASSERT_OK(program.ddp->BeginEpoch());
        for (int step = 0; step < 2 + rank; ++step) program.Run(step);
        while (true) {
          const auto more = program.ddp->StepWithoutData();
          ASSERT_OK(more);
          if (!*more) break;
          ASSERT_OK(program.Step());
        }
      });
}

TEST(ShardedOptimizerTest, GroupsKeepTheirOptionsAndSchedules) {
  std::vector<std::vector<Tensor>> values(3);
  for (const int zero : {0, 1, 2}) {
    OnRanks(2, [&](const TestRank& rank) {
      const auto model = std::make_shared<OddModel>();
      auto ddp = DistributedDataParallel::Create(
          model, rank.communicator, std::make_unique<AverageHook>(),
          Zero(zero));
      ASSERT_OK(ddp);
      const std::vector<Tensor>& w = model->weights();
      std::vector<optim::OptimizerParamGroup> groups;
      groups.emplace_back(std::vector<Tensor>{w[0], w[4], w[6]});
      groups.emplace_back(std::vector<Tensor>{w[1], w[2]},
                          std::make_unique<optim::AdamWOptions>(
                              optim::AdamWOptions(0.5).weight_decay(0)));
      optim::AdamW optimizer(groups, optim::AdamWOptions(0.1));
      std::unique_ptr<ShardedOptimizer> sharded;
      if (zero > 0) {
        auto made = ShardedOptimizer::Create(**ddp, optimizer);
        ASSERT_OK(made);
        sharded = *std::move(made);
      }
      for (int step = 0; step < 4; ++step) {
        (*ddp)->Accumulate();
        ASSERT_OK((*ddp)->Backward(model->Loss(step + 10 * rank.index)));
        ASSERT_OK(zero > 0 ? sharded->Step()
                           : (*ddp)->StepOptimizer(optimizer));
        for (auto& group : optimizer.param_groups()) {
          group.options().set_lr(group.options().get_lr() * 0.5);
        }
      }
      if (rank.index == 0) values[static_cast<size_t>(zero)] = model->Values();
    });
  }
  const OddModel first;
  for (size_t i = 0; i < values[0].size(); ++i) {
    EXPECT_TRUE(::torch::equal(values[0][i], values[1][i])) << i;
    EXPECT_TRUE(::torch::equal(values[0][i], values[2][i])) << i;
    const bool in_a_group = i != 3 && i != 5;
    EXPECT_EQ(::torch::equal(values[0][i], first.weights()[i]), !in_a_group);
  }
}

// ---- pieces ----

// What all ranks have kept, as a checkpoint would have it.
class Saved : public PieceReader {
 public:
  void Add(const std::vector<KeptPiece>& kept) {
    MutexLock lock(&mutex_);
    for (const KeptPiece& one : kept) {
      pieces_.push_back(one.piece);
      bytes_.emplace_back(static_cast<const char*>(one.memory.data),
                          static_cast<size_t>(one.memory.bytes()));
    }
  }
  void Close() { index_ = PieceIndex::Create(pieces_).value(); }

  absl::StatusOr<int64_t> StepOf(const std::string& parameter,
                                 const std::string& kind) override {
    return index_->StepOf(parameter, kind);
  }
  absl::Status Read(const TensorPiece& want, const Span& to) override {
    const auto reads = index_->Find(want);
    if (!reads.ok()) return reads.status();
    const auto size = static_cast<int64_t>(SizeOf(want.dtype));
    for (const PieceRead& read : *reads) {
      std::memcpy(static_cast<char*>(to.data) + read.to * size,
                  bytes_[read.piece].data() + read.from * size,
                  static_cast<size_t>(read.count * size));
    }
    return absl::OkStatus();
  }

 private:
  Mutex mutex_;
  std::vector<TensorPiece> pieces_;
  std::vector<std::string> bytes_;
  std::optional<PieceIndex> index_;
};

// Ranks of any number go on where four have saved. All run the same data, so
// that the number of ranks changes nothing.
TEST(ShardedOptimizerTest, PiecesOfFourRanksAreGoneOnFromByAnyNumber) {
  for (const NamedOptimizer& named : ElementWise()) {
    SCOPED_TRACE(named.name);
    Saved saved;
    std::vector<Tensor> expected;
    const auto run = [](ShardedProgram& program, int from, int to) {
      for (int step = from; step < to; ++step) {
        program.ddp->Accumulate();
        ASSERT_OK(program.ddp->Backward(program.model->Loss(step)));
        ASSERT_OK(program.Step());
      }
    };
    OnRanks(4, [&](const TestRank& rank) {
      ShardedProgram program = Make(rank, Zero(1), named.make);
      run(program, 0, 3);
      const auto pieces = program.sharded->Pieces();
      ASSERT_OK(pieces);
      saved.Add(*pieces);
      run(program, 3, 5);
      if (rank.index == 0) expected = program.model->Values();
    });
    saved.Close();
    for (const int size : {1, 2, 4}) {
      OnRanks(size, [&](const TestRank& rank) {
        auto options = Zero(2);
        options.reducer.buckets = {1, 200};
        ShardedProgram program = Make(rank, options, named.make);
        ASSERT_OK(program.sharded->Load(saved));
        run(program, 3, 5);
        for (size_t i = 0; i < expected.size(); ++i) {
          EXPECT_TRUE(::torch::equal(expected[i], program.model->weights()[i]))
              << size << " ranks, parameter " << i;
        }
      });
    }
  }
}

// They have values, and no state that a step would need.
TEST(ShardedOptimizerTest, PiecesOfParametersInNoGroupAreGoneOnFrom) {
  using Work = std::function<void(int rank, const OddModel&, ShardedOptimizer&,
                                  const std::function<void(int)>& step)>;
  for (const NamedOptimizer& named : ElementWise()) {
    SCOPED_TRACE(named.name);
    Saved saved;
    std::vector<Tensor> expected;
    const auto on_ranks = [&](int size, const Work& work) {
      OnRanks(size, [&](const TestRank& rank) {
        const auto model = std::make_shared<OddModel>();
        const auto ddp = Wrap(rank, model, Zero(1));
        const std::vector<Tensor>& w = model->weights();
        ShardedOptimizerOptions options;
        options.groups = {{w[0], w[4]}, {w[6]}};
        const auto sharded =
            ShardedOptimizer::Create(*ddp, named.make, options);
        ASSERT_OK(sharded);
        work(rank.index, *model, **sharded, [&](int step) {
          ddp->Accumulate();
          ASSERT_OK(ddp->Backward(model->Loss(step)));
          ASSERT_OK((*sharded)->Step());
        });
      });
    };
    on_ranks(2, [&](int rank, const OddModel& model, ShardedOptimizer& sharded,
                    const auto& step) {
      for (int i = 0; i < 3; ++i) step(i);
      const auto pieces = sharded.Pieces();
      ASSERT_OK(pieces);
      saved.Add(*pieces);
      for (int i = 3; i < 5; ++i) step(i);
      if (rank == 0) expected = model.Values();
    });
    saved.Close();
    EXPECT_EQ(saved.StepOf("w4", "value").value(), 3);
    EXPECT_EQ(saved.StepOf("w3", "value").value(), 0);
    for (const int size : {1, 4}) {
      on_ranks(size, [&](int, const OddModel& model, ShardedOptimizer& sharded,
                         const auto& step) {
        ASSERT_OK(sharded.Load(saved));
        for (int i = 3; i < 5; ++i) step(i);
        for (size_t i = 0; i < expected.size(); ++i) {
          EXPECT_TRUE(::torch::equal(expected[i], model.weights()[i]))
              << size << " ranks, parameter " << i;
        }
      });
    }
  }
}

TEST(ShardedOptimizerTest, AnotherKindsStateIsRefused) {
  Saved saved;
  OnRanks(1, [&](const TestRank& rank) {
    ShardedProgram sgd = Make(rank, Zero(1), ElementWise()[0].make);
    sgd.Run(0);
    saved.Add(*sgd.sharded->Pieces());
    saved.Close();
    ShardedProgram adam = Make(rank, Zero(1));
    EXPECT_THAT(adam.sharded->Load(saved),
                StatusIs(absl::StatusCode::kFailedPrecondition,
                         AllOf(HasSubstr("loading the state of \"w"),
                               HasSubstr("no exp_avg, which Adam needs"))));
  });
}

// ---- wrong use ----

TEST(ShardedOptimizerTest, RefusesWhatCannotBeSharded) {
  OnRanks(1, [](const TestRank& rank) {
    const auto model = std::make_shared<OddModel>();
    const auto whole = Wrap(rank, model, SmallBuckets(false));
    optim::SGD sgd(model->parameters(), 0.1);
    EXPECT_THAT(ShardedOptimizer::Create(*whole, sgd),
                StatusIs(absl::StatusCode::kFailedPrecondition,
                         HasSubstr("zero to 1 or 2")));
    const auto ddp = Wrap(rank, model, Zero(1));
    optim::LBFGS lbfgs(model->parameters(), 0.1);
    const auto invalid = [](absl::string_view what) {
      return StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(what));
    };
    EXPECT_THAT(ShardedOptimizer::Create(*ddp, lbfgs),
                invalid("LBFGS looks at all elements"));
    optim::SGD other(OddModel().parameters(), 0.1);
    EXPECT_THAT(ShardedOptimizer::Create(*ddp, other),
                invalid("none of the module's trainable parameters"));
    const auto with = [&](const OptimizerMaker& make,
                          const ShardedOptimizerOptions& options = {}) {
      return ShardedOptimizer::Create(*ddp, make, options).status();
    };
    EXPECT_THAT(with([](auto) { return nullptr; }), invalid("no optimizer"));
    EXPECT_THAT(with([](auto groups) {
                  return std::make_unique<optim::LBFGS>(
                      groups[0].params(), optim::LBFGSOptions(0.1));
                }),
                invalid("LBFGS looks at all elements"));
    EXPECT_THAT(with([](auto) {
                  return std::make_unique<optim::SGD>(
                      std::vector<Tensor>{::torch::ones({2})}, 0.1);
                }),
                invalid("the maker was not given"));
    EXPECT_THAT(with([](auto groups) {
                  auto& tensors = groups[0].params();
                  tensors.resize(tensors.size() - 1);
                  return std::make_unique<optim::SGD>(groups, 0.1);
                }),
                invalid("1 slices of parameters"));
    EXPECT_THAT(with([](auto) -> std::unique_ptr<optim::Optimizer> {
                  throw std::runtime_error("no licence");
                }),
                StatusIs(absl::StatusCode::kInternal, HasSubstr("no licence")));
    ShardedOptimizerOptions twice;
    twice.groups = {model->weights(), {model->weights()[1]}};
    EXPECT_THAT(with(ElementWise()[0].make, twice),
                invalid("\"w1\" is in the groups 0 and 1"));
    // None of it has changed the module.
    EXPECT_OK(ShardedOptimizer::Create(*ddp, sgd));
  });
}

TEST(ShardedOptimizerTest, AnOptimizerThatHasTakenStepsIsRefused) {
  OnRanks(1, [](const TestRank& rank) {
    for (const NamedOptimizer& named : ElementWise()) {
      ShardedProgram program = Make(rank, Zero(0), named.make);
      program.Run(0);
      const auto ddp = Wrap(rank, program.model, Zero(1));
      EXPECT_THAT(ShardedOptimizer::Create(*ddp, *program.optimizer),
                  StatusIs(absl::StatusCode::kInvalidArgument,
                           HasSubstr("has taken steps")));
    }
  });
}

TEST(ShardedOptimizerTest, TheWrapperRefusesWhatNeedsWholeGradients) {
  OnRanks(1, [](const TestRank& rank) {
    ShardedProgram program = Make(rank, Zero(1));
    const auto refused = [](absl::string_view what) {
      return StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr(what));
    };
    EXPECT_THAT(program.ddp->StepOptimizer(*program.optimizer),
                refused("make a ShardedOptimizer"));
    EXPECT_THAT(program.ddp->UpdateParameters(),
                refused("UpdateParameters divides the buckets anew"));
    EXPECT_THAT(program.ddp->ChangeBuckets({1, 1}),
                refused("ChangeBuckets divides the buckets anew"));
    // A step without gradients.
    EXPECT_THAT(program.Step(), refused("without gradients"));
    // None of it has ended training.
    program.Run(0);
    for (const Tensor& weight : program.model->weights()) {
      EXPECT_FALSE(weight.grad().defined());
    }
  });
}

TEST(ShardedOptimizerTest, OptionsThatDoNotGoWithZero) {
  LoopbackCommunicator communicator;
  const auto create = [&](const DistributedDataParallelOptions& options) {
    return DistributedDataParallel::Create(
               std::make_shared<OddModel>(), &communicator,
               std::make_unique<AverageHook>(), options)
        .status();
  };
  const auto invalid = [](absl::string_view what) {
    return StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(what));
  };
  EXPECT_THAT(create(Zero(3)),
              StatusIs(absl::StatusCode::kUnimplemented,
                       HasSubstr("parameters stay whole on each rank")));
  EXPECT_THAT(create(Zero(-1)), invalid("zero is 0, 1"));
  auto options = Zero(0);
  options.reducer.slices = true;
  EXPECT_THAT(create(options), invalid("set zero"));
  options = Zero(2);
  options.reducer.release_buckets = true;
  EXPECT_THAT(create(options), invalid("set zero"));
  options = Zero(1);
  options.overlapped_optimizer = [](const Tensor& parameter) {
    return std::make_unique<optim::SGD>(std::vector<Tensor>{parameter}, 0.1);
  };
  EXPECT_THAT(create(options), invalid("overlapped_optimizer does not go"));
}

// Ranks that do not all shard.
TEST(ShardedOptimizerTest, RanksOfDifferentStagesAreTold) {
  OnRanks(2, [](const TestRank& rank) {
    EXPECT_THAT(
        DistributedDataParallel::Create(
            std::make_shared<OddModel>(), rank.communicator,
            std::make_unique<AverageHook>(), Zero(1 + rank.index)),
        StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("zero")));
  });
}

TEST(ShardedOptimizerTest, WhatAnOptimizerThrowsIsAnErrorOnAllRanks) {
  struct Throwing : optim::SGD {
    using optim::SGD::SGD;
    Tensor step(LossClosure) override { throw std::runtime_error("no step"); }
  };
  OnRanks(2, [](const TestRank& rank) {
    const auto model = std::make_shared<OddModel>();
    const auto ddp = Wrap(rank, model, Zero(1));
    const auto sharded = ShardedOptimizer::Create(
        *ddp,
        [&](std::vector<optim::OptimizerParamGroup> groups)
            -> std::unique_ptr<optim::Optimizer> {
          if (rank.index == 1) {
            return std::make_unique<Throwing>(groups, optim::SGDOptions(0.1));
          }
          return std::make_unique<optim::SGD>(groups, optim::SGDOptions(0.1));
        });
    ASSERT_OK(sharded);
    ASSERT_OK(ddp->Backward(model->Loss(0)));
    const absl::Status status = (*sharded)->Step().status();
    EXPECT_FALSE(status.ok());
    EXPECT_EQ((*sharded)->Step().status(), status);
    if (rank.index == 1) {
      EXPECT_THAT(status, StatusIs(absl::StatusCode::kInternal,
                                   HasSubstr("optimizer step: no step")));
    }
  });
}

}  // namespace
}  // namespace coxswain::torch::sharded_optimizer_test
