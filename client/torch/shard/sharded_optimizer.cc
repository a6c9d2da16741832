#include "client/torch/shard/sharded_optimizer.h"

#include <torch/utils.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "base/status_macros.h"
#include "base/status_prefix.h"
#include "client/comm/device_queue.h"
#include "client/reduce/bucket_slices.h"
#include "client/reduce/reducer.h"
#include "client/torch/module_tensors.h"
#include "client/torch/optimizer_state.h"

namespace coxswain::torch {
namespace {

namespace optim = ::torch::optim;
using ::torch::Tensor;

constexpr char kValue[] = "value";

// Returns a tensor of these elements, which keeps `memory`.
Tensor View(const Span& span, at::IntArrayRef sizes,
            std::shared_ptr<BufferOwner> memory) {
  return TensorOf(span, sizes, [memory = std::move(memory)](void*) {});
}

// Returns a tensor in the CPU's memory with the elements of this one: itself,
// or a copy.
Tensor OnHost(const Tensor& tensor) {
  const ::torch::NoGradGuard no_grad;
  return tensor.detach().to(::torch::kCPU);
}

absl::StatusOr<KeptPiece> Kept(TensorPiece piece, const Tensor& tensor) {
  KeptPiece kept;
  kept.piece = std::move(piece);
  if (tensor.is_cpu()) {
    kept.memory = ElementsOf(tensor);
    return kept;
  }
  COXSWAIN_RETURN_IF_ERROR(Guarded("copying from a GPU", [&] {
    kept.copy = OnHost(tensor);
    kept.memory = ElementsOf(kept.copy);
  }));
  return kept;
}

absl::Status NotTrained() {
  return absl::InvalidArgumentError(
      "the optimizer has a tensor that is none of the module's trainable "
      "parameters; make it of module->parameters(), after any change of them");
}

}  // namespace

absl::StatusOr<std::unique_ptr<ShardedOptimizer>> ShardedOptimizer::Create(
    DistributedDataParallel& ddp, optim::Optimizer& optimizer) {
  COXSWAIN_RETURN_IF_ERROR(CheckElementWise(optimizer));
  COXSWAIN_RETURN_IF_ERROR(
      WithPrefix("to shard it, pass a maker of it: ", CheckKnown(optimizer)));
  ShardedOptimizerOptions options;
  for (const optim::OptimizerParamGroup& group : optimizer.param_groups()) {
    options.groups.emplace_back();
    for (const Tensor& parameter : group.params()) {
      if (!KeepsKnownState(optimizer, parameter) ||
          StateOf(optimizer, parameter).steps > 0) {
        return absl::InvalidArgumentError(
            "the optimizer has taken steps, whose state would be lost; make a "
            "new one, and load that state by ShardedOptimizer::Load");
      }
      // A frozen one is never stepped.
      if (parameter.requires_grad()) options.groups.back().push_back(parameter);
    }
  }
  std::unique_ptr<ShardedOptimizer> sharded(new ShardedOptimizer(ddp));
  sharded->like_ = &optimizer;
  COXSWAIN_RETURN_IF_ERROR(sharded->Begin(
      [&optimizer](std::vector<optim::OptimizerParamGroup> groups) {
        for (size_t i = 0; i < groups.size(); ++i) {
          groups[i].set_options(optimizer.param_groups()[i].options().clone());
        }
        return MakeLike(optimizer, std::move(groups));
      },
      options));
  return sharded;
}

absl::StatusOr<std::unique_ptr<ShardedOptimizer>> ShardedOptimizer::Create(
    DistributedDataParallel& ddp, const OptimizerMaker& make,
    const ShardedOptimizerOptions& options) {
  std::unique_ptr<ShardedOptimizer> sharded(new ShardedOptimizer(ddp));
  COXSWAIN_RETURN_IF_ERROR(sharded->Begin(make, options));
  return sharded;
}

absl::Status ShardedOptimizer::Begin(const OptimizerMaker& make,
                                     const ShardedOptimizerOptions& options) {
  if (ddp_.zero() == 0) {
    return absl::FailedPreconditionError(
        "a sharded optimizer needs a wrapper whose ranks get slices of the "
        "averages: set DistributedDataParallelOptions::zero to 1 or 2");
  }
  parameters_ = ddp_.parameters();
  taken_.assign(parameters_.size(), 0);
  layout_version_ = ddp_.reducer().layout_version();
  COXSWAIN_ASSIGN_OR_RETURN(
      const ShardLayout layout,
      ShardLayout::Create(ddp_.reducer().buckets(),
                          ddp_.reducer().slicing().size()));
  COXSWAIN_RETURN_IF_ERROR(MakeWholes(layout));
  COXSWAIN_RETURN_IF_ERROR(MakeOffload(layout, options.offload_by));
  COXSWAIN_RETURN_IF_ERROR(MakeParts(layout));
  COXSWAIN_ASSIGN_OR_RETURN(auto groups, GroupParts(options));
  COXSWAIN_RETURN_IF_ERROR(MakeOptimizer(make, std::move(groups)));
  return Guarded("moving the parameters", [this] {
    MoveParameters();
    NoteVersions();
  });
}

absl::Status ShardedOptimizer::MakeWholes(const ShardLayout& layout) {
  Communicator& communicator = ddp_.reducer().slicing();
  for (const Bucket& bucket : ddp_.reducer().buckets()) {
    const BucketSlices& slices = layout.slices(bucket.index);
    COXSWAIN_ASSIGN_OR_RETURN(
        std::shared_ptr<BufferOwner> whole,
        communicator.AllocateBuffer(slices.padded(), bucket.data.dtype));
    wholes_.push_back(whole);
    COXSWAIN_RETURN_IF_ERROR(Guarded("copying the parameters", [&] {
      const ::torch::NoGradGuard no_grad;
      for (const GradientSlot& slot : bucket.gradients) {
        const Tensor& parameter =
            parameters_[static_cast<size_t>(slot.parameter)];
        View(whole->span().Slice(slot.offset, slot.count), parameter.sizes(),
             whole)
            .copy_(parameter.detach());
      }
    }));
  }
  return absl::OkStatus();
}

absl::Status ShardedOptimizer::MakeOffload(const ShardLayout& layout,
                                           DeviceRuntime* runtime) {
  DeviceQueue* const queue = ddp_.reducer().slicing().device_queue();
  if (runtime == nullptr && queue != nullptr) runtime = &queue->runtime();
  if (!ddp_.offload() || runtime == nullptr) return absl::OkStatus();
  std::vector<Span> places;
  for (size_t i = 0; i < wholes_.size(); ++i) {
    const BucketSlice own =
        layout.slice(static_cast<int>(i), ddp_.reducer().slicing().rank());
    places.push_back(wholes_[i]->span().Slice(own.begin, own.count));
  }
  OffloadedSlices::Options options;
  options.caller_stream = ddp_.reducer().options().caller_stream;
  options.timeout = ddp_.reducer().options().timeout;
  COXSWAIN_ASSIGN_OR_RETURN(
      offload_, OffloadedSlices::Create(runtime, std::move(places), options));
  return absl::OkStatus();
}

absl::Status ShardedOptimizer::MakeParts(const ShardLayout& layout) {
  const int rank = ddp_.reducer().slicing().rank();
  return Guarded("making the slices' tensors", [&] {
    for (size_t i = 0; i < wholes_.size(); ++i) {
      const int bucket = static_cast<int>(i);
      first_part_.push_back(parts_.size());
      const BucketSlice own = layout.slice(bucket, rank);
      const Span values = offload_ != nullptr
                              ? offload_->values(bucket)
                              : wholes_[i]->span().Slice(own.begin, own.count);
      for (const SlicePart& place : layout.parts(bucket, rank)) {
        Part part;
        part.bucket = bucket;
        part.place = place;
        part.value = View(values.Slice(place.slice_begin, place.count),
                          {place.count}, wholes_[i])
                         .set_requires_grad(true);
        parts_.push_back(std::move(part));
      }
    }
    first_part_.push_back(parts_.size());
  });
}

absl::StatusOr<std::vector<optim::OptimizerParamGroup>>
ShardedOptimizer::GroupParts(const ShardedOptimizerOptions& options) {
  constexpr size_t kNone = static_cast<size_t>(-1);
  std::vector<size_t> group_of(parameters_.size(),
                               options.groups.empty() ? 0 : kNone);
  for (size_t group = 0; group < options.groups.size(); ++group) {
    for (const Tensor& parameter : options.groups[group]) {
      const auto found = std::find_if(
          parameters_.begin(), parameters_.end(),
          [&](const Tensor& one) { return one.is_same(parameter); });
      if (found == parameters_.end()) return NotTrained();
      size_t& place =
          group_of[static_cast<size_t>(found - parameters_.begin())];
      if (place != kNone) {
        return absl::InvalidArgumentError(absl::StrCat(
            "parameter \"",
            ddp_.reducer()
                .parameters()[static_cast<size_t>(found - parameters_.begin())]
                .name,
            "\" is in the groups ", place, " and ", group,
            " of the optimizer; leave one of them out"));
      }
      place = group;
    }
  }
  for (const size_t group : group_of) grouped_.push_back(group != kNone);
  std::vector<std::vector<Tensor>> tensors(
      std::max<size_t>(1, options.groups.size()));
  for (const Part& part : parts_) {
    const size_t group = group_of[static_cast<size_t>(part.place.parameter)];
    if (group != kNone) tensors[group].push_back(part.value);
  }
  std::vector<optim::OptimizerParamGroup> groups;
  for (std::vector<Tensor>& group : tensors) {
    groups.emplace_back(std::move(group));
  }
  return groups;
}

absl::Status ShardedOptimizer::MakeOptimizer(
    const OptimizerMaker& make,
    std::vector<optim::OptimizerParamGroup> groups) {
  std::set<const c10::TensorImpl*> given;
  for (const auto& group : groups) {
    for (const Tensor& part : group.params()) {
      given.insert(part.unsafeGetTensorImpl());
    }
  }
  COXSWAIN_RETURN_IF_ERROR(Guarded(
      "making the optimizer", [&] { optimizer_ = make(std::move(groups)); }));
  if (optimizer_ == nullptr) {
    return absl::InvalidArgumentError("the maker made no optimizer");
  }
  COXSWAIN_RETURN_IF_ERROR(CheckElementWise(*optimizer_));
  for (const auto& group : optimizer_->param_groups()) {
    for (const Tensor& part : group.params()) {
      if (given.erase(part.unsafeGetTensorImpl()) == 1) continue;
      return absl::InvalidArgumentError(
          "the optimizer has a tensor that the maker was not given, or has one "
          "twice; make it over the groups that the maker gets");
    }
  }
  if (given.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      given.size(),
      " slices of parameters that the maker was given are in no group of its "
      "optimizer; to leave parameters out, name the others in "
      "ShardedOptimizerOptions::groups"));
}

