#include "hooks/low_rank/bucket_matrices.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/random.h"
#include "base/status_macros.h"
#include "hooks/low_rank/low_rank_state.h"
#include "hooks/parameter_state.h"

namespace coxswain {
namespace {

// Errors move piece by piece, to bound the memory.
constexpr int64_t kPieceOfMatrix = 1 << 16;

bool SameSlots(const std::vector<GradientSlot>& a,
               const std::vector<GradientSlot>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](const GradientSlot& x, const GradientSlot& y) {
                      return x.parameter == y.parameter &&
                             x.offset == y.offset && x.count == y.count;
                    });
}

// Returns whether they have a parameter in common.
bool Share(const std::vector<GradientSlot>& a,
           const std::vector<GradientSlot>& b) {
  for (const GradientSlot& x : a) {
    for (const GradientSlot& y : b) {
      if (x.parameter == y.parameter) return true;
    }
  }
  return false;
}

// The least s with s s >= count.
int64_t RootAbove(int64_t count) {
  int64_t s = static_cast<int64_t>(std::sqrt(static_cast<double>(count)));
  while (s * s < count) ++s;
  while (s > 0 && (s - 1) * (s - 1) >= count) --s;
  return s;
}

template <typename T>
void GiveShape(LowRankTensor<T>& tensor, int64_t count, int64_t rank) {
  tensor.m = RootAbove(count);
  tensor.n = count == 0 ? 0 : (count + tensor.m - 1) / tensor.m;
  tensor.r = std::min({tensor.n, tensor.m, rank});
  tensor.count = count;
}

// Takes a saved Q over, if it is of this bucket.
template <typename T>
void TakeFactor(const std::string& first, LowRankTensor<T>& tensor,
                std::vector<StateTensor>& factors) {
  const std::string kind = BucketFactorKind(tensor.name);
  const std::vector<int64_t> shape = {tensor.r, tensor.m};
  const auto found = std::find_if(
      factors.begin(), factors.end(), [&](const StateTensor& factor) {
        return factor.kind == kind && factor.parameter == first &&
               factor.shape == shape && factor.dtype == kDTypeOf<T>;
      });
  if (found == factors.end()) return;
  tensor.now.q.resize(found->data.size() / sizeof(T));
  std::memcpy(tensor.now.q.data(), found->data.data(), found->data.size());
  factors.erase(found);
}

}  // namespace

std::string BucketFactorKind(const std::string& names) {
  return absl::StrCat(kBucketFactor,
                      absl::Hex(StableHash(names), absl::kZeroPad16));
}

template <typename T>
typename BucketMatrices<T>::Matrix* BucketMatrices<T>::Known(
    const Bucket& bucket) {
  for (const auto& matrix : matrices_) {
    if (SameSlots(matrix->slots, bucket.gradients)) return matrix.get();
  }
  return nullptr;
}

template <typename T>
LowRankTensor<T>& BucketMatrices<T>::For(const Bucket& bucket, int64_t rank,
                                         bool keeps_error,
                                         const Tensors& tensors,
                                         std::vector<StateTensor>& factors) {
  if (Matrix* known = Known(bucket)) {
    LowRankTensor<T>& tensor = known->tensor;
    if (tensor.now.q.empty() && !factors.empty()) {
      TakeFactor(known->first, tensor, factors);
    }
    return tensor;
  }
  // Buckets that share a parameter with this one are of the past.
  const auto past =
      std::stable_partition(matrices_.begin(), matrices_.end(),
                            [&](const std::unique_ptr<Matrix>& matrix) {
                              return !Share(matrix->slots, bucket.gradients);
                            });
  for (auto matrix = past; matrix != matrices_.end(); ++matrix) {
    MoveBack(**matrix, tensors);
  }
  matrices_.erase(past, matrices_.end());

  auto made = MakeMatrix(bucket.gradients, rank, keeps_error, tensors);
  TakeFactor(made->first, made->tensor, factors);
  MoveIn(*made, tensors);
  matrices_.push_back(std::move(made));
  return matrices_.back()->tensor;
}

template <typename T>
std::unique_ptr<typename BucketMatrices<T>::Matrix>
BucketMatrices<T>::MakeMatrix(const std::vector<GradientSlot>& slots,
                              int64_t rank, bool keeps_error,
                              const Tensors& tensors) {
  auto made = std::make_unique<Matrix>();
  made->slots = slots;
  int64_t count = 0;
  for (const GradientSlot& slot : slots) {
    const std::string& name =
        tensors[static_cast<size_t>(slot.parameter)]->name;
    if (made->first.empty()) made->first = name;
    absl::StrAppend(&made->tensor.name, name, "\n");
    count += slot.count;
  }
  made->tensor.keeps_error = keeps_error;
  GiveShape(made->tensor, count, rank);
  return made;
}

