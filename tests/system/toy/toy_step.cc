// The second half of ToyTraining: the exchange of a window, and what follows.
#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/crc32c.h"
#include "base/status_macros.h"
#include "hooks/registry/planned_hook.h"
#include "schedule/ticket.h"
#include "tests/system/toy/toy_training.h"

namespace coxswain {
namespace {

constexpr char kRefusal[] = "the loss function failed";

}  // namespace

absl::Status ToyTraining::Step(const WindowSum& sum) {
  in_window_ = false;
  COXSWAIN_RETURN_IF_ERROR(SpoilBefore(sum));
  const schedule::Ticket ticket = TicketOf(sum);
  if (options_.skip_sync.At(session_.rank(), sum.step)) {
    PrintOfRank(absl::StrCat("leaves out step ", sum.step));
    step_ = sum.step + 1;
    model_.ClearGradients();
    return absl::OkStatus();
  }
  COXSWAIN_RETURN_IF_ERROR(Exchange(sum, ticket));
  const StepReport report = reducer_->report();
  schedule::Vote vote;
  if (options_.refuse.At(session_.rank(), sum.step)) {
    vote.commit = false;
    vote.reason = kRefusal;
  }
  if (report.non_finite > 0) {
    vote.commit = false;
    vote.reason = absl::StrCat(report.non_finite,
                               " elements of the average are not finite");
  }
  COXSWAIN_ASSIGN_OR_RETURN(const schedule::Decision decision,
                            reducer_->Decide(vote));
  step_ = sum.step + 1;
  if (report.empty) {
    reducer_->Rollback();
    epoch_over_ = true;
    accumulator_->DropWindow();
  } else {
    COXSWAIN_RETURN_IF_ERROR(Apply(decision));
  }
  return EndStep(decision);
}

schedule::Ticket ToyTraining::TicketOf(const WindowSum& sum) {
  schedule::Ticket ticket;
  ticket.step = sum.step;
  ticket.micro = sum.micro;
  ticket.micro_batches = sum.micro_batches;
  ticket.window = sum.window;
  ticket.weight = sum.weight;
  ticket.end_of_data = sum.end_of_data;
  const int64_t every = accumulator_->plan().terms.checksum_every;
  if (every > 0 && sum.step % every == 0) {
    ticket.checksum = Crc32c(model_.Bytes());
  }
  if (options_.check_gradients && !model_.GradientsAreFinite()) {
    ticket.skip = "a gradient is not finite";
  }
  if (options_.refuse.At(session_.rank(), sum.step) &&
      !accumulator_->plan().terms.commit_vote) {
    ticket.skip = kRefusal;
  }
  if (options_.windows) {
    PrintOfRank(absl::StrCat("window ", sum.step, " of ", sum.micro_batches,
                             "/", sum.window, " weight ", sum.weight, " plan ",
                             accumulator_->plan().version));
  }
  return ticket;
}

absl::Status ToyTraining::Exchange(const WindowSum& sum,
                                   const schedule::Ticket& ticket) {
  if (!accumulator_->plan().needs_header(session_.world_size()) &&
      sum.rescale != 1) {
    model_.ScaleGradients(sum.rescale);
  }
  COXSWAIN_RETURN_IF_ERROR(reducer_->BeginStep(ticket, sum.divisor));
  int p = static_cast<int>(model_.specs().size());
  while (sum.micro_batches > 0 && --p >= 0) {
    COXSWAIN_RETURN_IF_ERROR(reducer_->MarkReady(p, model_.Gradient(p)));
    if (p == 1 && options_.hang.At(session_.rank(), sum.step)) {
      COXSWAIN_RETURN_IF_ERROR(
          WaitAtLatch(absl::StrCat("within step ", sum.step)));
    }
  }
  return reducer_->Finish();
}

absl::Status ToyTraining::Apply(const schedule::Decision& decision) {
  if (!decision.commit) {
    reducer_->Rollback();
    PrintOfRank(absl::StrCat("skips step ", step_ - 1, ": ", decision.reason));
    return absl::OkStatus();
  }
  if (dump_.is_open()) COXSWAIN_RETURN_IF_ERROR(Dump());
  COXSWAIN_RETURN_IF_ERROR(reducer_->Commit());
  for (size_t p = 0; p < model_.specs().size(); ++p) {
    const int index = static_cast<int>(p);
    model_.Descend(index, reducer_->GradientView(index));
  }
  return absl::OkStatus();
}

absl::Status ToyTraining::EndStep(const schedule::Decision& decision) {
  model_.ClearGradients();
  if (options_.diverge.At(session_.rank(), step_ - 1)) model_.FlipBit();
  if (decision.plan.has_value()) {
    COXSWAIN_RETURN_IF_ERROR(ChangePlan(*decision.plan));
  }
  session_.ReportProgress(step_);
  if (step_ % options_.report_every == 0) Report();
  if (step_ == options_.save_at) COXSWAIN_RETURN_IF_ERROR(Save());
  if (!decision.stop.empty()) {
    PrintOfRank(
        absl::StrCat("stops after step ", step_ - 1, ": ", decision.stop));
    stopped_ = true;
  }
  return absl::OkStatus();
}

absl::Status ToyTraining::ChangePlan(const schedule::Plan& plan) {
  COXSWAIN_RETURN_IF_ERROR(ChangeHook(plan));
  COXSWAIN_RETURN_IF_ERROR(accumulator_->ChangePlan(plan));
  COXSWAIN_RETURN_IF_ERROR(reducer_->ChangePlan(plan));
  PrintOfRank(absl::StrCat("plan ", plan.version, " from step ", step_,
                           ": accumulation ", plan.accumulation_steps, " hook ",
                           hook_->spec()));
  return absl::OkStatus();
}

absl::Status ToyTraining::ChangeHook(const schedule::Plan& plan) {
  COXSWAIN_ASSIGN_OR_RETURN(std::unique_ptr<Hook> next, MakePlannedHook(plan));
  if (next->spec() == hook_->spec()) return absl::OkStatus();
  COXSWAIN_RETURN_IF_ERROR(reducer_->ChangeHook(
      next.get(), plan.terms.hook_state == schedule::HookStatePolicy::kCarry));
  hook_ = std::move(next);
  return absl::OkStatus();
}

absl::Status ToyTraining::Dump() {
  for (size_t p = 0; p < model_.specs().size(); ++p) {
    COXSWAIN_RETURN_IF_ERROR(
        dump_.Write(step_ - 1, model_.specs()[p].name,
                    reducer_->GradientView(static_cast<int>(p))));
  }
  return absl::OkStatus();
}

absl::Status ToyTraining::SpoilBefore(const WindowSum& sum) {
  const int rank = session_.rank();
  if (options_.replay && sum.micro_batches > 0) {
    model_.ReplayGradients(sum.step, {rank, session_.world_size()});
  }
  if (options_.nan.At(rank, sum.step)) model_.SpoilGradients();
  if (options_.stop.At(rank, sum.step)) {
    session_.schedule().RequestStop(
        absl::StrCat("rank ", rank, " has had enough"));
  }
  if (!options_.stall.At(rank, sum.step)) return absl::OkStatus();
  return WaitAtLatch(absl::StrCat("before the exchange of step ", sum.step));
}

// The test holds the fifo open for writing, and opens the latch by closing it.
absl::Status ToyTraining::WaitAtLatch(absl::string_view where) const {
  const int fd = open(options_.latch.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return absl::ErrnoToStatus(errno, options_.latch);
  PrintOfRank(where);
  char byte;
  while (read(fd, &byte, 1) < 0 && errno == EINTR) {
  }
  close(fd);
  return absl::OkStatus();
}

}  // namespace coxswain
