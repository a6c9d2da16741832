// Checkpoints of a small GPT that is divided along pp, dp and tp: gone on from
// on other meshes, its losses are those of the run that went on.

#include <cmath>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/mutex.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "client/reduce/hook_state.h"
#include "client/torch/module_checkpoint.h"
#include "client/torch/pipeline/pipeline_checkpoint.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "hooks/registry/planned_hook.h"
#include "tests/integration/gpt_model_for_test.h"

namespace coxswain::torch::gpt_checkpoint_test {
namespace {

using ::torch::Tensor;

constexpr absl::Duration kTimeout = absl::Seconds(60);
constexpr int kSaved = 5;  // steps
constexpr int kNext = 10;  // steps after it
constexpr double kExact = 1e-10;
constexpr double kBits = 0;

// A mesh of so many ranks, with so many data indices.
struct GptOn {
  std::string mesh;
  int ranks = 1;
  int data_ranks = 1;
  int zero = 0;
  bool sequence = false;
  std::string pipeline = {};
};

struct Ended {
  std::vector<PipelineEnd> ends;
  // Of all micro-batches of the steps that were run, by their numbers.
  std::vector<double> losses;
  std::vector<double> norms;  // by step
  int64_t begun_at = 0;
  std::vector<SaveReport> reports;  // of rank 0
  // What the hooks had left unsent, of whole parameters: when it was saved, or
  // when it had been loaded.
  ValuesByName errors;
};

class GptCheckpointTest : public ::testing::Test {
 protected:
  // Trains until step kSaved + kNext: from a checkpoint, or from the start,
  // with one after kSaved steps.
  Ended Train(const GptOn& on, const std::string& resume,
              const std::string& hook = "allreduce") {
    PipelineProgram program = GptProgramOf(gpt_, on.mesh, on.data_ranks);
    program.options.ddp.zero = on.zero;
    program.options.sequence = on.sequence;
    program.options.ddp.terms.pipeline = on.pipeline;
    program.options.hook = hook;
    if (resume.empty()) program.options.ddp.terms.checkpoint_every = kSaved;
    Ended ended;
    const auto body = [&](Pipeline& pipeline, Session& session,
                          PipelineEnd* end) -> absl::Status {
      ModuleCheckpoint::Options saving;
      saving.make_hook = MakePlannedHook;
      saving.on_report = [&](const SaveReport& report) {
        MutexLock lock(&mutex_);
        if (session.rank() == 0) ended.reports.push_back(report);
      };
      ModuleCheckpoint checkpoint(session, ProgramOf(pipeline), saving);
      int64_t step = 0;
      if (!resume.empty()) {
        COXSWAIN_ASSIGN_OR_RETURN(const auto resumed,
                                  checkpoint.Resume(resume, pipeline.ddp()));
        step = resumed.step;
        COXSWAIN_RETURN_IF_ERROR(NoteErrors(pipeline, &ended));
        MutexLock lock(&mutex_);
        ended.begun_at = step;
      }
      const int64_t first = step;
      std::vector<double> norms;
      while (step < kSaved + kNext) {
        end->taken = step * gpt_.micro_batches / on.data_ranks;
        COXSWAIN_RETURN_IF_ERROR(
            PipelineJob::Step(pipeline, program, 0, end).status());
        norms.push_back(pipeline.ddp().reducer().report().gradient_norm);
        ++step;
        COXSWAIN_RETURN_IF_ERROR(
            checkpoint.SaveIfAsked(pipeline.ddp(), {}).status());
        if (resume.empty() && step == kSaved) {
          COXSWAIN_RETURN_IF_ERROR(NoteErrors(pipeline, &ended));
        }
      }
      Keep(pipeline, first, *end, norms, &ended);
      return checkpoint.Finish(kTimeout);
    };
    ended.ends = job_.Run(
        on.ranks, [&](int) { return program; }, body);
    return ended;
  }

