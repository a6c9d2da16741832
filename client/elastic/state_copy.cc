#include "client/elastic/state_copy.h"

#include <cstring>

#include "absl/strings/string_view.h"
#include "base/crc32c.h"
#include "base/exception_status.h"
#include "base/status_macros.h"

namespace coxswain {
namespace {

absl::string_view MemoryOf(const Span& span) {
  return absl::string_view(static_cast<const char*>(span.data),
                           static_cast<size_t>(span.bytes()));
}

std::vector<std::string> CopiesOf(const std::vector<Span>& spans) {
  std::vector<std::string> copies;
  for (const Span& span : spans) copies.emplace_back(MemoryOf(span));
  return copies;
}

void PutBack(const std::vector<std::string>& copies,
             const std::vector<Span>& spans) {
  for (size_t i = 0; i < spans.size(); ++i) {
    if (copies[i].empty()) continue;
    std::memcpy(spans[i].data, copies[i].data(), copies[i].size());
  }
}

uint32_t ChecksumOfCopies(const std::vector<std::string>& copies) {
  uint32_t checksum = 0;
  for (const std::string& copy : copies) checksum = Crc32c(copy, checksum);
  return checksum;
}

}  // namespace

uint32_t ChecksumOf(const std::vector<Span>& spans) {
  uint32_t checksum = 0;
  for (const Span& span : spans) checksum = Crc32c(MemoryOf(span), checksum);
  return checksum;
}

absl::Status StateCopy::Take(ElasticState* state, bool loose_only) {
  return WithoutExceptions([&]() -> absl::Status {
    loose_ = CopiesOf(state->LooseTensors());
    if (loose_only) return absl::OkStatus();
    COXSWAIN_ASSIGN_OR_RETURN(bytes_, state->Save());
    step_ = state->step();
    tensors_ = CopiesOf(state->Tensors());
    return absl::OkStatus();
  });
}

absl::Status StateCopy::Restore(ElasticState* state) const {
  return WithoutExceptions([&]() -> absl::Status {
    PutBack(loose_, state->LooseTensors());
    if (bytes_) PutBack(tensors_, state->Tensors());
    COXSWAIN_RETURN_IF_ERROR(state->TakeTensors());
    return bytes_ ? state->Load(*bytes_, step_) : absl::OkStatus();
  });
}

uint32_t StateCopy::TensorsChecksum() const {
  return ChecksumOfCopies(tensors_);
}

uint32_t StateCopy::RestChecksum() const {
  return Crc32c(bytes_.value_or(""), ChecksumOfCopies(loose_));
}

}  // namespace coxswain
