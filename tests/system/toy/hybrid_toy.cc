// One rank of a job whose optimizer's state is sharded, ZERO being Train's
// option:
//   coxswain run --nproc 4 --mesh dp=2,shard=2 -- hybrid_toy ZERO
// Prints its parameters after ten steps, and how many ranks share a state:
//   rank R shares with N: VALUE VALUE ...

#include <ATen/Parallel.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "train/torch/train.h"

namespace coxswain::torch {
namespace {

using ::torch::Tensor;

// Numbers of a sine, so that no generator decides.
Tensor Numbers(int64_t rows, int64_t columns, double phase) {
  const Tensor numbers = ::torch::arange(rows * columns, ::torch::kFloat64);
  return ::torch::sin(numbers * 1.7 + phase).view({rows, columns});
}

absl::Status Run(int zero) {
  at::set_num_threads(1);
  const auto net = std::make_shared<::torch::nn::LinearImpl>(
      ::torch::nn::LinearOptions(7, 5).bias(false));
  net->to(::torch::kFloat64);
  {
    const ::torch::NoGradGuard no_grad;
    net->weight.copy_(Numbers(5, 7, 0.3));
  }
  ::torch::optim::Adam adam(net->parameters(),
                            ::torch::optim::AdamOptions(0.01));
  std::string line;
  TrainOptions options;
  options.zero = zero;
  COXSWAIN_RETURN_IF_ERROR(
      Train(options, net, adam, [&](Training& training) -> absl::Status {
        while (training.step() < 10 && training.going()) {
          COXSWAIN_RETURN_IF_ERROR(training.Step([&] {
            const auto phase =
                static_cast<double>(training.step() * 100 + training.rank());
            return net->forward(Numbers(3, 7, phase)).square().mean();
          }));
        }
        const Reducer& reducer = training.ddp().reducer();
        line = absl::StrCat("rank ", training.rank(), " shares with ",
                            zero > 0 ? reducer.slicing().size() : 1, ":");
        return absl::OkStatus();
      }));
  const Tensor values = net->weight.detach().view({-1}).contiguous();
  for (int64_t i = 0; i < values.numel(); ++i) {
    absl::StrAppendFormat(&line, " %.17g", values[i].item<double>());
  }
  std::printf("%s\n", line.c_str());
  return absl::OkStatus();
}

}  // namespace
}  // namespace coxswain::torch

int main(int argc, char** argv) {
  const absl::Status status =
      coxswain::torch::Run(argc > 1 ? std::atoi(argv[1]) : 0);
  if (status.ok()) return 0;
  std::fprintf(stderr, "hybrid_toy: %s\n",
               std::string(status.message()).c_str());
  return 1;
}
