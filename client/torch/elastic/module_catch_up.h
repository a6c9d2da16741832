#ifndef COXSWAIN_CLIENT_TORCH_ELASTIC_MODULE_CATCH_UP_H_
#define COXSWAIN_CLIENT_TORCH_ELASTIC_MODULE_CATCH_UP_H_

#include <c10/core/Storage.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>
#include <torch/types.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "client/device/tensor.h"
#include "client/elastic/catch_up/catch_up_target.h"

namespace coxswain::torch {

// A libtorch program's parameters and optimizer, as a newcomer takes them from
// the members while these train: both ends. Part of ElasticTraining.
class ModuleCatchUp : public CatchUpTarget {
 public:
  // Fails with UNIMPLEMENTED for an optimizer whose state is not known, and for
  // parameters that are not contiguous: newcomers of such a program copy the
  // state once the generation has ended. An optimizer may make states that are
  // not known later, with its first step: of these DescribeStep and StateToSend
  // throw c10::Error.
  static absl::StatusOr<std::unique_ptr<ModuleCatchUp>> Create(
      const ::torch::nn::Module& module, ::torch::optim::Optimizer* optimizer);

  // ---- of a member, between the exchange and the end of a step ----

  // Returns the averages, as the optimizer is about to read them, in memory
  // that stays until ForgetAverages or the next call.
  std::vector<Span> AveragesToSend();
  void ForgetAverages() { averages_.clear(); }
  // After the step: returns its description, with that of the state if
  // newcomers begin with it.
  std::string DescribeStep(bool begins) const;
  // Returns the state, in memory that stays until ForgetSent or the next call,
  // whatever becomes of the tensors.
  std::vector<Span> StateToSend();
  void ForgetSent() { sent_.clear(); }

  // ---- CatchUpTarget, of a newcomer ----

  absl::Status Begin(absl::string_view rest) override;
  absl::StatusOr<std::vector<Part>> State() override;
  absl::StatusOr<std::vector<Part>> Averages(absl::string_view rest) override;
  absl::Status Step(absl::string_view rest, bool applied) override;
  absl::Status Undo() override;
  void Forget() override;

 private:
  // What a parameter's state consists of.
  struct Form {
    int64_t steps = 0;
    std::vector<std::string> names;
  };
  // What DescribeStep returns.
  struct Description {
    std::vector<double> rates_before;  // of the step
    std::vector<double> rates;
    std::vector<char> used;  // by trained parameter: it has an average
    std::vector<Form> forms;
  };
  struct Backup {
    std::vector<::torch::Tensor> values;
    std::string optimizer;
  };

  explicit ModuleCatchUp(::torch::optim::Optimizer* optimizer)
      : optimizer_(*optimizer) {}

  std::vector<double> Rates() const;
  void SetRates(const std::vector<double>& rates);
  // With `memory`, adds that of the parts.
  std::vector<Part> Parts(std::vector<c10::Storage>* memory = nullptr) const;
  absl::StatusOr<Description> Parse(absl::string_view rest) const;
  void DropAverages();
  absl::Status MakeState(const std::vector<Form>& forms);

  ::torch::optim::Optimizer& optimizer_;
  std::vector<::torch::Tensor> parameters_;
  // Those of the optimizer, in its order, and their numbers among the others.
  std::vector<std::pair<::torch::Tensor, int>> trained_;
  // Of the step under way.
  std::vector<double> rates_before_;
  std::vector<char> used_;
  std::vector<::torch::Tensor> averages_;  // behind the spans
  std::vector<c10::Storage> sent_;         // likewise, of the state
  std::optional<Backup> backup_;
};

}  // namespace coxswain::torch

#endif  // COXSWAIN_CLIENT_TORCH_ELASTIC_MODULE_CATCH_UP_H_
