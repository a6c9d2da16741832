#ifndef COXSWAIN_SCHEDULE_TICKET_H_
#define COXSWAIN_SCHEDULE_TICKET_H_

#include <cstdint>
#include <optional>
#include <string>

namespace coxswain::schedule {

// The structs of v1.Ticket and v1.Vote, where the fields are explained, as the
// core sees them. The stream is known to whoever holds them.

struct Ticket {
  int64_t round = 0;
  int64_t step = 0;
  int micro = 0;
  int micro_batches = 0;
  int window = 0;
  double weight = 0;
  bool end_of_data = false;
  int64_t plan_version = 0;
  std::string hook;
  uint64_t layout = 0;
  uint64_t digest = 0;
  std::optional<uint64_t> checksum;
  std::string skip;
  std::string stop;
  std::string drain;
  std::string checkpoint;
};

struct Vote {
  int64_t round = 0;
  bool commit = true;
  std::string reason;
  std::string stop;
};

}  // namespace coxswain::schedule

#endif  // COXSWAIN_SCHEDULE_TICKET_H_
