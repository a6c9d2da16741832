#ifndef COXSWAIN_CLIENT_TORCH_SHARD_MODEL_PIECES_H_
#define COXSWAIN_CLIENT_TORCH_SHARD_MODEL_PIECES_H_

#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/reduce/bucket.h"
#include "client/resume/program_checkpoint.h"
#include "client/shard/piece.h"
#include "client/torch/shard/sharded_optimizer.h"

namespace coxswain::torch {

// What one rank has of a model that goes into checkpoints in pieces, each of
// which names its tensor of the whole model: so that ranks that divide the
// model and its optimizer's state otherwise load what was saved.
struct ModelInPieces {
  // Its tensors have the names of the whole model.
  std::shared_ptr<::torch::nn::Module> module;
  // Of its parameters, one of SGD, Adam, AdamW, RMSprop and Adagrad, or a
  // sharded one: one of the two is null.
  ::torch::optim::Optimizer* optimizer = nullptr;
  ShardedOptimizer* sharded = nullptr;
  // How many ranks have the same, and which of them this is: without `sharded`
  // each saves a part of every tensor.
  int replica = 0;
  int replicas = 1;
  // Where ranks share its tensors (tp): which part of them a rank's parameters
  // are, by the module's names. What is left out all of these ranks have whole,
  // with the same bits; the first of them saves it.
  ParameterBoxes boxes;
  int part = 0;  // which of these ranks this is, of how many
  int parts = 1;
  // Where the module is a part of the whole model, as the stages of a rank are:
  // returns the trained parameters of the whole. Null: it is the whole.
  std::function<absl::StatusOr<std::vector<ParameterSpec>>()> whole;
  // Names of parameters that are one, in both directions: what was saved under
  // one name only is loaded under the other, too.
  std::map<std::string, std::string> ties;
};

// Returns how such a model goes into a checkpoint and back: parameters, buffers
// and parameters that are not trained, the optimizer's state, and the learning
// rates by parameter. `model` is called for each copy, and for each load.
//
// Loading refuses another model with FAILED_PRECONDITION, listing what differs
// in the trained parameters of the whole; then nothing is written on any rank.
// A rank without `sharded` writes only once it has read all.
ProgramCheckpoint::Program ProgramInPieces(
    std::function<absl::StatusOr<ModelInPieces>()> model);

// The same of a model that every rank has all of (zero=0), for
// a ModuleCheckpoint that other divisions load, and that loads theirs.
ProgramCheckpoint::Program ProgramInPieces(
    const std::shared_ptr<::torch::nn::Module>& module,
    ::torch::optim::Optimizer* optimizer, int rank, int world_size);

}  // namespace coxswain::torch

#endif  // COXSWAIN_CLIENT_TORCH_SHARD_MODEL_PIECES_H_
