#include "hooks/kernels/cuda/orthogonalise.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "hooks/kernels/cuda/orthogonalise_access.h"
#include "hooks/kernels/cuda/orthogonalise_gram.h"
#include "hooks/kernels/cuda/orthogonalise_solve.h"

namespace coxswain {
namespace {

// Rows of a strip. Where there are no Gram matrices one block has it all.
int64_t RowsOfStrip(const TallShape& shape, size_t element_bytes) {
  if (element_bytes == 8 || shape.r > kMostGramColumns) return shape.n;
  const int64_t rows = CeilOf(shape.n, kMostStrips);
  return std::max(kFewestRows, CeilOf(rows, kRowsAtOnce) * kRowsAtOnce);
}

void LaunchGram(LaunchTarget* target, const DeviceTall<float>& on,
                int64_t blocks) {
  const TallPlan& plan = *on.plan;
  const GramInput input{
      on.strips, on.matrices, on.partials, {on.seed, on.step}, on.poisoned};
  if (plan.rank <= 1) {
    Launch(target, blocks, FewGramProgram<1>{input});
  } else if (plan.rank <= 2) {
    Launch(target, blocks, FewGramProgram<2>{input});
  } else if (plan.rank <= 4) {
    Launch(target, blocks, FewGramProgram<4>{input});
  } else if (plan.rank <= 8) {
    Launch(target, blocks, ManyGramProgram<8>{input, plan.rows});
  } else {
    Launch(target, blocks, ManyGramProgram<kMostGramColumns>{input, plan.rows});
  }
}

template <typename T, int kWidth>
void LaunchSolve(LaunchTarget* target, const DeviceTall<T>& on,
                 int64_t blocks) {
  Launch(target, blocks,
         SolveProgram<T, kWidth>{on.strips,
                                 on.matrices,
                                 on.partials,
                                 {on.seed, on.step},
                                 on.poisoned,
                                 on.plan->rank,
                                 on.redraws ? 2 : 1});
}

}  // namespace

TallPlan PlanOrthogonalise(const std::vector<TallShape>& matrices,
                           size_t element_bytes) {
  TallPlan plan;
  for (size_t i = 0; i < matrices.size(); ++i) {
    const TallShape& shape = matrices[i];
    if (shape.n == 0) continue;
    plan.rank = std::max(plan.rank, shape.r);
    const int64_t rows = RowsOfStrip(shape, element_bytes);
    const int64_t count = CeilOf(shape.n, rows);
    for (int64_t strip = 0; strip < count; ++strip) {
      const int64_t row = strip * rows;
      const int64_t length = std::min(rows, shape.n - row);
      plan.rows = std::max(plan.rows, length);
      plan.strips.push_back(
          {row, length, plan.partials, static_cast<int32_t>(i),
           static_cast<int32_t>(strip), static_cast<int32_t>(count), 0});
    }
    if (element_bytes == 8 || shape.r > kMostGramColumns) continue;
    plan.partials += count * PairsOf(static_cast<int>(shape.r));
  }
  return plan;
}

template <typename T>
void OrthogonaliseOnDevice(LaunchTarget* target, const DeviceTall<T>& on) {
  const auto blocks = static_cast<int64_t>(on.plan->strips.size());
  if constexpr (std::is_same_v<T, float>) {
    LaunchGram(target, on, blocks);
    const int64_t rank = on.plan->rank;
    if (rank <= 1) return LaunchSolve<T, 1>(target, on, blocks);
    if (rank <= 2) return LaunchSolve<T, 2>(target, on, blocks);
    if (rank <= 4) return LaunchSolve<T, 4>(target, on, blocks);
    if (rank <= 8) return LaunchSolve<T, 8>(target, on, blocks);
    LaunchSolve<T, kMostGramColumns>(target, on, blocks);
  } else {
    LaunchSolve<T, 1>(target, on, blocks);
  }
}

template void OrthogonaliseOnDevice<float>(LaunchTarget*,
                                           const DeviceTall<float>&);
template void OrthogonaliseOnDevice<double>(LaunchTarget*,
                                            const DeviceTall<double>&);

}  // namespace coxswain
