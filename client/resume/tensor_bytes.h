#ifndef COXSWAIN_CLIENT_RESUME_TENSOR_BYTES_H_
#define COXSWAIN_CLIENT_RESUME_TENSOR_BYTES_H_

#include <cstddef>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace coxswain {

// A model's tensors as bytes: their number, then for each its name, its type
// and shape as text ("float32 [3, 4]"), and its elements in row-major order;
// each text and run of elements after its length, all numbers 8 bytes,
// little-endian.

// What must be the same where the bytes are loaded. Names are unique.
struct TensorForm {
  std::string name;
  std::string form;
  size_t bytes = 0;
};

// What was saved of a tensor, within its bytes.
struct SavedTensor {
  absl::string_view form;
  absl::string_view elements;
};

// Writes over `bytes`, whose memory is used again if it suffices. `copy` writes
// the elements of the tensor with this number.
void SaveTensors(const std::vector<TensorForm>& tensors,
                 const std::function<void(size_t tensor, char* to)>& copy,
                 std::string* bytes);

// Returns each tensor's elements, within `bytes`. Fails with DATA_LOSS if the
// bytes are not valid, and with FAILED_PRECONDITION, listing what is saved
// differently.
absl::StatusOr<std::vector<absl::string_view>> LoadTensors(
    absl::string_view bytes, const std::vector<TensorForm>& here);

// Returns all tensors that were saved, by name. Fails with DATA_LOSS if the
// bytes are not valid.
absl::StatusOr<std::map<std::string, SavedTensor>> ParseTensors(
    absl::string_view bytes);

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_RESUME_TENSOR_BYTES_H_
