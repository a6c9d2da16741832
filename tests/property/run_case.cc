#include "tests/property/run_case.h"

#include <ATen/Parallel.h>
#include <torch/optim/optimizer.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <algorithm>
#include <exception>
#include <memory>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "client/comm/in_process/in_process_world.h"
#include "client/comm/in_process/loopback_communicator.h"
#include "client/torch/distributed_data_parallel.h"
#include "hooks/registry/registry.h"
#include "tests/property/meaning.h"
#include "tests/property/random_model.h"

namespace coxswain::property {
namespace {

using torch::DistributedDataParallel;
using ::torch::Tensor;

// After this time the other rank has failed.
constexpr absl::Duration kDeadline = absl::Seconds(60);

Elements ElementsOf(const Tensor& tensor) {
  Elements elements;
  elements.defined = tensor.defined();
  if (!elements.defined) return elements;
  const Tensor dense = tensor.detach().contiguous();
  elements.bytes.assign(static_cast<const char*>(dense.data_ptr()),
                        dense.nbytes());
  const Tensor wide = dense.to(::torch::kFloat64);
  elements.values.assign(wide.data_ptr<double>(),
                         wide.data_ptr<double>() + wide.numel());
  return elements;
}

std::vector<Elements> ElementsOf(RandomModel& model, bool gradients) {
  std::vector<Elements> all;
  for (const Tensor& value : model.values()) {
    all.push_back(ElementsOf(gradients ? value.grad() : value));
  }
  return all;
}

std::unique_ptr<::torch::optim::Optimizer> MakeOptimizer(
    const Tensor& parameter) {
  return std::make_unique<::torch::optim::SGD>(std::vector<Tensor>{parameter},
                                               RandomModel::kRate);
}

class Rank {
 public:
  Rank(const Case& one, int rank, std::unique_ptr<Communicator> communicator)
      : case_(one),
        rank_(rank),
        communicator_(std::move(communicator)),
        model_(std::make_shared<RandomModel>(one, rank)),
        twin_(one, rank) {}

  RankRecord Run() {
    absl::Status status;
    try {
      status = Train();
    } catch (const std::exception& error) {
      status = absl::InternalError(error.what());
    }
    record_.status = absl::Status(
        status.code(),
        status.ok() ? "" : absl::StrCat(doing_, ": ", status.message()));
    // Ends the waiting of the others.
    if (!status.ok()) communicator_->Abort(status.message());
    return std::move(record_);
  }

 private:
  const StepCase& current() const {
    return case_.steps[static_cast<size_t>(step_)];
  }
  int micros() const {
    return static_cast<int>(current().uses[static_cast<size_t>(rank_)].size());
  }

  absl::Status Train();
  absl::Status Create();
  absl::Status Step(RankStep& seen);
  absl::Status UpdateParameters();
  absl::Status Change(RankStep& seen);
  absl::Status Window(RankStep& seen);
  absl::Status Declare(bool sync);
  absl::Status Pass(int micro, RankStep& seen);
  absl::Status Exchange(const Tensor& loss, RankStep& seen);
  absl::Status CheckCleared() const;
  absl::Status Expect(bool condition, absl::string_view what) const;
  absl::Status CheckViews() const;
  absl::StatusOr<SavedState> Save(const std::string& spec);
  void DescribeLayout(RankStep& seen) const;