void ShardedOptimizer::MoveParameters() {
  const ::torch::NoGradGuard no_grad;
  for (const Bucket& bucket : ddp_.reducer().buckets()) {
    const auto& whole = wholes_[static_cast<size_t>(bucket.index)];
    for (const GradientSlot& slot : bucket.gradients) {
      Tensor& parameter = parameters_[static_cast<size_t>(slot.parameter)];
      parameter.set_data(View(whole->span().Slice(slot.offset, slot.count),
                              parameter.sizes(), whole));
    }
  }
}

absl::StatusOr<bool> ShardedOptimizer::Step() {
  return ddp_.StepBy([this] { return StepSlices(); });
}

absl::Status ShardedOptimizer::StepSlices() {
  if (ddp_.reducer().layout_version() != layout_version_) {
    return absl::InternalError(
        "the buckets were divided anew, and the optimizer's state is cut by "
        "those of before");
  }
  in_step_ = true;
  CountStep();
  const Reducer& reducer = ddp_.reducer();
  COXSWAIN_RETURN_IF_ERROR(
      offload_ != nullptr ? StepOffloaded() : Guarded("optimizer step", [&] {
        FollowOptions();
        for (const Bucket& bucket : reducer.buckets()) {
          GiveGradients(bucket.index, reducer.OwnSlice(bucket));
        }
        optimizer_->step();
        for (const Bucket& bucket : reducer.buckets()) {
          TakeGradients(bucket.index);
        }
      }));
  in_step_ = false;
  ++steps_;
  return Gather();
}

