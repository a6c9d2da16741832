#include "client/shard/offloaded_slices.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/logging.h"
#include "base/status_macros.h"
#include "base/status_prefix.h"

namespace coxswain {
namespace {

constexpr int64_t kAlignment = 64;

int64_t Aligned(int64_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

void CopyOnHost(void* to, const void* from, int64_t bytes) {
  std::memcpy(to, from, static_cast<size_t>(bytes));
}

}  // namespace

void OffloadedSlices::FreeHost::operator()(char* memory) const {
  ::operator delete (memory, std::align_val_t{kAlignment});
}

absl::StatusOr<std::unique_ptr<OffloadedSlices>> OffloadedSlices::Create(
    DeviceRuntime* runtime, std::vector<Span> places, const Options& options) {
  std::unique_ptr<OffloadedSlices> offloaded(
      new OffloadedSlices(runtime, std::move(places), options));
  COXSWAIN_RETURN_IF_ERROR(offloaded->Allocate());
  COXSWAIN_RETURN_IF_ERROR(offloaded->Fetch());
  return offloaded;
}

OffloadedSlices::OffloadedSlices(DeviceRuntime* runtime,
                                 std::vector<Span> places,
                                 const Options& options)
    : runtime_(*runtime), places_(std::move(places)), options_(options) {
  for (size_t i = 0; i < places_.size(); ++i) {
    if (places_[i].count == 0) continue;
    filled_.push_back(static_cast<int>(i));
    block_bytes_ = std::max(block_bytes_, places_[i].bytes());
  }
}

OffloadedSlices::~OffloadedSlices() {
  const absl::Status through = Quiesce();
  if (!through.ok()) {
    LogWarning("offload_not_through", {{"reason", through.message()}});
  }
  // What a stream may still read or write is freed by no one. A device that has
  // failed works on nothing any more.
  if (absl::IsDeadlineExceeded(through)) {
    for (Way* const way : {&down_, &up_}) {
      for (Block& block : way->blocks) {
        static_cast<void>(new (std::nothrow)
                              PinnedBuffer(std::move(block.memory)));
      }
    }
  }
  Close(&down_);
  Close(&up_);
  if (turn_ != nullptr) runtime_.DestroyEvent(turn_);
}

absl::Status OffloadedSlices::Allocate() {
  for (const Span& place : places_) host_bytes_ += Aligned(place.bytes());
  host_.reset(static_cast<char*>(
      ::operator new (static_cast<size_t>(std::max<int64_t>(host_bytes_, 1)),
                      std::align_val_t{kAlignment}, std::nothrow)));
  if (host_ == nullptr) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "offload: the host has no ", host_bytes_,
        " bytes for the values of this rank's slices; start fewer ranks on "
        "it, or leave offload out"));
  }
  char* next = host_.get();
  for (const Span& place : places_) {
    Span values = place;
    values.data = next;
    values.device = Device();
    values_.push_back(values);
    next += Aligned(place.bytes());
  }
  COXSWAIN_RETURN_IF_ERROR(Open(&down_));
  COXSWAIN_RETURN_IF_ERROR(Open(&up_));
  COXSWAIN_ASSIGN_OR_RETURN(turn_, runtime_.CreateEvent());
  return absl::OkStatus();
}

absl::Status OffloadedSlices::Open(Way* way) {
  COXSWAIN_ASSIGN_OR_RETURN(way->stream, runtime_.CreateStream());
  for (Block& block : way->blocks) {
    COXSWAIN_ASSIGN_OR_RETURN(block.copied, runtime_.CreateEvent());
    auto memory = PinnedBuffer::Make(&runtime_, block_bytes_);
    if (!memory.ok()) {
      return WithPrefix(
          absl::StrCat(
              "offload: one of 4 pinned blocks of ", block_bytes_,
              " bytes, the largest slice; smaller buckets need less: "),
          memory.status());
    }
    block.memory = *std::move(memory);
  }
  return absl::OkStatus();
}

void OffloadedSlices::Close(Way* way) {
  for (Block& block : way->blocks) {
    if (block.copied != nullptr) runtime_.DestroyEvent(block.copied);
  }
  if (way->stream != nullptr) runtime_.DestroyStream(way->stream);
}

absl::StatusOr<DeviceStream> OffloadedSlices::Caller() const {
  if (!options_.caller_stream) return DeviceStream();
  return options_.caller_stream();
}

absl::Status OffloadedSlices::Quiesce() {
  for (const Way* const way : {&down_, &up_}) {
    for (const Block& block : way->blocks) {
      if (block.copied == nullptr) continue;
      COXSWAIN_RETURN_IF_ERROR(
          AwaitEvent(&runtime_, block.copied, options_.timeout));
    }
  }
  return absl::OkStatus();
}