  // Fails the test unless `other` went on from step kSaved as `whole` did.
  static void ExpectWentOn(const Ended& whole, const Ended& other,
                           double tolerance) {
    for (const PipelineEnd& end : other.ends) ASSERT_OK(end.status);
    EXPECT_EQ(other.begun_at, kSaved);
    const auto tail = [](const std::vector<double>& all, size_t count) {
      return std::vector<double>(all.end() - static_cast<int64_t>(count),
                                 all.end());
    };
    const size_t count = other.losses.size();
    ASSERT_EQ(count, whole.losses.size() * kNext / (kSaved + kNext));
    const std::vector<double> losses = tail(whole.losses, count);
    for (size_t i = 0; i < count; ++i) {
      EXPECT_NEAR(other.losses[i], losses[i], tolerance) << "loss " << i;
    }
    const std::vector<double> norms = tail(whole.norms, kNext);
    ASSERT_EQ(other.norms.size(), norms.size());
    for (size_t i = 0; i < norms.size(); ++i) {
      EXPECT_NEAR(other.norms[i], norms[i], tolerance) << "norm " << i;
    }
  }

  void ExpectGoesOn(const GptOn& from, const std::vector<GptOn>& to) {
    const Ended whole = Train(from, "");
    for (const PipelineEnd& end : whole.ends) ASSERT_OK(end.status);
    ASSERT_EQ(whole.reports.size(), 3);
    for (const SaveReport& report : whole.reports) ASSERT_OK(report.status);
    for (const GptOn& one : to) {
      SCOPED_TRACE(absl::StrCat(one.mesh, ", zero ", one.zero));
      ExpectWentOn(whole, Train(one, whole.reports[0].checkpoint_id), kExact);
    }
  }

  const GptForTest gpt_;
  Mutex mutex_;
  PipelineJob job_;

 private:
  // Takes over this rank's part of them, by name and kind: "block0.up.weight
  // error".
  absl::Status NoteErrors(Pipeline& pipeline, Ended* ended) {
    constexpr int64_t kMostBytes = 1 << 26;
    COXSWAIN_ASSIGN_OR_RETURN(
        const HookState state,
        GatherHookState(pipeline.ddp().hook(), pipeline.ddp().communicator(),
                        kMostBytes, kTimeout));
    MutexLock lock(&mutex_);
    for (const StateTensor& tensor : state.tensors) {
      if (tensor.kind.rfind("error", 0) != 0) continue;
      EXPECT_EQ(tensor.dtype, DType::kFloat64);
      const auto box = pipeline.boxes().find(tensor.parameter);
      Tensor& whole =
          ended->errors[absl::StrCat(tensor.parameter, " ", tensor.kind)];
      if (!whole.defined()) {
        whole = ::torch::zeros(
            box == pipeline.boxes().end() ? tensor.shape : box->second.shape,
            ::torch::kFloat64);
      }
      std::string data = tensor.data;
      PartOf(whole, tensor.parameter, pipeline.boxes())
          .copy_(
              ::torch::from_blob(data.data(), tensor.shape, ::torch::kFloat64));
    }
    return absl::OkStatus();
  }

