#ifndef COXSWAIN_TESTS_FUZZ_MESSAGE_DAMAGE_H_
#define COXSWAIN_TESTS_FUZZ_MESSAGE_DAMAGE_H_

#include <string>
#include <vector>

#include "google/protobuf/message.h"
#include "tests/fuzz/fuzz_bytes.h"

namespace coxswain {

// Changes some fields of a message as the fuzzer's bytes select: numbers to
// those at which code breaks, texts to one of `words` or to the bytes
// themselves, fields unset, other members of a oneof set, elements repeated.
// Bytes that are all 0 leave it as it is, so that a fuzzer finds its way from
// valid messages to invalid ones.
void DamageMessage(const std::vector<std::string>& words, FuzzBytes* bytes,
                   google::protobuf::Message* message);

}  // namespace coxswain

#endif  // COXSWAIN_TESTS_FUZZ_MESSAGE_DAMAGE_H_
