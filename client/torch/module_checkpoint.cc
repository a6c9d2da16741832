#include "client/torch/module_checkpoint.h"

#include <utility>

#include "client/torch/state_bytes.h"

namespace coxswain::torch {

ProgramCheckpoint::Program ProgramOf(
    const std::shared_ptr<::torch::nn::Module>& module,
    ::torch::optim::Optimizer* optimizer) {
  ProgramCheckpoint::Program program;
  program.save_model = [module](std::string* bytes) {
    return SaveModule(*module, bytes);
  };
  program.load_model = [module](absl::string_view bytes) {
    return LoadModule(bytes, module.get());
  };
  program.save_optimizer = [optimizer] { return SaveOptimizer(*optimizer); };
  program.load_optimizer = [optimizer](absl::string_view bytes) {
    return LoadOptimizer(bytes, optimizer);
  };
  return program;
}

ProgramCheckpoint::Training StateOf(DistributedDataParallel& ddp) {
  ProgramCheckpoint::Training training;
  training.accumulator = &ddp.accumulator();
  training.hook = &ddp.hook();
  training.copy_hook = ddp.reducer().HookCopier();
  training.averager = ddp.averager();
  training.parameters = ddp.reducer().parameters();
  training.decided = ddp.decided();
  training.unite = [&ddp] { return ddp.AverageParameters(); };
  return training;
}

ModuleCheckpoint::ModuleCheckpoint(Session& session,
                                   std::shared_ptr<::torch::nn::Module> module,
                                   ::torch::optim::Optimizer* optimizer,
                                   const Options& options)
    : program_(session, ProgramOf(module, optimizer), options) {}

ModuleCheckpoint::ModuleCheckpoint(Session& session,
                                   ProgramCheckpoint::Program program,
                                   const Options& options)
    : program_(session, std::move(program), options) {}

absl::StatusOr<bool> ModuleCheckpoint::SaveIfAsked(DistributedDataParallel& ddp,
                                                   const Blobs& blobs) {
  if (ddp.checkpointing().empty()) return false;
  return Save(ddp, ddp.checkpointing(), blobs);
}

absl::StatusOr<bool> ModuleCheckpoint::Save(DistributedDataParallel& ddp,
                                            absl::string_view reason,
                                            const Blobs& blobs) {
  return program_.Save(StateOf(ddp), reason, blobs);
}

absl::StatusOr<std::optional<ModuleCheckpoint::Resumed>>
ModuleCheckpoint::ResumeIfAny(absl::string_view id,
                              DistributedDataParallel& ddp) {
  return program_.ResumeIfAny(id, StateOf(ddp));
}

absl::StatusOr<ModuleCheckpoint::Resumed> ModuleCheckpoint::Resume(
    absl::string_view id, DistributedDataParallel& ddp) {
  return program_.Resume(id, StateOf(ddp));
}

}  // namespace coxswain::torch
