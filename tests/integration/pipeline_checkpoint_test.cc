// Checkpoints of pipelines against a real coordinator in the same process, each
// rank a thread: gone on from on other cuts, stages and replicas.

#include "client/torch/pipeline/pipeline_checkpoint.h"

#include <ATen/Parallel.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/mutex.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "client/schedule/schedule_client.h"
#include "client/torch/module_checkpoint.h"
#include "client/torch/shard/model_pieces.h"
#include "client/torch/shard/sharded_checkpoint.h"
#include "client/torch/tensor/initial_values.h"
#include "client/torch/tensor/parallel_linear.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "hooks/registry/planned_hook.h"
#include "tests/integration/pipeline_ranks.h"
#include "tests/support/in_threads.h"

namespace coxswain::torch::pipeline_checkpoint_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::torch::Tensor;

constexpr absl::Duration kTimeout = absl::Seconds(60);
constexpr int64_t kWidth = 12;  // of Mlp
constexpr int kWindow = 4;      // micro-batches
constexpr int kSaved = 5;       // steps
constexpr double kExact = 1e-12;
constexpr double kOtherSums = 1e-10;  // of ranks along tp
constexpr double kBits = 0;
constexpr char kNewest[] = "newest";

// A layer with all that is not trained: a frozen parameter, and buffers of
// several types.
struct Counted : ::torch::nn::Module {
  Counted() {
    linear = register_module("linear", ::torch::nn::Linear(kWidth, kWidth));
    scale = register_parameter("scale", ::torch::rand({kWidth}) + 0.5,
                               /*requires_grad=*/false);
    mean = register_buffer("mean", ::torch::zeros({kWidth}));
    to(::torch::kFloat64);
    seen = register_buffer("seen", ::torch::zeros({}, ::torch::kInt64));
    odd = register_buffer("odd", ::torch::zeros({1}, ::torch::kBool));
  }
  Tensor forward(const Tensor& x) {
    const Tensor out = ::torch::tanh(linear(x - mean) * scale);
    const ::torch::NoGradGuard no_grad;
    mean.mul_(0.9).add_(x.detach().mean(0), 0.1);
    seen.add_(x.size(0));
    odd.logical_not_();
    return out;
  }
  ::torch::nn::Linear linear{nullptr};
  Tensor scale, mean, seen, odd;
};

// Two layers that tp divides, into parts of different sizes where it is 3.
struct Divided : ::torch::nn::Module {
  static constexpr int64_t kInner = 20;

  static absl::StatusOr<std::shared_ptr<Divided>> Create(
      const LayerContext& context) {
    auto made = std::make_shared<Divided>();
    ParallelLinearOptions options;
    options.in_features = kWidth;
    options.out_features = kInner;
    COXSWAIN_ASSIGN_OR_RETURN(
        made->up, ColumnParallelLinear::Create(context.parallel, options));
    std::swap(options.in_features, options.out_features);
    COXSWAIN_ASSIGN_OR_RETURN(
        made->down, RowParallelLinear::Create(context.parallel, options));
    made->register_module("up", made->up);
    made->register_module("down", made->down);
    made->to(::torch::kFloat64);
    return made;
  }
  Tensor forward(const Tensor& x) {
    return x + down->forward(::torch::tanh(up->forward(x)));
  }
  std::shared_ptr<ColumnParallelLinear> up;
  std::shared_ptr<RowParallelLinear> down;
};

// Ranks of different data until the checkpoint, so that their errors differ,
// and then of the same, so that their number does not matter.
PipelineProgram Until5(PipelineProgram program) {
  const auto data = program.data;
  program.data = [data](int data_index, int64_t number) {
    return data(number < kSaved * kWindow ? data_index : 0, number);
  };
  program.options.ddp.terms.checkpoint_every = kSaved;
  return program;
}

PipelineProgram CountedMlp(const std::string& mesh) {
  PipelineProgram program = Mlp(4, ::torch::kFloat64);
  program.model.layers.insert(
      program.model.layers.begin() + 1,
      LayerOf("counted", [] { return std::make_shared<Counted>(); }));
  program.options.mesh = mesh;
  return Until5(std::move(program));
}

