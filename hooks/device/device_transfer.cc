#include "hooks/device/device_transfer.h"

#include <utility>

#include "base/status_macros.h"
#include "client/device/await_event.h"

namespace coxswain {

absl::StatusOr<std::unique_ptr<DeviceTransfer>> DeviceTransfer::Make(
    DeviceRuntime& runtime) {
  std::unique_ptr<DeviceTransfer> transfer(new DeviceTransfer(runtime));
  COXSWAIN_ASSIGN_OR_RETURN(transfer->stream_, runtime.CreateStream());
  COXSWAIN_ASSIGN_OR_RETURN(transfer->copied_, runtime.CreateEvent());
  return transfer;
}

DeviceTransfer::~DeviceTransfer() {
  if (copied_ != nullptr) runtime_.DestroyEvent(copied_);
  if (stream_ != nullptr) runtime_.DestroyStream(stream_);
}

absl::StatusOr<PinnedBuffer> DeviceTransfer::Fetch(const void* from,
                                                   int64_t bytes,
                                                   DeviceEvent after) {
  // Before a copy that may take for ever if it is given up.
  COXSWAIN_RETURN_IF_ERROR(AwaitEvent(&runtime_, after));
  COXSWAIN_ASSIGN_OR_RETURN(PinnedBuffer to,
                            PinnedBuffer::Make(&runtime_, bytes));
  COXSWAIN_RETURN_IF_ERROR(runtime_.StreamWait(stream_, after));
  absl::Status copied = runtime_.Copy(to.data(), from, bytes, stream_);
  copied.Update(runtime_.Record(copied_, stream_));
  if (copied.ok()) copied = AwaitEvent(&runtime_, copied_);
  // A copy that may still be on its way has its memory for ever.
  if (!copied.ok()) static_cast<void>(new PinnedBuffer(std::move(to)));
  COXSWAIN_RETURN_IF_ERROR(copied);
  return to;
}

}  // namespace coxswain
