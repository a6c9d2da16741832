#include "client/comm/in_process/collective.h"

#include <cstring>

#include "base/reduce_elements.h"
#include "base/status_macros.h"

namespace coxswain {
namespace {

using Parts = std::vector<const CollectivePart*>;

absl::Status CompareParts(const Parts& parts) {
  std::vector<RankHeader> headers;
  for (const auto* part : parts) {
    headers.push_back({static_cast<int>(headers.size()), part->header});
  }
  return CompareHeaders("a group in one process", headers);
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
    ReduceElements(next.dtype, parts[0]->header.op, sum.data(), sum.data(),
                   next.data, static_cast<size_t>(count));
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
  const auto root = static_cast<size_t>(parts[0]->header.root);
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

absl::Status ComputeCollective(const Parts& parts) {
  COXSWAIN_RETURN_IF_ERROR(CompareParts(parts));
  if (parts[0]->input.data == nullptr) return absl::OkStatus();
  switch (parts[0]->header.kind) {
    case CollectiveKind::kAllReduce:
      AllReduce(parts);
      break;
    case CollectiveKind::kBroadcast:
      Broadcast(parts);
      break;
    case CollectiveKind::kBarrier:
    case CollectiveKind::kMessage:
    case CollectiveKind::kMean:
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