PipelineProgram DividedMlp(const std::string& mesh) {
  PipelineProgram program = CountedMlp(mesh);
  auto& layers = program.model.layers;
  layers.insert(layers.begin() + 2, MeshLayerOf("divided0", Divided::Create));
  layers.push_back(MeshLayerOf("divided1", Divided::Create));
  program.model.initial_values = UsualInitialValues;
  return program;
}

// All elements of a model in pieces, by kind, name and step.
using Everything = std::map<std::string, std::string>;

void Add(const std::vector<PieceMemory>& pieces, Everything* all) {
  for (const auto& [piece, data] : pieces) {
    const auto element = static_cast<int64_t>(SizeOf(piece.dtype));
    std::string& bytes = (*all)[absl::StrCat(
        piece.kind, " of ", piece.parameter, " after ", piece.step)];
    const TensorPiece whole = TensorPiece::Whole(piece.parameter, piece.kind,
                                                 piece.dtype, piece.shape);
    bytes.resize(static_cast<size_t>(whole.bytes()));
    for (const PieceRun& run : Intersect(piece, whole)) {
      std::memcpy(bytes.data() + run.to * element, data + run.from * element,
                  static_cast<size_t>(run.count * element));
    }
  }
}

struct JobRun {
  int ranks = 4;
  int steps = 2 * kSaved;
  std::string resume;
  // Called on each rank after each step, before it is saved.
  std::function<absl::Status(Session&, ModuleCheckpoint&, int64_t step)>
      after_step;
};

struct Ended {
  std::vector<PipelineEnd> ends;
  std::vector<double> losses;  // of data index 0
  std::map<int64_t, Everything> saved;
  Everything resumed;
  std::vector<SaveReport> reports;  // of rank 0
  int64_t resumed_at = 0;
};

class PipelineCheckpointTest : public ::testing::Test {
 protected:
  // What ranks of either kind do from their first step on.
  struct Training {
    Session& session;
    DistributedDataParallel& ddp;
    ProgramCheckpoint::Program program;
    std::function<absl::Status(int64_t step)> step;
  };
  absl::Status Train(const JobRun& run, const Training& training,
                     Ended* ended) {
    ModuleCheckpoint::Options saving;
    saving.make_hook = MakePlannedHook;
    saving.on_report = [&](const SaveReport& report) {
      MutexLock lock(&mutex_);
      if (training.session.rank() == 0) ended->reports.push_back(report);
    };
    const auto note = [&](Everything* all) {
      std::vector<PieceMemory> pieces;
      EXPECT_OK(training.program.fill_pieces(&pieces));
      MutexLock lock(&mutex_);
      Add(pieces, all);
      for (const auto& [name, item] : training.program.items) {
        (*all)[absl::StrCat("all ranks' ", name)] = item.save();
      }
    };
    ModuleCheckpoint checkpoint(training.session, training.program, saving);
    int64_t step = 0;
    if (!run.resume.empty()) {
      COXSWAIN_ASSIGN_OR_RETURN(auto resumed,
                                checkpoint.Resume(run.resume, training.ddp));
      step = resumed.step;
      EXPECT_EQ(resumed.blobs["own"], absl::StrCat("at ", step));
      note(&ended->resumed);
      MutexLock lock(&mutex_);
      ended->resumed_at = step;
    }
    while (step < run.steps && !training.ddp.stopping()) {
      COXSWAIN_RETURN_IF_ERROR(training.step(step));
      ++step;
      if (run.after_step) {
        COXSWAIN_RETURN_IF_ERROR(
            run.after_step(training.session, checkpoint, step));
      }
      COXSWAIN_ASSIGN_OR_RETURN(
          const bool saved,
          checkpoint.SaveIfAsked(training.ddp,
                                 {{"own", absl::StrCat("at ", step)}}));
      if (!saved) continue;
      mutex_.Lock();
      Everything* const all = &ended->saved[step];
      mutex_.Unlock();
      note(all);
    }
    return checkpoint.Finish(kTimeout);
  }