absl::Status ShardedOptimizer::StepOffloaded() {
  // The program has changed them.
  if (Versions() != versions_) COXSWAIN_RETURN_IF_ERROR(offload_->Fetch());
  COXSWAIN_RETURN_IF_ERROR(
      Guarded("optimizer step", [this] { FollowOptions(); }));
  const Reducer& reducer = ddp_.reducer();
  std::vector<Span> averages;
  for (const Bucket& bucket : reducer.buckets()) {
    averages.push_back(reducer.OwnSlice(bucket));
  }
  return offload_->Step(averages, [this](int bucket, const Span& gradient) {
    return Guarded("optimizer step", [&] {
      GiveGradients(bucket, gradient);
      optimizer_->step();
      TakeGradients(bucket);
    });
  });
}

std::vector<int64_t> ShardedOptimizer::Versions() const {
  std::vector<int64_t> versions;
  for (const Tensor& parameter : parameters_) {
    versions.push_back(static_cast<int64_t>(parameter._version()));
  }
  return versions;
}

void ShardedOptimizer::NoteVersions() {
  if (offload_ != nullptr) versions_ = Versions();
}

void ShardedOptimizer::CountStep() {
  const Reducer& reducer = ddp_.reducer();
  for (size_t i = 0; i < taken_.size(); ++i) {
    if (!grouped_[i]) continue;
    // One that was used before has a gradient of zeros.
    const bool used = !reducer.unused_everywhere(static_cast<int>(i)) ||
                      ddp_.plan().terms.sync_each_batch;
    if (used || taken_[i] > 0) ++taken_[i];
  }
}

