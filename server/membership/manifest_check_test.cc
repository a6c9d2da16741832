#include "server/membership/manifest_check.h"

#include <functional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"

namespace coxswain::server {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Pair;

Manifest MakeManifest() {
  Manifest manifest;
  manifest.world_size = 2;
  manifest.hook = "allreduce";
  manifest.accumulation_steps = 1;
  manifest.parameters = {{"conv1.weight", {16, 1, 3, 3}, "float32", {}},
                         {"conv1.bias", {16}, "float32", {}}};
  manifest.settings = {{"seed", "1"}};
  return manifest;
}

TEST(NormaliseManifestTest, WhatMeansTheSameIsEqual) {
  Manifest plain = MakeManifest();
  Manifest other = MakeManifest();
  other.terms = {{"tail", "flush"}, {"progress_timeout", "300s"}};
  other.parameters[0].strides = {9, 7, 3, 1};  // of a dimension of 1
  other.parameters[1].strides = {1};
  NormaliseManifest(&other);
  EXPECT_TRUE(SameManifest(plain, other));
  EXPECT_THAT(other.terms, IsEmpty());
  EXPECT_THAT(other.parameters[0].strides, IsEmpty());
}

TEST(NormaliseManifestTest, WhatDiffersStays) {
  Manifest manifest = MakeManifest();
  manifest.terms = {{"tail", "drop"}, {"progress_timeout", "90s"}};
  manifest.parameters[0].strides = {1, 5, 48, 16};
  NormaliseManifest(&manifest);
  EXPECT_THAT(manifest.terms, ElementsAre(Pair("progress_timeout", "1m30s"),
                                          Pair("tail", "drop")));
  EXPECT_THAT(manifest.parameters[0].strides, ElementsAre(1, 1, 48, 16));
}

TEST(NormaliseManifestTest, PatchesOfOneSeriesAreAlike) {
  Manifest manifests[] = {MakeManifest(), MakeManifest(), MakeManifest()};
  const std::string versions[] = {"0.1.0", "0.1.12", "0.2.0"};
  for (int i = 0; i < 3; ++i) {
    manifests[i].settings["library_version"] = versions[i];
    NormaliseManifest(&manifests[i]);
  }
  EXPECT_TRUE(SameManifest(manifests[0], manifests[1]));
  EXPECT_FALSE(SameManifest(manifests[1], manifests[2]));
}

TEST(SameManifestTest, EveryFieldCounts) {
  const std::vector<std::function<void(Manifest*)>> changes = {
      [](Manifest* m) { m->world_size = 3; },
      [](Manifest* m) { m->hook = "bf16"; },
      [](Manifest* m) { m->accumulation_steps = 2; },
      [](Manifest* m) { m->compression_start_step = 7; },
      [](Manifest* m) { m->terms["tail"] = "drop"; },
      [](Manifest* m) { m->settings["seed"] = "2"; },
      [](Manifest* m) { m->parameters.pop_back(); },
      [](Manifest* m) { m->parameters[0].name = "x"; },
      [](Manifest* m) { m->parameters[0].shape[0] = 8; },
      [](Manifest* m) { m->parameters[0].dtype = "float64"; },
      [](Manifest* m) {
        m->parameters[0].strides = {1, 1, 48, 16};
      },
  };
  EXPECT_TRUE(SameManifest(MakeManifest(), MakeManifest()));
  for (const auto& change : changes) {
    Manifest other = MakeManifest();
    change(&other);
    EXPECT_FALSE(SameManifest(MakeManifest(), other));
    EXPECT_FALSE(SameManifest(other, MakeManifest()));
  }
}

struct BadManifest {
  std::function<void(Manifest*)> spoil;
  absl::StatusCode code;
  std::string message;
};

TEST(CheckManifestTest, EveryBoundIsNamed) {
  const MembershipOptions options;
  EXPECT_OK(CheckManifest(MakeManifest(), options));
  const auto invalid = absl::StatusCode::kInvalidArgument;
  const auto exhausted = absl::StatusCode::kResourceExhausted;
  const std::vector<BadManifest> cases = {
      {[](Manifest* m) { m->world_size = 0; }, invalid, "world_size"},
      {[](Manifest* m) { m->world_size = 20'000; }, exhausted,
       "max_members_per_job"},
      {[](Manifest* m) { m->accumulation_steps = 0; }, invalid,
       "accumulation_steps"},
      {[](Manifest* m) { m->compression_start_step = -2; }, invalid,
       "compression_start"},
      {[](Manifest* m) { m->hook.assign(5000, 'x'); }, exhausted,
       "max_hook_bytes"},
      {[](Manifest* m) { m->hook = "bf16\x1b[2J"; }, invalid,
       "control characters"},
      {[](Manifest* m) { m->settings["x"].assign(5000, 'x'); }, exhausted,
       "max_setting_bytes"},
      {[](Manifest* m) {
         for (int i = 0; i < 300; ++i) m->settings[absl::StrCat(i)] = "";
       },
       exhausted, "max_settings"},
      {[](Manifest* m) { m->settings["library_version"] = "new"; }, invalid,
       "no version"},
      {[](Manifest* m) { m->settings["library_version"] = "4000000000.0.0"; },
       absl::StatusCode::kFailedPrecondition, "upgrade the coordinator"},
      {[](Manifest* m) { m->min_world_size = m->world_size + 1; }, invalid,
       "min_world_size"},
      {[](Manifest* m) { m->min_world_size = -1; }, invalid, "min_world_size"},
      {[](Manifest* m) { m->parameters.resize(100'001); }, exhausted,
       "max_parameters"},
      {[](Manifest* m) { m->parameters[0].name.assign(2000, 'x'); }, exhausted,
       "max_parameter_name_bytes"},
      {[](Manifest* m) { m->parameters[0].shape.resize(17, 1); }, exhausted,
       "max_dimensions"},
      {[](Manifest* m) { m->parameters[0].shape[0] = -1; }, invalid,
       "conv1.weight"},
      {[](Manifest* m) { m->parameters[0].dtype.clear(); }, invalid, "dtype"},
      {[](Manifest* m) {
         m->parameters[0].strides = {1, 2};
       },
       invalid, "conv1.weight"},
      {[](Manifest* m) { m->parameters[1].strides = {-1}; }, invalid,
       "strides [-1]"},
      {[](Manifest* m) { m->terms["tail"] = "wag"; }, invalid, "tail=wag"},
      {[](Manifest* m) { m->terms["tale"] = "flush"; }, invalid, "tale"},
      {[](Manifest* m) { m->terms["tail"].assign(200, 'x'); }, exhausted,
       "max_term_bytes"},
      {[](Manifest* m) {
         m->terms = {{"enforcement", "off"}, {"commit_vote", "true"}};
       },
       invalid, "commit_vote"},
  };
  for (const BadManifest& bad : cases) {
    Manifest manifest = MakeManifest();
    bad.spoil(&manifest);
    EXPECT_THAT(CheckManifest(manifest, options),
                StatusIs(bad.code, HasSubstr(bad.message)));
  }
}

TEST(CheckManifestTest, WhatIsAcceptedIsWithinTheBoundsOfARecord) {
  Manifest manifest;
  manifest.world_size = kMaxWorldSize;
  manifest.accumulation_steps = 1;
  manifest.hook = std::string(4096, 'x');
  manifest.parameters = {{"weight", {2, 0}, "float32", {1, 1}}};
  EXPECT_OK(CheckManifestBounds(manifest));
  const auto refused = [&](auto change) {
    Manifest changed = manifest;
    change(&changed);
    EXPECT_THAT(CheckManifestBounds(changed),
                StatusIs(absl::StatusCode::kInvalidArgument, testing::_));
    EXPECT_FALSE(CheckManifest(changed, MembershipOptions()).ok());
  };
  refused([](Manifest* one) { one->world_size = 0; });
  refused([](Manifest* one) { one->world_size = kMaxWorldSize + 1; });
  refused([](Manifest* one) { one->min_world_size = -1; });
  refused([](Manifest* one) { one->min_world_size = one->world_size + 1; });
  refused([](Manifest* one) { one->accumulation_steps = 0; });
  refused([](Manifest* one) { one->compression_start_step = -2; });
  refused([](Manifest* one) { one->hook += "x"; });
  refused([](Manifest* one) { one->parameters[0].shape[1] = -1; });
  refused([](Manifest* one) { one->parameters[0].strides = {1}; });
}

TEST(CheckManifestTest, AMeshIsOneThatItsWorkersCanTrainOn) {
  const auto check = [](const std::string& mesh, int least, int most) {
    Manifest manifest = MakeManifest();
    manifest.world_size = most;
    manifest.min_world_size = least;
    manifest.mesh = mesh;
    return CheckManifest(manifest, MembershipOptions());
  };
  const auto invalid = [](const char* text) {
    return StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(text));
  };
  EXPECT_OK(check("dp=*,shard=2", 0, 4));
  EXPECT_OK(check("dp=*", 2, 4));
  EXPECT_THAT(check("dp=3", 0, 4), invalid("does not fit 4 workers"));
  EXPECT_THAT(check("dp=*,shard=2", 2, 4), invalid("only multiples of 2"));
  EXPECT_THAT(check("data=4", 0, 4), invalid("has an axis 'data'"));
  EXPECT_THAT(check("dp=2,tp=2", 0, 4), invalid("has no pipeline to run"));
  EXPECT_THAT(check("pp=2,dp=*", 0, 4), invalid("has no pipeline to run"));
}

TEST(CheckManifestTest, StagesComeWithAPipeline) {
  Manifest manifest = MakeManifest();
  manifest.mesh = "pp=2,dp=*";
  for (const char* value : {"1f1b", "interleaved"}) {
    manifest.terms["pipeline"] = value;
    EXPECT_OK(CheckManifest(manifest, MembershipOptions()));
  }
  NormaliseManifest(&manifest);
  EXPECT_EQ(manifest.terms["pipeline"], "interleaved(chunks=2)");
  manifest.terms["pipeline"] = "none";
  EXPECT_THAT(CheckManifest(manifest, MembershipOptions()),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("set the plan's pipeline, as in "
                                 "pipeline=1f1b, or leave pp out")));
  // One stage may run by a schedule, too.
  manifest.mesh = "pp=1,dp=*";
  manifest.terms["pipeline"] = "gpipe";
  EXPECT_OK(CheckManifest(manifest, MembershipOptions()));
}

TEST(CheckManifestTest, OfAStoredManifestAlsoALaterVersionsMeshIsRead) {
  Manifest manifest = MakeManifest();
  manifest.mesh = "pp=2,dp=*";
  EXPECT_OK(CheckManifestBounds(manifest));
  manifest.mesh = "pp=3,dp=*";
  EXPECT_THAT(CheckManifestBounds(manifest),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("fit")));
}

}  // namespace
}  // namespace coxswain::server
