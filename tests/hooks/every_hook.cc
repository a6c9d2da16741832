#include "tests/hooks/every_hook.h"

#include <cmath>
#include <utility>

namespace coxswain {
namespace {

AnyHook Exact(std::string name, std::string spec) {
  AnyHook hook;
  hook.name = std::move(name);
  hook.spec = std::move(spec);
  return hook;
}

AnyHook Apart(std::string name, std::string spec, int64_t start_step) {
  AnyHook hook = Exact(std::move(name), std::move(spec));
  hook.ranks_differ = true;
  hook.start_step = start_step;
  return hook;
}

AnyHook Feedback(std::string name, std::string spec, int64_t start_step = 2) {
  AnyHook hook = Exact(std::move(name), std::move(spec));
  hook.error_feedback = true;
  hook.start_step = start_step;
  return hook;
}

}  // namespace

std::vector<AnyHook> EveryHook() {
  return {
      Exact("AllReduce", "allreduce"),
      Exact("Fp16", "fp16"),
      Exact("Bf16", "bf16"),
      Exact("CastThenDivide", "fp16(order=cast_then_divide)"),
      Exact("Fp16OfAllReduce", "fp16(allreduce)"),
      Exact("StatsOfAllReduce", "stats(allreduce,every=1000000)"),
      Apart("Noop", "noop", 0),
      Feedback("PowerSgd", "powersgd(start_step=2)"),
      Feedback("PowerSgdRank4",
               "powersgd(start_step=2,rank=4,min_compression_rate=1)"),
      Feedback("PowerSgdColdStart",
               "powersgd(start_step=2,rank=2,warm_start=false)"),
      Feedback("PowerSgdGramSchmidt",
               "powersgd(start_step=2,rank=3,min_compression_rate=1,"
               "orthogonalize=gram_schmidt)"),
      Feedback("PowerSgdCholeskyQr2",
               "powersgd(start_step=2,rank=3,min_compression_rate=1,"
               "orthogonalize=cholesky_qr2)"),
      Feedback("PowerSgdBatchSameShape",
               "powersgd(start_step=2,rank=2,batch_same_shape=true)"),
      Feedback("PowerSgdPyTorch", "powersgd(start_step=2,rank=2,mode=pytorch)"),
      Feedback("AcpSgd", "acp_sgd(start_step=2,min_compression_rate=1)"),
      Feedback("AcpSgdRank2", "acp_sgd(start_step=2,rank=2)"),
      Feedback("Bf16OfAcpSgd", "bf16(acp_sgd(start_step=2,rank=2))"),
      Feedback("BatchedPowerSgd", "batched_powersgd(start_step=2)"),
      Feedback("BatchedPowerSgdRank3", "batched_powersgd(start_step=2,rank=3)"),
      Feedback("Fp16OfPowerSgd", "fp16(powersgd(start_step=2,rank=2))"),
      Feedback("Bf16OfPowerSgd", "bf16(powersgd(start_step=2,rank=2))"),
      Feedback("StatsOfPowerSgd",
               "stats(powersgd(start_step=2,rank=2),every=1000000)"),
      Feedback("Int8", "int8", 0),
      Feedback("Int8Late", "int8(start_step=2,block=32)"),
      Feedback("Bf16OfInt8", "bf16(int8)", 0),
      Apart("PostLocalSgd", "post_local_sgd(start_step=2)", 2),
      Apart("PostLocalSgdOfPairs", "post_local_sgd(start_step=2,subgroup=2)",
            2),
      Apart("HierarchicalSgd", "hierarchical_sgd", 0),
      Apart("DiLoCo", "diloco", 0),
  };
}

std::vector<AnyHook> EveryFeedbackHook() {
  std::vector<AnyHook> hooks;
  for (AnyHook& hook : EveryHook()) {
    if (hook.error_feedback) hooks.push_back(std::move(hook));
  }
  return hooks;
}

std::vector<Gradients> AllGradients(
    const std::vector<ParameterSpec>& parameters, uint64_t stream, int size,
    int64_t step) {
  std::vector<Gradients> all;
  for (int rank = 0; rank < size; ++rank) {
    all.push_back(NormalGradients(parameters, stream, rank, step));
  }
  return all;
}

ParameterSpec NamedParameter(std::string name, std::vector<int64_t> shape,
                             DType dtype) {
  ParameterSpec parameter;
  parameter.name = std::move(name);
  parameter.shape = std::move(shape);
  parameter.dtype = dtype;
  return parameter;
}

bool AllFinite(const Gradients& gradients) {
  for (const auto& values : gradients) {
    for (const double value : values) {
      if (!std::isfinite(value)) return false;
    }
  }
  return true;
}

bool AllNan(const Gradients& gradients) {
  for (const auto& values : gradients) {
    for (const double value : values) {
      if (!std::isnan(value)) return false;
    }
  }
  return true;
}

HookWorld StartedWorld(const AnyHook& hook,
                       const std::vector<ParameterSpec>& parameters, int size) {
  HookWorld world(hook.spec, parameters, size);
  for (int64_t step = 0; step < hook.start_step; ++step) {
    world.Step(AllGradients(parameters, 77, size, step));
  }
  return world;
}

}  // namespace coxswain
