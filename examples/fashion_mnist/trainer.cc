#include "examples/fashion_mnist/trainer.h"

#include <torch/nn/functional/loss.h>
#include <torch/optim/sgd.h>
#include <torch/serialize.h>
#include <torch/utils.h>

#include <algorithm>
#include <exception>
#include <sstream>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/logging.h"
#include "base/status_macros.h"
#include "client/elastic/drain_signal.h"
#include "client/schedule/schedule_client.h"
#include "client/session/session.h"
#include "examples/fashion_mnist/device_choice.h"
#include "hooks/registry/planned_hook.h"
#include "hooks/registry/registry.h"
#include "schedule/terms.h"

namespace coxswain::examples {
namespace {

constexpr int64_t kTestBatch = 500;
constexpr double kMomentum = 0.9;
constexpr absl::Duration kEventInterval = absl::Milliseconds(200);
// A launcher that stops its workers kills them after 10 s.
constexpr absl::Duration kSaveTimeout = absl::Seconds(8);
constexpr char kSamplerBlob[] = "sampler";

absl::Time Now() { return Clock::Real()->Now(); }

}  // namespace

absl::StatusOr<std::unique_ptr<Trainer>> Trainer::Create(
    const TrainerOptions& options) {
  auto trainer = std::unique_ptr<Trainer>(new Trainer);
  trainer->options_ = options;
  COXSWAIN_ASSIGN_OR_RETURN(trainer->train_,
                            ReadDataset(options.data, "train"));
  COXSWAIN_ASSIGN_OR_RETURN(trainer->test_, ReadDataset(options.data, "t10k"));
  COXSWAIN_RETURN_IF_ERROR(trainer->Connect());
  return trainer;
}

absl::Status Trainer::Connect() {
  // The ranks of one machine share its cores among themselves.
  at::set_num_threads(1);
  ::torch::manual_seed(options_.seed);
  network_ = std::make_shared<Network>();
  COXSWAIN_ASSIGN_OR_RETURN(SessionOptions session_options,
                            SessionOptions::FromEnvironment());
  COXSWAIN_RETURN_IF_ERROR(MoveToDevice(&session_options));

  COXSWAIN_ASSIGN_OR_RETURN(const std::string hook,
                            CanonicalSpec(options_.hook));
  torch::DistributedDataParallelOptions ddp_options;
  ddp_options.accumulation_steps = options_.accumulation_steps;
  ddp_options.gradient_as_bucket_view = true;
  ddp_options.terms.checkpoint_every = options_.checkpoint_every;
  COXSWAIN_ASSIGN_OR_RETURN(JobManifest manifest,
                            torch::DescribeJob(*network_, hook, ddp_options));
  manifest.settings["seed"] = absl::StrCat(options_.seed);
  manifest.settings["batch"] = absl::StrCat(options_.batch);
  manifest.settings["learning_rate"] = absl::StrCat(options_.learning_rate);
  manifest.settings["epochs"] = absl::StrCat(options_.epochs);

  COXSWAIN_ASSIGN_OR_RETURN(session_, Session::Join(session_options, manifest));
  COXSWAIN_ASSIGN_OR_RETURN(world_, session_->World());
  // Steps follow the job's plan, also after `coxswain plan set` has changed it
  // at run time.
  COXSWAIN_RETURN_IF_ERROR(torch::FollowSession(*session_, &ddp_options));
  ddp_options.make_hook = MakePlannedHook;
  ddp_options.make_averager = MakePlannedAverager;
  ddp_options.trace_file = session_options.trace_file;
  COXSWAIN_ASSIGN_OR_RETURN(std::unique_ptr<Hook> gradient_hook,
                            MakePlannedHook(*ddp_options.plan));
  COXSWAIN_ASSIGN_OR_RETURN(std::unique_ptr<Averager> averager,
                            MakePlannedAverager(*ddp_options.plan));
  COXSWAIN_ASSIGN_OR_RETURN(
      ddp_, torch::DistributedDataParallel::Create(
                network_, &world_->communicator(), std::move(gradient_hook),
                ddp_options, std::move(averager)));
  optimizer_ = std::make_unique<::torch::optim::SGD>(
      network_->parameters(),
      ::torch::optim::SGDOptions(options_.learning_rate).momentum(kMomentum));

  torch::ModuleCheckpoint::Options saving;
  saving.make_hook = MakePlannedHook;
  saving.retention = options_.retention;
  checkpoint_ = std::make_unique<torch::ModuleCheckpoint>(
      *session_, network_, optimizer_.get(), saving);
  SamplerState start;
  start.seed = options_.seed;
  COXSWAIN_RETURN_IF_ERROR(StartSampler(start));
  const int64_t batches = sampler_->batches_left();  // of an epoch
  if (!options_.resume.empty()) COXSWAIN_RETURN_IF_ERROR(Resume());
  batches_left_ = sampler_->batches_left() +
                  batches * (options_.epochs - 1 - sampler_->state().epoch);
  // Without decisions of all ranks, a signal ends the process as usual.
  if (ddp_->plan().terms.enforcement == schedule::Enforcement::kOff) {
    return absl::OkStatus();
  }
  return DrainOnSignal();
}

absl::Status Trainer::MoveToDevice(SessionOptions* options) {
  DeviceFacts facts = FindDevices(options->device, options->local_rank,
                                  options->local_world_size);
  facts.backend = options->backend;
  COXSWAIN_ASSIGN_OR_RETURN(const DeviceChoice choice,
                            ChooseDevice(options_.device, facts));
  LogInfo("device",
          {{"trains_on", NameOf(choice.device)}, {"why", choice.why}});
  options->device = choice.device;
  if (choice.device.kind == Device::Kind::kCpu) return absl::OkStatus();
  device_ = ::torch::Device(::torch::kCUDA,
                            static_cast<c10::DeviceIndex>(choice.device.index));
  try {
    network_->to(device_);
  } catch (const std::exception& error) {
    return absl::InternalError(absl::StrCat(
        "moving the model to ", NameOf(choice.device), ": ", error.what()));
  }
  return absl::OkStatus();
}

Batch Trainer::Here(Batch batch) const {
  return {batch.images.to(device_), batch.labels.to(device_)};
}

absl::Status Trainer::StartSampler(const SamplerState& start) {
  SamplerOptions sampler;
  sampler.dataset_size = train_.count();
  sampler.batch_size = options_.batch;
  sampler.rank = session_->rank();
  sampler.world_size = session_->world_size();
  COXSWAIN_ASSIGN_OR_RETURN(ShardedSampler made,
                            ShardedSampler::Create(sampler, start));
  sampler_ = std::make_unique<ShardedSampler>(std::move(made));
  return absl::OkStatus();
}

absl::Status Trainer::Resume() {
  COXSWAIN_ASSIGN_OR_RETURN(auto resumed,
                            checkpoint_->ResumeIfAny(options_.resume, *ddp_));
  if (!resumed.has_value()) return absl::OkStatus();
  steps_ = resumed->step;
  SamplerState state;
  std::istringstream text(resumed->blobs[kSamplerBlob]);
  if (!(text >> state.epoch >> state.seed >> state.position)) {
    return absl::DataLossError(absl::StrCat("checkpoint '",
                                            resumed->checkpoint_id,
                                            "' has no position of "
                                            "its data"));
  }
  return StartSampler(state);
}

void Trainer::HeedSignal() {
  if (!DrainSignalled() || std::exchange(signal_heeded_, true)) return;
  // Both go with the next ticket, so one decision has both.
  session_->schedule().RequestCheckpoint("SIGTERM");
  session_->schedule().RequestStop("SIGTERM");
}

absl::Status Trainer::SaveIfAsked() {
  const SamplerState& state = sampler_->state();
  const torch::ModuleCheckpoint::Blobs blobs = {
      {kSamplerBlob,
       absl::StrCat(state.epoch, " ", state.seed, " ", state.position)}};
  // A last step that was skipped asks for nothing, and is the last all the
  // same.
  if (ddp_->stopping() && ddp_->checkpointing().empty()) {
    return checkpoint_->Save(*ddp_, ddp_->decision().stop, blobs).status();
  }
  return checkpoint_->SaveIfAsked(*ddp_, blobs).status();
}

absl::Status Trainer::Run() {
  absl::Status status;
  try {
    status = TrainAndTest();
  } catch (const std::exception& error) {
    status = absl::InternalError(absl::StrCat("libtorch: ", error.what()));
  }
  if (status.ok()) return session_->Leave("training is done");
  status = Explain(*session_, status);
  // Further errors while leaving are consequences of `status`.
  session_->Leave(status.message(), /*failed=*/true).IgnoreError();
  return status;
}

absl::Status Trainer::TrainAndTest() {
  const absl::Time start = Now();
  interval_.start = start;
  for (int64_t epoch = sampler_->state().epoch;
       epoch < options_.epochs && !Over(); ++epoch) {
    COXSWAIN_RETURN_IF_ERROR(TrainEpoch());
    sampler_->NextEpoch();
  }
  // One that failed was logged.
  checkpoint_->Finish(kSaveTimeout).IgnoreError();
  // What is tested is one model: that of all ranks.
  COXSWAIN_RETURN_IF_ERROR(ddp_->AverageParameters());
  wall_ = Now() - start;
  COXSWAIN_ASSIGN_OR_RETURN(const double accuracy, TestAccuracy());
  if (session_->rank() == 0) options_.on_event(Result(accuracy));
  return absl::OkStatus();
}

bool Trainer::Over() const { return ddp_->stopping() || ddp_->finished(); }

absl::Status Trainer::TrainEpoch() {
  COXSWAIN_RETURN_IF_ERROR(ddp_->BeginEpoch());
  while (const auto indices = sampler_->NextBatch()) {
    COXSWAIN_RETURN_IF_ERROR(
        TrainMicroBatch(Here(MakeBatch(train_, *indices))));
    if (Over()) return absl::OkStatus();
    if (ddp_->ended()) break;
  }
  COXSWAIN_ASSIGN_OR_RETURN(const bool rest, ddp_->Flush());
  if (rest) COXSWAIN_RETURN_IF_ERROR(TakeStep());
  if (ddp_->plan().terms.uneven_data == schedule::UnevenData::kRefuse) {
    return absl::OkStatus();
  }
  // Until the ranks that have more data are done as well.
  while (!Over() && !ddp_->ended()) {
    BeginExchange();
    COXSWAIN_ASSIGN_OR_RETURN(const bool more, ddp_->StepWithoutData());
    if (!more) break;
    COXSWAIN_RETURN_IF_ERROR(TakeStep());
  }
  return absl::OkStatus();
}

absl::Status Trainer::TrainMicroBatch(const Batch& batch) {
  BeginExchange();
  Accumulator::Begin begin;
  begin.weight = static_cast<double>(batch.labels.size(0));
  begin.end_of_data = sampler_->batches_left() == 0;
  const MicroBatch micro = ddp_->Accumulate(begin);
  const ::torch::Tensor loss = ::torch::nn::functional::cross_entropy(
      network_->Forward(batch.images), batch.labels);
  COXSWAIN_RETURN_IF_ERROR(ddp_->Backward(loss, micro));
  interval_.images += batch.labels.size(0);
  images_ += batch.labels.size(0);
  batches_left_ = std::max<int64_t>(batches_left_ - 1, 0);
  loss_ = loss.item<double>();
  return micro.sync ? TakeStep() : absl::OkStatus();
}

void Trainer::BeginExchange() {
  compressing_ = ddp_->hook().started();
  payload_before_ = world_->communicator().payload_bytes();
}

absl::Status Trainer::TakeStep() {
  COXSWAIN_ASSIGN_OR_RETURN(const bool taken, ddp_->StepOptimizer(*optimizer_));
  if (taken) {
    CountStep(loss_, world_->communicator().payload_bytes() - payload_before_,
              compressing_);
  }
  COXSWAIN_RETURN_IF_ERROR(SaveIfAsked());
  HeedSignal();
  return absl::OkStatus();
}

int64_t Trainer::steps_total() const {
  const int64_t window =
      ddp_->plan().WindowOf(session_->rank(), session_->world_size());
  const int64_t total = steps_ + (batches_left_ + window - 1) / window;
  const int64_t most = ddp_->plan().terms.max_steps;
  return most > 0 ? std::min(total, most) : total;
}

void Trainer::CountStep(double loss, int64_t payload, bool compressed) {
  ++steps_;
  if (compressed) {
    ++compressed_steps_;
    compressed_payload_ += payload;
  }
  session_->ReportProgress(steps_);
  interval_.steps += 1;
  interval_.payload += payload;
  interval_.loss += loss;
  const absl::Time now = Now();
  const absl::Duration elapsed = now - interval_.start;
  if (elapsed < kEventInterval && steps_ < steps_total()) return;
  if (session_->rank() == 0) {
    StepEvent event;
    event.step = steps_;
    event.steps = steps_total();
    const auto steps = static_cast<double>(interval_.steps);
    event.loss = interval_.loss / steps;
    event.bytes_sent_per_step = static_cast<double>(interval_.payload) / steps;
    const double images =
        static_cast<double>(interval_.images) * session_->world_size();
    event.per_second = images / std::max(absl::ToDoubleSeconds(elapsed), 1e-9);
    options_.on_event(event);
  }
  interval_ = Interval();
  interval_.start = now;
}

absl::StatusOr<double> Trainer::TestAccuracy() {
  ::torch::NoGradGuard no_grad;
  // Outlives this function if a peer stalls and the wait below times out.
  const auto right = std::make_shared<int64_t>(0);
  const int64_t stride = kTestBatch * session_->world_size();
  for (int64_t first = session_->rank() * kTestBatch; first < test_.count();
       first += stride) {
    std::vector<int64_t> indices;
    const int64_t end = std::min(first + kTestBatch, test_.count());
    for (int64_t i = first; i < end; ++i) indices.push_back(i);
    const Batch batch = Here(MakeBatch(test_, indices));
    const auto guesses = network_->Forward(batch.images).argmax(1);
    *right += guesses.eq(batch.labels).sum().item<int64_t>();
  }
  Span sum;
  sum.data = right.get();
  sum.count = 1;
  sum.dtype = DType::kInt64;
  const WorkPtr work = world_->communicator().AllReduce(sum);
  work->OnDone([right](const absl::Status&) {});
  COXSWAIN_RETURN_IF_ERROR(work->Wait(absl::Minutes(5)));
  return static_cast<double>(*right) / static_cast<double>(test_.count());
}

int64_t Trainer::gradient_bytes_fp32() const {
  int64_t bytes = 0;
  for (const ParameterSpec& parameter : ddp_->reducer().parameters()) {
    bytes += parameter.count() * static_cast<int64_t>(sizeof(float));
  }
  return bytes;
}

ResultEvent Trainer::Result(double accuracy) const {
  ResultEvent result;
  result.hook = ddp_->hook().spec();
  result.world_size = session_->world_size();
  result.steps = steps_;
  result.compressed_steps = compressed_steps_;
  result.test_accuracy = accuracy;
  if (compressed_steps_ > 0) {
    result.bytes_sent_per_step = static_cast<double>(compressed_payload_) /
                                 static_cast<double>(compressed_steps_);
  }
  if (result.bytes_sent_per_step > 0) {
    result.compression_ratio =
        static_cast<double>(gradient_bytes_fp32()) / result.bytes_sent_per_step;
  }
  const auto steps = static_cast<double>(std::max<int64_t>(steps_, 1));
  result.wire_bytes_per_step =
      static_cast<double>(world_->communicator().wire_bytes()) / steps;
  result.wall_seconds = absl::ToDoubleSeconds(wall_);
  const double images = static_cast<double>(images_) * session_->world_size();
  result.images_per_second = images / std::max(result.wall_seconds, 1e-9);
  return result;
}

}  // namespace coxswain::examples
