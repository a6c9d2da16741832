#include "client/reduce/hook_state.h"

#include <cstring>
#include <limits>
#include <memory>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/crc32c.h"
#include "base/status_macros.h"
#include "client/comm/communicator.h"
#include "client/comm/rank_values.h"
#include "client/comm/work.h"
#include "client/reduce/hook.h"

// The byte format: docs/hook-state-format.md. A change of it needs a new
// version number there and here.

namespace coxswain {
namespace {

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
              "the format is little-endian and written by copying");

constexpr absl::string_view kMagic = "CXHS";
constexpr uint32_t kVersion = 1;
constexpr size_t kMaxDimensions = 16;

template <typename T>
void PutNumber(T value, std::string& out) {
  out.append(reinterpret_cast<const char*>(&value), sizeof(value));
}

void PutText(absl::string_view text, std::string& out) {
  COXSWAIN_CHECK(text.size() <= std::numeric_limits<uint32_t>::max());
  PutNumber(static_cast<uint32_t>(text.size()), out);
  out.append(text.data(), text.size());
}

void PutTensor(const StateTensor& tensor, std::string& out) {
  PutText(tensor.kind, out);
  PutText(tensor.parameter, out);
  PutText(NameOf(tensor.dtype), out);
  PutNumber(static_cast<uint32_t>(tensor.shape.size()), out);
  for (const int64_t extent : tensor.shape) PutNumber(extent, out);
  PutNumber(static_cast<uint64_t>(tensor.data.size()), out);
  out.append(tensor.data);
}

absl::Status Damaged(absl::string_view what) {
  return absl::DataLossError(
      absl::StrCat("the bytes are not a whole hook state: ", what));
}

// Returns the product of the shape times the element's size; nullopt if that
// has a negative factor or overflows.
std::optional<uint64_t> BytesOf(const std::vector<int64_t>& shape,
                                DType dtype) {
  int64_t product = static_cast<int64_t>(SizeOf(dtype));
  for (const int64_t extent : shape) {
    if (extent < 0 || __builtin_mul_overflow(product, extent, &product)) {
      return std::nullopt;
    }
  }
  return static_cast<uint64_t>(product);
}

// Takes fields off the front of bytes that are not trusted. It allocates
// no more than there are bytes.
class Reader {
 public:
  explicit Reader(absl::string_view bytes) : rest_(bytes) {}

  template <typename T>
  absl::Status Number(T& value) {
    COXSWAIN_ASSIGN_OR_RETURN(const absl::string_view bytes, Take(sizeof(T)));
    std::memcpy(&value, bytes.data(), sizeof(T));
    return absl::OkStatus();
  }

  absl::Status Text(std::string& text) {
    uint32_t size = 0;
    COXSWAIN_RETURN_IF_ERROR(Number(size));
    COXSWAIN_ASSIGN_OR_RETURN(const absl::string_view bytes, Take(size));
    text.assign(bytes.data(), bytes.size());
    return absl::OkStatus();
  }

  absl::Status Tensor(StateTensor& tensor) {
    std::string dtype;
    COXSWAIN_RETURN_IF_ERROR(Text(tensor.kind));
    COXSWAIN_RETURN_IF_ERROR(Text(tensor.parameter));
    COXSWAIN_RETURN_IF_ERROR(Text(dtype));
    const std::optional<DType> known = DTypeFromName(dtype);
    if (!known.has_value()) return Damaged("a tensor's type is unknown");
    tensor.dtype = *known;
    COXSWAIN_RETURN_IF_ERROR(Shape(tensor.shape));
    uint64_t size = 0;
    COXSWAIN_RETURN_IF_ERROR(Number(size));
    if (BytesOf(tensor.shape, tensor.dtype) != size) {
      return Damaged("a tensor's size does not agree with its shape");
    }
    COXSWAIN_ASSIGN_OR_RETURN(const absl::string_view bytes, Take(size));
    tensor.data.assign(bytes.data(), bytes.size());
    return absl::OkStatus();
  }

  bool empty() const { return rest_.empty(); }