  Ended Train(const PipelineProgram& program, const JobRun& run) {
    Ended ended;
    ended.ends = job_.Run(
        run.ranks, [&](int) { return program; },
        [&](Pipeline& pipeline, Session& session,
            PipelineEnd* end) -> absl::Status {
          const auto step = [&](int64_t number) -> absl::Status {
            end->taken = number * kWindow;
            return PipelineJob::Step(pipeline, program, 0, end).status();
          };
          const absl::Status status =
              Train(run, {session, pipeline.ddp(), ProgramOf(pipeline), step},
                    &ended);
          MutexLock lock(&mutex_);
          if (pipeline.has_targets() && pipeline.data_index() == 0) {
            ended.losses = end->losses;
          }
          return status;
        });
    return ended;
  }

  // The same model, all of it on each rank.
  Ended TrainPlain(const PipelineProgram& program, const JobRun& run,
                   int zero) {
    Ended ended;
    ended.ends.resize(static_cast<size_t>(run.ranks));
    InThreads(run.ranks, [&](int slot) {
      at::set_num_threads(1);
      ended.ends[static_cast<size_t>(slot)].status =
          TrainPlainRank(program, run, zero, slot, &ended);
    });
    return ended;
  }

  absl::Status TrainPlainRank(const PipelineProgram& program, const JobRun& run,
                              int zero, int slot, Ended* ended) {
    const int count = static_cast<int>(program.model.layers.size());
    COXSWAIN_ASSIGN_OR_RETURN(const pipeline::StageCut cut,
                              pipeline::StageCut::Even(count, 1));
    COXSWAIN_ASSIGN_OR_RETURN(const auto whole,
                              RankLayers::Make(program.model, cut, {0}));
    const auto optimizer = MakeAdam(whole->module()->parameters());
    DistributedDataParallelOptions options = program.options.ddp;
    options.zero = zero;
    COXSWAIN_ASSIGN_OR_RETURN(
        const JobManifest manifest,
        DescribeJob(*whole->module(), "allreduce", options));
    SessionOptions joining;
    joining.coordinator = absl::StrCat("127.0.0.1:", job_.coordinator().port());
    joining.job = "job";
    joining.identity = {"host-a", slot};
    joining.host = "host-a";
    joining.world_size = run.ranks;
    joining.join_timeout = joining.collective_timeout = kTimeout;
    COXSWAIN_ASSIGN_OR_RETURN(const auto session,
                              Session::Join(joining, manifest));
    const absl::Status status = TrainPlainIn(*session, program, run, *whole,
                                             *optimizer, options, ended);
    session->Leave(status.ok() ? "done" : status.message(), !status.ok())
        .IgnoreError();
    return status;
  }

  absl::Status TrainPlainIn(Session& session, const PipelineProgram& program,
                            const JobRun& run, const RankLayers& whole,
                            ::torch::optim::Optimizer& optimizer,
                            DistributedDataParallelOptions options,
                            Ended* ended) {
    COXSWAIN_ASSIGN_OR_RETURN(const auto world, session.World());
    COXSWAIN_RETURN_IF_ERROR(FollowSession(session, &options));
    COXSWAIN_ASSIGN_OR_RETURN(auto hook, MakePlannedHook(*options.plan));
    COXSWAIN_ASSIGN_OR_RETURN(
        const auto ddp,
        DistributedDataParallel::Create(whole.module(), &world->communicator(),
                                        std::move(hook), options));
    std::unique_ptr<ShardedOptimizer> sharded;
    if (options.zero > 0) {
      COXSWAIN_ASSIGN_OR_RETURN(sharded,
                                ShardedOptimizer::Create(*ddp, optimizer));
    }
    const auto step = [&](int64_t number) -> absl::Status {
      for (int i = 0; i < kWindow; ++i) {
        const MicroBatch micro = ddp->Accumulate();
        const PipelineBatch batch =
            program.data(session.rank(), number * kWindow + i);
        Tensors x = batch.inputs;
        for (const StageLayer& layer : whole.LayersOf(0)) x = layer.compute(x);
        const Tensor loss = program.loss(x, batch.targets);
        COXSWAIN_RETURN_IF_ERROR(ddp->Backward(loss * micro.loss_scale));
        MutexLock lock(&mutex_);
        if (session.rank() == 0) ended->losses.push_back(loss.item<double>());
      }
      return (sharded != nullptr ? sharded->Step()
                                 : ddp->StepOptimizer(optimizer))
          .status();
    };
    auto in_pieces =
        sharded != nullptr
            ? ProgramOf(whole.module(), sharded.get())
            : ProgramInPieces(whole.module(), &optimizer, session.rank(),
                              session.world_size());
    return Train(run, {session, *ddp, std::move(in_pieces), step}, ended);
  }

