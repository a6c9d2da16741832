#include "client/comm/channel_book.h"

#include "absl/strings/str_cat.h"
#include "base/status_prefix.h"

namespace coxswain {

ChannelBook::ChannelBook(int rank, std::string name, Make make)
    : rank_(rank), name_(std::move(name)), make_(std::move(make)) {}

absl::StatusOr<ChannelEnd*> ChannelBook::Open(const ChannelOptions& options,
                                              bool sends) {
  if (!stopped_.ok()) return stopped_;
  const auto lost = lost_.find(options.peer);
  if (lost == lost_.end() &&
      Find(options.peer, options.tag, sends) == nullptr) {
    // The peer would end the connection.
    if (unheard_[options.peer] >= kMaxUnopenedChannels) {
      return absl::ResourceExhaustedError(absl::StrCat(
          "rank ", options.peer, " has not opened ", kMaxUnopenedChannels,
          " channels of ", name_, " that rank ", rank_,
          " has; open some of them there first"));
    }
    ++unheard_[options.peer];
  }
  ChannelEnd& end = EndOf(options.peer, options.tag, sends);
  if (end.opened) {
    return absl::InvalidArgumentError(absl::StrCat(
        NameOf(end), ": it has been opened before; take another tag"));
  }
  if (lost != lost_.end()) end.ended = lost->second;
  end.opened = true;
  end.slots = options.slots;
  end.slot_bytes = options.slot_bytes;
  if (end.answered) --unanswered_[options.peer];
  Match(&end);
  return &end;
}

absl::StatusOr<ChannelEnd*> ChannelBook::Answer(int peer, uint32_t tag,
                                                bool sends, int64_t slots,
                                                int64_t slot_bytes) {
  const ChannelEnd* const known = Find(peer, tag, sends);
  if (known != nullptr && known->answered) {
    return absl::InvalidArgumentError("it has opened a channel twice");
  }
  if (known == nullptr && ++unanswered_[peer] > kMaxUnopenedChannels) {
    return absl::ResourceExhaustedError(
        absl::StrCat("more than ", kMaxUnopenedChannels,
                     " of its channels wait to be opened"));
  }
  ChannelEnd& end = EndOf(peer, tag, sends);
  end.answered = true;
  if (end.opened) --unheard_[peer];
  end.their_slots = slots;
  end.their_bytes = slot_bytes;
  Match(&end);
  return &end;
}

ChannelEnd* ChannelBook::Find(int peer, uint32_t tag, bool sends) const {
  const auto found = ends_.find({peer, tag, sends});
  return found == ends_.end() ? nullptr : found->second.get();
}

ChannelEnd& ChannelBook::EndOf(int peer, uint32_t tag, bool sends) {
  auto& place = ends_[{peer, tag, sends}];
  if (place == nullptr) {
    place = make_();
    place->peer = peer;
    place->tag = tag;
    place->sends = sends;
  }
  return *place;
}

void ChannelBook::Match(ChannelEnd* end) const {
  if (!end->opened || !end->answered || end->matches()) return;
  end->ended = absl::InvalidArgumentError(
      absl::StrCat("rank ", end->peer, " has opened it with ", end->their_slots,
                   " slots of ", end->their_bytes, " bytes, and rank ", rank_,
                   " with ", end->slots, " of ", end->slot_bytes));
}

bool ChannelBook::Lose(int peer, const absl::Status& why) {
  if (!lost_.emplace(peer, why).second) return false;
  ForEach(peer, [&](ChannelEnd& end) {
    if (end.ended.ok()) end.ended = why;
  });
  return true;
}

bool ChannelBook::Stop(const absl::Status& why) {
  if (!stopped_.ok()) return false;
  stopped_ = why;
  return true;
}

std::optional<absl::Status> ChannelBook::Outcome(const ChannelEnd& end,
                                                 bool ready) const {
  if (!stopped_.ok()) return WithPrefix(NameOf(end) + ": ", stopped_);
  if (ready) return absl::OkStatus();
  if (!end.ended.ok()) return WithPrefix(NameOf(end) + ": ", end.ended);
  return std::nullopt;
}

absl::Status ChannelBook::Late(const ChannelEnd& end, const char* late,
                               absl::Duration timeout) const {
  return absl::DeadlineExceededError(
      absl::StrCat(NameOf(end), ": rank ", end.peer,
                   end.answered ? late : " did not open it", " within ",
                   absl::FormatDuration(timeout)));
}

absl::Status ChannelBook::CheckFits(const ChannelEnd& end,
                                    const Span& block) const {
  // The count alone first: its bytes may overflow.
  if (block.count > 0 && block.count <= end.slot_bytes &&
      block.bytes() <= end.slot_bytes) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      NameOf(end), ": a block of ", block.count, " x ",
      coxswain::NameOf(block.dtype),
      " is empty or does not fit into a slot of ", end.slot_bytes, " bytes"));
}

absl::Status ChannelBook::CheckIs(const ChannelEnd& end, const Span& block,
                                  int64_t count, DType dtype) const {
  if (dtype == block.dtype && count == block.count) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(NameOf(end), ": rank ", end.peer, " sends ", count, " x ",
                   coxswain::NameOf(dtype), ", and ", block.count, " x ",
                   coxswain::NameOf(block.dtype), " are to be received"));
}

absl::Status ChannelBook::OutOfPlace() {
  return absl::InvalidArgumentError(
      "it sent a frame of a channel out of place");
}

std::string ChannelBook::NameOf(const ChannelEnd& end) const {
  return absl::StrCat("channel of ", name_, " from rank ",
                      end.sends ? rank_ : end.peer, " to rank ",
                      end.sends ? end.peer : rank_, ", tag ", end.tag);
}

}  // namespace coxswain
