// A sharded optimizer whose state and values are copies on the host. libtorch
// has its tensors in the CPU's memory here, which an emulated GPU copies from
// and to as if it were its own.

#include <torch/types.h>
#include <torch/utils.h>

#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "client/comm/in_process/loopback_communicator.h"
#include "client/device/emulated/emulated_runtime.h"
#include "client/torch/shard/sharded_optimizer.h"
#include "client/torch/shard/sharded_program_for_test.h"
#include "client/torch/test_ranks.h"
#include "gmock/gmock.h"

namespace coxswain::torch::offload_test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using ::torch::Tensor;

// Copies at once: libtorch here does not wait for streams.
class AtOnceRuntime : public EmulatedRuntime {
 public:
  absl::Status Copy(void* to, const void* from, int64_t bytes,
                    DeviceStream stream) override {
    std::memcpy(to, from, static_cast<size_t>(bytes));
    copied_ += bytes;
    if (copied_ > most_) Fail("an error of its memory");
    return EmulatedRuntime::Copy(to, to, 0, stream);
  }
  int64_t copied() const { return copied_; }
  void FailAfter(int64_t bytes) { most_ = copied_ + bytes; }

 private:
  int64_t copied_ = 0;
  int64_t most_ = int64_t{1} << 40;
};

DistributedDataParallelOptions Zero(int zero, bool offload) {
  DistributedDataParallelOptions options = SmallBuckets(false);
  options.reducer.buckets = {300, 500};
  options.zero = zero;
  options.offload = offload;
  return options;
}

// A rank that trains with its optimizer's state on the host, or as it is.
struct Rank {
  Rank(const TestRank& rank, const NamedOptimizer& named, bool offload)
      : program(rank.communicator, std::make_unique<AverageHook>(),
                Zero(1, offload), named.make) {
    if (!offload) return;
    ShardedOptimizerOptions options;
    options.offload_by = &runtime;
    auto made = ShardedOptimizer::Create(*program.ddp, named.make, options);
    EXPECT_OK(made);
    program.sharded = std::move(made).value();
  }

  AtOnceRuntime runtime;
  ShardedProgram program;
};

using Run = std::function<void(Rank&)>;

// Runs the same both ways on ranks, and compares all parameters.
void ExpectSame(const NamedOptimizer& named, const Run& run) {
  SCOPED_TRACE(named.name);
  for (const int size : {1, 2, 3}) {
    OnRanks(size, [&](const TestRank& rank) {
      Rank plain(rank, named, false);
      Rank offloaded(rank, named, true);
      run(plain);
      run(offloaded);
      ExpectSameBits(*plain.program.model, *offloaded.program.model,
                     absl::StrCat(rank.index, " of ", size));
    });
  }
}

TEST(OffloadTest, EveryOptimizerTakesTheStepsOfAStateOnTheDevice) {
  for (const NamedOptimizer& named : ElementWise()) {
    ExpectSame(named, [](Rank& rank) {
      for (int step = 0; step < 5; ++step) rank.program.Run(step);
    });
  }
}

// Some parameters are used from the second step on only.
TEST(OffloadTest, ParametersThatAreNotUsedYetAreNotStepped) {
  ExpectSame(ElementWise()[1], [](Rank& rank) {
    for (int step = 0; step < 4; ++step) {
      rank.program.Run(step, step < 2 ? 3 : 0);
    }
  });
}

TEST(OffloadTest, WhatTheProgramMakesOfParametersIsTakenOver) {
  ExpectSame(ElementWise()[2], [](Rank& rank) {
    for (int step = 0; step < 4; ++step) {
      rank.program.Run(step);
      const ::torch::NoGradGuard no_grad;
      if (step == 1) rank.program.model->parameters()[2].mul_(0.5);
    }
  });
}

// In a step each of its elements comes down as a gradient and goes up as a
// value, once.
TEST(OffloadTest, AStepCopiesTheOwnSlicesTwice) {
  OnRanks(2, [](const TestRank& rank) {
    Rank me(rank, ElementWise()[1], true);
    int64_t own = 0;
    for (const Bucket& bucket : me.program.ddp->reducer().buckets()) {
      own += me.program.ddp->reducer().OwnSlice(bucket).bytes();
    }
    EXPECT_EQ(me.runtime.copied(), own);  // the values, at first
    me.program.Run(0);
    EXPECT_EQ(me.runtime.copied(), 3 * own);
  });
}