  // Fails the test unless all ranks ended well, and have saved as often.
  static void ExpectEnded(const Ended& ended, size_t saves) {
    for (const PipelineEnd& end : ended.ends) EXPECT_OK(end.status);
    EXPECT_EQ(ended.reports.size(), saves);
    for (const SaveReport& report : ended.reports) EXPECT_OK(report.status);
  }

  // Fails the test unless `ended` went on with what was saved after 5 steps,
  // and came to the same.
  static void ExpectWentOn(const Ended& whole, const Ended& ended,
                           double tolerance) {
    for (const PipelineEnd& end : ended.ends) ASSERT_OK(end.status);
    EXPECT_EQ(ended.resumed_at, kSaved);
    const Everything& saved = whole.saved.at(kSaved);
    for (const auto& [what, bytes] : ended.resumed) {
      // Groups of an optimizer are those of a program.
      if (what[0] == '.' || saved.count(what) == 0) continue;
      EXPECT_TRUE(bytes == saved.at(what)) << what << ", bit by bit";
    }
    for (const auto& [what, bytes] : saved) {
      EXPECT_EQ(ended.resumed.count(what), 1) << what;
    }
    const size_t count = ended.losses.size();
    ASSERT_EQ(count, (whole.losses.size() / kWindow - kSaved) * kWindow);
    for (size_t i = 0; i < count; ++i) {
      const double expected = whole.losses[whole.losses.size() - count + i];
      EXPECT_NEAR(ended.losses[i], expected, tolerance * std::abs(expected))
          << "loss " << i;
    }
  }

  Mutex mutex_;
  PipelineJob job_;
};

TEST_F(PipelineCheckpointTest, GoesOnOnAnyCutStagesAndReplicas) {
  const Ended whole = Train(CountedMlp("pp=2,dp=*"), {});
  ExpectEnded(whole, 2);
  const Everything& saved = whole.saved.at(kSaved);
  EXPECT_EQ(saved.count("untrained of counted.seen after 0"), 1);
  EXPECT_EQ(saved.count("exp_avg of block3.linear.weight after 5"), 1);
  struct Case {
    std::string mesh;
    int ranks;
    std::string stages;
    double tolerance;
  };
  for (const Case& one : std::vector<Case>{{"pp=2,dp=*", 4, "", kBits},
                                           {"pp=2,dp=*", 4, "0,1-4", kBits},
                                           {"pp=2,dp=*", 2, "", kExact},
                                           {"pp=4,dp=*", 4, "", kExact},
                                           {"pp=1,dp=*", 1, "", kExact},
                                           {"pp=2,dp=*", 6, "", kExact}}) {
    SCOPED_TRACE(absl::StrCat(one.mesh, " of ", one.ranks, " ", one.stages));
    PipelineProgram program = CountedMlp(one.mesh);
    program.options.stages = one.stages;
    program.options.ddp.terms.checkpoint_every = 0;
    JobRun run;
    run.ranks = one.ranks;
    run.resume = whole.reports[0].checkpoint_id;
    ExpectWentOn(whole, Train(program, run), one.tolerance);
  }
}

