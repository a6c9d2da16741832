// What a pipeline's job agrees on, and what becomes of it where its ranks
// differ or fail.

#include <torch/optim/lbfgs.h>
#include <torch/types.h>
#include <torch/utils.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <fstream>
#include <future>
#include <iterator>
#include <limits>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "client/reduce/trace_file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/integration/pipeline_ranks.h"

namespace coxswain::torch::pipeline_job_test {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr double kExact = 1e-12;

PipelineJob::Body OneStep(const PipelineProgram& program) {
  return PipelineJob::Steps(program, 1);
}

TEST(PipelineJobTest, OtherStagesOrSchedulesAreRefusedWhenRanksJoin) {
  struct Case {
    void (*change)(PipelineOptions&);
    std::vector<std::string> difference;
  };
  const std::vector<Case> cases = {
      {[](PipelineOptions& o) { o.ddp.terms.pipeline = "gpipe"; },
       {"pipeline: 1f1b", "gpipe", "pipeline_hash"}},
      {[](PipelineOptions& o) { o.stages = "0,1-3"; },
       {"stages: 0-1,2-3 ", "0,1-3"}},
      {[](PipelineOptions& o) { o.ddp.accumulation_steps = 8; },
       {"accumulation"}},
  };
  for (const Case& one : cases) {
    PipelineProgram program = Mlp(4, ::torch::kFloat32);
    const auto ends = PipelineJob().Run(
        2,
        [&](int rank) {
          PipelineProgram own = program;
          if (rank == 1) one.change(own.options);
          return own;
        },
        OneStep(program));
    for (const PipelineEnd& end : ends) {
      EXPECT_EQ(end.status.code(), absl::StatusCode::kFailedPrecondition);
      for (const std::string& what : one.difference) {
        EXPECT_THAT(end.status.message(), HasSubstr(what));
      }
    }
  }
}

TEST(PipelineJobTest, OtherTiesAreRefusedWhenRanksJoin) {
  const PipelineProgram program = TiedTokens();
  const auto ends = PipelineJob().Run(
      2,
      [&](int rank) {
        PipelineProgram own = program;
        if (rank == 1) own.model.ties.clear();
        return own;
      },
      OneStep(program));
  for (const PipelineEnd& end : ends) {
    EXPECT_EQ(end.status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(end.status.message(),
                HasSubstr("ties: embedding.weight=head.weight"));
  }
}

// Also where no window of theirs is exchanged, so that nothing is announced.
TEST(PipelineJobTest, ARankThatLeavesAMicroBatchOutIsNamed) {
  struct Case {
    schedule::TailPolicy tail;
    int count;
  };
  for (const Case& one : {Case{schedule::TailPolicy::kFlush, 4},
                          Case{schedule::TailPolicy::kDrop, 4},
                          Case{schedule::TailPolicy::kCarry, 3}}) {
    SCOPED_TRACE(one.count);
    PipelineProgram program = Mlp(4, ::torch::kFloat32);
    program.options.ddp.terms.tail = one.tail;
    const auto ends = PipelineJob().Run(
        4, [&](int) { return program; },
        [&](Pipeline& pipeline, Session& session,
            PipelineEnd* end) -> absl::Status {
          COXSWAIN_RETURN_IF_ERROR(
              PipelineJob::Step(pipeline, program, 0, end).status());
          const int count = session.rank() == 2 ? one.count - 1 : one.count;
          COXSWAIN_RETURN_IF_ERROR(
              PipelineJob::Step(pipeline, program, count, end).status());
          return PipelineJob::Step(pipeline, program, 0, end).status();
        });
    for (const PipelineEnd& end : ends) {
      EXPECT_FALSE(end.status.ok());
      EXPECT_THAT(end.status.message(),
                  AllOf(HasSubstr(absl::StrCat(
                            "a step of ", one.count,
                            " micro-batches on rank 0 (pp 0, dp 0)")),
                        HasSubstr(absl::StrCat(
                            "a step of ", one.count - 1,
                            " micro-batches on rank 2 (pp 1, dp 0)"))));
    }
  }
}

TEST(PipelineJobTest, ARankThatEvaluatesInAStepIsNamed) {
  PipelineProgram program = Mlp(4, ::torch::kFloat32);
  const auto ends = PipelineJob().Run(
      2, [&](int) { return program; },
      [&](Pipeline& pipeline, Session& session,
          PipelineEnd* end) -> absl::Status {
        if (session.rank() == 0) {
          return PipelineJob::Step(pipeline, program, 0, end).status();
        }
        return pipeline.Evaluate(PipelineJob::NextOf(pipeline, program, 4, end))
            .status();
      });
  for (const PipelineEnd& end : ends) {
    EXPECT_FALSE(end.status.ok());
    EXPECT_THAT(
        end.status.message(),
        HasSubstr("an evaluation of 4 micro-batches on rank 1 (pp 1, dp 0)"));
  }
}

TEST(PipelineJobTest, AChangeOfThePlanLandsOnOneStep) {
  struct Case {
    void (*change)(v1::Plan&);
    int after;
  };
  const std::vector<Case> cases = {
      {[](v1::Plan& plan) { plan.set_accumulation_steps(8); }, 8},
      {[](v1::Plan& plan) { (*plan.mutable_terms())["pipeline"] = "zb_h1"; },
       4}};
  for (const Case& one : cases) {
    PipelineProgram program = Mlp(4, ::torch::kFloat64);
    PipelineJob job;
    std::vector<std::vector<int>> windows(2);
    const auto ends = job.Run(
        2, [&](int) { return program; },
        [&](Pipeline& pipeline, Session& session,
            PipelineEnd* end) -> absl::Status {
          const int64_t version = pipeline.ddp().plan().version;
          std::vector<int>& mine = windows[static_cast<size_t>(session.rank())];
          for (int step = 0; step < 6; ++step) {
            if (step == 2 && session.rank() == 0) {
              COXSWAIN_RETURN_IF_ERROR(job.Propose(one.change));
            }
            mine.push_back(pipeline.window());
            COXSWAIN_RETURN_IF_ERROR(
                PipelineJob::Step(pipeline, program, 0, end).status());
          }
          EXPECT_EQ(pipeline.ddp().plan().version, version + 1);
          EXPECT_EQ(pipeline.schedule().micro_batches(), one.after);
          return absl::OkStatus();
        });
    for (const PipelineEnd& end : ends) EXPECT_OK(end.status);
    EXPECT_EQ(windows[0], windows[1]);
    EXPECT_EQ(windows[0].front(), 4);
    EXPECT_EQ(windows[0].back(), one.after);
    Windows taken;
    for (const int window : windows[0]) taken.push_back({window});
    ExpectValues(ends, InOneProcess(program, taken).values, kExact);
  }
}

// What the coordinator compares, to find the rank that holds up the others.
TEST(PipelineJobTest, RanksWithoutDataCountTheStepsOfTheOthers) {
  PipelineProgram program = Mlp(4, ::torch::kFloat64);
  program.options.ddp.terms.uneven_data = schedule::UnevenData::kWaitForAll;
  std::vector<int64_t> steps(4);
  const auto ends = PipelineJob().Run(
      4, [&](int) { return program; },
      [&](Pipeline& pipeline, Session& session,
          PipelineEnd* end) -> absl::Status {
        const int own = pipeline.data_index() == 0 ? 5 : 2;
        for (int step = 0; step < own; ++step) {
          COXSWAIN_RETURN_IF_ERROR(
              PipelineJob::Step(pipeline, program, 0, end).status());
        }
        for (bool more = true; more;) {
          COXSWAIN_ASSIGN_OR_RETURN(more, pipeline.StepWithoutData());
        }
        steps[static_cast<size_t>(session.rank())] = pipeline.place().step;
        return absl::OkStatus();
      });
  for (const PipelineEnd& end : ends) EXPECT_OK(end.status);
  EXPECT_THAT(steps, ::testing::Each(steps[0]));
  EXPECT_GE(steps[0], 5);
}

TEST(PipelineJobTest, APlanThatMovesLayersIsRefused) {
  PipelineProgram program = Mlp(4, ::torch::kFloat64);
  PipelineJob job;
  const auto ends = job.Run(
      2, [&](int) { return program; },
      [&](Pipeline& pipeline, Session& session,
          PipelineEnd* end) -> absl::Status {
        if (session.rank() == 0) {
          EXPECT_FALSE(job.Propose([](v1::Plan& plan) {
                            (*plan.mutable_terms())["pipeline"] =
                                "interleaved(chunks=2)";
                          })
                           .ok());
        }
        return PipelineJob::Step(pipeline, program, 0, end).status();
      });
  for (const PipelineEnd& end : ends) EXPECT_OK(end.status);
}

TEST(PipelineJobTest, AnErrorNamesStageActionAndMicroBatchOnAllRanks) {
  const PipelineProgram program = Mlp(4, ::torch::kFloat64);
  PipelineProgram failing = program;
  failing.model.layers[3].forward = [calls = 0](::torch::nn::Module*,
                                                const Tensors& x) mutable {
    if (++calls == 7) throw std::runtime_error("no label");
    return x;
  };
  const auto ends = PipelineJob().Run(
      4, [&](int rank) { return rank == 3 ? failing : program; },
      PipelineJob::Steps(program, 3));
  EXPECT_THAT(ends[3].status,
              StatusIs(absl::StatusCode::kInternal,
                       HasSubstr("stage 1, 1F2: the forward pass: no label")));
  for (const PipelineEnd& end : ends) {
    EXPECT_FALSE(end.status.ok());
    EXPECT_THAT(end.status.message(), HasSubstr("no label"));
  }
}

TEST(PipelineJobTest, AllRanksSkipWhatIsNotFiniteInOneStage) {
  PipelineProgram program = Mlp(4, ::torch::kFloat64);
  program.options.ddp.skip_non_finite = true;
  program.options.ddp.terms.commit_vote = true;
  program.data = [data = program.data](int data_index, int64_t number) {
    PipelineBatch batch = data(data_index, number);
    if (number == 5) {
      batch.targets[0].fill_(std::numeric_limits<double>::infinity());
    }
    return batch;
  };
  const auto ends = PipelineJob().Run(
      2, [&](int) { return program; },
      [&](Pipeline& pipeline, Session&, PipelineEnd* end) -> absl::Status {
        for (int step = 0; step < 3; ++step) {
          COXSWAIN_ASSIGN_OR_RETURN(
              const PipelineResult result,
              PipelineJob::Step(pipeline, program, 0, end));
          EXPECT_EQ(result.stepped, step != 1);
        }
        return absl::OkStatus();
      });
  for (const PipelineEnd& end : ends) {
    EXPECT_OK(end.status);
    for (const auto& [name, value] : end.values) {
      EXPECT_TRUE(value.isfinite().all().item<bool>()) << name;
    }
  }
}

// One that stays in the job, and so ends nobody's generation.
// A program that joins with another model or other options than it trains.
TEST(PipelineJobTest, OtherStagesOrTiesThanTheOthersAreRefusedAfterJoining) {
  const PipelineProgram program = TiedTokens();
  for (const bool stages : {true, false}) {
    const auto ends = PipelineJob().Run(
        4,
        [&](int rank) {
          PipelineProgram own = program;
          own.after_join = [stages, rank](PipelineProgram& mine, Session&) {
            if (rank != 3) return;
            if (stages) mine.options.stages = "0,1-3";
            if (!stages) mine.model.ties.clear();
          };
          return own;
        },
        OneStep(program));
    for (const int rank : {1, 2, 3}) {
      const absl::Status& status = ends[static_cast<size_t>(rank)].status;
      EXPECT_FALSE(status.ok());
      EXPECT_THAT(status.message(),
                  AllOf(HasSubstr("the same stages, ties and schedule"),
                        HasSubstr("rank 3 differs from rank 1"),
                        HasSubstr(stages ? "only rank 3: stage 1: layers 1-3"
                                         : "only rank 1: tie 0: ")));
    }
    EXPECT_FALSE(ends[0].status.ok());
  }
}

TEST(PipelineJobTest, ARankWhoseLayersCannotBeMadeEndsTheOthersWaits) {
  // Of the second one the ranks connect a group for what is tied.
  for (const PipelineProgram& program :
       {Mlp(4, ::torch::kFloat32), TiedTokens()}) {
    std::promise<void> other_has_failed;
    const auto ends = PipelineJob().Run(
        2,
        [&](int rank) {
          PipelineProgram own = program;
          own.before_leave = [&, rank] {
            if (rank == 0) other_has_failed.set_value();
            if (rank == 1) {
              other_has_failed.get_future().wait_for(std::chrono::minutes(2));
            }
          };
          if (rank == 1) {
            // Not when the job is described.
            own.model.layers[3].make = [make = own.model.layers[3].make,
                                        calls = 0]() mutable {
              if (++calls == 2) throw std::runtime_error("no memory");
              return make();
            };
          }
          return own;
        },
        OneStep(program));
    for (const PipelineEnd& end : ends) {
      EXPECT_THAT(
          end.status.message(),
          HasSubstr(absl::StrCat("layer \"", program.model.layers[3].name,
                                 "\": making it: no memory")));
    }
  }
}

TEST(PipelineJobTest, ATraceLeavesTheProgramsOwnOnStep) {
  PipelineProgram program = Mlp(4, ::torch::kFloat32);
  program.options.mesh = "";
  program.options.ddp.trace_file =
      absl::StrCat(testing::TempDir(), "/pipeline-", getpid(), ".json");
  std::vector<int64_t> seen;
  program.options.executor.on_step =
      [&](int64_t step, const std::vector<TimedAction>& actions) {
        seen.push_back(step);
        EXPECT_FALSE(actions.empty());
      };
  PipelineJob().Train(1, program, 2);
  EXPECT_THAT(seen, ElementsAre(0, 1));
  std::ifstream file(TracePath(program.options.ddp.trace_file, 0));
  const std::string text((std::istreambuf_iterator<char>(file)), {});
  EXPECT_THAT(text, HasSubstr("0F0"));
}

// ---- heartbeats ----

TEST(PipelineJobTest, MicroBatchesAreCountedOnce) {
  const PipelineProgram program = Mlp(4, ::torch::kFloat32);
  PipelineJob job;
  const auto ends = job.Run(
      2, [&](int) { return program; },
      [&](Pipeline& pipeline, Session& session,
          PipelineEnd* end) -> absl::Status {
        COXSWAIN_RETURN_IF_ERROR(
            PipelineJob::Step(pipeline, program, 0, end).status());
        // Heartbeats of the step's end have all of it.
        int64_t counted = 0;
        const absl::Status seen = job.Await([&](const v1::WhyResponse& why) {
          const v1::RankProgress& rank = why.ranks(session.rank());
          counted = rank.micro_batches();
          return rank.pipeline() == "between steps";
        });
        EXPECT_EQ(counted, 4);
        COXSWAIN_RETURN_IF_ERROR(seen);
        // What is known of a job's pipeline needs all of its ranks.
        return session.Barrier("", "seen", absl::Minutes(1));
      });
  for (const PipelineEnd& end : ends) EXPECT_OK(end.status);
}

TEST(PipelineJobTest, CreateDoesNotWaitForARankThatHasLeft) {
  std::promise<void> attached;
  const auto ends = PipelineJob().Run(
      2,
      [&](int slot) {
        PipelineProgram program = Mlp(4, ::torch::kFloat32);
        program.after_join = [&attached, slot](PipelineProgram&,
                                               Session& session) {
          if (slot == 0) return attached.set_value();
          // So that the other one is notified.
          attached.get_future().wait();
          EXPECT_OK(session.Leave("there is no data for it"));
        };
        return program;
      },
      [](Pipeline&, Session&, PipelineEnd*) {
        ADD_FAILURE() << "a pipeline was made";
        return absl::OkStatus();
      });
  EXPECT_THAT(
      ends[0].status,
      StatusIs(absl::StatusCode::kUnavailable,
               AllOf(HasSubstr("the group 'world' cannot be connected"),
                     HasSubstr("rank 1 (pp 1, dp 0) on host-a has left: "
                               "there is no data for it"))));
  EXPECT_TRUE(absl::IsCancelled(ends[1].status)) << ends[1].status;
}

TEST(PipelineJobTest, APipelineThatEndsLeavesThePlaceOfAnother) {
  PipelineProgram program = Mlp(4, ::torch::kFloat32);
  program.options.mesh = "";
  PipelineJob job;
  const auto ends = job.Run(
      1, [&](int) { return program; },
      [&](Pipeline&, Session& session, PipelineEnd* end) -> absl::Status {
        const auto make = [&] {
          return Pipeline::Create(session, program.model, program.loss,
                                  program.options);
        };
        absl::StatusOr<std::unique_ptr<Pipeline>> ended = make();
        COXSWAIN_RETURN_IF_ERROR(ended.status());
        COXSWAIN_ASSIGN_OR_RETURN(const std::unique_ptr<Pipeline> other,
                                  make());
        ended->reset();
        const auto optimizer = MakeAdam(other->module()->parameters());
        COXSWAIN_RETURN_IF_ERROR(other->UseOptimizer(*optimizer));
        COXSWAIN_RETURN_IF_ERROR(
            PipelineJob::Step(*other, program, 0, end).status());
        return job.Await([](const v1::WhyResponse& why) {
          return why.ranks(0).pipeline() == "between steps";
        });
      });
  EXPECT_OK(ends[0].status);
}

TEST(PipelineJobTest, NoOptimizerIsLeftAfterOneIsRefused) {
  PipelineProgram program = Mlp(4, ::torch::kFloat32);
  program.options.ddp.zero = 1;
  const auto ends = PipelineJob().Run(
      2, [&](int) { return program; },
      [&](Pipeline& pipeline, Session&, PipelineEnd* end) -> absl::Status {
        EXPECT_NE(pipeline.sharded(), nullptr);
        ::torch::optim::LBFGS other(pipeline.module()->parameters());
        const absl::Status refused = pipeline.UseOptimizer(other);
        EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
        EXPECT_EQ(pipeline.sharded(), nullptr);
        EXPECT_EQ(PipelineJob::Step(pipeline, program, 0, end).status(),
                  refused);
        return absl::OkStatus();
      });
  for (const PipelineEnd& end : ends) EXPECT_OK(end.status);
}

// As after Rejoin: the options have what this worker's former rank did.
TEST(PipelineJobTest, WhoCountsInTheNormFollowsTheSession) {
  const auto follow = [](Session& session, bool former) {
    DistributedDataParallelOptions options;
    options.runs_pipeline = true;
    options.reducer.counts_in_norm = former;
    EXPECT_OK(FollowSession(session, &options));
    return options.reducer.counts_in_norm;
  };
  for (const bool staged : {true, false}) {
    PipelineProgram program = Mlp(4, ::torch::kFloat32);
    if (!staged) program.options.mesh = "dp=*";
    const auto ends = PipelineJob().Run(
        4, [&](int) { return program; },
        [&](Pipeline& pipeline, Session& session, PipelineEnd*) {
          for (const bool former : {false, true}) {
            const std::optional<bool> counts = follow(session, former);
            EXPECT_EQ(counts.has_value(), staged);
            EXPECT_EQ(counts.value_or(false),
                      staged && pipeline.data_index() == 0);
          }
          return absl::OkStatus();
        });
    for (const PipelineEnd& end : ends) EXPECT_OK(end.status);
  }
}

DistributedDataParallelOptions ZeroOptions() {
  DistributedDataParallelOptions options;
  options.runs_pipeline = true;
  options.zero = 1;
  return options;
}

// Each rank's options are used again with the session of the next generation.
TEST(PipelineJobTest, HybridShardingFollowsTheSession) {
  std::vector<DistributedDataParallelOptions> options(4, ZeroOptions());
  std::vector<std::weak_ptr<ProcessGroup>> groups_of_rank(4);
  for (const std::string mesh : {"dp=2,shard=2", "dp=2,shard=2", "dp=4"}) {
    const bool shares = mesh != "dp=4";
    PipelineProgram program = Mlp(4, ::torch::kFloat32);
    program.options.mesh = mesh;
    const auto ends = PipelineJob().Run(
        4, [&](int) { return program; },
        [&](Pipeline&, Session& session, PipelineEnd*) -> absl::Status {
          COXSWAIN_ASSIGN_OR_RETURN(const MeshGroups groups,
                                    session.GroupsOf(session.mesh()));
          auto& own = options[static_cast<size_t>(session.rank())];
          COXSWAIN_RETURN_IF_ERROR(FollowSession(session, &own));
          const HybridGroups& hybrid = own.reducer.hybrid;
          if (shares) {
            groups_of_rank[static_cast<size_t>(session.rank())] = groups.shard;
          }
          EXPECT_EQ(hybrid.shard,
                    shares ? &groups.shard->communicator() : nullptr);
          EXPECT_EQ(hybrid.replicas,
                    shares ? &groups.dp->communicator() : nullptr);
          return absl::OkStatus();
        });
    for (const PipelineEnd& end : ends) EXPECT_OK(end.status);
    // Without them, what the program makes may get their addresses.
    for (const auto& group : groups_of_rank) {
      EXPECT_EQ(group.expired(), !shares);
    }
  }
}

TEST(PipelineJobTest, HybridGroupsOfTheProgramAreKeptOrRefused) {
  for (const std::string mesh : {"dp=2,shard=2", "dp=4"}) {
    PipelineProgram program = Mlp(4, ::torch::kFloat32);
    program.options.mesh = mesh;
    const auto ends = PipelineJob().Run(
        4, [&](int) { return program; },
        [&](Pipeline&, Session& session, PipelineEnd*) -> absl::Status {
          COXSWAIN_ASSIGN_OR_RETURN(const MeshGroups groups,
                                    session.GroupsOf(session.mesh()));
          // As many ranks as the mesh has along shard, and not those groups.
          const int first = session.rank() / 2 * 2;
          COXSWAIN_ASSIGN_OR_RETURN(
              const std::shared_ptr<ProcessGroup> own,
              session.CreateGroup(absl::StrCat("own/", first),
                                  {first, first + 1}));
          DistributedDataParallelOptions options = ZeroOptions();
          HybridGroups& hybrid = options.reducer.hybrid;
          hybrid = {&own->communicator(), &own->communicator()};
          const absl::Status status = FollowSession(session, &options);
          if (mesh == "dp=4") {
            EXPECT_EQ(hybrid.shard, &own->communicator());
            EXPECT_EQ(hybrid.replicas, &own->communicator());
            return status;
          }
          EXPECT_THAT(status, StatusIs(absl::StatusCode::kInvalidArgument,
                                       HasSubstr("reducer.hybrid has groups")));
          // The same groups are no others.
          hybrid = {&groups.shard->communicator(), &groups.dp->communicator()};
          return FollowSession(session, &options);
        });
    for (const PipelineEnd& end : ends) EXPECT_OK(end.status);
  }
}

TEST(PipelineJobTest, WrongUseIsNamed) {
  const PipelineProgram program = Mlp(4, ::torch::kFloat64);
  const auto error = [&](int rank, const std::string& what,
                         const PipelineJob::Body& body) {
    const auto ends = PipelineJob().Run(
        2, [&](int) { return program; }, body);
    EXPECT_THAT(ends[static_cast<size_t>(rank)].status.message(),
                HasSubstr(what));
    for (const PipelineEnd& end : ends) EXPECT_FALSE(end.status.ok());
  };
  error(0, "a step of 5 micro-batches, and the window has 4",
        [&](Pipeline& pipeline, Session&, PipelineEnd* end) {
          return PipelineJob::Step(pipeline, program, 5, end).status();
        });
  error(0, "micro-batch 1 has no inputs, which rank 0 is to give",
        [&](Pipeline& pipeline, Session&, PipelineEnd* end) {
          auto batches = PipelineJob::NextOf(pipeline, program, 4, end);
          batches[1].inputs.clear();
          return pipeline.Step(std::move(batches)).status();
        });
  error(1, "micro-batch 2 has no targets, which rank 1 is to give",
        [&](Pipeline& pipeline, Session&, PipelineEnd* end) {
          auto batches = PipelineJob::NextOf(pipeline, program, 4, end);
          batches[2].targets.clear();
          return pipeline.Step(std::move(batches)).status();
        });
}

}  // namespace
}  // namespace coxswain::torch::pipeline_job_test
