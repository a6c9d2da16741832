#include "client/elastic/record_state.h"

#include <utility>

#include "base/status_macros.h"

namespace coxswain {

void RecordState::Keep() {
  in_window_ = false;
  kept_ = record_;
}

void RecordState::BeginUndeclared() {
  if (std::exchange(in_window_, true)) return;
  kept_ = record_;
}

void RecordState::Rollback() {
  if (std::exchange(in_window_, false)) record_ = kept_;
}

absl::StatusOr<std::string> RecordState::Save() {
  COXSWAIN_ASSIGN_OR_RETURN(const std::string optimizer, SaveOptimizer());
  return record_.SerializeBefore(optimizer);
}

absl::Status RecordState::Load(absl::string_view bytes, int64_t) {
  COXSWAIN_ASSIGN_OR_RETURN(ElasticRecord record,
                            ElasticRecord::TakeFrom(&bytes));
  COXSWAIN_RETURN_IF_ERROR(LoadOptimizer(bytes));
  record_ = std::move(record);
  return absl::OkStatus();
}

absl::Status RecordState::LoadLooseBytes(absl::string_view bytes) {
  COXSWAIN_ASSIGN_OR_RETURN(record_, ElasticRecord::Parse(bytes));
  return absl::OkStatus();
}

absl::StatusOr<uint64_t> RecordState::Digest() {
  COXSWAIN_ASSIGN_OR_RETURN(const std::string optimizer, SaveOptimizer());
  return DigestOf(optimizer);
}

}  // namespace coxswain
