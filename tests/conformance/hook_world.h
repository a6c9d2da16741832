#ifndef COXSWAIN_TESTS_CONFORMANCE_HOOK_WORLD_H_
#define COXSWAIN_TESTS_CONFORMANCE_HOOK_WORLD_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/comm/communicator.h"
#include "client/reduce/hook.h"

namespace coxswain {

// The values of all parameters' gradients, by registration index.
using Gradients = std::vector<std::vector<double>>;

// Parameters of one type with the odd shapes that a model may have: scalar,
// vector, empty, n x 1, wide, tall, four-dimensional.
std::vector<ParameterSpec> OddParameters(DType dtype);

// Standard normal gradients, a pure function of (stream, rank, step).
Gradients NormalGradients(const std::vector<ParameterSpec>& parameters,
                          uint64_t stream, int rank, int64_t step);

// sum of scale * a, element by element.
void AddTo(Gradients& sum, const Gradients& a, double scale = 1);
// |a - b| / |b| over all elements, Euclidean; |a - b| if b is zero.
double RelativeDifference(const Gradients& a, const Gradients& b);

// The ranks of one job in this process, each with its own instance of a hook,
// and what a reducer does with them. A failure fails the test.
class HookWorld {
 public:
  // Which parameters each bucket has, in order.
  using Buckets = std::vector<std::vector<int>>;

  // One bucket per two parameters, from the last parameter to the first.
  static Buckets DefaultBuckets(const std::vector<ParameterSpec>& parameters);

  HookWorld(const std::string& spec, std::vector<ParameterSpec> parameters,
            int size, Buckets buckets = {});

  int size() const { return static_cast<int>(hooks_.size()); }
  Hook& hook(int rank) { return *hooks_[static_cast<size_t>(rank)]; }
  // Of all ranks' communicators so far; equal on all.
  int64_t payload_bytes() const;

  // New buckets; configures the hooks again.
  void Rebucket(Buckets buckets);

  // Exchanges all buckets of a step without ending it. `local[r]` are rank
  // r's gradients. Checks that all ranks hold the same bits, and returns them.
  Gradients Exchange(const std::vector<Gradients>& local);
  void Commit();
  void Rollback();
  // Exchange and Commit.
  Gradients Step(const std::vector<Gradients>& local);

  // All shards, through their bytes, merged.
  HookState Save();
  absl::Status Load(const HookState& state);

 private:
  const std::vector<ParameterSpec> parameters_;
  Buckets buckets_;
  std::vector<std::unique_ptr<Communicator>> communicators_;
  std::vector<std::unique_ptr<Hook>> hooks_;
};

}  // namespace coxswain

#endif  // COXSWAIN_TESTS_CONFORMANCE_HOOK_WORLD_H_