TEST_F(PipelineCheckpointTest, SlicesGoOnAsSlicesOfOthersOrWithout) {
  PipelineProgram program = CountedMlp("pp=2,dp=*");
  program.options.ddp.zero = 1;
  const Ended whole = Train(program, {});
  ExpectEnded(whole, 2);
  struct Case {
    std::string mesh;
    int ranks;
    int zero;
  };
  for (const Case& one : std::vector<Case>{{"pp=2,dp=*", 6, 1},
                                           {"pp=4,dp=*", 8, 1},
                                           {"pp=1,dp=*", 2, 1},
                                           {"pp=4,dp=*", 4, 0}}) {
    SCOPED_TRACE(absl::StrCat(one.mesh, " of ", one.ranks, ", ", one.zero));
    PipelineProgram other = CountedMlp(one.mesh);
    other.options.ddp.zero = one.zero;
    other.options.ddp.terms.checkpoint_every = 0;
    JobRun run;
    run.ranks = one.ranks;
    run.resume = whole.reports[0].checkpoint_id;
    ExpectWentOn(whole, Train(other, run), kExact);
  }
}

TEST_F(PipelineCheckpointTest, PartsAlongTpGoOnAsThoseOfAnyMesh) {
  for (const int zero : {0, 1}) {
    PipelineProgram program = DividedMlp("pp=2,dp=*,tp=2");
    program.options.ddp.zero = zero;
    program.options.ddp.skip_non_finite = true;
    program.options.ddp.terms.commit_vote = true;
    program.options.loss_scaling = LossScaling();
    program.options.loss_scaling->growth_every = 3;
    JobRun run;
    run.ranks = 8;
    const Ended whole = Train(program, run);
    ExpectEnded(whole, 2);
    const Everything& saved = whole.saved.at(kSaved);
    EXPECT_EQ(saved.at("exp_avg of divided1.up.weight after 5").size(),
              Divided::kInner * kWidth * sizeof(double));
    EXPECT_EQ(saved.count("all ranks' .loss_scale"), 1);
    struct Case {
      std::string mesh;
      int ranks;
      int zero;
    };
    for (const Case& one : std::vector<Case>{{"pp=2,dp=*,tp=2", 8, zero},
                                             {"pp=2,dp=*,tp=3", 6, 1 - zero},
                                             {"pp=1,dp=*,tp=2", 4, zero},
                                             {"pp=1,dp=*", 1, 0}}) {
      SCOPED_TRACE(absl::StrCat("zero=", zero, " to ", one.mesh, " of ",
                                one.ranks, ", zero=", one.zero));
      PipelineProgram other = program;
      other.options.mesh = one.mesh;
      other.options.ddp.zero = one.zero;
      other.options.ddp.terms.checkpoint_every = 0;
      run.ranks = one.ranks;
      run.resume = whole.reports[0].checkpoint_id;
      ExpectWentOn(whole, Train(other, run),
                   one.ranks == 8 ? kBits : kOtherSums);
    }
  }
}

TEST_F(PipelineCheckpointTest, TheHooksErrorsOfPartsGoOnWithTheirElements) {
  PipelineProgram program = DividedMlp("pp=2,dp=*,tp=2");
  program.options.hook = "powersgd(start_step=2,rank=2)";
  JobRun run;
  run.ranks = 8;
  const Ended whole = Train(program, run);
  ExpectEnded(whole, 2);
  program.options.ddp.terms.checkpoint_every = 0;
  run.resume = whole.reports[0].checkpoint_id;
  ExpectWentOn(whole, Train(program, run), kBits);
  for (const auto& [mesh, ranks] : std::vector<std::pair<std::string, int>>{
           {"pp=2,dp=*,tp=2", 4}, {"pp=1,dp=*,tp=2", 4}}) {
    SCOPED_TRACE(absl::StrCat(mesh, " of ", ranks));
    program.options.mesh = mesh;
    run.ranks = ranks;
    ExpectWentOn(whole, Train(program, run), kOtherSums);
  }
  // Other parts have no factors, and the same errors.
  program.options.mesh = "pp=2,dp=*,tp=3";
  run.ranks = 6;
  testing::internal::CaptureStderr();
  const Ended anew = Train(program, run);
  const std::string log = testing::internal::GetCapturedStderr();
  ExpectEnded(anew, 0);
  EXPECT_THAT(log, HasSubstr("hook_state_cut"));
  EXPECT_THAT(log, HasSubstr("q of divided0.up.weight"));
  EXPECT_THAT(log, Not(HasSubstr("hook_state_dropped")));
  EXPECT_THAT(log, Not(HasSubstr("q of block0"))) << "all ranks have all of it";
}

