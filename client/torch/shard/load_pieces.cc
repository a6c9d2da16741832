// How a model in pieces is loaded: LoadPieces().

#include <cstring>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "base/status_prefix.h"
#include "client/resume/tensor_bytes.h"
#include "client/torch/module_tensors.h"
#include "client/torch/optimizer_state.h"
#include "client/torch/shard/model_pieces_internal.h"
#include "client/torch/shard/piece_forms.h"
#include "client/torch/shard/sharded_checkpoint.h"
#include "client/torch/state_bytes.h"

namespace coxswain::torch {
namespace {

namespace optim = ::torch::optim;
using ::torch::Tensor;

constexpr size_t kMaxDifferences = 8;

absl::Status OfAnotherModel(const PieceCheckpoint& from,
                            absl::string_view what) {
  return absl::FailedPreconditionError(absl::StrCat(
      "checkpoint ", from.description().id, " is of another model: ", what));
}

// The names under which a model's parameters were saved, where they are not
// their own.
using SavedNames = std::map<std::string, std::string>;

std::string SavedName(const SavedNames& names, const std::string& name) {
  const auto found = names.find(name);
  return found == names.end() ? name : found->second;
}

SavedNames NamesIn(const PieceCheckpoint& from, const ModelInPieces& model) {
  SavedNames names;
  const auto was_saved = [&from](const std::string& name) {
    return from.index().StepOf(name, kTrained).ok();
  };
  for (const auto& [name, other] : model.ties) {
    if (!was_saved(name)) names[name] = other;
  }
  if (model.whole != nullptr) return names;
  // A parameter that the module has under several names.
  std::map<const void*, std::string> first;
  for (const auto& item : model.module->named_parameters()) {
    if (!item.value().defined()) continue;
    const auto [known, is_new] =
        first.emplace(item.value().unsafeGetTensorImpl(), item.key());
    if (is_new || was_saved(known->second)) continue;
    if (was_saved(item.key())) names.emplace(known->second, item.key());
  }
  return names;
}

absl::StatusOr<std::vector<ParameterSpec>> WholeOf(const ModelInPieces& model) {
  if (model.whole != nullptr) return model.whole();
  COXSWAIN_ASSIGN_OR_RETURN(std::vector<ParameterSpec> whole,
                            DescribeParameters(*model.module));
  for (ParameterSpec& spec : whole) {
    const auto divided = model.boxes.find(spec.name);
    if (divided != model.boxes.end()) spec.shape = divided->second.shape;
  }
  return whole;
}

// Fails unless the trained parameters of the whole model are those that were
// saved.
absl::Status CheckModel(const PieceCheckpoint& from, const ModelInPieces& model,
                        const SavedNames& names) {
  COXSWAIN_ASSIGN_OR_RETURN(const std::vector<ParameterSpec> whole,
                            WholeOf(model));
  std::set<std::string> known;
  std::vector<std::string> differences;
  for (const ParameterSpec& spec : whole) {
    known.insert(spec.name);
    if (spec.count() == 0) continue;
    const auto found = from.index().Find(TensorPiece::Whole(
        SavedName(names, spec.name), kTrained, spec.dtype, spec.shape));
    if (!found.ok()) differences.emplace_back(found.status().message());
  }
  if (model.whole == nullptr) {
    // The other names of shared tensors, too.
    for (const auto& item : model.module->named_parameters()) {
      known.insert(item.key());
    }
  }
  for (const TensorPiece& piece : from.index().pieces()) {
    const bool is_value = piece.kind == kTrained && piece.parameter[0] != '.';
    if (!is_value || !known.insert(piece.parameter).second) continue;
    differences.push_back(
        absl::StrCat(piece.parameter, " only in the checkpoint"));
  }
  if (differences.empty()) return absl::OkStatus();
  const size_t count = differences.size();
  if (count > kMaxDifferences) {
    differences.resize(kMaxDifferences);
    differences.push_back(
        absl::StrCat("and ", count - kMaxDifferences, " more"));
  }
  return OfAnotherModel(from, absl::StrJoin(differences, "; "));
}

// Tensors that are written once all of them have been read.
class Staged {
 public:
  explicit Staged(PieceCheckpoint* from) : from_(*from) {}