absl::Span<ShardedOptimizer::Part> ShardedOptimizer::PartsOf(int bucket) {
  const auto index = static_cast<size_t>(bucket);
  return absl::MakeSpan(parts_).subspan(
      first_part_[index], first_part_[index + 1] - first_part_[index]);
}

void ShardedOptimizer::GiveGradients(int bucket, const Span& averages) {
  for (Part& part : PartsOf(bucket)) {
    if (taken_[static_cast<size_t>(part.place.parameter)] == 0) continue;
    part.value.mutable_grad() =
        View(averages.Slice(part.place.slice_begin, part.place.count),
             {part.place.count}, nullptr);
  }
}

void ShardedOptimizer::TakeGradients(int bucket) {
  for (Part& part : PartsOf(bucket)) part.value.mutable_grad() = Tensor();
}

void ShardedOptimizer::FollowOptions() {
  if (like_ == nullptr) return;
  for (size_t i = 0; i < optimizer_->param_groups().size(); ++i) {
    optimizer_->param_groups()[i].set_options(
        like_->param_groups()[i].options().clone());
  }
}

absl::Status ShardedOptimizer::Gather() {
  const std::vector<Bucket>& buckets = ddp_.reducer().buckets();
  std::vector<Span> spans;
  for (size_t i = 0; i < buckets.size(); ++i) {
    Span whole = wholes_[i]->span();
    whole.count = buckets[i].data.count;  // without padding
    spans.push_back(whole);
  }
  COXSWAIN_RETURN_IF_ERROR(ddp_.GatherSlices(spans));
  // For libtorch to notice a backward pass over values of before.
  for (const Tensor& parameter : parameters_) {
    parameter.unsafeGetTensorImpl()->bump_version();
  }
  NoteVersions();
  return absl::OkStatus();
}

// ---- pieces ----

absl::StatusOr<TensorPiece> ShardedOptimizer::PieceOf(
    const Part& part, const std::string& kind) const {
  const ParameterSpec& parameter =
      ddp_.reducer().parameters()[static_cast<size_t>(part.place.parameter)];
  TensorPiece piece = TensorPiece::Whole(parameter.name, kind, parameter.dtype,
                                         parameter.shape);
  piece.begin = part.place.parameter_begin;
  piece.end = piece.begin + part.place.count;
  piece.step = taken_[static_cast<size_t>(part.place.parameter)];
  COXSWAIN_RETURN_IF_ERROR(CheckPiece(piece));
  return piece;
}

