#include "client/torch/shard/model_pieces.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "client/torch/module_tensors.h"
#include "client/torch/optimizer_state.h"
#include "client/torch/shard/model_pieces_internal.h"
#include "client/torch/shard/piece_forms.h"

namespace coxswain::torch {

namespace optim = ::torch::optim;
using ::torch::Tensor;

namespace {

// A parameter's name does not begin with a dot.
constexpr char kGroupRates[] = ".learning_rates";

// The pieces of a rank, and what they point to.
class Filled {
 public:
  explicit Filled(std::vector<PieceMemory>* pieces) : pieces_(*pieces) {}

  // Adds the elements that part `part` of `parts` of its box has.
  void Add(TensorPiece piece, const Tensor& tensor, int part = 0,
           int parts = 1) {
    const EvenRange range = EvenRange::Of(piece.count(), parts, part);
    piece.begin = range.begin;
    piece.end = range.end;
    if (piece.count() == 0) return;
    const Tensor& dense =
        held_.emplace_back(tensor.detach().cpu().contiguous());
    const auto element = static_cast<int64_t>(SizeOf(piece.dtype));
    char* const data = static_cast<char*>(dense.data_ptr());
    pieces_.push_back({std::move(piece), data + range.begin * element});
  }
  void Add(KeptPiece kept) {
    if (kept.copy.defined()) held_.push_back(kept.copy);
    pieces_.push_back(
        {std::move(kept.piece), static_cast<char*>(kept.memory.data)});
  }
  void AddRates(TensorPiece piece, const std::vector<double>& rates) {
    Add(std::move(piece), ::torch::tensor(rates, ::torch::kFloat64));
  }

  std::vector<Tensor> TakeHeld() { return std::move(held_); }

 private:
  std::vector<PieceMemory>& pieces_;
  std::vector<Tensor> held_;
};

// Returns whether this rank is to save something of a tensor.
bool Saves(const ModelInPieces& model, const std::string& name) {
  return model.part == 0 || model.boxes.count(name) > 0;
}

// Of a trained parameter without slices.
void AddTrained(const ModelInPieces& model, const NamedTensor& parameter,
                Filled* filled) {
  const SliceState state = StateOf(*model.optimizer, parameter.tensor);
  const auto add = [&](const std::string& kind, const Tensor& tensor) {
    TensorPiece piece = PieceOf(parameter.name, kind, tensor, model.boxes);
    piece.step = state.steps;
    filled->Add(std::move(piece), tensor, model.replica, model.replicas);
  };
  add(kTrained, parameter.tensor);
  for (const auto& [kind, tensor] : state.tensors) add(kind, tensor);
}

absl::Status Fill(const ModelInPieces& model, Filled* filled) {
  if (model.part < 0 || model.part >= model.parts) {
    return absl::InvalidArgumentError(absl::StrCat(
        "rank ", model.part, " of the ", model.parts, " that share a model"));
  }
  COXSWAIN_RETURN_IF_ERROR(CheckBoxes(*model.module, model.boxes));
  if (model.sharded != nullptr) {
    COXSWAIN_ASSIGN_OR_RETURN(std::vector<KeptPiece> kept,
                              model.sharded->Pieces());
    for (KeptPiece& one : kept) {
      if (!Saves(model, one.piece.parameter)) continue;
      one.piece = OfWhole(std::move(one.piece), model.boxes);
      filled->Add(std::move(one));
    }
  } else {
    COXSWAIN_RETURN_IF_ERROR(CheckKnown(*model.optimizer));
  }
  return Guarded("copying the model", [&] {
    const optim::Optimizer& options = OptionsOf(model);
    for (const NamedTensor& named : TensorsOf(*model.module)) {
      const Tensor& tensor = named.tensor;
      if (!Saves(model, named.name)) continue;
      if (!tensor.requires_grad()) {
        filled->Add(PieceOf(named.name, kUntrained, tensor, model.boxes),
                    tensor);
        continue;
      }
      if (const auto* const group = GroupOf(options, tensor)) {
        filled->AddRates(
            TensorPiece::Whole(named.name, kRate, ElementType::kFloat64, {1}),
            {group->options().get_lr()});
      }
      if (model.sharded == nullptr) AddTrained(model, named, filled);
    }
    // Ranks with parts of a model may have other groups than each other.
    if (model.whole != nullptr) return;
    std::vector<double> rates;
    for (const auto& group : options.param_groups()) {
      rates.push_back(group.options().get_lr());
    }
    filled->AddRates(GroupRates(rates.size()), rates);
  });
}

}  // namespace

TensorPiece GroupRates(size_t groups) {
  return TensorPiece::Whole(kGroupRates, kTrained, ElementType::kFloat64,
                            {static_cast<int64_t>(groups)});
}

optim::Optimizer& OptionsOf(const ModelInPieces& model) {
  return model.sharded != nullptr ? model.sharded->options() : *model.optimizer;
}

const optim::OptimizerParamGroup* GroupOf(const optim::Optimizer& optimizer,
                                          const Tensor& parameter) {
  for (const auto& group : optimizer.param_groups()) {
    for (const Tensor& one : group.params()) {
      if (one.is_same(parameter)) return &group;
    }
  }
  return nullptr;
}

ProgramCheckpoint::Program ProgramInPieces(
    std::function<absl::StatusOr<ModelInPieces>()> model) {
  ProgramCheckpoint::Program program;
  program.save_model = [](std::string* bytes) {
    bytes->clear();  // the pieces have all
    return absl::OkStatus();
  };
  const auto untrained = std::make_shared<std::string>();
  program.load_model = [untrained](absl::string_view bytes) {
    *untrained = std::string(bytes);
    return absl::OkStatus();
  };
  const auto held = std::make_shared<std::vector<Tensor>>();
  program.fill_pieces =
      [model, held](std::vector<PieceMemory>* pieces) -> absl::Status {
    COXSWAIN_ASSIGN_OR_RETURN(const ModelInPieces own, model());
    Filled filled(pieces);
    const absl::Status status = Fill(own, &filled);
    *held = filled.TakeHeld();
    return status;
  };
  program.load_pieces = [model,
                         untrained](PieceCheckpoint& from) -> absl::Status {
    COXSWAIN_ASSIGN_OR_RETURN(const ModelInPieces own, model());
    return LoadPieces(own, *untrained, from);
  };
  return program;
}

ProgramCheckpoint::Program ProgramInPieces(
    const std::shared_ptr<::torch::nn::Module>& module,
    optim::Optimizer* optimizer, int rank, int world_size) {
  ModelInPieces model;
  model.module = module;
  model.optimizer = optimizer;
  model.replica = rank;
  model.replicas = world_size;
  return ProgramInPieces([model] { return model; });
}

}  // namespace coxswain::torch
