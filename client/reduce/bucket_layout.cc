#include "client/reduce/bucket_layout.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <string>
#include <tuple>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "client/reduce/bucket_slices.h"

namespace coxswain {
namespace {

// With whether they are late, and apart from the others.
using Key = std::tuple<bool, bool, DType, Device::Kind, int>;

// A bucket that takes gradients, with the place in the order of its last one.
struct Draft {
  Bucket bucket;
  int last_place = 0;
};

absl::Status CheckArguments(const BucketPlanOptions& options,
                            const std::vector<ParameterSpec>& parameters) {
  if (options.first_bucket_bytes < 1 || options.bucket_bytes < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("bucket limits must be at least 1 byte, got ",
                     options.first_bucket_bytes, " for the first and ",
                     options.bucket_bytes, " for the others"));
  }
  for (const ParameterSpec& parameter : parameters) {
    for (const int64_t extent : parameter.shape) {
      if (extent >= 0) continue;
      return absl::InvalidArgumentError(
          absl::StrCat("parameter \"", parameter.name, "\" has extent ", extent,
                       " in its shape"));
    }
  }
  return absl::OkStatus();
}

// Returns the order in which gradients come, checked.
absl::StatusOr<std::vector<int>> Order(int parameters,
                                       absl::Span<const int> ready_order) {
  std::vector<int> order(parameters);
  if (ready_order.empty()) {
    std::iota(order.rbegin(), order.rend(), 0);
    return order;
  }
  order.assign(ready_order.begin(), ready_order.end());
  std::vector<int> sorted = order;
  std::sort(sorted.begin(), sorted.end());
  std::vector<int> expected(parameters);
  std::iota(expected.begin(), expected.end(), 0);
  if (sorted != expected) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the ready order of ", ready_order.size(),
        " entries is not a permutation of the ", parameters, " parameters"));
  }
  return order;
}

// Returns the order in which buckets take gradients: that in which they come,
// late ones after all others, but for separate ones, which change places among
// themselves to have the reversed order of registration.
std::vector<int> OrderInBuckets(const BucketPlanOptions& options,
                                const std::vector<ParameterSpec>& parameters,
                                const std::vector<int>& coming) {
  std::vector<int> order = coming;
  const auto is_separate = [&](int parameter) {
    return options.separate_parameters.count(parameters[parameter].name) > 0;
  };
  for (const bool late : {false, true}) {
    std::vector<size_t> places;
    std::vector<int> separate;
    for (size_t place = 0; place < order.size(); ++place) {
      const std::string& name = parameters[order[place]].name;
      if (!is_separate(order[place])) continue;
      if ((options.late_parameters.count(name) > 0) != late) continue;
      places.push_back(place);
      separate.push_back(order[place]);
    }
    std::sort(separate.rbegin(), separate.rend());
    for (size_t i = 0; i < places.size(); ++i) order[places[i]] = separate[i];
  }
  return order;
}

void Append(int index, const ParameterSpec& parameter, Bucket* bucket) {
  bucket->data.dtype = parameter.dtype;
  bucket->data.device = parameter.device;
  GradientSlot slot;
  slot.parameter = index;
  slot.offset = bucket->data.count;
  slot.count = parameter.count();
  bucket->data.count += slot.count;
  bucket->gradients.push_back(slot);
}

}  // namespace

