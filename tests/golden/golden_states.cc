#include "tests/golden/golden_states.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "client/comm/in_process/in_process_world.h"
#include "client/reduce/hook_state.h"

namespace coxswain {
namespace {

constexpr int kRanks = 2;
constexpr int64_t kSteps = 5;
constexpr uint64_t kStream = 7;

// Both types that errors are kept in, and a vector.
std::vector<ParameterSpec> Model() {
  std::vector<ParameterSpec> parameters(3);
  parameters[0].name = "layer1.weight";
  parameters[0].shape = {8, 6};
  parameters[1].name = "layer1.bias";
  parameters[1].shape = {6};
  parameters[2].name = "layer2.weight";
  parameters[2].shape = {6, 8};
  parameters[2].dtype = DType::kFloat64;
  return parameters;
}

AveragerTeam::Group MakeGroup() {
  const auto world = InProcessWorld::Create(kRanks, absl::Seconds(30));
  AveragerTeam::Group group;
  for (int rank = 0; rank < kRanks; ++rank) {
    group.push_back(world->MakeRank(rank));
  }
  return group;
}

std::map<std::string, std::string> TrainedTeam(const GoldenState& golden) {
  AveragerTeam team = MakeGoldenTeam(golden);
  team.RunTo(kSteps, /*start_step=*/0);
  team.AverageNow();
  return {
      {absl::StrCat(golden.name, ".cxhs"), SerializeHookState(team.Save())}};
}

}  // namespace

const std::vector<GoldenState>& GoldenStates() {
  static const auto* states = new std::vector<GoldenState>{
      {"powersgd", "powersgd(rank=2,start_step=2,min_compression_rate=1)"},
      {"powersgd_pytorch",
       "powersgd(rank=1,start_step=2,min_compression_rate=1,mode=pytorch)"},
      {"batched_powersgd", "batched_powersgd(rank=2,start_step=2)"},
      {"acp_sgd", "acp_sgd(rank=2,start_step=2,min_compression_rate=1)"},
      {"int8", "int8(block=32)"},
      {"step_only", "fp16"},
      {"post_local_sgd", "post_local_sgd(start_step=0,period=2)", true},
      {"hierarchical_sgd", "hierarchical_sgd(start_step=0,levels=2xall)", true},
      {"diloco", "diloco(inner_steps=2)", true},
  };
  return *states;
}

HookWorld MakeGoldenWorld(const GoldenState& golden) {
  return HookWorld(golden.spec, Model(), kRanks, {{2}, {1, 0}});
}

AveragerTeam MakeGoldenTeam(const GoldenState& golden) {
  return AveragerTeam(golden.spec, Model(), MakeGroup(),
                      NormalGradients(Model(), kStream, 0, 0));
}

std::map<std::string, std::string> TrainedStates(const GoldenState& golden) {
  if (golden.averager) return TrainedTeam(golden);
  HookWorld world = MakeGoldenWorld(golden);
  for (int64_t step = 0; step < kSteps; ++step) {
    std::vector<Gradients> local;
    for (int rank = 0; rank < kRanks; ++rank) {
      local.push_back(NormalGradients(Model(), kStream, rank, step));
    }
    world.Step(local);
  }
  std::map<std::string, std::string> files;
  files[absl::StrCat(golden.name, ".cxhs")] = SerializeHookState(world.Save());
  for (int rank = 0; rank < kRanks; ++rank) {
    files[absl::StrCat(golden.name, ".own", rank, ".cxhs")] =
        SerializeHookState(world.SaveOwn(rank));
  }
  return files;
}

}  // namespace coxswain
