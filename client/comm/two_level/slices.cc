#include "client/comm/two_level/slices.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/status_macros.h"
#include "client/comm/two_level/half_floats.h"

namespace coxswain {
namespace {

int64_t Width(DType dtype) { return static_cast<int64_t>(SizeOf(dtype)); }

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

template <typename Function>
void Slices::ForEachRank(const Function& function) const {
  int number = 0;
  for (int place = 0; place < levels_.local->size(); ++place) {
    for (const int rank : levels_.hosts.bridge(place)) {
      function(rank, number++);
    }
  }
}

absl::Status Slices::Run(int64_t count, int64_t width, const Step& start,
                         const Step& finish) {
  absl::Status status = RunParts(count, width, start, finish);
  for (Part& part : parts_) {
    if (part.work != nullptr) {
      // It would wait for a host that is lost.
      levels_.abort(status);
      levels_.wait(part.work).IgnoreError();
    }
    part = Part();
  }
  return status;
}

absl::Status Slices::RunParts(int64_t count, int64_t width, const Step& start,
                              const Step& finish) {
  const int64_t most =
      std::max<int64_t>(kPieceBytes / width / levels_.flat->size(), 1);
  const auto end = [&](Part* part) -> absl::Status {
    if (part->work == nullptr) return absl::OkStatus();
    COXSWAIN_RETURN_IF_ERROR(levels_.wait(std::exchange(part->work, nullptr)));
    return finish(part);
  };
  size_t turn = 0;
  for (int64_t begin = 0; begin < count; begin += most, turn = 1 - turn) {
    Part& part = parts_[turn];
    part.turn = turn;
    part.begin = begin;
    part.count = std::min(most, count - begin);
    COXSWAIN_RETURN_IF_ERROR(start(&part));
    COXSWAIN_RETURN_IF_ERROR(end(&parts_[1 - turn]));
  }
  return end(&parts_[1 - turn]);
}

absl::Status Slices::ReduceScatter(const Span& input, const Span& output,
                                   ReduceOp op) {
  const bool wide = op == ReduceOp::kSum && IsHalfFloat(input.dtype);
  Communicator& across = bridge();
  const DType dtype = wide ? DType::kFloat32 : input.dtype;
  const auto start = [&](Part* part) -> absl::Status {
    const int64_t count = part->count;
    COXSWAIN_ASSIGN_OR_RETURN(
        const Span all,
        Memory(part->turn, levels_.flat->size() * count, dtype));
    ForEachRank([&](int rank, int number) {
      Copy(input.Slice(rank * output.count + part->begin, count),
           all.Slice(number * count, count));
    });
    const int64_t each = across.size() * count;
    const Span own = all.Slice(levels_.place() * each, each);
    COXSWAIN_RETURN_IF_ERROR(
        levels_.wait(levels_.local->ReduceScatter(all, own, op)));
    part->memory = own.Slice(across.rank() * count, count);
    part->work = across.ReduceScatter(own, part->memory, op);
    return absl::OkStatus();
  };
  const auto finish = [&](Part* part) {
    Copy(part->memory, output.Slice(part->begin, part->count));
    return absl::OkStatus();
  };
  return Run(output.count, Width(dtype), start, finish);
}

absl::Status Slices::AllGather(const Span& input, const Span& output) {
  const int64_t hosts = levels_.hosts.count();
  const auto start = [&](Part* part) -> absl::Status {
    COXSWAIN_ASSIGN_OR_RETURN(
        part->memory, Memory(part->turn, hosts * part->count, input.dtype));
    part->work =
        bridge().AllGather(input.Slice(part->begin, part->count), part->memory);
    return absl::OkStatus();
  };
  const auto finish = [&](Part* part) -> absl::Status {
    const int64_t count = part->count;
    COXSWAIN_ASSIGN_OR_RETURN(
        const Span all, Memory(2, levels_.flat->size() * count, input.dtype));
    COXSWAIN_RETURN_IF_ERROR(
        levels_.wait(levels_.local->AllGather(part->memory, all)));
    ForEachRank([&](int rank, int number) {
      Copy(all.Slice(number * count, count),
           output.Slice(rank * input.count + part->begin, count));
    });
    return absl::OkStatus();
  };
  return Run(input.count, Width(input.dtype), start, finish);
}

absl::StatusOr<Span> Slices::Memory(size_t index, int64_t count, DType dtype) {
  auto& memory = memory_[index];
  const int64_t bytes = count * Width(dtype);
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