TEST_F(PipelineCheckpointTest, TheHooksErrorsGoOnOnAnyStagesAndReplicas) {
  PipelineProgram program = CountedMlp("pp=2,dp=*");
  program.options.hook = "powersgd(start_step=2,rank=2)";
  const Ended whole = Train(program, {});
  ExpectEnded(whole, 2);
  program.options.ddp.terms.checkpoint_every = 0;
  JobRun run;
  run.resume = whole.reports[0].checkpoint_id;
  ExpectWentOn(whole, Train(program, run), kBits);
  for (const int ranks : {2, 6}) {
    SCOPED_TRACE(ranks);
    run.ranks = ranks;
    ExpectWentOn(whole, Train(program, run), kExact);
  }
  for (const auto& [mesh, ranks] : std::vector<std::pair<std::string, int>>{
           {"pp=4,dp=*", 4}, {"pp=1,dp=*", 2}}) {
    SCOPED_TRACE(absl::StrCat(mesh, " of ", ranks));
    program.options.mesh = mesh;
    run.ranks = ranks;
    ExpectWentOn(whole, Train(program, run), kExact);
  }
}

TEST_F(PipelineCheckpointTest, TiedParametersAreFoundUnderEitherName) {
  const auto tied = [](const std::string& mesh) {
    PipelineProgram program = TiedTokens();
    program.options.mesh = mesh;
    return Until5(std::move(program));
  };
  for (const auto& [from, to] :
       std::vector<std::pair<int, int>>{{2, 1}, {1, 2}}) {
    SCOPED_TRACE(absl::StrCat("pp=", from, " to pp=", to));
    JobRun run;
    run.ranks = from;
    const Ended whole = Train(tied(absl::StrCat("pp=", from, ",dp=*")), run);
    ExpectEnded(whole, 2);
    PipelineProgram program = tied(absl::StrCat("pp=", to, ",dp=*"));
    program.options.ddp.terms.checkpoint_every = 0;
    run.ranks = to;
    run.resume = whole.reports[0].checkpoint_id;
    const Ended ended = Train(program, run);
    ExpectEnded(ended, 0);
    const size_t count = ended.losses.size();
    ASSERT_EQ(count, kSaved * kWindow);
    for (size_t i = 0; i < count; ++i) {
      EXPECT_NEAR(ended.losses[i], whole.losses[count + i], kExact * 10);
    }
  }
}

TEST_F(PipelineCheckpointTest, RanksWithAllOfTheModelGoOnFromItAndBack) {
  JobRun all;
  all.steps = 3 * kSaved;
  const Ended whole = Train(CountedMlp("pp=2,dp=*"), all);
  ExpectEnded(whole, 3);
  for (const int zero : {0, 1}) {
    SCOPED_TRACE(absl::StrCat("zero=", zero));
    JobRun run;
    run.ranks = 2;
    run.resume = whole.reports[0].checkpoint_id;
    run.steps = 3 * kSaved;
    const Ended plain = TrainPlain(CountedMlp(""), run, zero);
    ExpectWentOn(whole, plain, kExact);
    ExpectEnded(plain, 2);
    run.resume = plain.reports[0].checkpoint_id;
    PipelineProgram program = CountedMlp("pp=2,dp=*");
    program.options.ddp.terms.checkpoint_every = 0;
    const Ended back = Train(program, run);
    ExpectEnded(back, 0);
    EXPECT_EQ(back.resumed_at, 2 * kSaved);
    ASSERT_EQ(back.losses.size(), static_cast<size_t>(kSaved * kWindow));
    for (size_t i = 0; i < back.losses.size(); ++i) {
      const double expected = whole.losses[2 * kSaved * kWindow + i];
      EXPECT_NEAR(back.losses[i], expected, kExact * std::abs(expected)) << i;
    }
  }
}

