// A model whose layers are spread over ranks, as docs/parallelism.md explains
// it:
//   coxswain run --nproc 2 --mesh pp=2 -- pipeline
#include <torch/torch.h>

#include <iostream>

#include "base/status_macros.h"
#include "client/session/session.h"
#include "client/torch/pipeline/pipeline.h"
#include "hooks/registry/planned_hook.h"

namespace {

using coxswain::torch::LayerOf;
using coxswain::torch::PipelineBatch;
using coxswain::torch::PipelineModel;
using coxswain::torch::PipelineOptions;
using coxswain::torch::Tensors;

PipelineModel MakeModel() {
  PipelineModel model;
  model.layers.push_back(LayerOf(
      "in", [] { return std::make_shared<torch::nn::LinearImpl>(64, 128); }));
  for (const char* name : {"hidden0", "hidden1"}) {
    model.layers.push_back(
        {std::string(name) + "_relu", /*make=*/nullptr,
         [](torch::nn::Module*, const Tensors& x) -> Tensors {
           return {torch::relu(x[0])};
         }});
    model.layers.push_back(LayerOf(name, [] {
      return std::make_shared<torch::nn::LinearImpl>(128, 128);
    }));
  }
  model.layers.push_back(LayerOf(
      "out", [] { return std::make_shared<torch::nn::LinearImpl>(128, 16); }));
  model.seed = 1;
  return model;
}

absl::Status Train(coxswain::Session& session, const PipelineModel& model,
                   const PipelineOptions& options) {
  const auto loss = [](const Tensors& outputs, const Tensors& targets) {
    return torch::mse_loss(outputs[0], targets[0]);
  };
  COXSWAIN_ASSIGN_OR_RETURN(
      const auto pipeline,
      coxswain::torch::Pipeline::Create(session, model, loss, options));
  torch::optim::Adam optimizer(pipeline->module()->parameters(), /*lr=*/1e-3);
  COXSWAIN_RETURN_IF_ERROR(pipeline->UseOptimizer(optimizer));

  // Ranks with inputs and with targets draw the same micro-batches.
  torch::manual_seed(pipeline->data_index());
  for (int step = 1; step <= 100; ++step) {
    std::vector<PipelineBatch> batches(pipeline->window());
    for (PipelineBatch& batch : batches) {
      const auto x = torch::randn({32, 64});
      if (pipeline->has_inputs()) batch.inputs = {x};
      if (pipeline->has_targets()) batch.targets = {x.narrow(1, 0, 16)};
    }
    COXSWAIN_ASSIGN_OR_RETURN(const auto result,
                              pipeline->Step(std::move(batches)));
    if (step % 20 == 0 && pipeline->has_targets() &&
        pipeline->data_index() == 0) {
      std::cout << step << " " << result.loss << std::endl;
    }
    if (pipeline->ddp().stopping()) break;
  }
  return absl::OkStatus();
}

absl::Status Run() {
  COXSWAIN_ASSIGN_OR_RETURN(const auto where,
                            coxswain::SessionOptions::FromEnvironment());
  const PipelineModel model = MakeModel();
  PipelineOptions options;
  options.mesh = where.mesh;  // of `coxswain run --mesh`
  options.ddp.accumulation_steps = 4;
  options.ddp.make_hook = coxswain::MakePlannedHook;
  COXSWAIN_ASSIGN_OR_RETURN(const auto manifest,
                            coxswain::torch::DescribeJob(model, options));
  COXSWAIN_ASSIGN_OR_RETURN(const auto session,
                            coxswain::Session::Join(where, manifest));
  const absl::Status trained = Train(*session, model, options);
  if (trained.ok()) return session->Leave("done");
  session->Leave(trained.message(), /*failed=*/true).IgnoreError();
  return trained;
}

}  // namespace

int main() {
  const absl::Status status = Run();
  if (!status.ok()) std::cerr << status.message() << std::endl;
  return status.ok() ? 0 : 1;
}