 private:
  absl::Status Shape(std::vector<int64_t>& shape) {
    uint32_t dimensions = 0;
    COXSWAIN_RETURN_IF_ERROR(Number(dimensions));
    if (dimensions > kMaxDimensions) {
      return Damaged("a tensor has too many dimensions");
    }
    shape.resize(dimensions);
    for (int64_t& extent : shape) COXSWAIN_RETURN_IF_ERROR(Number(extent));
    return absl::OkStatus();
  }

  absl::StatusOr<absl::string_view> Take(uint64_t size) {
    if (size > rest_.size()) return Damaged("it ends too early");
    const absl::string_view taken = rest_.substr(0, size);
    rest_.remove_prefix(size);
    return taken;
  }

  absl::string_view rest_;
};

// Checks the frame and returns what is inside.
absl::StatusOr<absl::string_view> Unwrap(absl::string_view bytes) {
  constexpr size_t kHead = 8;
  constexpr size_t kTail = sizeof(uint32_t);
  if (bytes.size() < kHead + kTail ||
      bytes.substr(0, kMagic.size()) != kMagic) {
    return Damaged("it does not begin like one");
  }
  uint32_t checksum = 0;
  std::memcpy(&checksum, bytes.data() + bytes.size() - kTail, kTail);
  bytes.remove_suffix(kTail);
  if (checksum != Crc32c(bytes)) return Damaged("its checksum is wrong");
  uint32_t version = 0;
  std::memcpy(&version, bytes.data() + kMagic.size(), sizeof(version));
  if (version != kVersion) {
    return Damaged(absl::StrCat("its format has version ", version,
                                ", this program knows version ", kVersion));
  }
  return bytes.substr(kHead);
}

absl::Status Apart(absl::string_view what, absl::string_view one,
                   absl::string_view other) {
  return absl::FailedPreconditionError(absl::StrCat(
      "these shards of a hook state do not belong together: ", what, " is '",
      one, "' in one and '", other, "' in another"));
}

absl::Status MergeOptions(std::map<std::string, std::string> options,
                          HookState& merged) {
  for (auto& [name, value] : options) {
    const auto [present, added] = merged.options.emplace(name, value);
    if (!added && present->second != value) {
      return Apart(name, present->second, value);
    }
  }
  return absl::OkStatus();
}

// What a rank offers in place of a size when it has failed.
constexpr int64_t kFailed = -1;

absl::Status CheckSizes(const std::vector<int64_t>& sizes, int64_t max_bytes) {
  int64_t total = 0;
  for (size_t rank = 0; rank < sizes.size(); ++rank) {
    if (sizes[rank] < 0) {
      return absl::FailedPreconditionError(absl::StrCat(
          "rank ", rank, " could not save its hook's state; see its log"));
    }
    // None of them is added that does not fit, so the sum does not overflow.
    if (sizes[rank] > max_bytes - total) {
      return absl::ResourceExhaustedError(absl::StrCat(
          "ranks 0 to ", rank, " of ", sizes.size(), " offer ", total, " + ",
          sizes[rank], " bytes of hook state, all of which each rank would ",
          "hold, and at most ", max_bytes, " fit this model: implement ",
          "SaveOwn and LoadOwn in the hook, with which each rank keeps its ",
          "own, or change hooks without the state"));
    }
    total += sizes[rank];
  }
  return absl::OkStatus();
}

// Copies rank's bytes to all.
absl::Status Share(int rank, const std::shared_ptr<std::string>& bytes,
                   Communicator& communicator, absl::Duration timeout) {
  Span span;
  span.data = bytes->data();
  span.count = static_cast<int64_t>(bytes->size());
  span.dtype = DType::kUInt8;
  return WaitHolding(communicator.Broadcast(span, rank), bytes, timeout);
}

}  // namespace

std::string SerializeHookState(const HookState& state) {
  std::string out(kMagic);
  PutNumber(kVersion, out);
  PutText(state.spec, out);
  PutNumber(state.step, out);
  PutNumber(static_cast<uint32_t>(state.options.size()), out);
  for (const auto& [name, value] : state.options) {
    PutText(name, out);
    PutText(value, out);
  }
  PutNumber(static_cast<uint32_t>(state.tensors.size()), out);
  for (const StateTensor& tensor : state.tensors) PutTensor(tensor, out);
  PutNumber(Crc32c(out), out);
  return out;
}

