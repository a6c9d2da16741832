#ifndef COXSWAIN_TESTS_INTEGRATION_GPT_MODEL_FOR_TEST_H_
#define COXSWAIN_TESTS_INTEGRATION_GPT_MODEL_FOR_TEST_H_

#include <torch/types.h>

#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "client/torch/pipeline/pipeline.h"
#include "client/torch/pipeline/pipeline_model.h"
#include "tests/integration/pipeline_ranks.h"

namespace coxswain::torch {

// A small GPT for tests, in float64: as layers that are spread and divided over
// the ranks of a mesh, and as one process of libtorch alone has it, which knows
// nothing of ranks. Both draw initial values and dropout masks by name and
// index.
struct GptForTest {
  int64_t vocabulary = 101;  // comes out even for no tp
  int64_t features = 32;
  int64_t heads = 4;
  int64_t inner = 64;  // of the feed-forward part
  int64_t length = 16;
  // Micro-batches are of this length, half of it and three quarters of it, in
  // turn.
  bool lengths_differ = false;
  double dropout = 0.1;
  uint64_t seed = 29;
  // Of a step, those of all data together. Of D data indices, j has the j-th,
  // the (j+D)-th, ...
  int micro_batches = 8;
  double max_norm = 1;
  std::set<int> skipped = {};  // steps whose gradients are thrown away
};

// "embedding", "positions", "block0" to "block3", "norm" and "head", whose
// weight is the embedding's. What lies between tensors of tokens and logits is
// [samples, (own part of the) sequence, features].
PipelineModel GptModelOf(const GptForTest& gpt);
// The mean over the targets that count. There are some: those of a micro-batch
// without any are not asked for.
MeshLoss GptLossOf(const GptForTest& gpt);
// A micro-batch by its number among those of all steps and all data. They
// differ in how many samples they have, and in how many of their targets count,
// which is their weight; one in 29 has none that counts.
PipelineBatch GptBatchOf(const GptForTest& gpt, int64_t number);

// A program of a job on this mesh, which has so many data indices: clips, and
// weighs tokens.
PipelineProgram GptProgramOf(const GptForTest& gpt, const std::string& mesh,
                             int data_ranks);

// What one process comes to.
struct GptInOneProcess {
  ValuesByName initial;
  ValuesByName values;         // after the last step
  std::vector<double> losses;  // of all micro-batches, by their numbers
  std::vector<double> norms;   // of the steps' gradients, before clipping
};
GptInOneProcess TrainGptInOneProcess(const GptForTest& gpt, int steps);

// What one rank of a mesh has.
struct GptRank {
  PipelineEnd end;  // values: this rank's parts, after the last step
  ValuesByName initial;
  ParameterBoxes boxes;
  std::vector<double> norms;         // by step, as the following
  std::vector<std::string> reasons;  // why it was skipped; empty: it was not
  std::vector<double> scales;        // of the next step's losses, with scaling
  bool has_targets = false;
  int data_index = 0;
  int data_ranks = 1;
};
// What ranks do with a program.
struct GptRun {
  int steps = 20;
  // Called on each rank before a step, if set.
  std::function<void(Pipeline& pipeline, int rank, int step)> before_step;
};
// Trains on so many ranks; errors are in the ranks' ends.
std::vector<GptRank> RunGpt(PipelineJob& job, int ranks,
                            const PipelineProgram& program, const GptRun& run);
// The same, and fails the test on an error.
std::vector<GptRank> TrainGpt(PipelineJob& job, int ranks,
                              const PipelineProgram& program, int steps);

// Returns the part of a whole parameter that has this box, or all of it where
// there is none.
::torch::Tensor PartOf(const ::torch::Tensor& whole, const std::string& name,
                       const ParameterBoxes& boxes);

struct GptTolerances {
  double losses = 1e-10;
  double norms = 1e-10;
  double values = 1e-9;  // of the largest element
};
// Fails the test unless the ranks began with the same bits as one process, and
// had its losses, norms and values. Norms of a skipped step are not compared.
void ExpectAsInOneProcess(const GptForTest& gpt,
                          const std::vector<GptRank>& ranks,
                          const GptInOneProcess& alone,
                          const GptTolerances& tolerances = {});

}  // namespace coxswain::torch

#endif  // COXSWAIN_TESTS_INTEGRATION_GPT_MODEL_FOR_TEST_H_
