#ifndef COXSWAIN_TESTS_BENCH_COPY_H_
#define COXSWAIN_TESTS_BENCH_COPY_H_

#include <cstddef>

namespace coxswain::bench {

// Copies like memcpy, but writes past the caches where the CPU offers that, so
// that a written line is not read first. The buffers do not overlap.
void StreamCopy(void* to, const void* from, size_t bytes);

}  // namespace coxswain::bench

#endif  // COXSWAIN_TESTS_BENCH_COPY_H_
