#include "cli/launch/worker_environment.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace coxswain {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::Not;
using testing::StartsWith;
using testing::UnorderedElementsAre;

WorkerEnvironment Example() {
  WorkerEnvironment environment;
  environment.coordinator = "head:7077";
  environment.job = "train";
  environment.node = "a";
  environment.nproc = 2;
  environment.world_size = 6;
  environment.min_world_size = 4;
  environment.attempt = 3;
  environment.launcher_id = 18446744073709551615u;
  return environment;
}

TEST(WorkerEnvironmentTest, AWorkerGetsItsNodeAndSlot) {
  EXPECT_THAT(Example().For(1, 42, {}),
              UnorderedElementsAre(
                  "COXSWAIN_COORDINATOR=head:7077", "COXSWAIN_JOB=train",
                  "COXSWAIN_NODE=a", "COXSWAIN_LOCAL_RANK=1",
                  "COXSWAIN_LOCAL_WORLD_SIZE=2", "COXSWAIN_WORLD_SIZE=6",
                  "COXSWAIN_MIN_WORLD_SIZE=4", "COXSWAIN_ATTEMPT=3",
                  "COXSWAIN_LAUNCHER_ID=18446744073709551615",
                  "COXSWAIN_INCARNATION=42", "OPENBLAS_NUM_THREADS=1",
                  "LOCAL_RANK=1", "LOCAL_WORLD_SIZE=2"));
}

TEST(WorkerEnvironmentTest, TorchGetsTheWorldSizeWhereItIsFixed) {
  WorkerEnvironment environment = Example();
  environment.min_world_size = 6;
  EXPECT_THAT(environment.For(1, 1, {"WORLD_SIZE=9"}),
              AllOf(Contains("WORLD_SIZE=6"), Not(Contains("WORLD_SIZE=9")),
                    Not(Contains(StartsWith("RANK=")))));
}

TEST(WorkerEnvironmentTest, TorchGetsTheRankWhereAllWorkersAreHere) {
  WorkerEnvironment environment = Example();
  environment.nproc = environment.world_size = environment.min_world_size = 3;
  EXPECT_THAT(environment.For(2, 1, {}),
              AllOf(Contains("RANK=2"), Contains("WORLD_SIZE=3")));
}

TEST(WorkerEnvironmentTest, AWorkerGetsTheMesh) {
  WorkerEnvironment environment = Example();
  environment.mesh = "dp=*,shard=2";
  EXPECT_THAT(environment.For(0, 1, {"COXSWAIN_MESH=dp=6"}),
              AllOf(Contains("COXSWAIN_MESH=dp=*,shard=2"),
                    Not(Contains("COXSWAIN_MESH=dp=6"))));
}

TEST(WorkerEnvironmentTest, AFolderComesFirstInThePathOfPython) {
  WorkerEnvironment environment = Example();
  environment.python_path = "/follow";
  EXPECT_THAT(environment.For(0, 1, {}), Contains("PYTHONPATH=/follow"));
  EXPECT_THAT(environment.For(0, 1, {"PYTHONPATH="}),
              Contains("PYTHONPATH=/follow"));
  EXPECT_THAT(environment.For(0, 1, {"PYTHONPATH=/a:/b"}),
              AllOf(Contains("PYTHONPATH=/follow:/a:/b"),
                    Not(Contains("PYTHONPATH=/a:/b"))));
}

TEST(WorkerEnvironmentTest, TheUsersThreadsOfBlasStay) {
  for (const std::string users :
       {"OPENBLAS_NUM_THREADS=8", "GOTO_NUM_THREADS=4", "OMP_NUM_THREADS=2",
        "OPENBLAS_NUM_THREADS="}) {
    EXPECT_THAT(
        Example().For(0, 1, {"PATH=/bin", users}),
        AllOf(Contains(users), Not(Contains("OPENBLAS_NUM_THREADS=1"))));
  }
}