// Reads the pieces of one rank.
class OfOneRank : public PieceReader {
 public:
  explicit OfOneRank(const std::vector<KeptPiece>& pieces) {
    for (const KeptPiece& kept : pieces) {
      pieces_.push_back(kept.piece);
      bytes_.emplace_back(static_cast<const char*>(kept.memory.data),
                          static_cast<size_t>(kept.memory.bytes()));
    }
  }
  absl::StatusOr<int64_t> StepOf(const std::string& parameter,
                                 const std::string& kind) override {
    for (const TensorPiece& piece : pieces_) {
      if (piece.parameter == parameter && piece.kind == kind) return piece.step;
    }
    return absl::NotFoundError("it is not there");
  }
  absl::Status Read(const TensorPiece& want, const Span& to) override {
    for (size_t i = 0; i < pieces_.size(); ++i) {
      if (pieces_[i].parameter != want.parameter ||
          pieces_[i].kind != want.kind || pieces_[i].begin != want.begin) {
        continue;
      }
      std::memcpy(to.data, bytes_[i].data(), bytes_[i].size());
      return absl::OkStatus();
    }
    return absl::NotFoundError("it is not there");
  }

 private:
  std::vector<TensorPiece> pieces_;
  std::vector<std::string> bytes_;
};

TEST(OffloadTest, PiecesAreGoneOnFromBothWays) {
  for (const bool first_offloads : {true, false}) {
    LoopbackCommunicator alone;
    TestRank rank;
    rank.communicator = &alone;
    Rank first(rank, ElementWise()[1], first_offloads);
    Rank next(rank, ElementWise()[1], !first_offloads);
    for (int step = 0; step < 3; ++step) first.program.Run(step);
    const auto pieces = first.program.sharded->Pieces();
    ASSERT_OK(pieces);
    OfOneRank reader(*pieces);
    ASSERT_OK(next.program.sharded->Load(reader));
    ExpectSameBits(*first.program.model, *next.program.model, "loaded");
    for (int step = 3; step < 5; ++step) {
      first.program.Run(step);
      next.program.Run(step);
    }
    ExpectSameBits(*first.program.model, *next.program.model, "gone on");
  }
}

TEST(OffloadTest, ADeviceThatFailsInAStepEndsTheTraining) {
  LoopbackCommunicator alone;
  TestRank rank;
  rank.communicator = &alone;
  Rank me(rank, ElementWise()[1], true);
  me.program.Run(0);
  const MicroBatch micro = me.program.ddp->Accumulate();
  ASSERT_OK(me.program.ddp->Backward(me.program.model->Loss(1), micro));
  me.runtime.FailAfter(2000);
  EXPECT_THAT(me.program.Step(),
              StatusIs(absl::StatusCode::kUnavailable,
                       AllOf(HasSubstr("offload, slice "),
                             HasSubstr("an error of its memory"))));
  // Some elements have been stepped.
  EXPECT_THAT(
      me.program.sharded->Pieces(),
      StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("cut short")));
  EXPECT_EQ(me.program.sharded->steps(), 1);
}

// All of it is in the CPU's memory anyway.
TEST(OffloadTest, NothingIsCopiedOnTheCpu) {
  LoopbackCommunicator alone;
  ShardedProgram plain(&alone, std::make_unique<AverageHook>(), Zero(2, false),
                       ElementWise()[1].make);
  ShardedProgram offloaded(&alone, std::make_unique<AverageHook>(),
                           Zero(2, true), ElementWise()[1].make);
  for (int step = 0; step < 3; ++step) {
    plain.Run(step);
    offloaded.Run(step);
  }
  ExpectSameBits(*plain.model, *offloaded.model, "on the CPU");
}

TEST(OffloadTest, ItNeedsSlices) {
  LoopbackCommunicator alone;
  EXPECT_THAT(DistributedDataParallel::Create(
                  std::make_shared<OddModel>(), &alone,
                  std::make_unique<AverageHook>(), Zero(0, true)),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("zero=0 shards none"),
                             HasSubstr("set zero to 1"))));
}

}  // namespace
}  // namespace coxswain::torch::offload_test