absl::StatusOr<std::vector<KeptPiece>> ShardedOptimizer::Pieces() const {
  COXSWAIN_RETURN_IF_ERROR(CheckKnown(*optimizer_));
  if (in_step_) {
    return absl::FailedPreconditionError(
        "the optimizer's step was cut short by an error of its own, and some "
        "elements have taken it: make the wrapper and the optimizer anew, and "
        "load a state of before");
  }
  std::vector<KeptPiece> kept;
  for (const Part& part : parts_) {
    COXSWAIN_ASSIGN_OR_RETURN(TensorPiece value, PieceOf(part, kValue));
    COXSWAIN_ASSIGN_OR_RETURN(KeptPiece values,
                              Kept(std::move(value), part.value));
    kept.push_back(std::move(values));
    SliceState state;
    COXSWAIN_RETURN_IF_ERROR(Guarded("reading an optimizer's state", [&] {
      state = StateOf(*optimizer_, part.value);
    }));
    for (const auto& [kind, tensor] : state.tensors) {
      COXSWAIN_ASSIGN_OR_RETURN(TensorPiece piece, PieceOf(part, kind));
      COXSWAIN_ASSIGN_OR_RETURN(KeptPiece elements,
                                Kept(std::move(piece), tensor));
      kept.push_back(std::move(elements));
    }
  }
  return kept;
}

absl::Status ShardedOptimizer::Load(PieceReader& reader) {
  COXSWAIN_RETURN_IF_ERROR(CheckKnown(*optimizer_));
  const std::vector<ParameterSpec>& parameters = ddp_.reducer().parameters();
  for (size_t i = 0; i < parameters.size(); ++i) {
    if (parameters[i].count() == 0) continue;
    COXSWAIN_ASSIGN_OR_RETURN(const int64_t step,
                              reader.StepOf(parameters[i].name, kValue));
    if (grouped_[i]) taken_[i] = step;
  }
  std::vector<Landed> landed;
  for (const Part& part : parts_) {
    COXSWAIN_RETURN_IF_ERROR(LoadPart(reader, part, &landed));
  }
  COXSWAIN_RETURN_IF_ERROR(reader.Finish());
  COXSWAIN_RETURN_IF_ERROR(Guarded("copying to a GPU", [&] {
    const ::torch::NoGradGuard no_grad;
    for (Landed& one : landed) one.to.copy_(one.read);
  }));
  if (offload_ != nullptr) COXSWAIN_RETURN_IF_ERROR(offload_->Send());
  return Gather();
}

absl::Status ShardedOptimizer::LoadPart(PieceReader& reader, const Part& part,
                                        std::vector<Landed>* landed) {
  COXSWAIN_ASSIGN_OR_RETURN(const TensorPiece value, PieceOf(part, kValue));
  const auto read_to = [&](const TensorPiece& piece, const Tensor& to) {
    if (to.is_cpu()) return reader.Read(piece, ElementsOf(to));
    landed->push_back({to, Tensor()});
    COXSWAIN_RETURN_IF_ERROR(Guarded(
        "reading for a GPU", [&] { landed->back().read = OnHost(to); }));
    return reader.Read(piece, ElementsOf(landed->back().read));
  };
  COXSWAIN_RETURN_IF_ERROR(read_to(value, part.value));
  if (!grouped_[static_cast<size_t>(part.place.parameter)]) {
    return absl::OkStatus();
  }
  const auto read = [&](const std::string& kind,
                        const Tensor& to) -> absl::StatusOr<bool> {
    const absl::Status found = reader.StepOf(value.parameter, kind).status();
    if (absl::IsNotFound(found)) return false;
    COXSWAIN_RETURN_IF_ERROR(found);
    COXSWAIN_ASSIGN_OR_RETURN(const TensorPiece piece, PieceOf(part, kind));
    COXSWAIN_RETURN_IF_ERROR(read_to(piece, to));
    return true;
  };
  return WithPrefix(
      absl::StrCat("loading the state of \"", value.parameter, "\": "),
      SetState(*optimizer_, part.value, value.step, read));
}

}  // namespace coxswain::torch