  // Asks for all of a tensor.
  absl::Status Want(const TensorPiece& piece, const Tensor& to) {
    const auto found = from_.index().Find(piece);
    if (!found.ok()) return OfAnotherModel(from_, found.status().message());
    return Guarded("making memory", [&] {
      tensors_.emplace_back(
          ::torch::empty(to.sizes(), ::torch::dtype(to.scalar_type())), to);
      wanted_.push_back(
          {piece, static_cast<char*>(tensors_.back().first.data_ptr())});
    });
  }
  // Gives a tensor these bytes, which outlive this.
  absl::Status Take(absl::string_view bytes, const Tensor& to) {
    return Guarded("making memory", [&] {
      Tensor read =
          ::torch::empty(to.sizes(), ::torch::dtype(to.scalar_type()));
      if (!bytes.empty()) {
        std::memcpy(read.data_ptr(), bytes.data(), bytes.size());
      }
      tensors_.emplace_back(std::move(read), to);
    });
  }
  absl::Status Read() { return from_.Load(wanted_); }
  // May throw.
  void Write() {
    const ::torch::NoGradGuard no_grad;
    for (auto& [read, to] : tensors_) to.copy_(read);
  }

 private:
  PieceCheckpoint& from_;
  std::vector<std::pair<Tensor, Tensor>> tensors_;  // what was read, and to
  std::vector<PieceMemory> wanted_;
};

// `bytes`: those of SaveUntrained, of a program whose ranks all had the whole
// model; empty: the checkpoint has pieces.
absl::Status StageUntrained(const PieceCheckpoint& from,
                            const ModelInPieces& model, absl::string_view bytes,
                            Staged* staged) {
  std::map<std::string, SavedTensor> saved;
  if (!bytes.empty()) {
    COXSWAIN_ASSIGN_OR_RETURN(saved, ParseTensors(bytes));
  }
  for (const NamedTensor& named : TensorsOf(*model.module)) {
    const Tensor& tensor = named.tensor;
    if (tensor.requires_grad()) continue;
    const auto one = saved.find(named.name);
    if (bytes.empty()) {
      if (tensor.numel() == 0) continue;
      COXSWAIN_RETURN_IF_ERROR(staged->Want(
          PieceOf(named.name, kUntrained, tensor, model.boxes), tensor));
    } else if (one == saved.end() || one->second.form != DescribeForm(tensor) ||
               one->second.elements.size() != tensor.nbytes()) {
      return OfAnotherModel(
          from, absl::StrCat(
                    named.name, " is ", DescribeForm(tensor), " here, and was ",
                    one == saved.end() ? "not saved"
                                       : std::string(one->second.form)));
    } else {
      COXSWAIN_RETURN_IF_ERROR(staged->Take(one->second.elements, tensor));
    }
    if (one != saved.end()) saved.erase(one);
  }
  if (saved.empty() || model.whole != nullptr) return absl::OkStatus();
  return OfAnotherModel(
      from, absl::StrCat(saved.begin()->first, " only in the checkpoint"));
}

// Returns the learning rates by the optimizer's groups; of groups without
// parameters of this rank those that they have.
absl::StatusOr<std::vector<double>> LoadRates(PieceCheckpoint& from,
                                              const ModelInPieces& model,
                                              const SavedNames& names) {
  const optim::Optimizer& options = OptionsOf(model);
  std::vector<double> rates;
  std::set<const optim::OptimizerParamGroup*> missing;
  for (const auto& group : options.param_groups()) {
    rates.push_back(group.options().get_lr());
    if (!group.params().empty()) missing.insert(&group);
  }
  for (const NamedTensor& named : TrainableParameters(*model.module)) {
    const auto* const group = GroupOf(options, named.tensor);
    if (missing.count(group) == 0) continue;
    const TensorPiece piece = TensorPiece::Whole(
        SavedName(names, named.name), kRate, ElementType::kFloat64, {1});
    if (!from.index().Find(piece).ok()) continue;
    const auto at = static_cast<size_t>(group - options.param_groups().data());
    COXSWAIN_RETURN_IF_ERROR(
        from.Load({{piece, reinterpret_cast<char*>(&rates[at])}}));
    missing.erase(group);
  }
  if (missing.empty()) return rates;
  const TensorPiece all = GroupRates(rates.size());
  if (const auto found = from.index().Find(all); !found.ok()) {
    return OfAnotherModel(
        from, absl::StrCat("a group of the optimizer has no learning rate in "
                           "it: ",
                           found.status().message()));
  }
  COXSWAIN_RETURN_IF_ERROR(
      from.Load({{all, reinterpret_cast<char*>(rates.data())}}));
  return rates;
}

// A parameter's piece under the name with which it was saved.
TensorPiece SavedPiece(const ModelInPieces& model, const SavedNames& names,
                       const std::string& kind, const std::string& name,
                       const Tensor& tensor) {
  TensorPiece piece = PieceOf(name, kind, tensor, model.boxes);
  piece.parameter = SavedName(names, name);
  return piece;
}

// Asks for what an optimizer keeps of a parameter, and lets `into`, one like
// it, have that.
absl::Status StageState(const PieceCheckpoint& from, const ModelInPieces& model,
                        const SavedNames& names, const NamedTensor& parameter,
                        optim::Optimizer* into, Staged* staged) {
  const std::string saved = SavedName(names, parameter.name);
  COXSWAIN_ASSIGN_OR_RETURN(const int64_t step,
                            from.index().StepOf(saved, kTrained));
  const auto read = [&](const std::string& kind,
                        const Tensor& to) -> absl::StatusOr<bool> {
    const absl::Status found = from.index().StepOf(saved, kind).status();
    if (absl::IsNotFound(found)) return false;
    COXSWAIN_RETURN_IF_ERROR(found);
    COXSWAIN_RETURN_IF_ERROR(
        staged->Want(SavedPiece(model, names, kind, parameter.name, to), to));
    return true;
  };
  return WithPrefix(absl::StrCat("loading the state of \"", saved, "\": "),
                    SetState(*into, parameter.tensor, step, read));
}

// Asks for the trained parameters and their state, and returns an optimizer
// that will have that.
absl::StatusOr<std::unique_ptr<optim::Optimizer>> StageTrained(
    const PieceCheckpoint& from, const ModelInPieces& model,
    const SavedNames& names, Staged* staged) {
  const optim::Optimizer& optimizer = *model.optimizer;
  COXSWAIN_RETURN_IF_ERROR(CheckKnown(optimizer));
  std::unique_ptr<optim::Optimizer> into;
  COXSWAIN_RETURN_IF_ERROR(Guarded("making an optimizer's state", [&] {
    std::vector<optim::OptimizerParamGroup> groups;
    for (const auto& group : optimizer.param_groups()) {
      groups.emplace_back(group.params());
    }
    into = MakeLike(optimizer, std::move(groups));
  }));
  for (const NamedTensor& named : TrainableParameters(*model.module)) {
    if (named.tensor.numel() == 0) continue;
    COXSWAIN_RETURN_IF_ERROR(staged->Want(
        SavedPiece(model, names, kTrained, named.name, named.tensor),
        named.tensor));
    if (GroupOf(optimizer, named.tensor) == nullptr) continue;
    COXSWAIN_RETURN_IF_ERROR(
        StageState(from, model, names, named, into.get(), staged));
  }
  return into;
}

}  // namespace

absl::Status LoadPieces(const ModelInPieces& model, absl::string_view untrained,
                        PieceCheckpoint& from) {
  COXSWAIN_RETURN_IF_ERROR(CheckBoxes(*model.module, model.boxes));
  const SavedNames names = NamesIn(from, model);
  COXSWAIN_RETURN_IF_ERROR(CheckModel(from, model, names));
  Staged staged(&from);
  COXSWAIN_RETURN_IF_ERROR(StageUntrained(from, model, untrained, &staged));
  std::unique_ptr<optim::Optimizer> loaded;
  if (model.sharded == nullptr) {
    COXSWAIN_ASSIGN_OR_RETURN(loaded,
                              StageTrained(from, model, names, &staged));
  }
  COXSWAIN_ASSIGN_OR_RETURN(const std::vector<double> rates,
                            LoadRates(from, model, names));
  COXSWAIN_RETURN_IF_ERROR(staged.Read());
  if (model.sharded != nullptr) {
    CheckpointPieces reader(from, names, model.boxes);
    COXSWAIN_RETURN_IF_ERROR(model.sharded->Load(reader));
  }
  return Guarded("loading the model", [&] {
    staged.Write();
    if (loaded != nullptr) {
      model.optimizer->state() = std::move(loaded->state());
    }
    optim::Optimizer& options = OptionsOf(model);
    for (size_t i = 0; i < rates.size(); ++i) {
      options.param_groups()[i].options().set_lr(rates[i]);
    }
  });
}

}  // namespace coxswain::torch
