#ifndef COXSWAIN_SERVER_STATE_RECORD_H_
#define COXSWAIN_SERVER_STATE_RECORD_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "google/protobuf/message_lite.h"

namespace coxswain::server {

// How components put the messages of proto/state.proto into state records, and
// numbers into their keys. Plain functions.

// Returns the bytes of a message: equal messages have equal bytes, in whatever
// order their maps are.
std::string SerializeRecord(const google::protobuf::MessageLite& message);
// Returns whether the bytes are such a message.
bool ParseRecord(absl::string_view bytes,
                 google::protobuf::MessageLite* message);

// Returns a letter and 16 hexadecimal digits: such keys sort as their numbers
// do.
std::string NumberedKey(char letter, uint64_t number);
// Returns the number of such a key, whatever its letter; unset if it is none.
std::optional<uint64_t> NumberOfKey(absl::string_view key);

}  // namespace coxswain::server

#endif  // COXSWAIN_SERVER_STATE_RECORD_H_
