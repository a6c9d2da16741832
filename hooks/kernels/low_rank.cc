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
constexpr DType kTypeOf = DType::kFloat32;
template <>
constexpr DType kTypeOf<double> = DType::kFloat64;

template <typename T>
bool Streams(const LowRankJob<T>& job) {
  const int64_t bytes =
      job.n * job.m * static_cast<int64_t>(SizeOf(job.out_type));
  return job.out != nullptr && job.out != job.previous &&
         job.out != job.gradient && job.m >= kStreamColumns &&
         bytes >= kStreamBytes;
}

// What a pass moves, for the number of threads.
template <typename T>
int64_t BytesOf(const LowRankJob<T>& job) {
  return 4 * job.n * job.m * static_cast<int64_t>(sizeof(T));
}

template <typename T>
LowRankJob<T> Accumulation(const void* gradient, DType type, const T* previous,
                           const LowRankProduct<T>& product, T* x, int64_t n,
                           int64_t m) {
  LowRankJob<T> job;
  job.gradient = gradient;
  job.type = type;
  job.previous = previous;
  job.product = product;
  job.out = x;
  job.out_type = kTypeOf<T>;
  job.n = n;
  job.m = m;
  job.stream = Streams(job);
  return job;
}

template <typename T>
void OverRows(const LowRankJob<T>& job) {
  RunRanges(job.n, kRowGrain, BytesOf(job),
            [&](int64_t begin, int64_t end) { RunRows(job, begin, end); });
}

template <typename T>
void OverColumns(const LowRankJob<T>& job) {
  RunRanges(job.m, kColumnGrain, BytesOf(job),
            [&](int64_t begin, int64_t end) { RunColumns(job, begin, end); });
}

}  // namespace

template <typename T>
void AccumulateProject(const void* gradient, DType type, const T* previous,
                       const LowRankProduct<T>& product, T* x, const T* q,
                       int64_t r, T* p, int64_t n, int64_t m) {
  auto job = Accumulation(gradient, type, previous, product, x, n, m);
  job.factor = q;
  job.r = r;
  job.result = p;
  OverRows(job);
}

template <typename T>
void AccumulateProjectTransposed(const void* gradient, DType type,
                                 const T* previous,
                                 const LowRankProduct<T>& product, T* x,
                                 const T* p, int64_t r, T* q, int64_t n,
                                 int64_t m) {
  auto job = Accumulation(gradient, type, previous, product, x, n, m);
  job.factor = p;
  job.r = r;
  job.result = q;
  OverColumns(job);
}

template <typename T>
void ProjectTransposed(const void* x, DType type, const T* p, int64_t r, T* q,
                       int64_t n, int64_t m) {
  AccumulateProjectTransposed<T>(x, type, nullptr, {}, nullptr, p, r, q, n, m);
}

template <typename T>
void Reconstruct(const LowRankProduct<T>& product, void* out, DType type,
                 int64_t n, int64_t m) {
  LowRankJob<T> job;
  job.product = product;
  job.out = out;
  job.out_type = type;
  job.n = n;
  job.m = m;
  job.stream = Streams(job);
  OverRows(job);
}

template <typename T>
void SubtractProduct(const T* x, const LowRankProduct<T>& product, T* out,
                     int64_t n, int64_t m) {
  OverRows(Accumulation<T>(x, kTypeOf<T>, nullptr, product, out, n, m));
}

#define COXSWAIN_INSTANTIATE(T)                                              \
  template void AccumulateProject<T>(const void*, DType, const T*,           \
                                     const LowRankProduct<T>&, T*, const T*, \
                                     int64_t, T*, int64_t, int64_t);         \
  template void AccumulateProjectTransposed<T>(                              \
      const void*, DType, const T*, const LowRankProduct<T>&, T*, const T*,  \
      int64_t, T*, int64_t, int64_t);                                        \
  template void ProjectTransposed<T>(const void*, DType, const T*, int64_t,  \
                                     T*, int64_t, int64_t);                  \
  template void Reconstruct<T>(const LowRankProduct<T>&, void*, DType,       \
                               int64_t, int64_t);                            \
  template void SubtractProduct<T>(const T*, const LowRankProduct<T>&, T*,   \
                                   int64_t, int64_t);
COXSWAIN_INSTANTIATE(float)
COXSWAIN_INSTANTIATE(double)
#undef COXSWAIN_INSTANTIATE

}  // namespace coxswain
