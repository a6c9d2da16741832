// Our averagers against PyTorch's post_localSGD_hook and model averagers
// (README.md).

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "client/comm/in_process/in_process_world.h"
#include "client/reduce/averager.h"
#include "client/reduce/hook.h"
#include "gtest/gtest.h"
#include "hooks/registry/registry.h"
#include "tests/golden/golden_file.h"
#include "tests/golden/golden_inputs.h"

namespace coxswain {
namespace {

constexpr absl::Duration kDeadline = absl::Seconds(60);
constexpr float kLearningRate = 0x1p-4f;  // its products are exact

// Returns the golden case's parameters first, and those that PyTorch does not
// support last.
std::vector<size_t> Indices() {
  std::vector<size_t> indices = AveragedParameters();
  for (size_t p = kGoldenParameters; p < GoldenModel().size(); ++p) {
    indices.push_back(p);
  }
  return indices;
}

// Returns those values of the model, one parameter after the other.
std::vector<float> Flat(const Gradients& all) {
  std::vector<float> flat;
  for (const size_t p : Indices()) {
    flat.insert(flat.end(), all[p].begin(), all[p].end());
  }
  return flat;
}

// One rank that trains with plain SGD.
class Trainer {
 public:
  Trainer(const std::string& spec, std::unique_ptr<Communicator> communicator)
      : spec_(spec),
        communicator_(std::move(communicator)),
        values_(Flat(InitialParameters())) {
    bucket_.last = true;
    for (const size_t p : Indices()) {
      parameters_.push_back(GoldenModel()[p]);
      const int64_t count = parameters_.back().count();
      const int number = static_cast<int>(bucket_.gradients.size());
      bucket_.gradients.push_back({number, bucket_.data.count, count});
      spans_.push_back(
          {values_.data() + bucket_.data.count, count, DType::kFloat32, {}});
      bucket_.data.count += count;
    }
  }

  absl::Status Configure() {
    COXSWAIN_ASSIGN_OR_RETURN(hook_, MakeHook(spec_));
    COXSWAIN_ASSIGN_OR_RETURN(averager_, MakeAverager(spec_));
    COXSWAIN_RETURN_IF_ERROR(
        hook_->Configure(parameters_, communicator_->size()));
    return averager_->Configure(parameters_, spans_, *communicator_);
  }

  // Returns the parameters after a step.
  absl::StatusOr<std::vector<float>> Step(int64_t step) {
    std::vector<float> gradients =
        Flat(GoldenGradients(step, communicator_->rank()));
    bucket_.data.data = gradients.data();
    COXSWAIN_RETURN_IF_ERROR(Average());
    for (size_t i = 0; i < values_.size(); ++i) {
      values_[i] -= kLearningRate * gradients[i];
    }
    COXSWAIN_RETURN_IF_ERROR(averager_->AfterOptimizerStep(spans_));
    return values_;
  }

 private:
  absl::Status Average() {
    COXSWAIN_ASSIGN_OR_RETURN(const std::unique_ptr<Exchange> exchange,
                              hook_->Prepare(bucket_, *communicator_));
    for (;;) {
      COXSWAIN_ASSIGN_OR_RETURN(const WorkPtr work, exchange->Advance());
      if (work == nullptr) return hook_->Commit();
      COXSWAIN_RETURN_IF_ERROR(work->Wait(kDeadline));
    }
  }

  const std::string spec_;
  const std::unique_ptr<Communicator> communicator_;
  std::vector<float> values_;
  std::vector<ParameterSpec> parameters_;
  std::vector<Span> spans_;
  Bucket bucket_;
  std::unique_ptr<Hook> hook_;
  std::unique_ptr<Averager> averager_;
};

// Trains as one of `ranks`; `out` is [step, group of equal ranks, element].
void TrainAndCompare(Trainer& trainer, const GoldenTensor& out, int rank,
                     int ranks) {
  ASSERT_OK(trainer.Configure());
  const auto count = static_cast<size_t>(out.shape[2]);
  const auto groups = static_cast<size_t>(out.shape[1]);
  const size_t group =
      static_cast<size_t>(rank) * groups / static_cast<size_t>(ranks);
  for (int64_t step = 0; step < out.shape[0]; ++step) {
    const auto ours = trainer.Step(step);
    ASSERT_OK(ours);
    const std::vector<double> all = out.Slice(step);
    const auto first = all.begin() + static_cast<int64_t>(group * count);
    EXPECT_EQ(std::vector<float>(ours->begin(),
                                 ours->begin() + static_cast<int64_t>(count)),
              std::vector<float>(first, first + static_cast<int64_t>(count)))
        << "rank " << rank << ", step " << step;
  }
}

class AveragerGoldenTest : public testing::TestWithParam<std::string> {};

INSTANTIATE_TEST_SUITE_P(Cases, AveragerGoldenTest,
                         testing::Values("post_local_sgd_w4",
                                         "hierarchical_sgd_w4"),
                         [](const auto& info) { return info.param; });

TEST_P(AveragerGoldenTest, MatchesPyTorchBitByBit) {
  auto golden = ReadGoldenFile(
      absl::StrCat("tests/golden/data/", GetParam(), ".safetensors"));
  ASSERT_OK(golden);
  int ranks = 0;
  ASSERT_TRUE(absl::SimpleAtoi(golden->metadata["ranks"], &ranks));
  const GoldenTensor& out = golden->tensors.at("out");
  const auto world = InProcessWorld::Create(ranks, kDeadline);
  std::vector<std::unique_ptr<Trainer>> trainers;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    trainers.push_back(std::make_unique<Trainer>(golden->metadata["spec"],
                                                 world->MakeRank(rank)));
  }
  for (int rank = 0; rank < ranks; ++rank) {
    Trainer& trainer = *trainers[static_cast<size_t>(rank)];
    threads.emplace_back([&trainer, &out, rank, ranks] {
      TrainAndCompare(trainer, out, rank, ranks);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace coxswain
