#include "tests/system/restart/random_requests.h"

#include <limits>
#include <map>
#include <vector>

#include "absl/strings/str_cat.h"

namespace coxswain {
namespace {

using Texts = std::vector<std::string>;

// Of the terms with which every step is decided as soon as all tickets are
// there.
template <typename Map>
void FillTerms(Dice* dice, Map* terms) {
  for (size_t i = dice->Below(3); i > 0; --i) {
    switch (dice->Below(5)) {
      case 0:
        (*terms)["max_steps"] = absl::StrCat(dice->Usual(1000));
        break;
      case 1:
        (*terms)["checkpoint_every"] = absl::StrCat(dice->Usual(1000));
        break;
      case 2:
        (*terms)["progress_timeout"] =
            dice->One(Texts{"100ms", "99ms", "1h2m3.25s", "0.1000000003s",
                            "168h", "168h0.1ns", std::string(64, '1')});
        break;
      case 3:
        (*terms)["hook_state"] = dice->One(Texts{"carry", "reset", "wag"});
        break;
      default:
        (*terms)["adjust_scheduler"] =
            dice->One(Texts{"step", "batch", "global_batch"});
    }
  }
}

int32_t AccumulationSteps(Dice* dice) {
  return dice->Chance(6) ? dice->One(std::vector<int32_t>{
                               0, -1, 1'000'000, 1'000'001,
                               std::numeric_limits<int32_t>::max()})
                         : 1 + static_cast<int32_t>(dice->Below(3));
}

void FillParameter(Dice* dice, int number, v1::ParameterInfo* parameter) {
  parameter->set_name(absl::StrCat(number, dice->UsualText(1024)));
  parameter->set_dtype(dice->Chance(8) ? dice->Text(32) : "float32");
  for (size_t i = dice->Below(3); i > 0; --i) {
    parameter->add_shape(dice->Usual(4));
    if (dice->Chance(4)) parameter->add_strides(dice->Usual(4));
  }
}

void FillPosition(Dice* dice, int64_t plan_version, v1::Decision* last) {
  last->set_round(dice->Usual(1000));
  last->set_commit(dice->Chance(2));
  last->set_reason(dice->UsualText(1024));
  last->set_stop(dice->UsualText(1024));
  last->set_regroup(dice->Chance(2) ? dice->Text(20'000) : "");
  last->set_checkpoint(dice->UsualText(1024));
  // Those of other streams bring no plan.
  if (last->stream() != "train" || !dice->Chance(3)) return;
  v1::Plan* const plan = last->mutable_plan();
  *plan = RandomPlan(dice);
  plan->set_version(dice->Chance(8) ? 0 : plan_version);
}

}  // namespace

void FillJoin(Dice* dice, int world_size, v1::JoinRequest* request) {
  request->set_attempt(dice->Chance(4) ? dice->Usual(5) : 0);
  request->set_host(dice->UsualText(255));
  request->set_address(dice->UsualText(255));
  request->clear_topology();
  for (size_t i = dice->Below(3); i > 0; --i) {
    request->add_topology(dice->UsualText(64));
  }
  v1::Manifest& manifest = *request->mutable_manifest();
  manifest.Clear();
  manifest.set_world_size(world_size);
  if (dice->Chance(4)) {
    manifest.set_min_world_size(static_cast<int32_t>(dice->Below(4)) - 1);
  }
  if (dice->Chance(4)) {
    manifest.set_mesh(dice->Chance(4) ? dice->UsualText(64) : "dp=*");
  }
  manifest.set_hook(dice->UsualText(4096));
  manifest.set_accumulation_steps(AccumulationSteps(dice));
  if (dice->Chance(2)) manifest.set_compression_start(dice->Usual(100));
  for (size_t i = dice->Below(3); i > 0; --i) {
    (*manifest.mutable_settings())[dice->UsualText(4096)] =
        dice->UsualText(4096);
  }
  for (size_t i = dice->Below(3); i > 0; --i) {
    FillParameter(dice, static_cast<int>(i), manifest.add_parameters());
  }
  FillTerms(dice, manifest.mutable_terms());
}

v1::Plan RandomPlan(Dice* dice) {
  v1::Plan plan;
  plan.set_version(dice->Usual(3));
  plan.set_accumulation_steps(AccumulationSteps(dice));
  plan.set_hook(dice->UsualText(4096));
  plan.set_compression_start_step(dice->Usual(100) - 1);
  if (dice->Chance(4)) plan.set_global_micro_batches(dice->Number());
  plan.set_at_step(dice->Chance(2) ? -1 : dice->Number());
  FillTerms(dice, plan.mutable_terms());
  return plan;
}

v1::CreateGroupRequest RandomGroup(Dice* dice) {
  v1::CreateGroupRequest request;
  request.set_name(dice->UsualText(128));
  if (dice->Chance(4)) {
    request.set_all_ranks(true);
    return request;
  }
  for (size_t i = dice->Below(4); i > 0; --i) {
    request.add_ranks(static_cast<int32_t>(dice->Usual(2)));
  }
  return request;
}

v1::CreateMeshRequest RandomMesh(Dice* dice) {
  v1::CreateMeshRequest request;
  request.set_name(dice->UsualText(128));
  const size_t long_axis = dice->Below(3);
  for (size_t i = 0; i <= dice->Below(3); ++i) {
    v1::MeshAxis& axis = *request.add_axes();
    axis.set_name(dice->Chance(6) ? dice->UsualText(128)
                                  : absl::StrCat("axis-", i));
    axis.set_size(i == long_axis ? 2 : 1);
    if (dice->Chance(8)) axis.set_size(static_cast<int32_t>(dice->Number()));
  }
  if (request.axes_size() > 1 && dice->Chance(2)) {
    v1::JoinedAxes& joined = *request.add_joined();
    joined.add_names(request.axes(0).name());
    joined.add_names(request.axes(1).name());
  }
  return request;
}

v1::BeginRequest RandomCheckpoint(Dice* dice) {
  v1::BeginRequest request;
  request.set_step(dice->Usual(4));
  request.set_shards(dice->Chance(3) ? 2 : 1);
  if (dice->Chance(8)) {
    request.set_shards(static_cast<int32_t>(dice->Number()));
  }
  for (size_t i = dice->Below(3); i > 0; --i) {
    (*request.mutable_metadata())[dice->UsualText(100)] =
        dice->Chance(8) ? dice->Text(65'536) : dice->UsualText(100);
  }
  return request;
}

v1::LeaveRequest RandomLeave(Dice* dice, int64_t plan_version) {
  v1::LeaveRequest request;
  request.set_reason(dice->UsualText(1024));
  int64_t epoch = 1 + dice->Usual(100);
  // Without a fallback epoch the positions would contradict what was decided.
  if (epoch == 0) epoch = 1;
  request.set_fallback_epoch(epoch);
  const size_t count = dice->Chance(12) ? 65 : dice->Below(4);
  for (size_t i = 0; i < count; ++i) {
    v1::Decision* const last = request.add_positions()->mutable_last();
    last->set_stream(count > 3         ? absl::StrCat("stream-", i)
                     : dice->Chance(2) ? "train"
                                       : dice->UsualText(64));
    FillPosition(dice, plan_version, last);
  }
  return request;
}

}  // namespace coxswain
