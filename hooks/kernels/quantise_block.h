#ifndef COXSWAIN_HOOKS_KERNELS_QUANTISE_BLOCK_H_
#define COXSWAIN_HOOKS_KERNELS_QUANTISE_BLOCK_H_

#include <cstdint>

#include "client/device/tensor.h"
#include "hooks/kernels/quantise.h"

// What quantise.cc does with one block at a time, compiled for each instruction
// set. x is the block in the first cache, of T; formats and formulas as in
// quantise.h. `stream`: stores past the caches, to be followed by FlushStream.

namespace coxswain {

// x = `count` elements of the run's gradient, from `offset` on, plus error; or
// x += error, if the run has no gradient. `error` may be null.
void SumOfRun(const QuantiseRun<float>& run, int64_t offset, const float* error,
              float* x, int64_t count);
void SumOfRun(const QuantiseRun<double>& run, int64_t offset,
              const double* error, double* x, int64_t count);

// x = the mean of `ranks` blocks that are `stride` bytes apart.
void MeanOfBlocks(const uint8_t* in, int64_t stride, int ranks, int64_t size,
                  float* x);
void MeanOfBlocks(const uint8_t* in, int64_t stride, int ranks, int64_t size,
                  double* x);

// Writes a block of `size` elements, of which x has the first `count`; leaves
// in x what the codes leave out.
void EncodeBlock(float* x, int64_t count, int64_t size, uint8_t* out);
void EncodeBlock(double* x, int64_t count, int64_t size, uint8_t* out);

void StoreBlock(const float* x, float* out, int64_t count, bool stream);
void StoreBlock(const double* x, double* out, int64_t count, bool stream);

// out = the first `count` elements, as `type`.
void DecodeBlock(const uint8_t* block, int64_t count, DType type, char* out,
                 bool stream);

void FlushStream();

}  // namespace coxswain

#endif  // COXSWAIN_HOOKS_KERNELS_QUANTISE_BLOCK_H_
