#include "hooks/averagers/mean.h"

#include <algorithm>
#include <cstdint>
#include <deque>
#include <memory>
#include <utility>

#include "absl/time/time.h"
#include "base/status_macros.h"
#include "hooks/kernels/elementwise.h"
#include "hooks/narrow.h"

namespace coxswain {
namespace {

// A bound on one all-reduce; the back end's own timeout comes first.
constexpr absl::Duration kTimeout = absl::Hours(1);
constexpr size_t kInFlight = 2;

// Values that travel together, one after the other.
struct Chunk {
  std::vector<Span> pieces;
  int64_t count = 0;
};

// Cuts the values whose type is float64, or those whose type is not, into
// chunks.
std::vector<Chunk> Cut(const std::vector<Span>& values, bool doubles) {
  std::vector<Chunk> chunks;
  for (const Span& value : values) {
    if ((value.dtype == DType::kFloat64) != doubles) continue;
    for (int64_t at = 0; at < value.count;) {
      if (chunks.empty() || chunks.back().count == kMeanChunk) {
        chunks.emplace_back();
      }
      Chunk& chunk = chunks.back();
      const int64_t count =
          std::min(value.count - at, kMeanChunk - chunk.count);
      chunk.pieces.push_back(value.Slice(at, count));
      chunk.count += count;
      at += count;
    }
  }
  return chunks;
}

// Sends chunks in T and takes the means.
template <typename T>
class MeanExchange {
 public:
  MeanExchange(Communicator& communicator, ScratchPool& scratch)
      : communicator_(communicator), scratch_(scratch) {}

  absl::Status Run(std::vector<Chunk> chunks) {
    for (Chunk& chunk : chunks) {
      if (flights_.size() == kInFlight) COXSWAIN_RETURN_IF_ERROR(Land());
      Start(std::move(chunk));
    }
    while (!flights_.empty()) COXSWAIN_RETURN_IF_ERROR(Land());
    return absl::OkStatus();
  }

 private:
  struct Flight {
    Chunk chunk;
    std::shared_ptr<T> memory;
    WorkPtr work;
  };

  void Start(Chunk chunk) {
    auto memory = scratch_.Take<T>(static_cast<size_t>(chunk.count));
    T* to = memory.get();
    for (const Span& piece : chunk.pieces) {
      ReadSpan(piece, to);
      to += piece.count;
    }
    Divide(memory.get(), chunk.count, static_cast<T>(communicator_.size()));
    Span span;
    span.data = memory.get();
    span.count = chunk.count;
    span.dtype = kDTypeOf<T>;
    WorkPtr work = communicator_.AllReduce(span);
    // The memory outlives the collective even if the wait gives up.
    work->OnDone([memory](const absl::Status&) {});
    flights_.push_back({std::move(chunk), std::move(memory), std::move(work)});
  }

  absl::Status Land() {
    const Flight flight = std::move(flights_.front());
    flights_.pop_front();
    COXSWAIN_RETURN_IF_ERROR(flight.work->Wait(kTimeout));
    const T* from = flight.memory.get();
    for (const Span& piece : flight.chunk.pieces) {
      WriteSpan(from, piece);
      from += piece.count;
    }
    return absl::OkStatus();
  }

  Communicator& communicator_;
  ScratchPool& scratch_;
  std::deque<Flight> flights_;
};

}  // namespace

absl::Status AverageOver(Communicator& communicator,
                         const std::vector<Span>& values,
                         ScratchPool& scratch) {
  if (communicator.size() == 1) return absl::OkStatus();
  COXSWAIN_RETURN_IF_ERROR(MeanExchange<float>(communicator, scratch)
                               .Run(Cut(values, /*doubles=*/false)));
  return MeanExchange<double>(communicator, scratch)
      .Run(Cut(values, /*doubles=*/true));
}

}  // namespace coxswain
