#include "client/torch/shard/sharded_checkpoint.h"

#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "client/torch/state_bytes.h"

namespace coxswain::torch {
namespace {

// The learning rates are a piece that every rank has, so that one saves it. A
// parameter's name does not begin with a dot.
TensorPiece RatesPiece(const std::vector<double>& rates) {
  return TensorPiece::Whole(".learning_rates", "value", ElementType::kFloat64,
                            {static_cast<int64_t>(rates.size())});
}

absl::Status LoadPieces(PieceCheckpoint& from, ShardedOptimizer& optimizer) {
  CheckpointPieces reader(from);
  COXSWAIN_RETURN_IF_ERROR(optimizer.Load(reader));
  std::vector<double> rates(optimizer.options().param_groups().size());
  COXSWAIN_RETURN_IF_ERROR(
      from.Load({{RatesPiece(rates), reinterpret_cast<char*>(rates.data())}}));
  for (size_t i = 0; i < rates.size(); ++i) {
    optimizer.options().param_groups()[i].options().set_lr(rates[i]);
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<int64_t> CheckpointPieces::StepOf(const std::string& parameter,
                                                 const std::string& kind) {
  return from_.index().StepOf(parameter, kind);
}

absl::Status CheckpointPieces::Read(const TensorPiece& want, const Span& to) {
  return from_.Load({{want, static_cast<char*>(to.data)}});
}

ProgramCheckpoint::Program ProgramOf(
    const std::shared_ptr<::torch::nn::Module>& module,
    ShardedOptimizer* optimizer) {
  ProgramCheckpoint::Program program;
  program.save_model = [module](std::string* bytes) {
    return SaveUntrained(*module, bytes);
  };
  program.load_model = [module](absl::string_view bytes) {
    return LoadUntrained(bytes, module.get());
  };
  const auto rates = std::make_shared<std::vector<double>>();
  // Of what is on a GPU, until the next ones.
  const auto copies = std::make_shared<std::vector<::torch::Tensor>>();
  program.fill_pieces = [optimizer, rates, copies](
                            std::vector<PieceMemory>* pieces) -> absl::Status {
    copies->clear();
    COXSWAIN_ASSIGN_OR_RETURN(std::vector<KeptPiece> kept, optimizer->Pieces());
    for (KeptPiece& one : kept) {
      pieces->push_back(
          {std::move(one.piece), static_cast<char*>(one.memory.data)});
      if (one.copy.defined()) copies->push_back(std::move(one.copy));
    }
    rates->clear();
    for (const auto& group : optimizer->options().param_groups()) {
      rates->push_back(group.options().get_lr());
    }
    pieces->push_back(
        {RatesPiece(*rates), reinterpret_cast<char*>(rates->data())});
    return absl::OkStatus();
  };
  program.load_pieces = [optimizer](PieceCheckpoint& from) {
    return LoadPieces(from, *optimizer);
  };
  return program;
}

}  // namespace coxswain::torch
