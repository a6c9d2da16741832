#ifndef COXSWAIN_TESTS_FUZZ_DECODERS_H_
#define COXSWAIN_TESTS_FUZZ_DECODERS_H_

#include "absl/strings/string_view.h"

// The targets that read bytes; see fuzz_target.h.

namespace coxswain {

void FuzzHookSpec(absl::string_view input);
void FuzzHookYaml(absl::string_view input);
void FuzzHookState(absl::string_view input);
void FuzzTrainingShard(absl::string_view input);
void FuzzPieceTable(absl::string_view input);
void FuzzManifest(absl::string_view input);
void FuzzCheckpointFolder(absl::string_view input);
void FuzzRecords(absl::string_view input);
void FuzzState(absl::string_view input);
void FuzzAddresses(absl::string_view input);
void FuzzPlanWords(absl::string_view input);
void FuzzEnvironment(absl::string_view input);
void FuzzCommandLine(absl::string_view input);
void FuzzBulkMessage(absl::string_view input);
void FuzzHosts(absl::string_view input);
void FuzzShmPeer(absl::string_view input);
void FuzzTcpWords(absl::string_view input);
void FuzzTcpPeer(absl::string_view input);
void FuzzNcclRas(absl::string_view input);
void FuzzFallback(absl::string_view input);
void FuzzWebToken(absl::string_view input);
void FuzzKeySet(absl::string_view input);
void FuzzExchange(absl::string_view input);

}  // namespace coxswain

#endif  // COXSWAIN_TESTS_FUZZ_DECODERS_H_
