#include "tests/simulation/worker.h"

#include <algorithm>

#include "base/random.h"

namespace coxswain::simulation {
namespace {

schedule::StepAgent::Options AgentOptions(const History& history) {
  schedule::StepAgent::Options options;
  options.stream = "train";
  options.terms = history.plan.terms;
  options.timeout = schedule::StepTimeoutOf(history.plan.terms);
  options.resend = history.resend;
  return options;
}

}  // namespace

schedule::Decision AsSent(schedule::Decision decision) {
  const schedule::Decision unknown;
  decision.step = unknown.step;
  decision.without_data = unknown.without_data;
  decision.next_step = unknown.next_step;
  decision.decided = unknown.decided;
  decision.tickets_took = unknown.tickets_took;
  decision.last_rank = unknown.last_rank;
  decision.plan_version = unknown.plan_version;
  return decision;
}

Worker::Worker(const History& history, int rank)
    : history(&history),
      rank(rank),
      agent(AgentOptions(history)),
      plan(history.plan),
      window(plan.WindowOf(rank, history.world_size)) {
  if (!history.data.empty()) data = history.data[static_cast<size_t>(rank)];
}

schedule::Ticket Worker::NextTicket() const {
  schedule::Ticket ticket;
  ticket.step = step;
  ticket.micro = micro;
  ticket.window = window;
  ticket.micro_batches =
      plan.terms.sync_each_batch ? 1 : std::min(window, data);
  if (history->short_window > 0 && step + 1 == history->steps) {
    ticket.micro_batches =
        std::min(ticket.micro_batches, history->short_window);
  }
  ticket.end_of_data =
      !plan.terms.sync_each_batch && ticket.micro_batches < window;
  ticket.weight = ticket.micro_batches;
  ticket.plan_version = plan.version;
  ticket.hook = plan.hook;
  ticket.layout = 17;
  ticket.digest = Mix64(static_cast<uint64_t>(agent.round()));
  const int64_t every = plan.terms.checksum_every;
  if (every > 0 && step % every == 0) {
    ticket.checksum = Mix64(static_cast<uint64_t>(step));
  }
  return ticket;
}

void Worker::Advance() {
  if (plan.terms.sync_each_batch && micro + 1 < window) {
    ++micro;
    return;
  }
  micro = 0;
  ++step;
  if (!history->data.empty()) data -= std::min(window, data);
  window = plan.WindowOf(rank, history->world_size);
}

bool Worker::AtEnd() const {
  return history->data.empty() ? step >= history->steps : all_done;
}

}  // namespace coxswain::simulation
