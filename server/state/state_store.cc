#include "server/state/state_store.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace coxswain::server {

size_t StateBatch::ByteSize() const {
  size_t bytes = 0;
  for (const Write& write : writes_) {
    bytes += write.table.size() + write.key.size();
    if (write.value.has_value()) bytes += write.value->size();
  }
  return bytes;
}

absl::Status StateStore::CheckBatch(const StateBatch& batch,
                                    const Limits& limits) {
  const size_t writes = batch.writes().size();
  if (writes > limits.writes) {
    return absl::ResourceExhaustedError(
        absl::StrCat(writes, " changes of the state at once pass the limit of ",
                     limits.writes, "; write them in several batches"));
  }
  const size_t bytes = batch.ByteSize();
  if (bytes > limits.bytes) {
    return absl::ResourceExhaustedError(absl::StrCat(
        bytes, " bytes of changes of the state at once pass the limit of ",
        limits.bytes, "; write them in several batches"));
  }
  for (const StateBatch::Write& write : batch.writes()) {
    if (write.table.find('\0') == std::string::npos) continue;
    return absl::InvalidArgumentError(
        "the name of a table of the state has a zero byte in it");
  }
  return absl::OkStatus();
}

absl::Status StateStore::AddOrApply(const StateBatch& more, StateBatch* batch) {
  if (batch->writes().size() + more.writes().size() > kMaxWrites ||
      batch->ByteSize() + more.ByteSize() > kMaxBytes) {
    COXSWAIN_RETURN_IF_ERROR(Apply(std::exchange(*batch, {})));
  }
  batch->Append(more);
  return absl::OkStatus();
}

}  // namespace coxswain::server