absl::StatusOr<HookState> ParseHookState(absl::string_view bytes) {
  COXSWAIN_ASSIGN_OR_RETURN(const absl::string_view body, Unwrap(bytes));
  Reader reader(body);
  HookState state;
  COXSWAIN_RETURN_IF_ERROR(reader.Text(state.spec));
  COXSWAIN_RETURN_IF_ERROR(reader.Number(state.step));
  uint32_t count = 0;
  COXSWAIN_RETURN_IF_ERROR(reader.Number(count));
  for (uint32_t i = 0; i < count; ++i) {
    std::string name;
    COXSWAIN_RETURN_IF_ERROR(reader.Text(name));
    COXSWAIN_RETURN_IF_ERROR(reader.Text(state.options[name]));
  }
  COXSWAIN_RETURN_IF_ERROR(reader.Number(count));
  for (uint32_t i = 0; i < count; ++i) {
    COXSWAIN_RETURN_IF_ERROR(reader.Tensor(state.tensors.emplace_back()));
  }
  if (!reader.empty()) return Damaged("there are bytes after its end");
  return state;
}

absl::StatusOr<HookState> MergeHookStates(std::vector<HookState> shards) {
  if (shards.empty()) {
    return absl::FailedPreconditionError("there is no shard of a hook state");
  }
  HookState merged;
  merged.spec = shards[0].spec;
  merged.step = shards[0].step;
  std::set<std::pair<std::string, std::string>> seen;
  for (HookState& shard : shards) {
    if (shard.spec != merged.spec) {
      return Apart("the hook", merged.spec, shard.spec);
    }
    if (shard.step != merged.step) {
      return Apart("the step", absl::StrCat(merged.step),
                   absl::StrCat(shard.step));
    }
    COXSWAIN_RETURN_IF_ERROR(MergeOptions(std::move(shard.options), merged));
    for (StateTensor& tensor : shard.tensors) {
      if (!seen.emplace(tensor.kind, tensor.parameter).second) {
        return absl::FailedPreconditionError(absl::StrCat(
            "two shards of a hook state have the tensor '", tensor.kind,
            "' of parameter '", tensor.parameter, "'"));
      }
      merged.tensors.push_back(std::move(tensor));
    }
  }
  return merged;
}

absl::StatusOr<HookState> GatherHookState(Hook& hook,
                                          Communicator& communicator,
                                          int64_t max_bytes,
                                          absl::Duration timeout) {
  absl::StatusOr<HookState> own = hook.SaveState(communicator);
  auto bytes = std::make_shared<std::string>(own.ok() ? SerializeHookState(*own)
                                                      : std::string());
  COXSWAIN_ASSIGN_OR_RETURN(
      const std::vector<int64_t> sizes,
      GatherValues(communicator,
                   {own.ok() ? static_cast<int64_t>(bytes->size()) : kFailed},
                   timeout));
  COXSWAIN_RETURN_IF_ERROR(own.status());
  COXSWAIN_RETURN_IF_ERROR(CheckSizes(sizes, max_bytes));
  std::vector<HookState> shards;
  for (int rank = 0; rank < communicator.size(); ++rank) {
    if (rank == communicator.rank()) {
      COXSWAIN_RETURN_IF_ERROR(
          Share(rank, std::exchange(bytes, nullptr), communicator, timeout));
      shards.push_back(*std::move(own));
      continue;
    }
    const auto theirs = std::make_shared<std::string>(
        static_cast<size_t>(sizes[static_cast<size_t>(rank)]), '\0');
    COXSWAIN_RETURN_IF_ERROR(Share(rank, theirs, communicator, timeout));
    COXSWAIN_ASSIGN_OR_RETURN(HookState shard, ParseHookState(*theirs));
    shards.push_back(std::move(shard));
  }
  return MergeHookStates(std::move(shards));
}

}  // namespace coxswain
