#include "hooks/kernels/low_rank.h"

#include <cstdint>

#include "hooks/kernels/low_rank_job.h"
#include "hooks/kernels/parallel.h"

namespace coxswain {
namespace {

// Matrices of this size and above would push everything else out of the
// caches, and are written past them.
constexpr int64_t kStreamBytes = int64_t{1} << 20;
// Shorter rows begin and end too often within a cache line.
constexpr int64_t kStreamColumns = 128;

// Rows are cut in fours, columns in whole cache lines.
constexpr int64_t kRowGrain = 4;
constexpr int64_t kColumnGrain = 64;

template <typename T>
bool Streams(const LowRankPass<T>& pass) {
  const int64_t bytes =
      pass.n * pass.m * static_cast<int64_t>(SizeOf(pass.out_type));
  return pass.out != nullptr && pass.out != pass.previous &&
         pass.out != pass.gradient && pass.m >= kStreamColumns &&
         bytes >= kStreamBytes;
}

// What a pass moves, to share the passes among the threads.
template <typename T>
int64_t BytesOf(const LowRankPass<T>& pass) {
  return 4 * pass.n * pass.m * static_cast<int64_t>(sizeof(T));
}

}  // namespace

template <typename T>
void PassOverRows(const std::vector<LowRankPass<T>>& passes) {
  std::vector<WorkRange> work;
  work.reserve(passes.size());
  for (const auto& pass : passes) work.push_back({pass.n, BytesOf(pass)});
  RunRanges(work, kRowGrain, [&](size_t i, int64_t begin, int64_t end) {
    RunRows(LowRankJob<T>{passes[i], Streams(passes[i])}, begin, end);
  });
}

template <typename T>
void PassOverColumns(const std::vector<LowRankPass<T>>& passes) {
  std::vector<WorkRange> work;
  work.reserve(passes.size());
  for (const auto& pass : passes) work.push_back({pass.m, BytesOf(pass)});
  RunRanges(work, kColumnGrain, [&](size_t i, int64_t begin, int64_t end) {
    RunColumns(LowRankJob<T>{passes[i], Streams(passes[i])}, begin, end);
  });
}

template void PassOverRows<float>(const std::vector<LowRankPass<float>>&);
template void PassOverRows<double>(const std::vector<LowRankPass<double>>&);
template void PassOverColumns<float>(const std::vector<LowRankPass<float>>&);
template void PassOverColumns<double>(const std::vector<LowRankPass<double>>&);

}  // namespace coxswain
