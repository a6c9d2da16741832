#ifndef COXSWAIN_TESTS_PROPERTY_RANDOM_MODEL_H_
#define COXSWAIN_TESTS_PROPERTY_RANDOM_MODEL_H_

#include <torch/nn/module.h>
#include <torch/types.h>

#include <vector>

#include "tests/property/case.h"

namespace coxswain::property {

// The model of a case, as a module, and its losses. A twin of it without a
// wrapper shows each rank's own gradients: the same operations on the same
// values give the same bits.
class RandomModel : public ::torch::nn::Module {
 public:
  static constexpr double kRate = 1.0 / 64;

  // Makes a model with values that are the rank's own. `one` outlives the
  // model.
  RandomModel(const Case& one, int rank);

  // Returns the loss of this rank's micro-batch; backward() can always be
  // called on it, even if no parameter is used.
  ::torch::Tensor Loss(int step, int micro) const;

  // Freezes what is not trainable in this step. Returns whether anything
  // changed. Parameters that become trainable get values of this rank's own.
  bool SetTrainable(int step);

  // Rewrites the buffer with values of this rank and step.
  void FillBuffer(int step);

  // Returns whether a rank's micro-batches of the step reach the parameter.
  bool Reaches(int parameter, int step, int rank) const;

  std::vector<::torch::Tensor>& values() { return values_; }
  ::torch::Tensor& buffer() { return buffer_; }

  // Takes over another model's values, and its gradients if asked to.
  void CopyFrom(RandomModel& other, bool gradients);
  void ZeroGradients(ZeroGrad how);
  // Subtracts kRate times the gradient of what some rank has used in the step:
  // what is left in the others may differ between ranks.
  void Descend(int step);

 private:
  ::torch::Tensor TermOf(const Term& term, uint64_t stream) const;
  ::torch::Tensor Linear(const ::torch::Tensor& a, uint64_t stream) const;
  ::torch::Tensor Matrix(const Term& term, uint64_t stream) const;
  ::torch::Tensor Rows(const ::torch::Tensor& rows, const ::torch::Tensor& a,
                       uint64_t stream) const;
  ::torch::Tensor Convolution(const ::torch::Tensor& a, uint64_t stream) const;
  // Returns numbers of the type, uniform in [-1, 1].
  ::torch::Tensor Numbers(::torch::IntArrayRef shape, ::torch::ScalarType type,
                          uint64_t stream) const;

  const Case& case_;
  const int rank_;
  std::vector<::torch::Tensor> values_;  // by parameter
  ::torch::Tensor buffer_;
};

}  // namespace coxswain::property

#endif  // COXSWAIN_TESTS_PROPERTY_RANDOM_MODEL_H_
