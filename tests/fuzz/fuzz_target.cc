#include "tests/fuzz/fuzz_target.h"

#include "tests/fuzz/decoders.h"
#include "tests/fuzz/services.h"

namespace coxswain {

const std::vector<FuzzTarget>& FuzzTargets() {
  static const auto* const targets = new std::vector<FuzzTarget>{
      {"hook_spec", FuzzHookSpec, 20'000},
      {"hook_yaml", FuzzHookYaml, 4'000},
      {"hook_state", FuzzHookState, 4'000},
      {"training_shard", FuzzTrainingShard, 10'000},
      {"piece_table", FuzzPieceTable, 10'000},
      {"manifest", FuzzManifest, 5'000},
      {"checkpoint_folder", FuzzCheckpointFolder, 3'000},
      {"records", FuzzRecords, 20'000},
      {"state", FuzzState, 3'000},
      {"addresses", FuzzAddresses, 10'000},
      {"plan_words", FuzzPlanWords, 5'000},
      {"environment", FuzzEnvironment, 5'000},
      {"command_line", FuzzCommandLine, 500},
      {"bulk_message", FuzzBulkMessage, 10'000},
      {"hosts", FuzzHosts, 10'000},
      {"shm_peer", FuzzShmPeer, 200},
      {"tcp_words", FuzzTcpWords, 20'000},
      {"tcp_peer", FuzzTcpPeer, 3'000},
      {"nccl_ras", FuzzNcclRas, 200},
      {"fallback", FuzzFallback, 5'000},
      {"web_token", FuzzWebToken, 5'000},
      {"key_set", FuzzKeySet, 3'000},
      {"exchange", FuzzExchange, 10'000},
      {"services", FuzzServices, 150},
      {"streams", FuzzStreams, 150},
  };
  return *targets;
}

}  // namespace coxswain
