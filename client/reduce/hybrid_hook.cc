#include "client/reduce/hybrid_hook.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/logging.h"
#include "base/status_macros.h"
#include "base/status_prefix.h"
#include "client/reduce/bucket_slices.h"
#include "client/reduce/gradient_statistics.h"

namespace coxswain {
namespace {

// Options of a state: what is under kPrefix, the slice's number and a "/" is of
// that slice.
constexpr char kPrefix[] = "hybrid/";
constexpr char kShards[] = "hybrid/shards";
constexpr char kPieces[] = "pieces";
constexpr char kOption[] = "option/";

std::string SliceKey(int slice, absl::string_view name) {
  return absl::StrCat(kPrefix, slice, "/", name);
}

void AddPiece(const ParameterSpec& parameter, int64_t begin, int64_t end,
              std::vector<int64_t> shape, std::vector<HookPiece>* pieces) {
  if (begin == end) return;
  HookPiece piece;
  piece.parameter = parameter.name;
  piece.begin = begin;
  piece.end = end;
  piece.spec = parameter;
  piece.spec.strides.clear();
  piece.spec.shape = std::move(shape);
  if (end - begin < parameter.count()) {
    absl::StrAppend(&piece.spec.name, "[", begin, ":", end, "]");
  }
  pieces->push_back(std::move(piece));
}

// Elements [begin, end) of a parameter.
void CutParameter(const ParameterSpec& parameter, int64_t begin, int64_t end,
                  std::vector<HookPiece>* pieces) {
  const int64_t count = parameter.count();
  if (end - begin == count) {
    return AddPiece(parameter, begin, end, parameter.shape, pieces);
  }
  int64_t first = end;  // of the whole rows
  int64_t last = end;
  std::vector<int64_t> rows = parameter.shape;
  if (parameter.shape.size() >= 2) {
    const int64_t width = count / parameter.shape[0];
    first = (begin + width - 1) / width * width;
    last = end / width * width;
    rows[0] = (last - first) / width;
  }
  if (first >= last) {
    return AddPiece(parameter, begin, end, {end - begin}, pieces);
  }
  AddPiece(parameter, begin, first, {first - begin}, pieces);
  AddPiece(parameter, first, last, std::move(rows), pieces);
  AddPiece(parameter, last, end, {end - last}, pieces);
}

// The bucket of the inner hook that stands for these pieces, which it has from
// number `first` on.
Bucket BucketOf(const Bucket& bucket, const std::vector<HookPiece>& pieces,
                int first) {
  Bucket cut;
  cut.index = bucket.index;
  cut.last = bucket.last;
  cut.data.dtype = bucket.data.dtype;
  cut.data.device = bucket.data.device;
  for (const HookPiece& piece : pieces) {
    GradientSlot slot;
    slot.parameter = first + static_cast<int>(cut.gradients.size());
    slot.offset = cut.data.count;
    slot.count = piece.end - piece.begin;
    cut.data.count += slot.count;
    cut.gradients.push_back(slot);
  }
  return cut;
}

// A bucket has a gradient, also where this rank has none of its elements.
HookPiece NothingOf(const std::vector<ParameterSpec>& parameters,
                    const Bucket& bucket) {
  const int number = bucket.gradients[0].parameter;
  HookPiece piece;
  piece.spec = parameters[static_cast<size_t>(number)];
  piece.parameter = piece.spec.name;
  absl::StrAppend(&piece.spec.name, "[0:0]");
  piece.spec.shape = {0};
  piece.spec.strides.clear();
  return piece;
}

// First a reduce-scatter, exact; then the inner hook's exchange of the slice.
class HybridExchange : public Exchange {
 public:
  HybridExchange(Hook* inner, const Bucket& bucket, const BucketSlices& slices,
                 Bucket cut, Communicator* shard, Communicator* replicas)
      : inner_(*inner),
        whole_(bucket.data),
        slices_(slices),
        cut_(std::move(cut)),
        shard_(*shard),
        replicas_(*replicas) {
    cut_.data.data = slices.Slice(whole_, shard_.rank()).data;
  }

  absl::StatusOr<WorkPtr> Advance() override {
    if (!std::exchange(begun_, true)) {
      // Before the sum, which may be more than 16 bits hold.
      if (shard_.size() > 1) Scale(whole_, 1.0 / shard_.size());
      return shard_.ReduceScatter(slices_.Padded(whole_),
                                  slices_.PaddedSlice(whole_, shard_.rank()));
    }
    if (exchange_ == nullptr) {
      COXSWAIN_ASSIGN_OR_RETURN(exchange_, inner_.Prepare(cut_, replicas_));
    }
    return exchange_->Advance();
  }