TEST_F(PipelineCheckpointTest, AnotherModelsLeavesAllRanksAsTheyWere) {
  JobRun run;
  run.steps = kSaved;
  ExpectEnded(Train(CountedMlp("pp=2,dp=*"), run), 1);
  struct Case {
    std::function<void(PipelineModel&)> change;
    std::string difference;
  };
  const auto counted = [] { return std::make_shared<Counted>(); };
  const std::vector<Case> cases = {
      {[&](PipelineModel& model) {
         model.layers.push_back(LayerOf("more", counted));
       },
       "more.linear.weight"},
      {[](PipelineModel& model) { model.layers.pop_back(); },
       "block3.linear.weight only in the checkpoint"},
  };
  for (const Case& one : cases) {
    SCOPED_TRACE(one.difference);
    PipelineProgram program = CountedMlp("pp=2,dp=*");
    one.change(program.model);
    const auto ends = job_.Run(
        4, [&](int) { return program; },
        [&](Pipeline& pipeline, Session& session, PipelineEnd*) {
          const auto in_pieces = ProgramOf(pipeline);
          const auto everything = [&] {
            std::vector<PieceMemory> pieces;
            EXPECT_OK(in_pieces.fill_pieces(&pieces));
            Everything all;
            Add(pieces, &all);
            return all;
          };
          const Everything before = everything();
          ModuleCheckpoint::Options saving;
          saving.make_hook = MakePlannedHook;
          ModuleCheckpoint checkpoint(session, in_pieces, saving);
          EXPECT_THAT(checkpoint.Resume(kNewest, pipeline.ddp()).status(),
                      StatusIs(absl::StatusCode::kFailedPrecondition,
                               AllOf(HasSubstr("another model"),
                                     HasSubstr(one.difference))));
          EXPECT_TRUE(everything() == before);
          return absl::OkStatus();
        });
    for (const PipelineEnd& end : ends) EXPECT_OK(end.status);
  }
}

TEST_F(PipelineCheckpointTest, ARankThatIsLostLeavesTheNewestCompleteOne) {
  JobRun run;
  run.after_step = [](Session& session, ModuleCheckpoint& checkpoint,
                      int64_t step) -> absl::Status {
    if (session.rank() != 3 || step != 2 * kSaved) return absl::OkStatus();
    EXPECT_OK(checkpoint.Finish(kTimeout));
    // The others copy this step, and come to wait for this rank's part.
    return absl::InternalError("lost");
  };
  const Ended lost = Train(CountedMlp("pp=2,dp=*"), run);
  for (const PipelineEnd& end : lost.ends) EXPECT_FALSE(end.status.ok());
  ASSERT_GE(lost.reports.size(), 1);
  EXPECT_OK(lost.reports[0].status);
  for (size_t i = 1; i < lost.reports.size(); ++i) {
    EXPECT_FALSE(lost.reports[i].status.ok());
  }
  run = JobRun();
  run.ranks = 2;
  run.resume = kNewest;
  const Ended ended = Train(CountedMlp("pp=2,dp=*"), run);
  ExpectEnded(ended, 1);
  EXPECT_EQ(ended.resumed_at, kSaved);
}

TEST_F(PipelineCheckpointTest, ARankAsksForOneAndAllStopThere) {
  PipelineProgram program = CountedMlp("pp=2,dp=*");
  program.options.ddp.terms.checkpoint_every = 0;
  JobRun run;
  run.steps = 1000;
  run.after_step = [](Session& session, ModuleCheckpoint&, int64_t step) {
    if (session.rank() == 1 && step == 2) {
      session.schedule().RequestCheckpoint("SIGTERM");
      session.schedule().RequestStop("SIGTERM");
    }
    return absl::OkStatus();
  };
  const Ended ended = Train(program, run);
  ExpectEnded(ended, 1);
  ASSERT_EQ(ended.reports.size(), 1);
  EXPECT_EQ(ended.reports[0].step, 3);
  EXPECT_THAT(ended.reports[0].reason, HasSubstr("rank 1"));
}

}  // namespace
}  // namespace coxswain::torch::pipeline_checkpoint_test
