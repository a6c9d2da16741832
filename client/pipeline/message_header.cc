#include "client/pipeline/message_header.h"

#include <cstring>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"

namespace coxswain {
namespace {

constexpr uint32_t kMark = 0x31505843;  // "CXP1"
// Mark, micro-batch, tensors; of each tensor whether it is present, its type,
// how many dimensions, and these.
constexpr size_t kHead = 12;
constexpr size_t kTensor = 8 + 8 * kMaxBoundaryDims;
static_assert(kHead + kMaxBoundaryTensors * kTensor <= HeaderBytes().size());

void Put(HeaderBytes* bytes, size_t at, uint64_t value, size_t size) {
  for (size_t i = 0; i < size; ++i) {
    (*bytes)[at + i] = static_cast<char>(value >> (8 * i));
  }
}

uint64_t Get(const HeaderBytes& bytes, size_t at, size_t size) {
  uint64_t value = 0;
  for (size_t i = 0; i < size; ++i) {
    value |= static_cast<uint64_t>(static_cast<unsigned char>(bytes[at + i]))
             << (8 * i);
  }
  return value;
}

absl::Status Malformed() {
  return absl::InternalError("the header of a message is malformed");
}

absl::Status TooLarge(int64_t max_bytes) {
  return absl::ResourceExhaustedError(
      absl::StrCat("a message between stages has more than ", max_bytes,
                   " bytes; make micro-batches smaller, or allow larger "
                   "messages (max_message_bytes)"));
}

// Adds a tensor's bytes to the `total`, which stays below `max_bytes`.
absl::Status Charge(MessageHeader::Tensor* tensor, int64_t max_bytes,
                    int64_t* total) {
  int64_t left = max_bytes - *total;
  int64_t bytes = static_cast<int64_t>(SizeOf(tensor->dtype));
  bool empty = false;
  // Of one without elements the other dimensions count all the same: their
  // product is formed by those who have it.
  for (const int64_t dim : tensor->dims) {
    empty = empty || dim == 0;
    if (dim == 0) continue;
    if (dim > left / bytes) return TooLarge(max_bytes);
    bytes *= dim;
  }
  if (empty || !tensor->present) bytes = 0;
  if (bytes > left) return TooLarge(max_bytes);
  tensor->bytes = bytes;
  *total += bytes;
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<MessageHeader> MessageHeader::Of(int micro_batch,
                                                const Activations& tensors,
                                                int64_t max_bytes) {
  MessageHeader header;
  header.micro_batch = micro_batch;
  if (tensors.size() > kMaxBoundaryTensors) {
    return absl::InvalidArgumentError(
        absl::StrCat("a stage passes ", tensors.size(),
                     " tensors on: ", kMaxBoundaryTensors, " is the most"));
  }
  int64_t total = 0;
  for (const Activation& tensor : tensors) {
    Tensor one;
    one.present = !tensor.absent;
    one.dtype = tensor.dtype;
    if (one.present) one.dims = tensor.dims;
    if (one.dims.size() > kMaxBoundaryDims) {
      return absl::InvalidArgumentError(
          absl::StrCat("a stage passes a tensor of ", one.dims.size(),
                       " dimensions on: ", kMaxBoundaryDims, " is the most"));
    }
    for (const int64_t dim : one.dims) {
      if (dim < 0) {
        return absl::InvalidArgumentError(absl::StrCat(
            "a stage passes a tensor with a dimension of ", dim, " on"));
      }
    }
    if (absl::Status status = Charge(&one, max_bytes, &total); !status.ok()) {
      return absl::InvalidArgumentError(status.message());
    }
    header.tensors.push_back(std::move(one));
  }
  return header;
}

HeaderBytes MessageHeader::Encode() const {
  HeaderBytes bytes = {};
  Put(&bytes, 0, kMark, 4);
  Put(&bytes, 4, static_cast<uint32_t>(micro_batch), 4);
  Put(&bytes, 8, tensors.size(), 4);
  size_t at = kHead;
  for (const Tensor& tensor : tensors) {
    Put(&bytes, at, tensor.present ? 1 : 0, 1);
    Put(&bytes, at + 1, static_cast<uint64_t>(tensor.dtype), 1);
    Put(&bytes, at + 2, tensor.dims.size(), 1);
    for (size_t i = 0; i < tensor.dims.size(); ++i) {
      Put(&bytes, at + 8 + 8 * i, static_cast<uint64_t>(tensor.dims[i]), 8);
    }
    at += kTensor;
  }
  return bytes;
}

absl::StatusOr<MessageHeader> MessageHeader::Decode(const HeaderBytes& bytes,
                                                    int64_t max_bytes) {
  const uint64_t count = Get(bytes, 8, 4);
  const uint64_t micro_batch = Get(bytes, 4, 4);
  if (Get(bytes, 0, 4) != kMark || count > kMaxBoundaryTensors ||
      micro_batch > std::numeric_limits<int32_t>::max()) {
    return Malformed();
  }
  MessageHeader header;
  header.micro_batch = static_cast<int>(micro_batch);
  int64_t total = 0;
  for (size_t i = 0; i < count; ++i) {
    const size_t at = kHead + i * kTensor;
    const uint64_t present = Get(bytes, at, 1);
    const uint64_t dtype = Get(bytes, at + 1, 1);
    const uint64_t dims = Get(bytes, at + 2, 1);
    if (present > 1 || dtype > static_cast<uint64_t>(DType::kUInt8) ||
        dims > kMaxBoundaryDims || (present == 0 && dims > 0)) {
      return Malformed();
    }
    Tensor tensor;
    tensor.present = present == 1;
    tensor.dtype = static_cast<DType>(dtype);
    for (size_t j = 0; j < dims; ++j) {
      const auto dim = static_cast<int64_t>(Get(bytes, at + 8 + 8 * j, 8));
      if (dim < 0) return Malformed();
      tensor.dims.push_back(dim);
    }
    if (absl::Status status = Charge(&tensor, max_bytes, &total);
        !status.ok()) {
      return status;
    }
    header.tensors.push_back(std::move(tensor));
  }
  return header;
}

}  // namespace coxswain
