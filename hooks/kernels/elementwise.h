#ifndef COXSWAIN_HOOKS_KERNELS_ELEMENTWISE_H_
#define COXSWAIN_HOOKS_KERNELS_ELEMENTWISE_H_

#include <cstdint>

// Arithmetic of the hooks on arrays, element by element: plain functions over
// pointers, counts and scalars, so that a version for another device has the
// same signatures. Results depend neither on the instruction set nor on
// alignment nor on the number of threads (parallel.h). Arrays do not overlap
// unless they are the same one; no alignment needed, though an output at a
// multiple of 64 bytes is written fastest.
//
// 16-bit floats are bit patterns; narrowing rounds to
// nearest even exactly as base/float16.h does, also from double, without
// rounding twice.

namespace coxswain {

// values[i] /= divisor, in the type of the values.
void Divide(float* values, int64_t count, float divisor);
void Divide(double* values, int64_t count, double divisor);
void DivideFloat16(uint16_t* values, int64_t count, float divisor);
void DivideBFloat16(uint16_t* values, int64_t count, float divisor);

// out[i] = narrow(in[i] * factor); the product is rounded to `in`'s type before
// it is narrowed, which makes no difference where the factor is a power of two.
// Moves 6 bytes an element from float; large outputs are written past the
// caches. To divide, pass the reciprocal in `in`'s type.
void ScaleToFloat16(const float* in, uint16_t* out, int64_t count,
                    float factor);
void ScaleToFloat16(const double* in, uint16_t* out, int64_t count,
                    double factor);
void ScaleToBFloat16(const float* in, uint16_t* out, int64_t count,
                     float factor);
void ScaleToBFloat16(const double* in, uint16_t* out, int64_t count,
                     double factor);

// out[i] = in[i], exactly.
void WidenFloat16(const uint16_t* in, float* out, int64_t count);
void WidenFloat16(const uint16_t* in, double* out, int64_t count);
void WidenBFloat16(const uint16_t* in, float* out, int64_t count);
void WidenBFloat16(const uint16_t* in, double* out, int64_t count);

// values[i] += other[i].
void Add(float* values, const float* other, int64_t count);
void Add(double* values, const double* other, int64_t count);

// How many are infinite or not a number.
int64_t CountNonFinite(const float* values, int64_t count);
int64_t CountNonFinite(const double* values, int64_t count);

}  // namespace coxswain

#endif  // COXSWAIN_HOOKS_KERNELS_ELEMENTWISE_H_
