#include "client/comm/two_level/slices.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/status_macros.h"
#include "client/comm/direct_limits.h"
#include "client/comm/two_level/half_floats.h"

namespace coxswain {
namespace {

int64_t Width(DType dtype) { return static_cast<int64_t>(SizeOf(dtype)); }

bool IsWide(DType dtype, ReduceOp op) {
  return op == ReduceOp::kSum && IsHalfFloat(dtype);
}

// Copies elements, of which one side may be widened half floats.
void Copy(const Span& from, const Span& to) {
  if (from.dtype == to.dtype) {
    std::memcpy(to.data, from.data, static_cast<size_t>(from.bytes()));
  } else if (IsHalfFloat(from.dtype)) {
    Widen(from, to);
  } else {
    Narrow(from, to);
  }
}

}  // namespace

Slices::Slices(const Levels* levels) : levels_(*levels) {
  for (int host = 0; host < levels_.hosts.count(); ++host) {
    const auto ranks = static_cast<int>(levels_.hosts.ranks(host).size());
    groups_ = std::max(groups_, ranks);
  }
}

bool Slices::Bridges(const CollectiveHeader& header) const {
  const Hosts& hosts = levels_.hosts;
  if (hosts.count() == 1 || groups_ == 1) return false;
  const int64_t ranks = levels_.flat->size();
  const bool reduces = header.kind == CollectiveKind::kReduceScatter;
  const bool wide = reduces && IsWide(header.dtype, header.op);
  const int64_t slots = int64_t{hosts.count() - 1} * groups_ * (wide ? 2 : 1);
  const int64_t bytes =
      header.count * Width(header.dtype) * (reduces ? 1 : ranks);
  // Of the flat communicator: a host sends each slice but one in it, however
  // many ranks it has. Half floats are not reduced so.
  const bool in_ring =
      (ranks > kDirectRanks || (ranks > 2 && bytes > kDirectBytes)) &&
      !(reduces && IsHalfFloat(header.dtype));
  if (in_ring) return slots <= ranks - 1;
  int64_t most = 0;
  for (int host = 0; host < hosts.count(); ++host) {
    const auto here = static_cast<int64_t>(hosts.ranks(host).size());
    most = std::max(most, here * (ranks - here));
  }
  return slots <= most;
}

template <typename Function>
void Slices::ForEachRank(const Part& part, const Function& function) const {
  for (int host = 0; host < levels_.hosts.count(); ++host) {
    int group = 0;
    for (const int rank : levels_.hosts.ranks(host)) {
      function(rank, SlotOf(part, group++, host));
    }
  }
}

absl::Status Slices::Run(int64_t count, DType dtype, const Step& start,
                         const Step& finish) {
  absl::Status status = RunParts(count, dtype, start, finish);
  for (Part& part : parts_) {
    // It would wait for a host that is lost.
    if (!part.works.empty()) levels_.abort(status);
    Await(&part).IgnoreError();
    part = Part();
  }
  return status;
}

absl::Status Slices::RunParts(int64_t count, DType dtype, const Step& start,
                              const Step& finish) {
  const int64_t slots = int64_t{groups_} * levels_.hosts.count();
  const int64_t most = std::max<int64_t>(kPieceBytes / Width(dtype) / slots, 1);
  const auto end = [&](Part* part) -> absl::Status {
    if (!std::exchange(part->begun, false)) return absl::OkStatus();
    COXSWAIN_RETURN_IF_ERROR(Await(part));
    return finish(part);
  };
  size_t turn = 0;
  for (int64_t begin = 0; begin < count; begin += most, turn = 1 - turn) {
    Part& part = parts_[turn];
    part.begun = true;
    part.turn = turn;
    part.begin = begin;
    part.count = std::min(most, count - begin);
    COXSWAIN_ASSIGN_OR_RETURN(part.memory, Memory(part, dtype));
    COXSWAIN_RETURN_IF_ERROR(start(&part));
    COXSWAIN_RETURN_IF_ERROR(end(&parts_[1 - turn]));
  }
  return end(&parts_[1 - turn]);
}

absl::Status Slices::Await(Part* part) {
  absl::Status status;
  for (const WorkPtr& work : std::exchange(part->works, {})) {
    const absl::Status ended = levels_.wait(work);
    if (!ended.ok() && status.ok()) {
      status = ended;
      // The other bridges lead to the same hosts.
      levels_.abort(status);
    }
  }
  return status;
}

// What is in empty slots is added up as well, and not looked at.
absl::Status Slices::ReduceScatter(const Span& input, const Span& output,
                                   ReduceOp op) {
  Communicator& local = *levels_.local;
  const auto start = [&](Part* part) -> absl::Status {
    ForEachRank(*part, [&](int rank, const Span& slot) {
      Copy(input.Slice(rank * output.count + part->begin, part->count), slot);
    });
    if (own_ends()) {
      COXSWAIN_RETURN_IF_ERROR(levels_.wait(local.ReduceScatter(
          part->memory, GroupOf(*part, levels_.place()), op)));
    } else if (ranks_here() > 1) {
      COXSWAIN_RETURN_IF_ERROR(levels_.wait(local.AllReduce(part->memory, op)));
    }
    for (int group = 0; group < groups_; ++group) {
      if (!IsEnd(group)) continue;
      part->works.push_back(Across(group).ReduceScatter(
          GroupOf(*part, group), SlotOf(*part, group, levels_.host()), op));
    }
    return absl::OkStatus();
  };
  const auto finish = [&](Part* part) -> absl::Status {
    for (int group = 0; group < ranks_here(); ++group) {
      if (EndOf(group) == group) continue;
      COXSWAIN_RETURN_IF_ERROR(levels_.wait(
          local.Broadcast(SlotOf(*part, group, levels_.host()), EndOf(group))));
    }
    Copy(SlotOf(*part, levels_.place(), levels_.host()),
         output.Slice(part->begin, part->count));
    return absl::OkStatus();
  };
  const DType dtype = IsWide(input.dtype, op) ? DType::kFloat32 : input.dtype;
  return Run(output.count, dtype, start, finish);
}

absl::Status Slices::AllGather(const Span& input, const Span& output) {
  Communicator& local = *levels_.local;
  const auto start = [&](Part* part) -> absl::Status {
    Copy(input.Slice(part->begin, part->count),
         SlotOf(*part, levels_.place(), levels_.host()));
    for (int group = 0; group < groups_; ++group) {
      const Span slot = SlotOf(*part, group, levels_.host());
      if (group < ranks_here() && EndOf(group) != group) {
        COXSWAIN_RETURN_IF_ERROR(levels_.wait(local.Broadcast(slot, group)));
      }
      if (!IsEnd(group)) continue;
      part->works.push_back(
          Across(group).AllGather(slot, GroupOf(*part, group)));
    }
    return absl::OkStatus();
  };
  const auto finish = [&](Part* part) -> absl::Status {
    if (own_ends()) {
      COXSWAIN_RETURN_IF_ERROR(levels_.wait(
          local.AllGather(GroupOf(*part, levels_.place()), part->memory)));
    } else if (ranks_here() > 1) {
      for (int group = 0; group < groups_; ++group) {
        COXSWAIN_RETURN_IF_ERROR(
            levels_.wait(local.Broadcast(GroupOf(*part, group), EndOf(group))));
      }
    }
    ForEachRank(*part, [&](int rank, const Span& slot) {
      Copy(slot, output.Slice(rank * input.count + part->begin, part->count));
    });
    return absl::OkStatus();
  };
  return Run(input.count, input.dtype, start, finish);
}

absl::StatusOr<Span> Slices::Memory(const Part& part, DType dtype) {
  const int64_t count = groups_ * levels_.hosts.count() * part.count;
  const int64_t bytes = count * Width(dtype);
  auto& memory = memory_[part.turn];
  if (memory == nullptr || memory->span().count < bytes) {
    COXSWAIN_ASSIGN_OR_RETURN(
        memory, levels_.local->AllocateBuffer(bytes, DType::kUInt8));
  }
  Span span = memory->span();
  span.count = count;
  span.dtype = dtype;
  return span;
}

}  // namespace coxswain