absl::Status OffloadedSlices::OfSlice(int slice,
                                      const absl::Status& status) const {
  if (status.ok()) return status;
  return WithPrefix(
      absl::StrCat("offload, slice ", slice, " of ", places_.size(), ": "),
      status);
}

absl::Status OffloadedSlices::Between(
    const std::function<absl::Status()>& work) {
  COXSWAIN_ASSIGN_OR_RETURN(const DeviceStream caller, Caller());
  COXSWAIN_RETURN_IF_ERROR(runtime_.Record(turn_, caller));
  COXSWAIN_RETURN_IF_ERROR(runtime_.StreamWait(down_.stream, turn_));
  COXSWAIN_RETURN_IF_ERROR(runtime_.StreamWait(up_.stream, turn_));
  absl::Status status = work();
  if (!status.ok()) {
    (void)Quiesce();
    return status;
  }
  // What came down has been waited for.
  COXSWAIN_RETURN_IF_ERROR(runtime_.Record(turn_, up_.stream));
  return runtime_.StreamWait(caller, turn_);
}

absl::Status OffloadedSlices::EnqueueDown(const Span& from, Block* block) {
  COXSWAIN_RETURN_IF_ERROR(runtime_.Copy(block->memory.data(), from.data,
                                         from.bytes(), down_.stream));
  return runtime_.Record(block->copied, down_.stream);
}

absl::Status OffloadedSlices::EnqueueUp(int slice, Block* block) {
  const Span& from = values(slice);
  COXSWAIN_RETURN_IF_ERROR(
      AwaitEvent(&runtime_, block->copied, options_.timeout));
  CopyOnHost(block->memory.data(), from.data, from.bytes());
  COXSWAIN_RETURN_IF_ERROR(
      runtime_.Copy(places_[static_cast<size_t>(slice)].data,
                    block->memory.data(), from.bytes(), up_.stream));
  return runtime_.Record(block->copied, up_.stream);
}

absl::Status OffloadedSlices::Down(const std::vector<Span>& from,
                                   const StepSlice& take) {
  // The first one before the loop, and each next one while its turn is not yet.
  for (size_t i = 0; i <= filled_.size(); ++i) {
    if (i < filled_.size()) {
      const int slice = filled_[i];
      COXSWAIN_RETURN_IF_ERROR(OfSlice(
          slice,
          EnqueueDown(from[static_cast<size_t>(slice)], Turn(&down_, i))));
    }
    if (i == 0) continue;
    const int slice = filled_[i - 1];
    const Block* const block = Turn(&down_, i - 1);
    COXSWAIN_RETURN_IF_ERROR(
        OfSlice(slice, AwaitEvent(&runtime_, block->copied, options_.timeout)));
    Span arrived = from[static_cast<size_t>(slice)];
    arrived.data = block->memory.data();
    arrived.device = Device();
    COXSWAIN_RETURN_IF_ERROR(OfSlice(slice, take(slice, arrived)));
  }
  return absl::OkStatus();
}

absl::Status OffloadedSlices::Fetch() {
  return Between([this] {
    return Down(places_, [this](int slice, const Span& arrived) {
      CopyOnHost(values(slice).data, arrived.data, arrived.bytes());
      return absl::OkStatus();
    });
  });
}

absl::Status OffloadedSlices::Send() {
  return Between([this]() -> absl::Status {
    for (size_t i = 0; i < filled_.size(); ++i) {
      COXSWAIN_RETURN_IF_ERROR(
          OfSlice(filled_[i], EnqueueUp(filled_[i], Turn(&up_, i))));
    }
    return absl::OkStatus();
  });
}

absl::Status OffloadedSlices::Step(const std::vector<Span>& gradients,
                                   const StepSlice& step) {
  bool alike = gradients.size() == places_.size();
  for (size_t i = 0; alike && i < places_.size(); ++i) {
    alike = gradients[i].count == places_[i].count &&
            gradients[i].dtype == places_[i].dtype &&
            gradients[i].device == places_[i].device;
  }
  if (!alike) {
    return absl::InvalidArgumentError(
        "offload: the gradients are not of the slices' sizes, types and "
        "device; hand over what Reducer::OwnSlice returns for each bucket");
  }
  size_t turn = 0;
  return Between([&] {
    return Down(gradients, [&](int slice, const Span& gradient) {
      const absl::Status stepped = step(slice, gradient);
      return stepped.ok() ? EnqueueUp(slice, Turn(&up_, turn++)) : stepped;
    });
  });
}

}  // namespace coxswain
