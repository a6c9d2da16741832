#ifndef COXSWAIN_CLIENT_REDUCE_BUCKET_H_
#define COXSWAIN_CLIENT_REDUCE_BUCKET_H_

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "client/device/runtime.h"
#include "client/device/tensor.h"

namespace coxswain {

// One parameter of the model, as the reducer and the hooks know it. Its index
// in the registration order is its number on every rank.
struct ParameterSpec {
  std::string name;            // unique in the model
  std::vector<int64_t> shape;  // empty for a scalar
  DType dtype = DType::kFloat32;
  Device device;
  // Of the parameter's own memory, in elements; empty for row-major. Its
  // gradient lies row-major in its bucket whatever these are.
  std::vector<int64_t> strides;

  // Returns the product of the shape: 1 for a scalar.
  int64_t count() const {
    int64_t product = 1;
    for (const int64_t extent : shape) product *= extent;
    return product;
  }
};

// One parameter's gradient inside a bucket.
struct GradientSlot {
  int parameter = 0;   // index in registration order
  int64_t offset = 0;  // elements from the start of the bucket
  int64_t count = 0;
  // Where the gradient lies instead, and its average in the end; null: in the
  // bucket. Not null only for hooks with Hook::takes_parts; each rank's own
  // affair.
  void* outside = nullptr;
  // Whether statistics of averages count it.
  bool measured = true;
};

// A run of gradients that is exchanged as one message. All ranks have the same
// buckets, and exchange them in the order of `index`.
struct Bucket {
  int index = 0;
  bool last = false;  // the last one of the step
  Span data;          // all gradients, one after the other, no gaps
  std::vector<GradientSlot> gradients;
  // On a GPU: the gradients are in the bucket once this event has passed; a
  // reader makes its stream wait for it. Null: they are there already.
  DeviceEvent ready = nullptr;
  // If ranks have weights, and the hook applies them (Hook::applies_share):
  // these gradients' share of the average, w / sum(w), by which the hook
  // multiplies them instead of dividing by the number of ranks. Set on all
  // ranks or on none.
  std::optional<double> share;

  Span Gradient(const GradientSlot& slot) const {
    Span gradient = data.Slice(slot.offset, slot.count);
    if (slot.outside != nullptr) gradient.data = slot.outside;
    return gradient;
  }
  // Returns where all gradients lie, in their order, in as few parts as can be.
  std::vector<Span> Parts() const {
    const bool elsewhere = std::any_of(
        gradients.begin(), gradients.end(),
        [](const GradientSlot& slot) { return slot.outside != nullptr; });
    if (!elsewhere) return {data};
    std::vector<Span> parts;
    for (const GradientSlot& slot : gradients) {
      const Span next = Gradient(slot);
      if (next.count == 0) continue;
      const bool adjoins =
          !parts.empty() &&
          static_cast<char*>(parts.back().data) + parts.back().bytes() ==
              next.data;
      if (adjoins) {
        parts.back().count += next.count;
      } else {
        parts.push_back(next);
      }
    }
    return parts;
  }
};

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_REDUCE_BUCKET_H_
