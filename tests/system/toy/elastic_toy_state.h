#ifndef COXSWAIN_TESTS_SYSTEM_TOY_ELASTIC_TOY_STATE_H_
#define COXSWAIN_TESTS_SYSTEM_TOY_ELASTIC_TOY_STATE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "client/elastic/elastic_state.h"
#include "client/reduce/bucket.h"

namespace coxswain {

// Steps that were committed one after the other with the same members.
struct ToyRun {
  int64_t generation = 0;
  int64_t world_size = 0;
  int64_t steps = 0;
};

// A model whose gradients do not depend on its parameters: sample i of the
// endless data has whole numbers from -4 to 4 as its gradient, a pure function
// of i. A step takes the next `local_batch` samples for each rank, and
// subtracts the sum of all. So, where the hook is exact, the parameters after
// any history show which samples were counted, and how often:
//
//   parameters = - sum over i in [0, samples) of gradient(i), exactly.
class ElasticToyState : public ElasticState {
 public:
  // Makes some matrices and vectors of about `size` elements each.
  ElasticToyState(DType dtype, int size, int local_batch);

  const std::vector<ParameterSpec>& specs() const { return specs_; }
  int64_t samples() const { return samples_; }
  const std::vector<ToyRun>& runs() const { return runs_; }

  // Returns this rank's gradient of the next step, times the world size, so
  // that the mean over the ranks is the sum of all their samples.
  std::vector<double> Gradient(int rank, int world_size) const;
  // Returns the offset of parameter `index` in what Gradient returns.
  int64_t OffsetOf(int index) const;

  // Takes the step: `averages` by parameter.
  void Step(const std::vector<Span>& averages, int64_t generation,
            int world_size);

  // Returns the difference from the exact parameters, element by element.
  std::vector<double> Missing() const;
  // Returns the largest of these differences.
  double Distance() const;
  // Returns all bits of the parameters, in order.
  std::string Bits() const { return bits_; }

  int64_t step() const override { return step_; }
  void Rollback() override {}
  std::vector<Span> Tensors() override;
  absl::StatusOr<std::string> Save() override;
  absl::Status Load(absl::string_view bytes, int64_t step) override;

 private:
  Span Parameter(int index);
  // Returns the sum of the samples' gradients.
  std::vector<double> SumOf(int64_t first, int64_t count) const;
  std::vector<double> Values() const;

  const DType dtype_;
  const int local_batch_;
  std::vector<ParameterSpec> specs_;
  int64_t elements_ = 0;
  std::string bits_;
  int64_t step_ = 0;
  int64_t samples_ = 0;
  std::vector<ToyRun> runs_;
};

}  // namespace coxswain

#endif  // COXSWAIN_TESTS_SYSTEM_TOY_ELASTIC_TOY_STATE_H_
