#ifndef COXSWAIN_CLIENT_TORCH_ELASTIC_MODULE_STATE_H_
#define COXSWAIN_CLIENT_TORCH_ELASTIC_MODULE_STATE_H_

#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>
#include <torch/types.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "client/elastic/elastic_record.h"
#include "client/elastic/elastic_state.h"

namespace coxswain::torch {

// The state of a libtorch program: see ElasticTraining, which keeps it.
class ElasticModuleState : public ElasticState {
 public:
  // Fails with INVALID_ARGUMENT, naming a parameter or buffer that is on a GPU,
  // or whose elements share memory (an expanded tensor).
  static absl::StatusOr<std::unique_ptr<ElasticModuleState>> Create(
      std::shared_ptr<::torch::nn::Module> module,
      ::torch::optim::Optimizer* optimizer);

  // Returns what the program changes; kept by Keep.
  ElasticRecord& record() { return record_; }

  // Called between steps: Rollback restores the state as it is now.
  void Keep();
  // Called when a window begins: Rollback restores what was kept. Otherwise
  // there is nothing to undo.
  void Begin() { in_window_ = true; }
  // Likewise, for a window that was not declared: the buffers may have changed
  // since Keep and keep their present contents, as does what the program has
  // noted since. Does nothing in a window.
  void BeginUndeclared();
  bool in_window() const { return in_window_; }

  // ElasticState.
  int64_t step() const override;
  int64_t progress() const override { return record_.progress; }
  void Rollback() override;
  // Returns the tensors in row-major order, whatever their strides, which may
  // differ between ranks: of tensors that are not contiguous the spans are
  // copies.
  std::vector<Span> Tensors() override;
  std::vector<Span> LooseTensors() override;
  absl::Status TakeTensors() override;
  absl::StatusOr<std::string> Save() override;
  absl::Status Load(absl::string_view bytes, int64_t step) override;
  // Returns the record: a program may have counted differently on each rank.
  std::string LooseBytes() override { return record_.Serialize(); }
  absl::Status LoadLooseBytes(absl::string_view bytes) override;
  // Returns the digest of the optimizer.
  absl::StatusOr<uint64_t> Digest() override;

 private:
  ElasticModuleState(std::shared_ptr<::torch::nn::Module> module,
                     ::torch::optim::Optimizer* optimizer)
      : module_(std::move(module)), optimizer_(*optimizer) {}

  // A tensor that is not contiguous, and a copy of it that is.
  struct DenseCopy {
    ::torch::Tensor tensor;
    ::torch::Tensor dense;
  };

  static std::vector<Span> SpansOf(const std::vector<::torch::Tensor>& tensors,
                                   std::vector<DenseCopy>* copies);

  const std::shared_ptr<::torch::nn::Module> module_;
  ::torch::optim::Optimizer& optimizer_;
  ElasticRecord record_;
  ElasticRecord kept_;
  std::vector<::torch::Tensor> kept_buffers_;
  // Behind the spans that were returned last.
  std::vector<DenseCopy> dense_;
  std::vector<DenseCopy> loose_dense_;
  bool in_window_ = false;
};

}  // namespace coxswain::torch

#endif  // COXSWAIN_CLIENT_TORCH_ELASTIC_MODULE_STATE_H_
