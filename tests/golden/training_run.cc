#include "tests/golden/training_run.h"

#include <ATen/Parallel.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <algorithm>
#include <stdexcept>
#include <thread>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "client/comm/backends/registry.h"
#include "client/comm/memory_store.h"
#include "gtest/gtest.h"
#include "hooks/registry/registry.h"

namespace coxswain {

using torch::DistributedDataParallel;
using torch::DistributedDataParallelOptions;
using ::torch::Tensor;
using ::torch::optim::SGD;

namespace {

constexpr absl::Duration kDeadline = absl::Seconds(60);

double Parse(absl::string_view text) {
  double number = 0;
  if (!absl::SimpleAtod(text, &number)) {
    throw std::invalid_argument(absl::StrCat("not a number: ", text));
  }
  return number;
}

}  // namespace

double GoldenSettings::Number(const std::string& name) const {
  return Parse(Text(name));
}

int64_t GoldenSettings::Count(const std::string& name) const {
  return static_cast<int64_t>(Number(name));
}

std::vector<int64_t> GoldenSettings::Counts(const std::string& name) const {
  std::vector<int64_t> counts;
  for (const absl::string_view text : absl::StrSplit(Text(name), '+')) {
    counts.push_back(static_cast<int64_t>(Parse(text)));
  }
  return counts;
}

void SetBucketBytes(const GoldenSettings& settings,
                    DistributedDataParallelOptions* options) {
  const int64_t bytes = settings.Count("bucket_bytes");
  options->reducer.buckets.first_bucket_bytes = bytes;
  options->reducer.buckets.bucket_bytes = bytes;
}

absl::Status TrainingRun::Run(Communicator* communicator) {
  COXSWAIN_RETURN_IF_ERROR(Prepare(communicator));
  const int64_t batches = settings_.Counts("batches")[size_t(rank_)];
  for (int64_t step = 0; step < batches; ++step) {
    COXSWAIN_RETURN_IF_ERROR(Step(step));
  }
  while (uneven()) {
    COXSWAIN_ASSIGN_OR_RETURN(const bool more, ddp_->StepWithoutData());
    if (!more) break;
    Apply();
  }
  return communicator->Barrier()->Wait(kDeadline);
}

bool TrainingRun::uneven() const {
  const auto batches = settings_.Counts("batches");
  return batches.front() != batches.back();
}

::torch::optim::SGDOptions TrainingRun::Sgd() const {
  return ::torch::optim::SGDOptions(settings_.Number("learning_rate"))
      .momentum(settings_.Number("momentum"));
}

DistributedDataParallelOptions TrainingRun::Options() const {
  DistributedDataParallelOptions options;
  SetBucketBytes(settings_, &options);
  options.gradient_as_bucket_view = way_.views;
  options.static_graph = way_.static_graph;
  options.forward_in_scope = false;
  options.reducer.find_unused_parameters = branches();
  options.reducer.uneven_inputs = uneven();
  if (mean()) {
    options.accumulation_steps = static_cast<int>(settings_.Count("passes"));
  }
  if (way_.reducer_clips) {
    options.reducer.max_norm = settings_.Number("max_norm");
  }
  if (way_.overlapped_optimizer) {
    options.overlapped_optimizer = [sgd = Sgd()](const Tensor& parameter) {
      return std::make_unique<SGD>(std::vector<Tensor>{parameter}, sgd);
    };
  }
  return options;
}

absl::Status TrainingRun::Prepare(Communicator* communicator) {
  net_ = std::make_shared<TrainingNet>(branches(), ::torch::kFloat64);
  if (rank_ != 0) {  // rank 0's values count
    const ::torch::NoGradGuard no_grad;
    for (Tensor& parameter : net_->parameters()) parameter.fill_(7);
  }
  COXSWAIN_ASSIGN_OR_RETURN(auto hook, MakeHook(settings_.Text("spec")));
  COXSWAIN_ASSIGN_OR_RETURN(
      ddp_, DistributedDataParallel::Create(net_, communicator, std::move(hook),
                                            Options()));
  if (!way_.overlapped_optimizer) {
    optimizer_ = std::make_unique<SGD>(net_->parameters(), Sgd());
  }
  snapshots[0] = Flatten(net_->parameters());
  return absl::OkStatus();
}

absl::Status TrainingRun::Step(int64_t step) {
  const auto cycle = settings_.Counts("passes");
  const int64_t passes = cycle[static_cast<size_t>(step) % cycle.size()];
  losses.emplace_back();
  for (int64_t micro = 0; micro < passes; ++micro) {
    COXSWAIN_RETURN_IF_ERROR(Pass(step, micro, passes));
  }
  if (settings_.Number("max_norm") > 0) Clip();
  Apply();
  return absl::OkStatus();
}

absl::Status TrainingRun::Pass(int64_t step, int64_t micro, int64_t passes) {
  const int window = mean() ? ddp_->Accumulate().window : 1;
  const Tensor loss =
      TrainingLoss(*net_, step, micro, rank_, settings_.Count("batch"));
  losses.back().push_back(loss.item<double>());
  if (mean() || micro == passes - 1) return ddp_->Backward(loss / window);
  const auto scope = ddp_->NoSync();
  return ddp_->Backward(loss);
}

void TrainingRun::Clip() {
  norms.push_back(way_.reducer_clips
                      ? ddp_->reducer().report().gradient_norm
                      : ::torch::nn::utils::clip_grad_norm_(
                            net_->parameters(), settings_.Number("max_norm")));
}

void TrainingRun::Apply() {
  if (optimizer_ != nullptr) {
    optimizer_->step();
    // As PyTorch's zero_grad: what no rank uses then has no gradient at all.
    for (Tensor& parameter : net_->parameters()) {
      parameter.mutable_grad() = Tensor();
    }
  }
  ++steps_;
  const auto wanted = settings_.Counts("snapshots");
  if (std::find(wanted.begin(), wanted.end(), steps_) != wanted.end()) {
    snapshots[steps_] = Flatten(net_->parameters());
  }
}

std::string TrainingRun::buckets() const {
  std::vector<std::string> all;
  for (const Bucket& bucket : ddp_->reducer().buckets()) {
    std::vector<int> members;
    for (const GradientSlot& slot : bucket.gradients) {
      members.push_back(slot.parameter);
    }
    all.push_back(absl::StrJoin(members, " "));
  }
  return absl::StrJoin(all, ", ");
}

void OnRanks(int64_t ranks,
             const std::function<absl::Status(int rank, Communicator*)>& run) {
  at::set_num_threads(1);
  const auto store = std::make_shared<MemoryStore>();
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&run, store, rank, ranks] {
      CommunicatorOptions options;
      options.id = "golden";
      options.rank = rank;
      options.size = static_cast<int>(ranks);
      options.store = store;
      options.timeout = kDeadline;
      auto communicator = Connect("tcp", options);
      ASSERT_OK(communicator);
      ASSERT_OK(run(rank, communicator->get()));
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace coxswain