TEST(WorkerEnvironmentTest, OptionsAreSetOnlyWhenGiven) {
  WorkerEnvironment environment = Example();
  environment.backend = "tcp";
  environment.plain_data = true;
  environment.bind_address = "10.0.0.1";
  environment.topology = "zone-1,rack-7";
  environment.trace = "runs/trace.json";
  environment.plan = "max_steps=9 tail=drop";
  environment.log_level = "warning";
  environment.log_format = "json";
  environment.join_timeout = absl::Seconds(90);
  environment.reattach_grace = absl::Minutes(2);
  EXPECT_THAT(environment.For(0, 1, {}),
              AllOf(Contains("COXSWAIN_BACKEND=tcp"),
                    Contains("COXSWAIN_PLAIN_DATA=true"),
                    Contains("COXSWAIN_BIND_ADDRESS=10.0.0.1"),
                    Contains("COXSWAIN_TOPOLOGY=zone-1,rack-7"),
                    Contains("COXSWAIN_TRACE=runs/trace.json"),
                    Contains("COXSWAIN_PLAN=max_steps=9 tail=drop"),
                    Contains("COXSWAIN_LOG_LEVEL=warning"),
                    Contains("COXSWAIN_LOG_FORMAT=json"),
                    Contains("COXSWAIN_JOIN_TIMEOUT=1m30s"),
                    Contains("COXSWAIN_REATTACH_GRACE=2m")));
}

TEST(WorkerEnvironmentTest, EachWorkerGetsItsOwnOfTheSameGpus) {
  WorkerEnvironment environment = Example();
  environment.gpus = GpuAssignment{{"2", "0"}, {0, 1}};
  for (const int slot : {0, 1}) {
    EXPECT_THAT(environment.For(slot, 1, {"CUDA_VISIBLE_DEVICES=7"}),
                AllOf(Contains("CUDA_VISIBLE_DEVICES=2,0"),
                      Contains("CUDA_DEVICE_ORDER=PCI_BUS_ID"),
                      Contains(slot == 0 ? "COXSWAIN_LOCAL_DEVICE=0"
                                         : "COXSWAIN_LOCAL_DEVICE=1"),
                      Not(Contains("CUDA_VISIBLE_DEVICES=7"))));
  }
}

TEST(WorkerEnvironmentTest, TheUsersOrderOfGpusStays) {
  WorkerEnvironment environment = Example();
  environment.gpus = GpuAssignment{{"2", "0"}, {0, 1}};
  EXPECT_THAT(environment.For(0, 1, {"CUDA_DEVICE_ORDER=FASTEST_FIRST"}),
              AllOf(Contains("CUDA_DEVICE_ORDER=FASTEST_FIRST"),
                    Not(Contains("CUDA_DEVICE_ORDER=PCI_BUS_ID"))));
}

TEST(WorkerEnvironmentTest, NoGpusAreHiddenGpus) {
  WorkerEnvironment environment = Example();
  environment.gpus = GpuAssignment();
  EXPECT_THAT(environment.For(0, 1, {"COXSWAIN_LOCAL_DEVICE=1"}),
              AllOf(Contains("CUDA_VISIBLE_DEVICES=-1"),
                    Contains("COXSWAIN_LOCAL_DEVICE=cpu"),
                    Not(Contains("COXSWAIN_LOCAL_DEVICE=1")),
                    Not(Contains(StartsWith("CUDA_DEVICE_ORDER")))));
}

TEST(WorkerEnvironmentTest, WithoutAChoiceGpusAreAsInherited) {
  EXPECT_THAT(Example().For(0, 1, {"CUDA_VISIBLE_DEVICES=3", "PATH=/bin"}),
              AllOf(Contains("CUDA_VISIBLE_DEVICES=3"),
                    Not(Contains(StartsWith("COXSWAIN_LOCAL_DEVICE"))),
                    Not(Contains(StartsWith("CUDA_DEVICE_ORDER")))));
}

TEST(WorkerEnvironmentTest, InheritedVariablesStayButOursWin) {
  EXPECT_THAT(Example().For(0, 1, {"PATH=/bin", "COXSWAIN_INCARNATION=7"}),
              AllOf(Contains("PATH=/bin"), Contains("COXSWAIN_INCARNATION=1"),
                    Not(Contains("COXSWAIN_INCARNATION=7")),
                    Not(Contains(StartsWith("COXSWAIN_BACKEND"))),
                    Not(Contains(StartsWith("COXSWAIN_TRACE")))));
}

}  // namespace
}  // namespace coxswain
