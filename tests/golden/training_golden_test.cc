// Our DistributedDataParallel against PyTorch's: what two ranks make of a
// small model (README.md).

#include "client/torch/distributed_data_parallel.h"

#include <torch/types.h>

#include <algorithm>
#include <cmath>
#include <iostream>
#include <memory>
#include <ostream>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "hooks/registry/registry.h"
#include "tests/golden/golden_file.h"
#include "tests/golden/training_net.h"
#include "tests/golden/training_run.h"

namespace coxswain {
namespace {

using torch::DistributedDataParallel;
using torch::DistributedDataParallelOptions;
using ::torch::Tensor;

// The promise is 1e-5. Both sides round alike but for the order of sums, so 50
// steps in float64 were seen 3e-16 apart.
constexpr double kTolerance = 1e-9;

GoldenFile Read(const std::string& name) {
  auto file =
      ReadGoldenFile(absl::StrCat("tests/golden/data/", name, ".safetensors"));
  EXPECT_OK(file);
  return file.ok() ? *std::move(file) : GoldenFile();
}

double Apart(const std::vector<double>& ours,
             const std::vector<double>& expected) {
  EXPECT_EQ(ours.size(), expected.size());
  double worst = 0;
  for (size_t i = 0; i < std::min(ours.size(), expected.size()); ++i) {
    worst = Worse(worst, std::abs(ours[i] - expected[i]));
  }
  return worst;
}

struct Variant {
  std::string name;
  std::string file;
  TrainingWay way;

  friend void PrintTo(const Variant& variant, std::ostream* out) {
    *out << variant.name;
  }
};

class TrainingGoldenTest : public testing::TestWithParam<Variant> {
 protected:
  TrainingGoldenTest() : file_(Read(GetParam().file)), settings_(file_) {
    for (int rank = 0; rank < settings_.Count("ranks"); ++rank) {
      ranks_.emplace_back(settings_, GetParam().way, rank);
    }
  }

  void Run() {
    OnRanks(settings_.Count("ranks"),
            [this](int rank, Communicator* communicator) {
              return ranks_[static_cast<size_t>(rank)].Run(communicator);
            });
  }

  std::vector<double> Losses(int64_t step, size_t rank) const {
    const auto all = file_.tensors.at("losses").Slice(step);  // rank, pass
    const size_t width = all.size() / ranks_.size();
    const auto first = all.begin() + static_cast<int64_t>(rank * width);
    return {first, first + static_cast<int64_t>(width)};
  }

  double LossesApart(size_t rank) const {
    const auto& steps = ranks_[rank].losses;
    EXPECT_EQ(static_cast<int64_t>(steps.size()),
              settings_.Counts("batches")[rank]);
    double worst = 0;
    for (size_t step = 0; step < steps.size(); ++step) {
      const auto expected = Losses(static_cast<int64_t>(step), rank);
      std::vector<double> ours = steps[step];
      ours.resize(expected.size());  // zero where there was no pass
      worst = Worse(worst, Apart(ours, expected));
    }
    return worst;
  }

  double ParametersApart(size_t rank, size_t snapshot) const {
    const int64_t after = settings_.Counts("snapshots")[snapshot];
    const auto found = ranks_[rank].snapshots.find(after);
    if (found == ranks_[rank].snapshots.end()) return std::nan("");
    return Apart(
        found->second,
        file_.tensors.at("parameters").Slice(static_cast<int64_t>(snapshot)));
  }

  void CheckNorms(const TrainingRun& rank) const {
    const auto expected = file_.tensors.find("norms");
    if (expected == file_.tensors.end()) return;
    EXPECT_LE(Apart(rank.norms, expected->second.values), kTolerance);
  }

  void CheckBuckets(const TrainingRun& rank) const {
    const std::string& expected = settings_.Text("buckets");
    // PyTorch does not divide anew where it looks for unused parameters.
    if (expected.empty()) return;
    EXPECT_EQ(rank.buckets(), expected);
  }