template <typename T>
void BucketMatrices<T>::MoveBack(const Matrix& matrix, const Tensors& tensors) {
  const LowRankMemory<T>& now = matrix.tensor.error();
  if (!now.has_error) return;
  ErrorView<T> view{now.x.data(), ErrorProduct(now, matrix.tensor.r),
                    matrix.tensor.n, matrix.tensor.m, 0};
  std::vector<double> piece(static_cast<size_t>(kPieceOfMatrix));
  for (const GradientSlot& slot : matrix.slots) {
    LowRankMemory<T>& own = tensors[static_cast<size_t>(slot.parameter)]->now;
    own.x.Allocate(slot.count);
    own.has_error = true;
    view.offset = slot.offset;
    for (int64_t begin = 0; begin < slot.count; begin += kPieceOfMatrix) {
      const int64_t length = std::min(kPieceOfMatrix, slot.count - begin);
      ReadError(view, begin, length, piece.data());
      std::transform(piece.begin(), piece.begin() + length,
                     own.x.data() + begin,
                     [](double value) { return static_cast<T>(value); });
    }
  }
}

template <typename T>
void BucketMatrices<T>::MoveIn(Matrix& matrix, const Tensors& tensors) {
  LowRankMemory<T>& now = matrix.tensor.now;
  const GradientSlot* last = nullptr;
  for (const GradientSlot& slot : matrix.slots) {
    now.has_error |=
        tensors[static_cast<size_t>(slot.parameter)]->now.has_error;
    last = &slot;
  }
  if (!now.has_error) return;
  const int64_t count = last->offset + last->count;
  now.x.Allocate(count);
  std::fill_n(now.x.data(), count, T{0});
  for (const GradientSlot& slot : matrix.slots) {
    LowRankMemory<T>& own = tensors[static_cast<size_t>(slot.parameter)]->now;
    if (!own.has_error) continue;
    std::copy_n(own.x.data(), slot.count, now.x.data() + slot.offset);
    own = LowRankMemory<T>();
  }
}

template <typename T>
const ErrorView<T>* BucketMatrices<T>::Find(int parameter,
                                            ErrorView<T>* view) const {
  for (const auto& matrix : matrices_) {
    for (const GradientSlot& slot : matrix->slots) {
      if (slot.parameter != parameter) continue;
      *view = ErrorView<T>();
      const LowRankTensor<T>& tensor = matrix->tensor;
      if (tensor.now.has_error) {
        *view = {tensor.now.x.data(), ErrorProduct(tensor.now, tensor.r),
                 tensor.n, tensor.m, slot.offset};
      }
      return view;
    }
  }
  return nullptr;
}

template <typename T>
void BucketMatrices<T>::EndStep(bool commit) {
  for (const auto& matrix : matrices_) EndStepOf(matrix->tensor, commit);
}

template <typename T>
void BucketMatrices<T>::SaveFactors(HookState& state) const {
  for (const auto& matrix : matrices_) {
    const LowRankTensor<T>& tensor = matrix->tensor;
    if (tensor.now.q.empty()) continue;
    state.tensors.push_back(MakeStateTensor(BucketFactorKind(tensor.name),
                                            matrix->first, {tensor.r, tensor.m},
                                            tensor.now.q));
  }
}

template <typename T>
void BucketMatrices<T>::SaveOwn(HookState& state) const {
  for (const auto& matrix : matrices_) {
    if (!matrix->tensor.now.has_error) continue;
    state.tensors.push_back(MakeOwnError(kOwnBucketError, matrix->tensor));
  }
}

template <typename T>
absl::Status BucketMatrices<T>::LoadOwn(const std::string& hook,
                                        const StateTensor& saved,
                                        const std::vector<int>& numbers,
                                        int64_t rank, bool keeps_error,
                                        double scale, const Tensors& tensors) {
  std::vector<GradientSlot> slots;
  int64_t count = 0;
  for (const int number : numbers) {
    const int64_t own = tensors[static_cast<size_t>(number)]->count;
    if (HasAnyOf({{number, 0, 0}}) || Share(slots, {{number, 0, 0}})) {
      return UnfitTensor(hook, saved, "has a parameter of another bucket");
    }
    slots.push_back({number, count, own});
    count += own;
  }
  auto made = MakeMatrix(slots, rank, keeps_error, tensors);
  COXSWAIN_RETURN_IF_ERROR(TakeOwnError(hook, saved, scale, made->tensor));
  matrices_.push_back(std::move(made));
  return absl::OkStatus();
}

template <typename T>
bool BucketMatrices<T>::HasAnyOf(const std::vector<GradientSlot>& slots) const {
  return std::any_of(matrices_.begin(), matrices_.end(),
                     [&](const std::unique_ptr<Matrix>& matrix) {
                       return Share(matrix->slots, slots);
                     });
}

template <typename T>
void BucketMatrices<T>::Dissolve(const Tensors& tensors) {
  for (const auto& matrix : matrices_) MoveBack(*matrix, tensors);
  Clear();
}

template class BucketMatrices<float>;
template class BucketMatrices<double>;

}  // namespace coxswain
