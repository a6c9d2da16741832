#ifndef COXSWAIN_HOOKS_LOW_RANK_POWERSGD_MATRIX_H_
#define COXSWAIN_HOOKS_LOW_RANK_POWERSGD_MATRIX_H_

#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "client/comm/tensor.h"

namespace coxswain {

// The options of the powersgd hook; meanings in its option table.
struct PowerSgdConfig {
  int64_t rank = 1;
  int64_t start_step = 0;
  double min_compression_rate = 2;
  bool error_feedback = true;
  bool warm_start = true;
  double epsilon = 0;
  uint64_t seed = 0;
};

// What the hook knows about one compressed parameter; T is the type it
// computes in. An exchange writes the staged fields, Commit swaps them in.
template <typename T>
struct LowRankMatrix {
  std::string name;
  std::vector<int64_t> shape;
  int64_t n = 0;  // rows
  int64_t m = 0;  // columns
  int64_t r = 0;  // columns of the factors

  std::vector<T> error;  // n x m by rows; empty means zero
  std::vector<T> q;      // m x r by columns; empty means not yet drawn
  std::vector<T> staged_error;
  std::vector<T> staged_q;
  bool staged = false;  // the staged fields hold a step's outcome
};

// Compressed parameters by name.
template <typename T>
using LowRankMatrices = std::map<std::string, LowRankMatrix<T>>;

// Those that are computed in float and those in double.
using AllLowRankMatrices =
    std::tuple<LowRankMatrices<float>, LowRankMatrices<double>>;

template <typename T>
constexpr DType kDTypeOf = sizeof(T) == sizeof(double) ? DType::kFloat64
                                                       : DType::kFloat32;

}  // namespace coxswain

#endif  // COXSWAIN_HOOKS_LOW_RANK_POWERSGD_MATRIX_H_