  const GoldenFile file_;
  const GoldenSettings settings_;
  std::vector<TrainingRun> ranks_;
};

std::vector<Variant> Variants() {
  std::vector<Variant> variants;
  const auto add = [&](const char* name, const char* file, TrainingWay way) {
    for (const bool views : {false, true}) {
      way.views = views;
      variants.push_back({absl::StrCat(name, views ? "_views" : "_copies"),
                          absl::StrCat("training_", file, "_w2"), way});
    }
  };
  for (const char* name : {"plain", "accumulate", "no_sync", "clip", "unused",
                           "unused_accumulate", "uneven"}) {
    add(name, name, {});
  }
  TrainingWay way;
  way.static_graph = true;
  add("static_graph", "plain", way);
  way = {};
  way.overlapped_optimizer = true;
  add("overlapped_optimizer", "plain", way);
  add("overlapped_optimizer_accumulate", "accumulate", way);
  way = {};
  way.reducer_clips = true;
  add("reducer_clips", "clip", way);
  return variants;
}

INSTANTIATE_TEST_SUITE_P(Variants, TrainingGoldenTest,
                         testing::ValuesIn(Variants()),
                         [](const auto& info) { return info.param.name; });

TEST_P(TrainingGoldenTest, MatchesPyTorch) {
  Run();
  double losses = 0, parameters = 0;
  for (size_t rank = 0; rank < ranks_.size(); ++rank) {
    losses = Worse(losses, LossesApart(rank));
    EXPECT_EQ(ParametersApart(rank, 0), 0) << "at the start";
    for (size_t i = 0; i < settings_.Counts("snapshots").size(); ++i) {
      parameters = Worse(parameters, ParametersApart(rank, i));
    }
    EXPECT_EQ(ranks_[rank].snapshots, ranks_[0].snapshots);
    EXPECT_EQ(ranks_[rank].exchanges(), settings_.Count("steps"));
    CheckNorms(ranks_[rank]);
    CheckBuckets(ranks_[rank]);
  }
  EXPECT_LE(losses, kTolerance);
  EXPECT_LE(parameters, kTolerance);
  std::cout << "apart: losses " << losses << ", parameters " << parameters
            << "\n";
}

// The gradients of the model above, in float32, with a 16-bit hook.
class ReplayGoldenTest
    : public testing::TestWithParam<std::tuple<std::string, bool>> {
 protected:
  std::string type() const { return std::get<0>(GetParam()); }

  absl::StatusOr<std::unique_ptr<DistributedDataParallel>> MakeDdp(
      const std::shared_ptr<TrainingNet>& net, const std::string& spec,
      Communicator* communicator) const {
    DistributedDataParallelOptions options;
    SetBucketBytes(GoldenSettings(file_), &options);
    options.gradient_as_bucket_view = std::get<1>(GetParam());
    COXSWAIN_ASSIGN_OR_RETURN(auto hook, MakeHook(spec));
    return DistributedDataParallel::Create(net, communicator, std::move(hook),
                                           options);
  }

  // Returns a loss whose gradients are those that rank `rank` had in a step.
  Tensor Loss(const TrainingNet& net, int64_t step, int rank) const {
    const GoldenTensor& recorded = file_.tensors.at("gradients");
    const Tensor all = ::torch::tensor(recorded.Slice(step), ::torch::kFloat32)
                           .view({recorded.shape[1], recorded.shape[2]});
    Tensor loss = ::torch::zeros({});
    int64_t at = 0;
    for (const Tensor& parameter : net.parameters()) {
      const Tensor gradient = all[rank].narrow(0, at, parameter.numel());
      loss = loss + (parameter * gradient.view(parameter.sizes())).sum();
      at += parameter.numel();
    }
    return loss;
  }

  // Counts the elements that are not PyTorch's, over all steps of a rank.
  absl::Status Replay(const std::string& spec, int rank,
                      Communicator* communicator, int64_t* different) const {
    const auto net = std::make_shared<TrainingNet>(false, ::torch::kFloat32);
    COXSWAIN_ASSIGN_OR_RETURN(const auto ddp, MakeDdp(net, spec, communicator));
    const GoldenTensor& out = file_.tensors.at(type());
    for (int64_t step = 0; step < out.shape[0]; ++step) {
      COXSWAIN_RETURN_IF_ERROR(ddp->Backward(Loss(*net, step, rank)));
      std::vector<Tensor> gradients;
      for (const Tensor& parameter : net->parameters()) {
        gradients.push_back(parameter.grad().clone());
        parameter.mutable_grad() = Tensor();
      }
      *different += Different(Flatten(gradients), out.Slice(step));
    }
    return communicator->Barrier()->Wait(absl::Seconds(60));
  }

  static int64_t Different(const std::vector<double>& ours,
                           const std::vector<double>& expected) {
    EXPECT_EQ(ours.size(), expected.size());
    int64_t count = 0;
    for (size_t i = 0; i < std::min(ours.size(), expected.size()); ++i) {
      if (!(ours[i] == expected[i])) ++count;
    }
    return count;
  }

  // By rank.
  std::vector<int64_t> ReplayOnRanks(const std::string& spec) const {
    std::vector<int64_t> different(
        static_cast<size_t>(GoldenSettings(file_).Count("ranks")));
    OnRanks(static_cast<int64_t>(different.size()),
            [&](int rank, Communicator* communicator) {
              return Replay(spec, rank, communicator,
                            &different[static_cast<size_t>(rank)]);
            });
    return different;
  }

  const GoldenFile file_ = Read("replay_w2");
};

INSTANTIATE_TEST_SUITE_P(Types, ReplayGoldenTest,
                         testing::Combine(testing::Values("fp16", "bf16"),
                                          testing::Bool()),
                         [](const auto& info) {
                           return absl::StrCat(
                               std::get<0>(info.param),
                               std::get<1>(info.param) ? "_views" : "_copies");
                         });

TEST_P(ReplayGoldenTest, MatchesPyTorchBitByBit) {
  EXPECT_THAT(ReplayOnRanks(absl::StrCat(type(), "(order=cast_then_divide)")),
              testing::ElementsAre(0, 0));
}

TEST_P(ReplayGoldenTest, DistinguishesTheOrdersOfDivision) {
  // Half of a float16 is one, too, unless it is subnormal; bfloat16 has
  // float32's range.
  const auto different = ReplayOnRanks(type());
  std::cout << "different: " << different[0] << "\n";
  EXPECT_EQ(different[0] > 0, type() == "fp16");
}

}  // namespace
}  // namespace coxswain
