#ifndef COXSWAIN_TESTS_INTEGRATION_PIPELINE_RANKS_H_
#define COXSWAIN_TESTS_INTEGRATION_PIPELINE_RANKS_H_

#include <torch/optim/optimizer.h>
#include <torch/types.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "client/rpc/coordinator_stub.h"
#include "client/session/session.h"
#include "client/torch/pipeline/pipeline.h"
#include "proto/schedule.pb.h"
#include "server/coordinator.h"

namespace coxswain::torch {

// For tests of pipelines: jobs of a real coordinator in this process, whose
// ranks are threads.

using ValuesByName = std::map<std::string, ::torch::Tensor>;

// What a rank's program trains.
struct PipelineProgram {
  PipelineModel model;
  PipelineLoss loss;
  // If set: in place of it.
  MeshLoss mesh_loss;
  PipelineOptions options;
  // Returns a micro-batch by its number in the data of this index, with all
  // that any rank has of it.
  std::function<PipelineBatch(int data_index, int64_t number)> data;
  // If set: in place of MakeAdam.
  std::function<std::unique_ptr<::torch::optim::Optimizer>(
      const std::vector<::torch::Tensor>& parameters)>
      make_optimizer;
  // If set: changes how this rank joins.
  std::function<void(SessionOptions&)> before_join;
  // If set: changes what this rank trains, after it has joined with it.
  std::function<void(PipelineProgram&, Session&)> after_join;
  // Called before this rank leaves, if set.
  std::function<void()> before_leave;
};

// What a rank came to.
struct PipelineEnd {
  absl::Status status;
  ValuesByName values;
  std::vector<double> losses;  // of all steps, on the last stage
  int64_t taken = 0;           // micro-batches
  int data_index = 0;
  // Which parts the values are of what tp divides, and what it does not.
  ParameterBoxes boxes;
  std::vector<std::string> replicated;
};

// Returns Adam over these parameters.
std::unique_ptr<::torch::optim::Optimizer> MakeAdam(
    const std::vector<::torch::Tensor>& parameters);

class PipelineJob {
 public:
  using Body = std::function<absl::Status(Pipeline&, Session&, PipelineEnd*)>;

  PipelineJob();

  // Runs a program on each rank, from Join to Leave, with its optimizer. Joins
  // under the program's mesh.
  std::vector<PipelineEnd> Run(
      int ranks, const std::function<PipelineProgram(int rank)>& program,
      const Body& body);
  // The same program and so many steps on each rank. Fails the test on an
  // error.
  std::vector<PipelineEnd> Train(int ranks, const PipelineProgram& program,
                                 int steps);
  // Such a body.
  static Body Steps(const PipelineProgram& program, int steps);
  // Runs one step, of the next so many micro-batches; 0: of a window's.
  static absl::StatusOr<PipelineResult> Step(Pipeline& pipeline,
                                             const PipelineProgram& program,
                                             int micro_batches,
                                             PipelineEnd* end);
  // Returns what this rank has of the next ones.
  static std::vector<PipelineBatch> NextOf(const Pipeline& pipeline,
                                           const PipelineProgram& program,
                                           int micro_batches, PipelineEnd* end);

  // Proposes a change of the plan, from the next step on.
  absl::Status Propose(const std::function<void(v1::Plan&)>& change);
  // Asks the coordinator about the job, again and again, until `done` with its
  // answer; fails with DEADLINE_EXCEEDED.
  absl::Status Await(const std::function<bool(const v1::WhyResponse&)>& done);
  server::Coordinator& coordinator() { return *coordinator_; }

 private:
  std::unique_ptr<server::Coordinator> coordinator_;
  std::shared_ptr<CoordinatorStub> operator_;
};

// What one process comes to that has all data. Expects what is tied to have one
// memory there.
struct OneProcess {
  ValuesByName values;
  std::vector<double> losses;  // of data index 0
};
// By step and data index: how many micro-batches there are.
using Windows = std::vector<std::vector<int>>;
OneProcess InOneProcess(const PipelineProgram& program, const Windows& windows,
                        double max_norm = 0);

// Fails the test unless each rank's values are these, or its parts of them, but
// for so much of the largest element; 0: bit for bit. And all of them are on
// some rank.
void ExpectValues(const std::vector<PipelineEnd>& ends,
                  const ValuesByName& expected, double tolerance);

// ---- models ----

// `layers` of tanh(LayerNorm(Linear(x))), on rows that differ in number.
PipelineProgram Mlp(int layers, ::torch::ScalarType type);
// A language model whose embedding and head are tied, over an odd vocabulary;
// micro-batches weigh their tokens.
PipelineProgram TiedTokens();
// The same with one tensor in both places, which the program shares itself: of
// one process.
PipelineProgram TiedTokensByHand();
// An encoder, whose output and mask a decoder's layers pass on; sequences
// differ in length from one micro-batch to the next.
PipelineProgram EncoderDecoder();

}  // namespace coxswain::torch

#endif  // COXSWAIN_TESTS_INTEGRATION_PIPELINE_RANKS_H_