 private:
  Hook& inner_;
  const Span whole_;
  const BucketSlices slices_;
  Bucket cut_;
  Communicator& shard_;
  Communicator& replicas_;
  bool begun_ = false;
  std::unique_ptr<Exchange> exchange_;
};

}  // namespace

std::vector<HookPiece> CutForHook(const std::vector<ParameterSpec>& parameters,
                                  const Bucket& bucket, int64_t begin,
                                  int64_t end) {
  std::vector<HookPiece> pieces;
  for (const GradientSlot& slot : bucket.gradients) {
    const int64_t from = std::max(begin, slot.offset);
    const int64_t to = std::min(end, slot.offset + slot.count);
    if (from >= to) continue;
    CutParameter(parameters[static_cast<size_t>(slot.parameter)],
                 from - slot.offset, to - slot.offset, &pieces);
  }
  return pieces;
}

HybridSlice HybridSliceOf(const HookState& state) {
  const auto shards = state.options.find(kShards);
  HybridSlice own;
  int slices = 0;
  if (shards == state.options.end() ||
      !absl::SimpleAtoi(shards->second, &slices)) {
    return own;
  }
  for (const auto& [name, value] : state.options) {
    absl::string_view rest = name;
    int slice = 0;
    if (!absl::ConsumePrefix(&rest, kPrefix) ||
        !absl::ConsumeSuffix(&rest, absl::StrCat("/", kPieces)) ||
        !absl::SimpleAtoi(rest, &slice) || slice < 0 || slice >= slices) {
      continue;
    }
    if (own.slices > 0) return HybridSlice();
    own = {slice, slices};
  }
  return own;
}

std::string OptionKeyIn(const HookState& state, absl::string_view option) {
  const HybridSlice own = HybridSliceOf(state);
  if (own.slices == 0) return std::string(option);
  return SliceKey(own.slice, absl::StrCat(kOption, option));
}

HybridHook::HybridHook(Hook* inner, Communicator* shard, Communicator* replicas)
    : inner_(*inner),
      place_{shard->rank(), shard->size(), replicas->rank(), replicas->size()},
      shard_(shard),
      replicas_(replicas) {}

HybridHook::HybridHook(std::unique_ptr<Hook> inner, const Place& place,
                       std::vector<Bucket> buckets)
    : owned_(std::move(inner)),
      inner_(*owned_),
      place_(place),
      buckets_(std::move(buckets)) {}

HybridHook::Copier HybridHook::MakeCopier() const {
  return [place = place_, buckets = buckets_](std::unique_ptr<Hook> inner) {
    return std::unique_ptr<Hook>(
        new HybridHook(std::move(inner), place, buckets));
  };
}

absl::Status HybridHook::Configure(const std::vector<ParameterSpec>& parameters,
                                   int /*world_size*/) {
  std::vector<Bucket> cut;
  std::vector<ParameterSpec> specs;
  std::vector<std::string> names;
  std::string lines;
  for (const Bucket& bucket : buckets_) {
    const auto slices = BucketSlices::Of(bucket.data, place_.slices);
    const int64_t begin = slices.begin(bucket.data.count, place_.slice);
    const int64_t count = slices.count(bucket.data.count, place_.slice);
    std::vector<HookPiece> pieces =
        CutForHook(parameters, bucket, begin, begin + count);
    if (pieces.empty()) pieces.push_back(NothingOf(parameters, bucket));
    cut.push_back(BucketOf(bucket, pieces, static_cast<int>(specs.size())));
    for (HookPiece& piece : pieces) {
      absl::StrAppend(&lines, piece.begin, " ", piece.end, " ", piece.parameter,
                      "\n");
      names.push_back(piece.spec.name);
      specs.push_back(std::move(piece.spec));
    }
  }
  COXSWAIN_RETURN_IF_ERROR(WithPrefix(
      "of this rank's slices: ", inner_.Configure(specs, place_.replicas)));
  cut_ = std::move(cut);
  names_ = std::move(names);
  pieces_ = std::move(lines);
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Exchange>> HybridHook::Prepare(
    const Bucket& bucket, Communicator&) {
  return absl::InternalError(
      absl::StrCat("bucket ", bucket.index,
                   " is to be exchanged as a whole, and hybrid sharding "
                   "exchanges slices"));
}

absl::StatusOr<std::unique_ptr<Exchange>> HybridHook::PrepareSlice(
    const Bucket& bucket, const BucketSlices& slices,
    Communicator& communicator) {
  const auto index = static_cast<size_t>(bucket.index);
  const int64_t count = slices.count(bucket.data.count, place_.slice);
  if (&communicator != shard_ || index >= cut_.size() ||
      cut_[index].data.count != count) {
    return absl::InternalError(
        absl::StrCat("bucket ", bucket.index, " with a slice of ", count,
                     " elements is none of the ", cut_.size(),
                     " that hybrid sharding was configured with"));
  }
  return std::make_unique<HybridExchange>(&inner_, bucket, slices, cut_[index],
                                          shard_, replicas_);
}

// ---- state ----

HookState HybridHook::Pack(HookState inner, bool describes) const {
  const int slice = place_.slice;
  std::map<std::string, std::string> options;
  for (auto& [name, value] : inner.options) {
    options[SliceKey(slice, absl::StrCat(kOption, name))] = std::move(value);
  }
  if (describes) {
    options[kShards] = absl::StrCat(place_.slices);
    options[SliceKey(slice, kPieces)] = pieces_;
  }
  inner.options = std::move(options);
  return inner;
}

bool HybridHook::Unpack(const HookState& state, HookState* own) const {
  const int slice = place_.slice;
  const auto shards = state.options.find(kShards);
  const auto pieces = state.options.find(SliceKey(slice, kPieces));
  if (shards == state.options.end() || pieces == state.options.end() ||
      shards->second != absl::StrCat(place_.slices) ||
      pieces->second != pieces_) {
    return false;
  }
  own->spec = state.spec;
  own->step = state.step;
  const std::string prefix = SliceKey(slice, kOption);
  for (const auto& [name, value] : state.options) {
    absl::string_view option = name;
    if (!absl::ConsumePrefix(&option, prefix)) continue;
    own->options[std::string(option)] = value;
  }
  const std::set<std::string> names(names_.begin(), names_.end());
  for (const StateTensor& tensor : state.tensors) {
    if (names.count(tensor.parameter) > 0) own->tensors.push_back(tensor);
  }
  return true;
}

absl::StatusOr<HookState> HybridHook::SaveOwn() const {
  COXSWAIN_ASSIGN_OR_RETURN(HookState inner, inner_.SaveOwn());
  return Pack(std::move(inner), /*describes=*/true);
}

absl::Status HybridHook::LoadOwn(const HookState& state, double error_scale) {
  HookState own;
  if (Unpack(state, &own)) return inner_.LoadOwn(own, error_scale);
  return absl::FailedPreconditionError(absl::StrCat(
      "the hook's state is of a rank with other slices; rank ", place_.slice,
      " of ", place_.slices,
      " in its shard group takes that of a rank in the same place, or the "
      "state of all"));
}

absl::StatusOr<HookState> HybridHook::SaveState(Communicator& all) {
  if (replicas_ != nullptr) return SaveAmong(*replicas_);
  std::vector<int> ranks;
  for (int replica = 0; replica < place_.replicas; ++replica) {
    ranks.push_back(replica * place_.slices + place_.slice);
  }
  COXSWAIN_ASSIGN_OR_RETURN(const std::unique_ptr<Communicator> replicas,
                            all.Split(ranks));
  return SaveAmong(*replicas);
}

absl::StatusOr<HookState> HybridHook::SaveAmong(Communicator& replicas) {
  COXSWAIN_ASSIGN_OR_RETURN(HookState inner, inner_.SaveState(replicas));
  return Pack(std::move(inner), /*describes=*/place_.replica == 0);
}

absl::Status HybridHook::LoadState(const HookState& state, int, int) {
  HookState own;
  if (!Unpack(state, &own)) {
    // As a hook that has just been configured, but for the step.
    COXSWAIN_ASSIGN_OR_RETURN(own, inner_.SaveOwn());
    own.spec = state.spec;
    own.step = state.step;
    own.tensors.clear();
    if (!state.tensors.empty() && place_.slice == 0 && place_.replica == 0) {
      const auto shards = state.options.find(kShards);
      LogWarning("hybrid_errors_reset",
                 {{"hook", inner_.spec()},
                  {"saved_shards",
                   shards == state.options.end() ? "1" : shards->second},
                  {"shards", place_.slices},
                  {"effect",
                   "the slices are others than those that saved it: what had "
                   "not been sent is lost, once"}});
    }
  }
  return inner_.LoadState(own, place_.replica, place_.replicas);
}

}  // namespace coxswain
