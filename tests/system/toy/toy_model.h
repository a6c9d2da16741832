#ifndef COXSWAIN_TESTS_SYSTEM_TOY_TOY_MODEL_H_
#define COXSWAIN_TESTS_SYSTEM_TOY_TOY_MODEL_H_

#include <cstdint>
#include <string>
#include <vector>

#include "client/device/tensor.h"
#include "client/reduce/bucket.h"

namespace coxswain {

struct ToyModelOptions {
  DType dtype = DType::kFloat32;  // or kFloat64
  int hidden = 48;
  bool extra_parameter = false;  // to differ from the others
};

// One rank's place in the job.
struct ToyPlace {
  int rank = 0;
  int world_size = 1;
};

// Some samples of the endless data: each (step, micro, rank) has its own. What
// they mean is the caller's choice; a job with one list of micro-batches for
// all ranks leaves the rank 0, for example.
struct ToyBatch {
  int64_t step = 0;
  int micro = 0;
  int rank = 0;
  int samples = 4;
  // What each sample's gradient is multiplied by.
  double sample_scale = 0.25;
};

// A network of two layers that learns to copy a part of its input: enough of a
// model for a test of the machinery around it, and without a framework, so
// that its processes start at once and run under the sanitizers. All numbers
// are pure functions of the options and of the batches.
class ToyModel {
 public:
  explicit ToyModel(const ToyModelOptions& options);

  const std::vector<ParameterSpec>& specs() const { return specs_; }
  // Return the elements of a parameter, and of its gradient.
  Span Parameter(int index) { return Whole(index, &parameters_); }
  Span Gradient(int index) { return Whole(index, &gradients_); }

  void ClearGradients();
  // Adds the gradients of a batch's samples.
  void AddGradients(const ToyBatch& batch);
  void ScaleGradients(double factor);
  // Sets gradients whose mean over the ranks is the same on any world size,
  // and which differ among the ranks of one.
  void ReplayGradients(int64_t step, const ToyPlace& place);

  // Changes one bit of one parameter, which no rounding error explains.
  void FlipBit();
  // Makes one element of the gradients not a number.
  void SpoilGradients();
  bool GradientsAreFinite();

  // Makes a step of SGD with this gradient of parameter `index`.
  void Descend(int index, const Span& gradient);

  // Bytes returns the bits of all parameters, in order; SetBytes sets them, and
  // returns false if the size is not theirs.
  std::string Bytes() const;
  bool SetBytes(const std::string& bytes);

 private:
  using Memory = std::vector<std::vector<char>>;

  void Add(std::string name, std::vector<int64_t> shape);
  Span Whole(int index, Memory* memory);
  template <typename T>
  void AddGradientsOf(const ToyBatch& batch);

  const ToyModelOptions options_;
  std::vector<ParameterSpec> specs_;
  Memory parameters_;
  Memory gradients_;
};

}  // namespace coxswain

#endif  // COXSWAIN_TESTS_SYSTEM_TOY_TOY_MODEL_H_