  const Case& case_;
  const int rank_;
  const std::unique_ptr<Communicator> communicator_;
  std::shared_ptr<RandomModel> model_;
  RandomModel twin_;
  std::unique_ptr<DistributedDataParallel> ddp_;
  std::string hook_;
  int step_ = 0;
  std::string doing_ = "starting";
  RankRecord record_;
};

absl::Status Rank::Expect(bool condition, absl::string_view what) const {
  return condition ? absl::OkStatus() : absl::InternalError(what);
}

absl::Status Rank::Create() {
  torch::DistributedDataParallelOptions options;
  options.reducer.buckets = case_.buckets;
  options.reducer.rebuild = case_.rebuild;
  options.reducer.find_unused_parameters = case_.find_unused;
  options.reducer.uneven_inputs = case_.uneven;
  options.reducer.statistics = case_.statistics;
  options.reducer.max_norm = case_.max_norm;
  options.reducer.timeout = kDeadline;
  options.accumulation_steps = std::max(1, case_.accumulate);
  options.gradient_as_bucket_view = case_.view;
  options.broadcast_buffers = case_.broadcast_buffers;
  options.forward_in_scope = false;
  options.static_graph = case_.static_graph;
  if (case_.overlapped) options.overlapped_optimizer = MakeOptimizer;
  hook_ = case_.hook;
  COXSWAIN_ASSIGN_OR_RETURN(auto hook, MakeHook(hook_));
  COXSWAIN_ASSIGN_OR_RETURN(
      ddp_, DistributedDataParallel::Create(model_, communicator_.get(),
                                            std::move(hook), options));
  return absl::OkStatus();
}

absl::Status Rank::Train() {
  COXSWAIN_RETURN_IF_ERROR(Create());
  for (; step_ < static_cast<int>(case_.steps.size()); ++step_) {
    doing_ = absl::StrCat("step ", step_);
    RankStep& seen = record_.steps.emplace_back();
    COXSWAIN_RETURN_IF_ERROR(Step(seen));
    twin_.CopyFrom(*model_, /*gradients=*/true);
    model_->ZeroGradients(current().zero);
    twin_.ZeroGradients(current().zero);
  }
  doing_ = "at the end";
  if (!case_.uneven) return absl::OkStatus();
  COXSWAIN_ASSIGN_OR_RETURN(const bool more, ddp_->StepWithoutData());
  return Expect(!more, "a rank has data that the case does not have");
}

absl::Status Rank::UpdateParameters() {
  twin_.SetTrainable(step_);
  if (!model_->SetTrainable(step_)) return absl::OkStatus();
  return ddp_->UpdateParameters();
}

absl::StatusOr<SavedState> Rank::Save(const std::string& spec) {
  SavedState saved;
  saved.step = ddp_->hook().step();
  if (!MeaningOf(spec).has_state()) return saved;
  COXSWAIN_ASSIGN_OR_RETURN(saved.shard,
                            ddp_->hook().SaveState(*communicator_));
  LoopbackCommunicator loopback;
  COXSWAIN_ASSIGN_OR_RETURN(saved.alone, ddp_->hook().SaveState(loopback));
  return saved;
}

absl::Status Rank::Change(RankStep& seen) {
  const StepCase& step = current();
  if (step.buckets.bucket_bytes > 0) {
    COXSWAIN_RETURN_IF_ERROR(ddp_->ChangeBuckets(step.buckets));
  }
  if (!step.hook.empty()) {
    seen.carried = step.carry_state;
    COXSWAIN_ASSIGN_OR_RETURN(auto hook, MakeHook(step.hook));
    COXSWAIN_ASSIGN_OR_RETURN(seen.carried_from, Save(hook_));
    COXSWAIN_RETURN_IF_ERROR(
        ddp_->ChangeHook(std::move(hook), step.carry_state));
    hook_ = step.hook;
    COXSWAIN_ASSIGN_OR_RETURN(seen.carried_to, Save(hook_));
  }
  return absl::OkStatus();
}

absl::Status Rank::Step(RankStep& seen) {
  // A new parameter's values are the rank's own until then.
  COXSWAIN_RETURN_IF_ERROR(UpdateParameters());
  COXSWAIN_RETURN_IF_ERROR(CheckViews());
  twin_.CopyFrom(*model_, /*gradients=*/false);
  seen.values = ElementsOf(*model_, false);
  seen.before = ElementsOf(*model_, true);
  seen.expected = ElementsOf(twin_, true);
  seen.weight = micros() > 0 ? 1 : 0;
  if (case_.uneven && case_.accumulate > 0) {
    // Micro-batches that are declared count one each.
    seen.weight = micros();
    seen.divisor = case_.accumulate;
  }
  for (size_t i = 0; i < case_.parameters.size(); ++i) {
    seen.used.push_back(model_->Reaches(static_cast<int>(i), step_, rank_));
  }
  model_->FillBuffer(step_);
  seen.buffer_set = ElementsOf(model_->buffer());
  COXSWAIN_RETURN_IF_ERROR(Window(seen));
  COXSWAIN_RETURN_IF_ERROR(CheckViews());
  seen.own = ElementsOf(twin_, true);
  if (current().ending != Ending::kDropped) {
    seen.after = ElementsOf(*model_, true);
  }
  seen.buffer = ElementsOf(model_->buffer());
  seen.report = ddp_->reducer().report();
  DescribeLayout(seen);
  COXSWAIN_ASSIGN_OR_RETURN(seen.state_after, Save(hook_));
  seen.moved = ElementsOf(*model_, false);
  const bool applied = current().ending != Ending::kDropped;
  if (applied && !case_.overlapped) model_->Descend(step_);
  return absl::OkStatus();
}

// Gradients that are views lie in the buckets of today.
absl::Status Rank::CheckViews() const {
  int index = 0;
  for (size_t i = 0; case_.view && i < case_.parameters.size(); ++i) {
    if (!IsTrainable(case_.parameters[i], step_)) continue;
    const Span place = ddp_->reducer().GradientView(index++);
    const Tensor& gradient = model_->values()[i].grad();
    if (!gradient.defined() || gradient.numel() == 0) continue;
    COXSWAIN_RETURN_IF_ERROR(Expect(gradient.data_ptr() == place.data,
                                    "a gradient is not a view of its bucket"));
  }
  return absl::OkStatus();
}

void Rank::DescribeLayout(RankStep& seen) const {
  seen.hook = hook_;
  seen.parameters = ddp_->reducer().parameters();
  seen.frozen = ddp_->reducer().layout_frozen();
  for (size_t i = 0; i < case_.parameters.size(); ++i) {
    if (!IsTrainable(case_.parameters[i], step_)) continue;
    seen.numbers.push_back(static_cast<int>(i));
  }
  for (const Bucket& bucket : ddp_->reducer().buckets()) {
    auto& numbers = seen.buckets.emplace_back();
    for (const GradientSlot& slot : bucket.gradients) {
      numbers.push_back(seen.numbers.at(static_cast<size_t>(slot.parameter)));
    }
  }
}

// All passes of the step; the changes come before one of them, or before what
// ends the step where there are not so many.
absl::Status Rank::Window(RankStep& seen) {
  const int last = micros() == 0                      ? 0
                   : Flushes(case_, current(), rank_) ? micros()
                                                      : micros() - 1;
  const int change = std::min(current().change_before, last);
  for (int micro = 0; micro <= last; ++micro) {
    if (micro == change) {
      COXSWAIN_RETURN_IF_ERROR(Change(seen));
      COXSWAIN_ASSIGN_OR_RETURN(seen.state_before, Save(hook_));
    }
    doing_ = absl::StrCat("step ", step_, ", micro-batch ", micro);
    COXSWAIN_RETURN_IF_ERROR(CheckViews());
    if (micro < micros()) COXSWAIN_RETURN_IF_ERROR(Pass(micro, seen));
  }
  if (micros() == 0) {
    COXSWAIN_ASSIGN_OR_RETURN(const bool more, ddp_->StepWithoutData());
    return Expect(more, "no rank has data, but the case has");
  }
  if (last < micros()) return absl::OkStatus();
  COXSWAIN_ASSIGN_OR_RETURN(const bool flushed, ddp_->Flush());
  ::torch::NoGradGuard no_grad;
  for (Tensor& value : twin_.values()) {
    if (case_.uneven) break;  // the weights show how short the window is
    Tensor gradient = value.grad();
    if (!value.requires_grad() || !gradient.defined()) continue;
    gradient.mul_(static_cast<double>(case_.accumulate) / micros());
  }
  return Expect(flushed, "Flush found nothing");
}

absl::Status Rank::Declare(bool sync) {
  if (case_.accumulate == 0) return absl::OkStatus();
  const MicroBatch batch = ddp_->Accumulate();
  if (batch.sync == sync && batch.window == case_.accumulate) {
    return absl::OkStatus();
  }
  COXSWAIN_RETURN_IF_ERROR(ddp_->Synchronize());  // fails with what is wrong
  return absl::InternalError("Accumulate declares another pass to exchange");
}

absl::Status Rank::Pass(int micro, RankStep& seen) {
  const bool sync = micro + 1 == micros() && !Flushes(case_, current(), rank_);
  COXSWAIN_RETURN_IF_ERROR(Declare(sync));
  const double divisor = std::max(1, case_.accumulate);
  (twin_.Loss(step_, micro) / divisor).backward();
  const Tensor loss = model_->Loss(step_, micro) / divisor;
  if (sync) return Exchange(loss, seen);
  if (case_.accumulate > 0) return ddp_->Backward(loss);
  const auto scope = ddp_->NoSync();
  return ddp_->Backward(loss);
}

// A dropped step leaves no gradients.
absl::Status Rank::CheckCleared() const {
  for (size_t i = 0; i < case_.parameters.size(); ++i) {
    const Tensor& gradient = model_->values()[i].grad();
    if (!IsTrainable(case_.parameters[i], step_) || !gradient.defined()) {
      continue;
    }
    COXSWAIN_RETURN_IF_ERROR(
        Expect(!gradient.any().item<bool>(), "a dropped step left gradients"));
  }
  return absl::OkStatus();
}

absl::Status Rank::Exchange(const Tensor& loss, RankStep& seen) {
  const Ending ending = current().ending;
  if (ending == Ending::kBackward) return ddp_->Backward(loss);
  loss.backward();
  COXSWAIN_RETURN_IF_ERROR(ddp_->Synchronize());
  if (ending == Ending::kByHand) return ddp_->FinishStep();
  seen.after = ElementsOf(*model_, true);
  COXSWAIN_RETURN_IF_ERROR(ddp_->FinishStep(/*apply=*/false));
  return CheckCleared();
}

}  // namespace

Record RunCase(const Case& one) {
  const auto world = InProcessWorld::Create(one.world, kDeadline);
  Record record(static_cast<size_t>(one.world));
  std::vector<std::unique_ptr<Communicator>> communicators;
  for (int rank = 0; rank < one.world; ++rank) {
    communicators.push_back(world->MakeRank(rank));
  }
  std::vector<std::thread> threads;
  for (size_t index = 0; index < communicators.size(); ++index) {
    threads.emplace_back([&, index] {
      at::set_num_threads(1);
      record[index] =
          Rank(one, static_cast<int>(index), std::move(communicators[index]))
              .Run();
    });
  }
  for (std::thread& thread : threads) thread.join();
  return record;
}

}  // namespace coxswain::property
