// The functions that the benchmarks call from Python, in the same process as
// the peers and on the same memory. tests/bench/native.py declares them once
// more; a change here is a change there.
//
// Pointers are to memory of the caller. Element types go by their names
// (client/device/tensor.h). What can fail returns 0 or null and leaves a
// message for coxswain_bench_error. One thread at a time.

#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "client/device/tensor.h"
#include "hooks/kernels/orthogonalise.h"
#include "hooks/kernels/parallel.h"
#include "hooks/narrow.h"
#include "tests/bench/copy.h"
#include "tests/bench/free_reducer.h"
#include "tests/bench/model.h"

namespace {

using coxswain::DType;
using coxswain::ParameterSpec;
using coxswain::Span;
using coxswain::bench::FreeReducer;
using coxswain::bench::Model;

std::string& Error() {
  static auto* const error = new std::string();
  return *error;
}

int Report(const absl::Status& status) {
  Error() = status.ToString();
  return status.ok() ? 1 : 0;
}

DType TypeOf(const char* name) {
  return coxswain::DTypeFromName(name).value_or(DType::kFloat32);
}

// `extents` has the shapes one after the other, `dimensions` the number of
// extents of each.
std::vector<ParameterSpec> Specs(int64_t parameters, const int64_t* dimensions,
                                 const int64_t* extents) {
  std::vector<ParameterSpec> specs;
  for (int64_t i = 0; i < parameters; ++i) {
    ParameterSpec parameter;
    parameter.name = absl::StrCat("p", i);
    parameter.shape.assign(extents, extents + dimensions[i]);
    extents += dimensions[i];
    specs.push_back(std::move(parameter));
  }
  return specs;
}

}  // namespace

extern "C" {

const char* coxswain_bench_error() { return Error().c_str(); }

const char* coxswain_bench_target() {
  static const auto* const target = new std::string(coxswain::KernelTarget());
  return target->c_str();
}

void coxswain_bench_memcpy(void* to, const void* from, int64_t bytes) {
  std::memcpy(to, from, static_cast<size_t>(bytes));
}

void coxswain_bench_stream_copy(void* to, const void* from, int64_t bytes) {
  coxswain::bench::StreamCopy(to, from, static_cast<size_t>(bytes));
}

// out = in / divisor, from float32 to the 16-bit type.
void coxswain_bench_narrow(float* in, int64_t count, const char* type,
                           uint16_t* out, int divisor) {
  const Span span{in, count, DType::kFloat32, coxswain::Device()};
  coxswain::NarrowSpan(span, TypeOf(type), out, 1.0 / divisor);
}

void coxswain_bench_widen(const uint16_t* in, const char* type, float* out,
                          int64_t count) {
  const Span span{out, count, DType::kFloat32, coxswain::Device()};
  coxswain::WidenSpan(in, TypeOf(type), span);
}

// Makes the columns of `matrices` float32 matrices orthonormal, in one call.
void coxswain_bench_orthogonalise(float* const* a, const int64_t* n,
                                  const int64_t* r, int64_t matrices) {
  std::vector<coxswain::TallMatrix<float>> list;
  for (int64_t i = 0; i < matrices; ++i) list.push_back({a[i], n[i], r[i]});
  coxswain::Orthogonalise(list, coxswain::Orthogonalisation::kAuto, 0);
}

// Returns a model of float32 parameters; see Specs.
Model* coxswain_bench_model(const char* spec, int world_size,
                            int64_t parameters, const int64_t* dimensions,
                            const int64_t* extents) {
  auto model =
      Model::Create(spec, Specs(parameters, dimensions, extents), world_size);
  Report(model.status());
  return model.ok() ? model->release() : nullptr;
}

void coxswain_bench_model_free(Model* model) { delete model; }

int64_t coxswain_bench_model_buckets(const Model* model) {
  return static_cast<int64_t>(model->buckets().size());
}

// Writes the elements of a bucket, and its parameters in order, up to
// `capacity`. Returns how many parameters it has.
int64_t coxswain_bench_model_bucket(const Model* model, int64_t bucket,
                                    int64_t* elements, int64_t* parameters,
                                    int64_t capacity) {
  const auto& described = model->buckets()[static_cast<size_t>(bucket)];
  *elements = described.data.count;
  int64_t count = 0;
  for (const auto& slot : described.gradients) {
    if (count < capacity) parameters[count] = slot.parameter;
    ++count;
  }
  return count;
}

void coxswain_bench_model_memory(Model* model, int rank, int64_t bucket,
                                 void* data) {
  model->SetMemory(rank, static_cast<size_t>(bucket), data);
}

int coxswain_bench_model_step(Model* model, int commit) {
  return Report(model->Step(commit != 0));
}

int64_t coxswain_bench_model_payload_bytes(const Model* model) {
  return model->payload_bytes();
}

FreeReducer* coxswain_bench_reducer(int copies, int statistics,
                                    int64_t parameters,
                                    const int64_t* dimensions,
                                    const int64_t* extents) {
  FreeReducer::Options options;
  options.copies = copies != 0;
  options.statistics = statistics != 0;
  auto reducer =
      FreeReducer::Create(options, Specs(parameters, dimensions, extents));
  Report(reducer.status());
  return reducer.ok() ? reducer->release() : nullptr;
}

void coxswain_bench_reducer_free(FreeReducer* reducer) { delete reducer; }

int coxswain_bench_reducer_step(FreeReducer* reducer) {
  return Report(reducer->Step());
}

void coxswain_bench_reducer_copy(FreeReducer* reducer) { reducer->Copy(); }

}  // extern "C"
