// A training program outside the workspace, without libtorch: every rank has
// one gradient, rank + 1, and subtracts the average over the ranks.
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "coxswain/client/reduce/reducer.h"
#include "coxswain/client/session/session.h"
#include "coxswain/hooks/registry/planned_hook.h"

namespace {

using coxswain::Reducer;
using coxswain::Session;

constexpr int kSteps = 3;
constexpr int kElements = 1000;

int Fail(const absl::Status& status) {
  std::fprintf(stderr, "%s\n", std::string(status.message()).c_str());
  return 1;
}

absl::Status Train(Session& session, Reducer& reducer) {
  std::vector<float> parameter(kElements);
  for (int step = 0; step < kSteps; ++step) {
    std::vector<float> gradient(kElements, session.rank() + 1.0f);
    coxswain::Span span;
    span.data = gradient.data();
    span.count = kElements;
    coxswain::schedule::Ticket ticket;
    ticket.step = step;
    absl::Status status = reducer.BeginStep(ticket, /*divisor=*/1);
    if (status.ok()) status = reducer.MarkReady(0, span);
    if (status.ok()) status = reducer.Finish();
    if (!status.ok()) return status;
    const auto decision = reducer.Decide();
    if (!decision.ok()) return decision.status();
    const coxswain::Span average = reducer.GradientView(0);
    for (int i = 0; i < kElements; ++i) {
      parameter[i] -= static_cast<const float*>(average.data)[i];
    }
    status = reducer.Commit();
    if (!status.ok()) return status;
  }
  std::printf("rank %d of %d: %g\n", session.rank(), session.world_size(),
              parameter[kElements - 1]);
  return absl::OkStatus();
}

}  // namespace

int main() {
  coxswain::JobManifest manifest;
  manifest.parameters.resize(1);
  manifest.parameters[0].name = "weight";
  manifest.parameters[0].shape = {kElements};
  const auto options = coxswain::SessionOptions::FromEnvironment();
  if (!options.ok()) return Fail(options.status());
  const auto session = Session::Join(*options, manifest);
  if (!session.ok()) return Fail(session.status());
  const auto world = (*session)->World();
  if (!world.ok()) return Fail(world.status());
  const auto hook = coxswain::MakePlannedHook((*session)->plan());
  if (!hook.ok()) return Fail(hook.status());
  coxswain::ReducerOptions reducer_options;
  const auto gate = (*session)->schedule().Gate();
  if (!gate.ok()) return Fail(gate.status());
  reducer_options.gate = *gate;
  coxswain::FollowPlan((*session)->plan(), (*session)->world_size(),
                       &reducer_options);
  const auto reducer = Reducer::Create(reducer_options, manifest.parameters,
                                       hook->get(), &(*world)->communicator());
  if (!reducer.ok()) return Fail(reducer.status());
  const absl::Status trained = Train(**session, **reducer);
  if (!trained.ok()) return Fail(trained);
  return (*session)->Leave("done").ok() ? 0 : 1;
}
