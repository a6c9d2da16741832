#include "client/elastic/catch_up/damaged_network_for_test.h"

#include <poll.h>

#include <algorithm>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "gtest/gtest.h"

namespace coxswain::catch_up {

DamagedNetwork::DamagedNetwork(const std::string& newcomer,
                               std::vector<Place> places)
    : places_(std::move(places)) {
  const size_t colon = newcomer.rfind(':');
  newcomer_.host = newcomer.substr(0, colon);
  EXPECT_TRUE(absl::SimpleAtoi(newcomer.substr(colon + 1), &newcomer_.port));
  auto listener = ListenTcp("127.0.0.1");
  EXPECT_OK(listener);
  listener_ = *std::move(listener);
  thread_ = std::thread([this] { EXPECT_OK(Run()); });
}

DamagedNetwork::~DamagedNetwork() {
  stop_.Raise();
  thread_.join();
}

std::string DamagedNetwork::address() const {
  return absl::StrCat(listener_.address.host, ":", listener_.address.port);
}

absl::Status DamagedNetwork::Run() {
  const absl::Time end = Clock::Real()->Now() + absl::Seconds(60);
  std::vector<pollfd> entries = {{listener_.socket.get(), POLLIN, 0},
                                 {stop_.get(), POLLIN, 0}};
  PollUntil(&entries, end);
  if (entries[1].revents != 0) return absl::OkStatus();
  COXSWAIN_ASSIGN_OR_RETURN(const UniqueFd member, AcceptTcp(listener_.socket));
  COXSWAIN_ASSIGN_OR_RETURN(const UniqueFd newcomer,
                            BeginConnectTcp(newcomer_));
  while (true) {
    entries = {{member.get(), POLLIN, 0},
               {newcomer.get(), POLLIN, 0},
               {stop_.get(), POLLIN, 0}};
    PollUntil(&entries, end);
    if (entries[2].revents != 0) return absl::OkStatus();
    char bytes[65536];
    for (const auto& [in, out] :
         {std::pair(&member, &newcomer), std::pair(&newcomer, &member)}) {
      const auto got = ReceiveSome(*in, bytes, sizeof(bytes));
      if (!got.ok()) return absl::OkStatus();  // it has ended
      if (in == &member) Damage(bytes, *got);
      const absl::Status sent =
          SendAll(*out, {bytes, static_cast<size_t>(*got)}, stop_, end);
      if (!sent.ok()) return absl::OkStatus();
    }
  }
}

void DamagedNetwork::Damage(char* bytes, int64_t size) {
  while (size > 0) {
    int64_t now = 0;
    if (passed_ == header_.bytes) {
      now = std::min(size, static_cast<int64_t>(sizeof(Header) - head_.size()));
      head_.append(bytes, static_cast<size_t>(now));
      if (head_.size() == sizeof(Header)) {
        const auto header = Decode(head_);
        ASSERT_OK(header);
        header_ = *header;
        head_.clear();
        passed_ = 0;
        ++times_[{header_.kind, header_.number}];
      }
    } else {
      now = std::min(size, header_.bytes - passed_);
      const int time = times_[{header_.kind, header_.number}];
      for (const Place& place : places_) {
        if (place.kind == header_.kind && place.number == header_.number &&
            place.time == time && place.at >= passed_ &&
            place.at < passed_ + now) {
          bytes[place.at - passed_] ^= 4;
        }
      }
      passed_ += now;
    }
    bytes += now;
    size -= now;
  }
}

}  // namespace coxswain::catch_up