absl::StatusOr<std::vector<Bucket>> PlanBuckets(
    const BucketPlanOptions& options,
    const std::vector<ParameterSpec>& parameters,
    absl::Span<const int> ready_order) {
  COXSWAIN_RETURN_IF_ERROR(CheckArguments(options, parameters));
  COXSWAIN_ASSIGN_OR_RETURN(
      std::vector<int> order,
      Order(static_cast<int>(parameters.size()), ready_order));

  const auto is_late = [&](int parameter) {
    return options.late_parameters.count(parameters[parameter].name) > 0;
  };
  std::stable_partition(order.begin(), order.end(),
                        [&](int parameter) { return !is_late(parameter); });
  std::vector<int> place_of(order.size());
  for (int place = 0; place < static_cast<int>(order.size()); ++place) {
    place_of[order[place]] = place;
  }

  std::vector<Draft> closed;
  std::map<Key, Draft> open;
  std::map<Key, int64_t> limits;
  for (const int number : OrderInBuckets(options, parameters, order)) {
    const ParameterSpec& parameter = parameters[number];
    const bool late = is_late(number);
    const bool separate = options.separate_parameters.count(parameter.name) > 0;
    const Key key(late, separate, parameter.dtype, parameter.device.kind,
                  parameter.device.index);
    Draft& draft = open[key];
    Append(number, parameter, &draft.bucket);
    draft.bucket.gradients.back().measured =
        options.uncounted_parameters.count(parameter.name) == 0;
    draft.last_place = std::max(draft.last_place, place_of[number]);
    const int64_t first =
        late || separate ? options.bucket_bytes : options.first_bucket_bytes;
    const int64_t limit = limits.emplace(key, first).first->second;
    if (draft.bucket.data.bytes() < limit) continue;
    closed.push_back(std::move(draft));
    open.erase(key);
    limits[key] = options.bucket_bytes;
  }
  for (auto& [key, draft] : open) closed.push_back(std::move(draft));
  std::sort(closed.begin(), closed.end(), [](const Draft& a, const Draft& b) {
    return a.last_place < b.last_place;
  });

  std::vector<Bucket> buckets;
  for (Draft& draft : closed) {
    draft.bucket.index = static_cast<int>(buckets.size());
    draft.bucket.last = buckets.size() + 1 == closed.size();
    buckets.push_back(std::move(draft.bucket));
  }
  return buckets;
}

absl::StatusOr<std::unique_ptr<BucketLayout>> BucketLayout::Create(
    const BucketPlanOptions& options,
    const std::vector<ParameterSpec>& parameters,
    absl::Span<const int> ready_order, Communicator& communicator,
    GradientMemory& memory, BucketMemory kind) {
  std::unique_ptr<BucketLayout> layout(new BucketLayout());
  COXSWAIN_ASSIGN_OR_RETURN(layout->buckets_,
                            PlanBuckets(options, parameters, ready_order));
  layout->places_.resize(parameters.size());
  for (Bucket& bucket : layout->buckets_) {
    COXSWAIN_ASSIGN_OR_RETURN(GradientMemory::Ready ready, memory.MakeReady());
    bucket.ready = ready.get();
    layout->events_.push_back(std::move(ready));
    for (const GradientSlot& slot : bucket.gradients) {
      GradientPlace& place =
          layout->places_[static_cast<size_t>(slot.parameter)];
      place.bucket = bucket.index;
      place.offset = slot.offset;
      place.view = bucket.data;
      place.view.count = slot.count;
    }
    if (kind == BucketMemory::kReleased) continue;
    const int64_t elements =
        kind == BucketMemory::kPadded
            ? BucketSlices::Of(bucket.data, communicator.size()).padded()
            : bucket.data.count;
    COXSWAIN_RETURN_IF_ERROR(layout->Allocate(bucket, elements, communicator));
  }
  return layout;
}

absl::Status BucketLayout::Allocate(Bucket& bucket, int64_t elements,
                                    Communicator& communicator) {
  COXSWAIN_ASSIGN_OR_RETURN(
      const std::shared_ptr<BufferOwner> owner,
      communicator.AllocateBuffer(elements, bucket.data.dtype));
  bytes_ += owner->span().bytes();
  bucket.data = owner->span().Slice(0, bucket.data.count);
  for (const GradientSlot& slot : bucket.gradients) {
    GradientPlace& place = places_[static_cast<size_t>(slot.parameter)];
    place.view = bucket.Gradient(slot);
    place.memory = owner;
  }
  return absl::OkStatus();
}

absl::Status BucketLayout::CopyFrom(
    const BucketLayout& other,
    const std::vector<ParameterSpec>& other_parameters,
    const std::vector<ParameterSpec>& parameters, GradientMemory& memory) {
  std::map<std::string, int> numbers;
  for (size_t i = 0; i < other_parameters.size(); ++i) {
    numbers[other_parameters[i].name] = static_cast<int>(i);
  }
  for (size_t i = 0; i < parameters.size(); ++i) {
    const auto found = numbers.find(parameters[i].name);
    if (found == numbers.end()) continue;
    const ParameterSpec& old =
        other_parameters[static_cast<size_t>(found->second)];
    if (old.shape != parameters[i].shape || old.dtype != parameters[i].dtype) {
      continue;
    }
    COXSWAIN_RETURN_IF_ERROR(
        memory.Copy(places_[i].view, other.place(found->second).view));
  }
  return absl::OkStatus();
}

}  // namespace coxswain
