#ifndef COXSWAIN_TRAIN_GENERATION_TRAINING_H_
#define COXSWAIN_TRAIN_GENERATION_TRAINING_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/comm/communicator.h"
#include "client/elastic/elastic_record.h"
#include "client/resume/record_checkpoint.h"
#include "client/session/session.h"
#include "train/parameter_exchange.h"
#include "train/train.h"

namespace coxswain {

// What Train was given, its session filled in.
struct Trained {
  const TrainOptions& options;
  const std::vector<TrainedParameter>& parameters;
  const TrainedOptimizer& optimizer;
};

// Fails with INVALID_ARGUMENT if buckets or norm make no sense.
absl::StatusOr<ReducerOptions> ReducerOptionsOf(const TrainOptions& options);

// A training as its body sees it within one generation, elastic or not. All
// that the ranks have in common besides the model is in a record, which belongs
// to the caller: how many windows have ended, and what the program counts.
class GenerationTraining : public Training {
 public:
  bool going() const override { return exchange_->going(); }
  int64_t step() const override { return record_.step(); }
  int64_t& counter(const std::string& name) override {
    return record_.counters[name];
  }
  std::string& blob(const std::string& name) override {
    return record_.blobs[name];
  }
  Session& session() override { return session_; }
  const schedule::Plan& plan() override { return exchange_->plan(); }
  bool taken() const override { return stepped() && exchange_->taken(); }
  const schedule::Decision& decision() const override {
    return exchange_->decision();
  }

 protected:
  using CheckHook = std::function<absl::Status(const Hook&)>;

  GenerationTraining(const Trained& trained, Session* session,
                     ElasticRecord* record)
      : trained_(trained), session_(*session), record_(*record) {}

  // `check_hook` and `same_at_start` as those of ParameterExchange.
  absl::Status Connect(std::shared_ptr<Communicator> communicator,
                       const CheckHook& check_hook = nullptr,
                       bool same_at_start = false);
  // From TrainOptions::resume, if that is set.
  absl::Status Resume() {
    return checkpoint_->Resume(trained_.options.resume).status();
  }

  // Around a window. A checkpoint of the step before is saved at the beginning.
  virtual absl::Status EnterWindow() { return SaveIfDue(); }
  // Notes in the record what has ended. Returns false in the middle of a
  // window, where nothing has.
  virtual bool LeaveWindow() {
    return checkpoint_->NoteWindow(exchange_->accumulator(),
                                   exchange_->decided());
  }
  virtual void AfterStep() = 0;
  // Fails where the body should have returned.
  virtual absl::Status CheckGoing() { return absl::OkStatus(); }

  absl::Status SaveIfDue() { return checkpoint_->SaveIfDue(decision()); }
  // Waits for the checkpoint that is being written.
  void FinishSaving() { checkpoint_->Finish(trained_.options.save_timeout); }

  const Trained& trained() const { return trained_; }
  ParameterExchange& exchange() { return *exchange_; }
  const ParameterExchange& exchange() const { return *exchange_; }
  // Ends checkpoints and exchange, and returns the hook.
  std::unique_ptr<Hook> Disconnect();

 private:
  ProgramCheckpoint::Training State();

  absl::StatusOr<MicroBatch> BeginMicroBatch(
      const Accumulator::Begin& begin) override;
  absl::Status TakeGradient(int parameter) override {
    return exchange_->Ready(parameter);
  }
  absl::Status TakeGradients() override { return exchange_->End(); }
  bool ended() override { return exchange_->ended(); }
  absl::StatusOr<bool> Flush() override;
  absl::StatusOr<bool> StepWithoutData() override;
  absl::Status TakeStep() override;

  const Trained& trained_;
  Session& session_;
  ElasticRecord& record_;
  std::shared_ptr<Communicator> communicator_;
  std::unique_ptr<ParameterExchange> exchange_;
  std::unique_ptr<RecordCheckpoint> checkpoint_;
};

}  // namespace coxswain

#endif  // COXSWAIN_TRAIN_GENERATION_TRAINING_H_
