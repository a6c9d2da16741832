#ifndef COXSWAIN_CLIENT_TORCH_ELASTIC_MODULE_STATE_H_
#define COXSWAIN_CLIENT_TORCH_ELASTIC_MODULE_STATE_H_

#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>
#include <torch/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "client/elastic/record_state.h"

namespace coxswain::torch {

// The state of a libtorch program: see ElasticTraining, which keeps it.
class ElasticModuleState : public RecordState {
 public:
  // What is trained may be `sharded` (ElasticShards), and is no part of it
  // then. Fails with INVALID_ARGUMENT, naming a parameter or buffer that is on
  // a GPU, or whose elements share memory (an expanded tensor).
  static absl::StatusOr<std::unique_ptr<ElasticModuleState>> Create(
      std::shared_ptr<::torch::nn::Module> module,
      ::torch::optim::Optimizer* optimizer, bool sharded = false);

  // Copies the buffers, too, for Rollback: those of a window that was not
  // declared have changed in its forward pass, before it began.
  void Keep() override;
  // Calls `look`, to which the buffers are those that Keep has copied.
  void WithKeptBuffers(const std::function<void()>& look);

  // ElasticState.
  void Rollback() override;
  // Returns the tensors in row-major order, whatever their strides, which may
  // differ between ranks: of tensors that are not contiguous the spans are
  // copies.
  std::vector<Span> Tensors() override;
  std::vector<Span> LooseTensors() override;
  absl::Status TakeTensors() override;
  absl::StatusOr<uint64_t> Digest() override;

 private:
  ElasticModuleState(std::shared_ptr<::torch::nn::Module> module,
                     ::torch::optim::Optimizer* optimizer, bool sharded)
      : module_(std::move(module)), optimizer_(*optimizer), sharded_(sharded) {}

  // A tensor that is not contiguous, and a copy of it that is.
  struct DenseCopy {
    ::torch::Tensor tensor;
    ::torch::Tensor dense;
  };

  absl::StatusOr<std::string> SaveOptimizer() override;
  absl::Status LoadOptimizer(absl::string_view bytes) override;
  static std::vector<Span> SpansOf(const std::vector<::torch::Tensor>& tensors,
                                   std::vector<DenseCopy>* copies);

  const std::shared_ptr<::torch::nn::Module> module_;
  ::torch::optim::Optimizer& optimizer_;
  const bool sharded_;
  std::vector<::torch::Tensor> kept_buffers_;
  bool shows_kept_buffers_ = false;
  // Behind the spans that were returned last.
  std::vector<DenseCopy> dense_;
  std::vector<DenseCopy> loose_dense_;
};

}  // namespace coxswain::torch

#endif  // COXSWAIN_CLIENT_TORCH_ELASTIC_MODULE_STATE_H_
