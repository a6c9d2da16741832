#include "tests/simulation/worker.h"

#include <algorithm>

#include "base/random.h"

namespace coxswain::simulation {
namespace {

int WindowOf(const History& history, const schedule::Plan& plan, int rank) {
  const DataPlace data = history.DataPlaceOf(rank);
  return plan.WindowOf(data.index, data.count);
}

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
      window(WindowOf(history, plan, rank)) {
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
  // Ranks with data of their own have weights of their own.
  ticket.weight = ticket.micro_batches * (1 + history->DataPlaceOf(rank).index);
  if (!plan.terms.pipeline.empty()) {
    ticket.pipeline = Mix64(static_cast<uint64_t>(ticket.micro_batches) << 32);
  }
  ticket.plan_version = plan.version;
  ticket.hook = plan.hook;
  // Parts of the model are exchanged apart.
  const uint64_t part = Mix64(static_cast<uint64_t>(history->PartOf(rank)));
  ticket.layout = 17 + part;
  ticket.digest = Mix64(static_cast<uint64_t>(agent.round()) ^ part);
  const int64_t every = plan.terms.checksum_every;
  if (every > 0 && step % every == 0) {
    ticket.checksum = Mix64(static_cast<uint64_t>(step) ^ part);
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
  window = WindowOf(*history, plan, rank);
}

bool Worker::AtEnd() const {
  return history->data.empty() ? step >= history->steps : all_done;
}

}  // namespace coxswain::simulation
