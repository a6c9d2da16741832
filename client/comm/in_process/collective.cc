#include "client/comm/in_process/collective.h"

#include <cstring>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/reduce_elements.h"
#include "base/status_macros.h"

namespace coxswain {
namespace {

using Parts = std::vector<const CollectivePart*>;

std::string Describe(const CollectivePart& part) {
  return absl::StrCat(NameOf(part.kind), " of ", part.input.count, " x ",
                      NameOf(part.input.dtype), " with root ", part.root,
                      " and reduction ", static_cast<int>(part.op));
}

absl::Status CheckEqual(const Parts& parts) {
  const std::string first = Describe(*parts[0]);
  for (size_t rank = 1; rank < parts.size(); ++rank) {
    const std::string other = Describe(*parts[rank]);
    if (other == first) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("the ranks started different collectives: rank 0 ", first,
                     ", rank ", rank, " ", other));
  }
  return absl::OkStatus();
}

// Reduces, in rank order, the `index`-th of `slices` slices of all inputs.
std::vector<char> ReduceSlice(const Parts& parts, int64_t slices,
                              int64_t index) {
  const int64_t count = parts[0]->input.count / slices;
  const Span first = parts[0]->input.Slice(index * count, count);
  std::vector<char> sum(static_cast<size_t>(first.bytes()));
  std::memcpy(sum.data(), first.data, sum.size());
  for (size_t rank = 1; rank < parts.size(); ++rank) {
    const Span next = parts[rank]->input.Slice(index * count, count);
    ReduceElements(next.dtype, parts[0]->op, sum.data(), sum.data(), next.data,
                   static_cast<size_t>(count));
  }
  return sum;
}

void AllReduce(const Parts& parts) {
  const std::vector<char> sum = ReduceSlice(parts, 1, 0);
  for (const auto* part : parts) {
    std::memcpy(part->input.data, sum.data(), sum.size());
  }
}

void Broadcast(const Parts& parts) {
  const auto root = static_cast<size_t>(parts[0]->root);
  const Span& from = parts[root]->input;
  for (size_t rank = 0; rank < parts.size(); ++rank) {
    if (rank == root) continue;
    std::memcpy(parts[rank]->input.data, from.data, from.bytes());
  }
}

void AllGather(const Parts& parts) {
  for (size_t from = 0; from < parts.size(); ++from) {
    const Span& input = parts[from]->input;
    for (const auto* part : parts) {
      const Span slice = part->output.Slice(
          static_cast<int64_t>(from) * input.count, input.count);
      std::memmove(slice.data, input.data, input.bytes());
    }
  }
}

void ReduceScatter(const Parts& parts) {
  const auto size = static_cast<int64_t>(parts.size());
  // All are computed before any is written: an output may be a part of its
  // input.
  std::vector<std::vector<char>> sums;
  for (int64_t rank = 0; rank < size; ++rank) {
    sums.push_back(ReduceSlice(parts, size, rank));
  }
  for (size_t rank = 0; rank < parts.size(); ++rank) {
    std::memcpy(parts[rank]->output.data, sums[rank].data(), sums[rank].size());
  }
}

void AllToAll(const Parts& parts) {
  const auto size = static_cast<int64_t>(parts.size());
  const int64_t count = parts[0]->input.count / size;
  for (int64_t from = 0; from < size; ++from) {
    for (int64_t to = 0; to < size; ++to) {
      const Span source = parts[from]->input.Slice(to * count, count);
      const Span target = parts[to]->output.Slice(from * count, count);
      std::memcpy(target.data, source.data, source.bytes());
    }
  }
}

}  // namespace

absl::string_view NameOf(CollectiveKind kind) {
  switch (kind) {
    case CollectiveKind::kAllReduce:
      return "all-reduce";
    case CollectiveKind::kBroadcast:
      return "broadcast";
    case CollectiveKind::kBarrier:
      return "barrier";
    case CollectiveKind::kAllGather:
      return "all-gather";
    case CollectiveKind::kReduceScatter:
      return "reduce-scatter";
    case CollectiveKind::kAllToAll:
      return "all-to-all";
  }
  return "unknown collective";
}

absl::Status ComputeCollective(const Parts& parts) {
  COXSWAIN_RETURN_IF_ERROR(CheckEqual(parts));
  switch (parts[0]->kind) {
    case CollectiveKind::kAllReduce:
      AllReduce(parts);
      break;
    case CollectiveKind::kBroadcast:
      Broadcast(parts);
      break;
    case CollectiveKind::kBarrier:
      break;
    case CollectiveKind::kAllGather:
      AllGather(parts);
      break;
    case CollectiveKind::kReduceScatter:
      ReduceScatter(parts);
      break;
    case CollectiveKind::kAllToAll:
      AllToAll(parts);
      break;
  }
  return absl::OkStatus();
}

}  // namespace coxswain
