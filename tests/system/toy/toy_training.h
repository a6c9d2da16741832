#ifndef COXSWAIN_TESTS_SYSTEM_TOY_TOY_TRAINING_H_
#define COXSWAIN_TESTS_SYSTEM_TOY_TOY_TRAINING_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "client/accumulate/accumulator.h"
#include "client/reduce/reducer.h"
#include "client/session/session.h"
#include "schedule/step_gate.h"
#include "tests/system/toy/toy_dump.h"
#include "tests/system/toy/toy_model.h"
#include "tests/system/toy/toy_options.h"

namespace coxswain {

// Prints a line at once.
void PrintLine(const std::string& line);

// What a rank does between joining and leaving, as a program without a
// framework would write it: windows of micro-batches, each ended by an exchange
// that is announced, decided and then applied or forgotten.
class ToyTraining {
 public:
  // `options` and `session` outlive it.
  ToyTraining(const ToyOptions& options, Session* session);

  absl::Status Run();

 private:
  absl::Status Connect();
  absl::Status MakeReducer();
  absl::Status Restore();
  absl::Status Save();

  absl::Status Epoch(int64_t length);
  absl::Status EndOfData();
  absl::Status ShareSteps();
  absl::StatusOr<MicroBatch> BeginMicroBatch();
  int SamplesOf(int64_t batch) const;
  void AddGradients(const MicroBatch& micro);
  absl::Status Evaluate();
  bool over() const;

  // Exchanges a window, and does what follows it.
  absl::Status Step(const WindowSum& sum);
  schedule::Ticket TicketOf(const WindowSum& sum);
  absl::Status Exchange(const WindowSum& sum, const schedule::Ticket& ticket);
  absl::Status Apply(const schedule::Decision& decision);
  absl::Status EndStep(const schedule::Decision& decision);
  absl::Status ChangePlan(const schedule::Plan& plan);
  absl::Status ChangeHook(const schedule::Plan& plan);
  absl::Status Dump();

  // Makes the trouble or the pause that the options ask for.
  absl::Status SpoilBefore(const WindowSum& sum);
  absl::Status WaitAtLatch(absl::string_view where) const;

  void PrintOfRank(absl::string_view what) const;
  void Report() const;

  const ToyOptions& options_;
  Session& session_;
  ToyModel model_;
  int64_t step_ = 0;
  int64_t batches_ = 0;  // begun, of the train stream
  bool in_window_ = false;
  int64_t evaluations_ = 0;
  bool epoch_over_ = false;
  bool stopped_ = false;
  schedule::StepGate* gate_ = nullptr;
  std::shared_ptr<ProcessGroup> world_;
  std::unique_ptr<Hook> hook_;
  std::optional<Accumulator> accumulator_;
  // Aborts a step in flight when it goes, so it goes first.
  std::unique_ptr<Reducer> reducer_;
  ToyDumpWriter dump_;
};

}  // namespace coxswain

#endif  // COXSWAIN_TESTS_SYSTEM_TOY_TOY_TRAINING_H_
