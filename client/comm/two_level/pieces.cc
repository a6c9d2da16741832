#include "client/comm/two_level/pieces.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/status_macros.h"
#include "client/comm/two_level/half_floats.h"
#include "client/comm/two_level/quotients.h"

namespace coxswain {
namespace {

// Less is not worth another bridge where hosts differ.
constexpr int64_t kBridgeBytes = 256 << 10;

}  // namespace

absl::Status Pieces::AllReduce(const Span& span, ReduceOp op) {
  Task task;
  task.reduces = true;
  task.op = op;
  return Run(span, task);
}

absl::Status Pieces::AllReduceMean(const std::vector<Span>& parts,
                                   const Span& all) {
  const Runs runs(parts);
  Task task;
  task.reduces = true;
  task.divisor = levels_.flat->size();
  if (parts.size() > 1) task.runs = &runs;
  return Run(all, task);
}

absl::Status Pieces::Broadcast(const Span& span, int root) {
  Task task;
  task.root = root;
  return Run(span, task);
}

absl::Status Pieces::Run(const Span& span, const Task& task) {
  absl::Status status = RunPieces(span, task);
  for (Piece* piece : {&forming_, &crossing_, &returning_}) {
    // It would wait for a host that is lost.
    if (!piece->works.empty()) levels_.abort(status);
    Await(piece).IgnoreError();
    *piece = Piece();
  }
  return status;
}

// The order of operations on each part is the same on all its ranks.
absl::Status Pieces::RunPieces(const Span& span, const Task& task) {
  int64_t begin = 0;
  for (int64_t number = 0; begin < span.count || crossing_.span.count > 0 ||
                           returning_.span.count > 0;
       ++number) {
    if (begin < span.count) {
      COXSWAIN_ASSIGN_OR_RETURN(forming_, Cut(span, task, begin, number));
      begin += forming_.span.count;
      COXSWAIN_RETURN_IF_ERROR(Form(task, forming_));
    }
    COXSWAIN_RETURN_IF_ERROR(Await(&crossing_));
    Cross(task, &forming_);
    Return(&crossing_);
    COXSWAIN_RETURN_IF_ERROR(Finish(task, &returning_));
    returning_ = std::exchange(crossing_, std::exchange(forming_, Piece()));
    // What does not return is spread at once, also by ranks without a bridge.
    if (!returning_.returns) {
      COXSWAIN_RETURN_IF_ERROR(Finish(task, &returning_));
    }
  }
  return absl::OkStatus();
}

// All pieces but the last have slices of equal size, and these such shares; the
// last is what is left, for one bridge.
absl::StatusOr<Pieces::Piece> Pieces::Cut(const Span& span, const Task& task,
                                          int64_t begin, int64_t number) {
  Piece piece;
  piece.wide =
      task.reduces && task.op == ReduceOp::kSum && IsHalfFloat(span.dtype);
  piece.bridges = BridgesFor(span);
  const int64_t width =
      piece.wide ? 4 : static_cast<int64_t>(SizeOf(span.dtype));
  const int64_t shares = piece.wide ? levels_.hosts.count() : 1;
  const int64_t unit = piece.bridges * shares;
  const int64_t most = std::max<int64_t>(kPieceBytes / width / unit, 1) * unit;
  const int64_t left = span.count - begin;
  int64_t count = std::min(most, left / unit * unit);
  piece.returns = piece.wide && count > 0;
  if (count == 0) {
    count = left;
    piece.bridges = 1;
  }
  piece.begin = begin;
  if (task.runs == nullptr) {
    piece.span = span.Slice(begin, count);
  } else {
    COXSWAIN_ASSIGN_OR_RETURN(piece.span,
                              Memory(&collected_, number, count, span.dtype));
  }
  piece.sum = piece.span;
  if (piece.wide) {
    COXSWAIN_ASSIGN_OR_RETURN(piece.sum,
                              Memory(&wide_, number, count, DType::kFloat32));
  }
  return piece;
}

int Pieces::BridgesFor(const Span& span) const {
  const auto all = static_cast<int64_t>(levels_.bridges.size());
  return static_cast<int>(
      levels_.even()
          ? all
          : std::clamp<int64_t>(span.bytes() / kBridgeBytes, 1, all));
}

template <size_t kTurns>
absl::StatusOr<Span> Pieces::Memory(
    std::array<std::unique_ptr<BufferOwner>, kTurns>* buffers, int64_t number,
    int64_t count, DType dtype) const {
  auto& memory = (*buffers)[static_cast<size_t>(number) % kTurns];
  const int64_t bytes = count * static_cast<int64_t>(SizeOf(dtype));
  if (memory == nullptr || memory->span().count < bytes) {
    // Later pieces are not larger than the first.
    COXSWAIN_ASSIGN_OR_RETURN(
        memory, levels_.local->AllocateBuffer(bytes, DType::kUInt8));
  }
  Span span = memory->span();
  span.count = count;
  span.dtype = dtype;
  return span;
}

void Pieces::Collect(const Task& task, const Piece& piece) {
  if (task.runs == nullptr) {
    return DivideInto(piece.span, task.divisor, piece.span);
  }
  const auto width = static_cast<int64_t>(SizeOf(piece.span.dtype));
  task.runs->ForEach(piece.begin * width, piece.span.bytes(),
                     [&](const MemoryRun& run, int64_t at) {
                       const int64_t count = run.bytes / width;
                       DivideInto({run.data, count, piece.span.dtype, {}},
                                  task.divisor,
                                  piece.span.Slice(at / width, count));
                     });
}

void Pieces::Scatter(const Task& task, const Piece& piece) {
  if (task.runs == nullptr) return;
  const char* const from = static_cast<const char*>(piece.span.data);
  task.runs->ForEach(
      piece.begin * static_cast<int64_t>(SizeOf(piece.span.dtype)),
      piece.span.bytes(), [&](const MemoryRun& run, int64_t at) {
        std::memcpy(run.data, from + at, static_cast<size_t>(run.bytes));
      });
}

absl::Status Pieces::Form(const Task& task, const Piece& piece) {
  if (task.divisor > 1) Collect(task, piece);
  if (piece.wide) Widen(piece.span, piece.sum);
  if (ranks_here() == 1) return absl::OkStatus();
  if (!task.reduces) {
    const Hosts& hosts = levels_.hosts;
    if (hosts.host_of(task.root) != levels_.host()) return absl::OkStatus();
    return levels_.wait(
        levels_.local->Broadcast(piece.span, hosts.local_rank(task.root)));
  }
  if (piece.bridges != ranks_here()) {
    return levels_.wait(levels_.local->AllReduce(piece.sum, task.op));
  }
  return levels_.wait(levels_.local->ReduceScatter(
      piece.sum, SliceOf(piece.sum, piece, levels_.place()), task.op));
}

void Pieces::Cross(const Task& task, Piece* piece) {
  if (piece->span.count == 0) return;
  for (int bridge = 0; bridge < piece->bridges; ++bridge) {
    if (!IsEnd(bridge)) continue;
    Communicator& across = *levels_.bridges[static_cast<size_t>(bridge)];
    const Span slice = SliceOf(piece->sum, *piece, bridge);
    if (!task.reduces) {
      const int from = levels_.hosts.host_of(task.root);
      piece->works.push_back(across.Broadcast(slice, from));
    } else if (piece->returns) {
      piece->works.push_back(
          across.ReduceScatter(slice, ShareOf(slice), task.op));
    } else {
      piece->works.push_back(across.AllReduce(slice, task.op));
    }
  }
}

void Pieces::Return(Piece* piece) {
  if (!piece->wide) return;
  for (int bridge = 0; bridge < piece->bridges; ++bridge) {
    if (!IsEnd(bridge)) continue;
    const Span sum = SliceOf(piece->sum, *piece, bridge);
    const Span result = SliceOf(piece->span, *piece, bridge);
    if (!piece->returns) {
      Narrow(sum, result);
      continue;
    }
    Narrow(ShareOf(sum), ShareOf(result));
    Communicator& across = *levels_.bridges[static_cast<size_t>(bridge)];
    piece->works.push_back(across.AllGather(ShareOf(result), result));
  }
}

absl::Status Pieces::Await(Piece* piece) {
  absl::Status status;
  for (const WorkPtr& work : std::exchange(piece->works, {})) {
    const absl::Status ended = levels_.wait(work);
    if (!ended.ok() && status.ok()) {
      status = ended;
      // The other bridges lead to the same hosts.
      levels_.abort(status);
    }
  }
  return status;
}

absl::Status Pieces::Finish(const Task& task, Piece* piece) {
  COXSWAIN_RETURN_IF_ERROR(Await(piece));
  const Piece done = std::exchange(*piece, Piece());
  if (done.span.count == 0) return absl::OkStatus();
  COXSWAIN_RETURN_IF_ERROR(Spread(task, done));
  Scatter(task, done);
  return absl::OkStatus();
}

absl::Status Pieces::Spread(const Task& task, const Piece& done) {
  const bool is_there =
      !task.reduces && levels_.hosts.host_of(task.root) == levels_.host();
  if (ranks_here() == 1 || is_there) return absl::OkStatus();
  if (done.bridges == ranks_here()) {
    return levels_.wait(levels_.local->AllGather(
        SliceOf(done.span, done, levels_.place()), done.span));
  }
  for (int bridge = 0; bridge < done.bridges; ++bridge) {
    COXSWAIN_RETURN_IF_ERROR(levels_.wait(levels_.local->Broadcast(
        SliceOf(done.span, done, bridge),
        levels_.hosts.bridge_end(bridge, levels_.host()))));
  }
  return absl::OkStatus();
}

}  // namespace coxswain
