#ifndef COXSWAIN_CLIENT_TORCH_ELASTIC_MEMBER_CATCH_UP_H_
#define COXSWAIN_CLIENT_TORCH_ELASTIC_MEMBER_CATCH_UP_H_

#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "client/elastic/catch_up/catch_up_target.h"
#include "client/elastic/catch_up/source.h"
#include "client/elastic/elastic_run.h"
#include "client/session/session.h"
#include "client/torch/distributed_data_parallel.h"
#include "client/torch/elastic/module_catch_up.h"
#include "schedule/ticket.h"

namespace coxswain::torch {

// What a worker has for newcomers that take its state while it trains, from one
// generation to the next. Part of ElasticTraining.
//
// Threading: the thread that trains; target() as CatchUpTarget has it.
class MemberCatchUp {
 public:
  // With `on` false, and for a program whose state cannot be taken so, it
  // reports of each newcomer that it copies the state at the regroup.
  MemberCatchUp(const ::torch::nn::Module& module,
                ::torch::optim::Optimizer* optimizer, bool on);

  // Null: this worker takes no state so.
  CatchUpTarget* target() { return state_.get(); }

  // Drops what is on its way to the newcomers of the generation before, which
  // are members by now, or not.
  void BeginGeneration(const ElasticGeneration& generation);
  // Right before the optimizer's step, which may be skipped.
  void BeforeStep(const DistributedDataParallel& ddp);
  // Once the state is that after a window, whose decision `ddp` has.
  void AfterWindow(const DistributedDataParallel& ddp, int64_t progress,
                   Session* session);
  // At the end of a generation that regroups.
  void End(int64_t progress);
  // At that of any other, and once anything fails: newcomers get nothing more,
  // and nothing of the state is read any more.
  void Drop();

 private:
  // Logs an event of an error.
  static void Warn(absl::string_view event, const absl::Status& status);
  void NoteDropped(const schedule::Newcomer& newcomer);
  void Report(std::vector<NewcomerReport> reports, Session* session);

  std::unique_ptr<ModuleCatchUp> state_;
  std::unique_ptr<catch_up::Source> source_;
  int64_t progress_ = 0;         // of the last window
  int64_t averages_before_ = 0;  // optimizer steps, when averages were copied
  bool has_averages_ = false;
  std::vector<NewcomerReport> reported_;
  std::vector<NewcomerReport> dropped_;  // of this generation
};

}  // namespace coxswain::torch

#endif  // COXSWAIN_CLIENT_TORCH_ELASTIC_MEMBER_CATCH_UP_H_
