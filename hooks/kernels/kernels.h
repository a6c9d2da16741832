#ifndef COXSWAIN_HOOKS_KERNELS_KERNELS_H_
#define COXSWAIN_HOOKS_KERNELS_KERNELS_H_

#include <cstdint>

// The arithmetic of the hooks: plain functions over pointers, counts and
// scalars, so that a version for another device has the same signatures.
// Every result is a fixed function of the inputs (no order of summation
// depends on threads or alignment), so that all ranks compute the same bits.
// Arrays do not overlap unless they are the same one. 16-bit floats are bit
// patterns; narrowing rounds to nearest even (base/float16.h), also from
// double, without rounding twice.

namespace coxswain {

// values[i] /= divisor, in the type of the values.
void Divide(float* values, int64_t count, float divisor);
void Divide(double* values, int64_t count, double divisor);
void DivideFloat16(uint16_t* values, int64_t count, float divisor);
void DivideBFloat16(uint16_t* values, int64_t count, float divisor);

// out[i] = narrow(in[i] / divisor): one rounding after the division's own.
void DivideToFloat16(const float* in, uint16_t* out, int64_t count,
                     float divisor);
void DivideToFloat16(const double* in, uint16_t* out, int64_t count,
                     double divisor);
void DivideToBFloat16(const float* in, uint16_t* out, int64_t count,
                      float divisor);
void DivideToBFloat16(const double* in, uint16_t* out, int64_t count,
                      double divisor);

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

// Matrices. X is n x m, stored by rows. The factors P (n x r) and Q (m x r)
// are stored by columns, one after the other: they are thin, and all loops
// then run along memory.

// P = X Q.
void Project(const float* x, const float* q, float* p, int64_t n, int64_t m,
             int64_t r);
void Project(const double* x, const double* q, double* p, int64_t n, int64_t m,
             int64_t r);
// Q = transpose(X) P.
void ProjectTransposed(const float* x, const float* p, float* q, int64_t n,
                       int64_t m, int64_t r);
void ProjectTransposed(const double* x, const double* p, double* q, int64_t n,
                       int64_t m, int64_t r);
// X -= P transpose(Q).
void SubtractProduct(float* x, const float* p, const float* q, int64_t n,
                     int64_t m, int64_t r);
void SubtractProduct(double* x, const double* p, const double* q, int64_t n,
                     int64_t m, int64_t r);
// X = P transpose(Q).
void Product(float* x, const float* p, const float* q, int64_t n, int64_t m,
             int64_t r);
void Product(double* x, const double* p, const double* q, int64_t n, int64_t m,
             int64_t r);

// Makes the r columns of A (n x r, stored by columns) orthonormal from left to
// right, by modified Gram-Schmidt with a second pass and sums in double.
// `epsilon` is added to each norm before the division. A column of which
// nothing but rounding remains (zero, or in the span of those before it)
// becomes zero, as does one that is not finite. Returns how many are zero.
int64_t Orthogonalise(float* a, int64_t n, int64_t r, double epsilon);
int64_t Orthogonalise(double* a, int64_t n, int64_t r, double epsilon);

}  // namespace coxswain

#endif  // COXSWAIN_HOOKS_KERNELS_KERNELS_H_