  // Takes over the losses of this data index.
  void Keep(const Pipeline& pipeline, int64_t first, const PipelineEnd& end,
            const std::vector<double>& norms, Ended* ended) {
    MutexLock lock(&mutex_);
    ended->norms = norms;
    if (!pipeline.has_targets()) return;
    const int64_t steps = kSaved + kNext - first;
    ended->losses.resize(static_cast<size_t>(steps * gpt_.micro_batches));
    for (size_t i = 0; i < end.losses.size(); ++i) {
      const size_t number = i * static_cast<size_t>(pipeline.data_ranks()) +
                            static_cast<size_t>(pipeline.data_index());
      ended->losses[number] = end.losses[i];
    }
  }
};

const GptOn kEight = {"pp=2,dp=2,tp=2", 8, 2, /*zero=*/1};

TEST_F(GptCheckpointTest, GoesOnOnFewerRanks) {
  ExpectGoesOn(kEight, {{"", 1, 1, 0},
                        {"dp=2", 2, 2, 1},
                        {"tp=2", 2, 1, 0},
                        {"pp=2", 2, 1, 1},
                        {"tp=3", 3, 1, 0},
                        {"pp=3", 3, 1, 0}});
}

TEST_F(GptCheckpointTest, GoesOnOnSomeRanks) {
  ExpectGoesOn(kEight, {{"dp=2,tp=2", 4, 2, 1},
                        {"tp=4", 4, 1, 0},
                        {"pp=4", 4, 1, 0},
                        {"pp=5", 5, 1, 1},
                        {"pp=2,tp=3", 6, 1, 0}});
}

TEST_F(GptCheckpointTest, GoesOnOnAsManyRanks) {
  ExpectGoesOn(kEight, {{"pp=2,dp=2,tp=2", 8, 2, 0},
                        {"dp=4,tp=2", 8, 4, 1},
                        {"pp=4,tp=2", 8, 1, 0},
                        {"pp=2,dp=4", 8, 4, 1},
                        {"dp=8", 8, 8, 1}});
}

// Slices along shard, along the sequence, or chunks of stages.
TEST_F(GptCheckpointTest, GoesOnOnOtherKindsOfMeshes) {
  ExpectGoesOn({"pp=2,dp=2,tp=2", 8, 2, 0, /*sequence=*/true},
               {{"pp=2,shard=2,tp=2", 8, 2, 1},
                {"pp=2,tp=2", 4, 1, 0, true, "interleaved(chunks=2)"},
                {"tp=4", 4, 1, 1, true}});
}

// ---- what hooks have left unsent ----

using GptHookErrorsTest = GptCheckpointTest;

// Low-rank averages follow from the mean of what the ranks left unsent, so that
// the number of data indices does not matter.
TEST_F(GptHookErrorsTest, OtherDataIndicesComeToTheSame) {
  const std::string hook = "powersgd(rank=2,start_step=2)";
  const Ended whole = Train({"dp=2,tp=2", 4, 2}, "", hook);
  for (const PipelineEnd& end : whole.ends) ASSERT_OK(end.status);
  for (const GptOn& one : std::vector<GptOn>{
           {"dp=2,tp=2", 4, 2}, {"tp=2", 2, 1}, {"dp=4,tp=2", 8, 4}}) {
    SCOPED_TRACE(one.mesh);
    const Ended other = Train(one, whole.reports[0].checkpoint_id, hook);
    ExpectWentOn(whole, other, one.data_ranks == 2 ? kBits : kExact);
  }
  // It can tell.
  const Ended exact = Train({"dp=2,tp=2", 4, 2}, "");
  EXPECT_GT(std::abs(exact.losses.back() - whole.losses.back()), 1e-6);
}

// Returns the mean over the ranks of each parameter's error.
ValuesByName MeansOf(const ValuesByName& errors) {
  std::map<std::string, std::vector<Tensor>> all;
  for (const auto& [what, error] : errors) {
    all[what.substr(0, what.find(' '))].push_back(error);
  }
  ValuesByName means;
  for (const auto& [name, of_ranks] : all) {
    means[name] = ::torch::stack(of_ranks).mean(0);
  }
  return means;
}

TEST_F(GptHookErrorsTest, StayWithTheirElementsOnAnyMesh) {
  for (const std::string hook : {"powersgd(rank=2,start_step=2)", "int8"}) {
    const Ended whole = Train({"pp=2,dp=2,tp=2", 8, 2}, "", hook);
    for (const PipelineEnd& end : whole.ends) ASSERT_OK(end.status);
    EXPECT_GT(whole.errors.size(), 16u);  // each block's, at least
    const ValuesByName expected = MeansOf(whole.errors);
    for (const GptOn& one :
         std::vector<GptOn>{{"dp=2", 2, 2},
                            {"dp=2,tp=3", 6, 2},
                            {"pp=4,dp=2", 8, 2},
                            {"pp=2,dp=2,tp=2", 8, 2, 0, /*sequence=*/true},
                            {"dp=4,tp=2", 8, 4}}) {
      SCOPED_TRACE(absl::StrCat(hook, " on ", one.mesh));
      const Ended other = Train(one, whole.reports[0].checkpoint_id, hook);
      for (const PipelineEnd& end : other.ends) ASSERT_OK(end.status);
      size_t compared = 0;
      for (const auto& [name, mean] : MeansOf(other.errors)) {
        const auto found = expected.find(name);
        if (found == expected.end()) continue;
        ++compared;
        EXPECT_TRUE(mean.allclose(found->second, 1e-14, 1e-18)) << name;
        if (one.data_ranks != 2) continue;
        EXPECT_TRUE(mean.equal(found->second)) << name << ", bit by bit";
      }
      EXPECT_GT(compared, 10u);
      // A head of its own has an error that a tied one has not.
      EXPECT_GE(compared + 1, expected.size());
    }
  }
}

}  // namespace
}  // namespace coxswain::torch::gpt_checkpoint_test
