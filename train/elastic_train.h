#ifndef COXSWAIN_TRAIN_ELASTIC_TRAIN_H_
#define COXSWAIN_TRAIN_ELASTIC_TRAIN_H_

#include <functional>

#include "absl/status/status.h"
#include "client/session/job.h"
#include "train/generation_training.h"
#include "train/train.h"

namespace coxswain {

// Trains through changes of the members, as TrainOptions::elastic asks: calls
// the body in each generation, with the state that the ranks have agreed on.
// Fails as ElasticRun::Run.
absl::Status TrainElastically(
    const Trained& trained, const JobManifest& manifest,
    const std::function<absl::Status(Training&)>& body);

}  // namespace coxswain

#endif  // COXSWAIN_TRAIN_ELASTIC_TRAIN_H_
