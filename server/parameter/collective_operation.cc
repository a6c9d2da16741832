#include "server/parameter/collective_operation.h"

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace coxswain::server {
namespace {

// Without overflow: every run lies within `total`.
bool Fits(const PullRange& range, int64_t total) {
  if (range.offset < 0 || range.bytes < 0 || range.stride < 0 ||
      range.count < 0) {
    return false;
  }
  if (range.empty()) return true;
  if (range.offset > total || range.bytes > total - range.offset) return false;
  const int64_t beyond = total - range.offset - range.bytes;
  if (range.count == 1) return true;
  return range.stride >= range.bytes &&
         range.count - 1 <= beyond / range.stride;
}

}  // namespace

TensorSpec CollectiveOperation::SpecFor(int group_size) const {
  TensorSpec spec;
  spec.reduction = reduction;
  spec.dtype = dtype;
  spec.bytes = bytes;
  spec.parts = root < 0 ? group_size : 1;
  return spec;
}

absl::Status CollectiveOperation::Check(int group_size,
                                        const ParameterLimits& limits) const {
  if (name.size() > limits.max_name_bytes ||
      what.size() > limits.max_name_bytes) {
    return ParameterLimitError("max_name_bytes",
                               static_cast<int64_t>(limits.max_name_bytes),
                               "choose a shorter name");
  }
  if (root < -1 || root >= group_size || peer < -1 || peer >= group_size ||
      (peer >= 0 && root < 0)) {
    return absl::InvalidArgumentError(
        absl::StrCat("root ", root, " and peer ", peer,
                     " make no sense in a group of ", group_size));
  }
  const TensorSpec spec = SpecFor(group_size);
  COXSWAIN_RETURN_IF_ERROR(spec.Check(limits));
  // One of each part is all that any collective needs, and each costs memory
  // until it is sent.
  if (range.count > group_size) {
    return absl::InvalidArgumentError(
        absl::StrCat("no rank is sent ", range.count,
                     " runs of a tensor of a group of ", group_size));
  }
  if (!Fits(range, spec.total_bytes())) {
    return absl::InvalidArgumentError(absl::StrCat(
        range.count, " runs of ", range.bytes, " bytes, ", range.stride,
        " apart from ", range.offset, " on, do not lie within a tensor of ",
        spec.total_bytes(), " bytes"));
  }
  return absl::OkStatus();
}

bool CollectiveOperation::AgreesWith(const CollectiveOperation& other) const {
  return reduction == other.reduction && dtype == other.dtype &&
         bytes == other.bytes && root == other.root && peer == other.peer &&
         what == other.what;
}

std::string CollectiveOperation::ToString() const {
  std::string text = absl::StrCat(what, " (", NameOf(reduction), ") of ", bytes,
                                  " bytes of ", dtype);
  if (root >= 0) absl::StrAppend(&text, " from rank ", root);
  if (peer >= 0) absl::StrAppend(&text, " to rank ", peer);
  return text;
}

}  // namespace coxswain::server
