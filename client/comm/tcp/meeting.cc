#include "client/comm/tcp/meeting.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/random.h"
#include "base/status_macros.h"
#include "base/status_prefix.h"
#include "client/comm/tcp/connections.h"

namespace coxswain {
namespace {

// At once: strangers cannot keep a rank from looking at its deadline.
constexpr int kMaxAccepted = 64;

uint64_t CommunicatorHash(const CommunicatorOptions& options) {
  return StableHash(options.id);
}

absl::Status PrefixPeer(int peer, const absl::Status& status) {
  return WithPrefix(absl::StrCat("rank ", peer, ": "), status);
}

}  // namespace

bool TcpPairs::Add(int peer, uint32_t index, uint32_t count, uint64_t host,
                   TcpStream stream) {
  Pair& pair = pairs_[static_cast<size_t>(peer)];
  if (pair.streams.empty()) pair.streams.resize(count);
  if (pair.streams.size() != count || pair.streams[index].valid()) return false;
  pair.streams[index] = std::move(stream);
  pair.host = host;
  ++pair.connected;
  return true;
}

std::vector<int> TcpPairs::Missing() const {
  std::vector<int> missing;
  for (size_t peer = 0; peer < pairs_.size(); ++peer) {
    if (static_cast<int>(peer) == rank_) continue;
    const Pair& pair = pairs_[peer];
    if (pair.streams.empty() || pair.connected < pair.streams.size()) {
      missing.push_back(static_cast<int>(peer));
    }
  }
  return missing;
}

std::vector<TcpStream> TcpPairs::Release(int peer) {
  return std::move(pairs_[static_cast<size_t>(peer)].streams);
}

Acceptor::Acceptor(const CommunicatorOptions& options, const TcpPlace& own,
                   std::shared_ptr<const TlsKeys> keys, TcpListener listener)
    : options_(options),
      own_(own),
      keys_(std::move(keys)),
      listener_(std::move(listener)),
      max_callers_(kMaxStrangers +
                   static_cast<size_t>(options.size - 1 - options.rank) *
                       (1 + kMaxStripes)) {}

absl::Status Acceptor::Advance(absl::Time now, TcpPairs* pairs) {
  const auto is_over = [&](Caller& caller) {
    return Hear(&caller, pairs) != Heard::kWaits || caller.expires <= now;
  };
  callers_.erase(std::remove_if(callers_.begin(), callers_.end(), is_over),
                 callers_.end());
  for (int i = 0; i < kMaxAccepted && callers_.size() < max_callers_; ++i) {
    COXSWAIN_ASSIGN_OR_RETURN(UniqueFd socket, AcceptTcp(listener_.socket));
    if (!socket.valid()) break;
    Caller caller;
    caller.stream = TcpStream(std::move(socket));
    if (keys_ != nullptr) {
      COXSWAIN_RETURN_IF_ERROR(caller.stream.EncryptCalled(keys_));
    }
    caller.expires = now + kHelloTimeout;
    // Most have said it already.
    if (Hear(&caller, pairs) == Heard::kWaits) {
      callers_.push_back(std::move(caller));
    }
  }
  return absl::OkStatus();
}

Acceptor::Heard Acceptor::Hear(Caller* caller, TcpPairs* pairs) const {
  const auto received = caller->stream.Receive(
      caller->bytes.data() + caller->read,
      static_cast<int64_t>(caller->bytes.size() - caller->read));
  if (!received.ok()) return Heard::kDropped;
  caller->read += static_cast<size_t>(*received);
  if (caller->read < caller->bytes.size()) return Heard::kWaits;
  const auto hello = DecodeHello(caller->bytes);
  if (!hello.has_value() || !IsOurs(*hello) ||
      !caller->stream.MayBe(static_cast<int>(hello->from))) {
    return Heard::kDropped;
  }
  const TcpAnswerBytes answer = EncodeAnswer(own_.answer_token);
  const iovec part = {const_cast<char*>(answer.data()), answer.size()};
  const auto sent = caller->stream.Send(&part, 1);
  // A new connection has room for a few bytes.
  if (!sent.ok() || *sent < static_cast<int64_t>(answer.size())) {
    return Heard::kDropped;
  }
  return pairs->Add(static_cast<int>(hello->from), hello->index, hello->count,
                    hello->host, std::move(caller->stream))
             ? Heard::kTaken
             : Heard::kDropped;
}

bool Acceptor::IsOurs(const TcpHello& hello) const {
  return hello.communicator == CommunicatorHash(options_) &&
         hello.call_token == own_.call_token &&
         hello.size == static_cast<uint32_t>(options_.size) &&
         hello.to == static_cast<uint32_t>(options_.rank) &&
         hello.from > hello.to && hello.from < hello.size && hello.count >= 2 &&
         hello.count <= 1 + kMaxStripes && hello.index < hello.count;
}

void Acceptor::AddEntries(std::vector<pollfd>* entries) const {
  if (callers_.size() < max_callers_) {
    entries->push_back({listener_.socket.get(), POLLIN, 0});
  }
  for (const Caller& caller : callers_) {
    entries->push_back({caller.stream.fd(), POLLIN, 0});
  }
}

absl::Time Acceptor::NextExpiry() const {
  absl::Time next = absl::InfiniteFuture();
  for (const Caller& caller : callers_) next = std::min(next, caller.expires);
  return next;
}

absl::Status CallerSide::Begin(int peer, const TcpPlace& place,
                               uint32_t count) {
  for (uint32_t index = 0; index < count; ++index) {
    auto socket = BeginConnectTcp(place.address);
    if (!socket.ok()) return PrefixPeer(peer, socket.status());
    TcpHello hello;
    hello.communicator = CommunicatorHash(options_);
    hello.call_token = place.call_token;
    hello.host = own_.host;
    hello.size = static_cast<uint32_t>(options_.size);
    hello.from = static_cast<uint32_t>(options_.rank);
    hello.to = static_cast<uint32_t>(peer);
    hello.index = index;
    hello.count = count;
    Call call;
    call.peer = peer;
    call.index = index;
    call.count = count;
    call.stream = TcpStream(*std::move(socket));
    if (keys_ != nullptr) {
      COXSWAIN_RETURN_IF_ERROR(call.stream.Encrypt(keys_, peer));
    }
    call.hello = Encode(hello);
    call.expected = EncodeAnswer(place.answer_token);
    calls_.push_back(std::move(call));
  }
  places_[peer] = place;
  return absl::OkStatus();
}

absl::Status CallerSide::Advance(TcpPairs* pairs) {
  for (size_t i = 0; i < calls_.size();) {
    Call& call = calls_[i];
    const absl::StatusOr<bool> answered = AdvanceCall(&call);
    if (!answered.ok()) {
      const TcpAddress& address = places_[call.peer].address;
      return WithPrefix(absl::StrCat("rank ", call.peer, " at ", address.host,
                                     ":", address.port, ": "),
                        answered.status());
    }
    if (!*answered) {
      ++i;
      continue;
    }
    pairs->Add(call.peer, call.index, call.count, places_[call.peer].host,
               std::move(call.stream));
    calls_.erase(calls_.begin() + static_cast<std::ptrdiff_t>(i));
  }
  return absl::OkStatus();
}

absl::StatusOr<bool> CallerSide::AdvanceCall(Call* call) const {
  if (call->sent < call->hello.size()) {
    COXSWAIN_RETURN_IF_ERROR(ConnectResult(call->stream.socket()));
    pollfd writable = {call->stream.fd(), POLLOUT, 0};
    if (poll(&writable, 1, 0) != 1) return false;
    COXSWAIN_RETURN_IF_ERROR(ConnectResult(call->stream.socket()));
    const iovec rest = {call->hello.data() + call->sent,
                        call->hello.size() - call->sent};
    COXSWAIN_ASSIGN_OR_RETURN(const int64_t sent, call->stream.Send(&rest, 1));
    call->sent += static_cast<size_t>(sent);
    if (call->sent < call->hello.size()) return false;
  }
  COXSWAIN_ASSIGN_OR_RETURN(
      const int64_t received,
      call->stream.Receive(
          call->answer.data() + call->read,
          static_cast<int64_t>(call->answer.size() - call->read)));
  call->read += static_cast<size_t>(received);
  if (call->read < call->answer.size()) return false;
  if (call->answer == call->expected) return true;
  return absl::UnavailableError(
      "another process listens there: what it answered is not what the rank "
      "has published");
}

void CallerSide::AddEntries(std::vector<pollfd>* entries) const {
  for (const Call& call : calls_) {
    const bool answering = call.sent == call.hello.size();
    const short events = answering ? POLLIN : call.stream.events_to_send();
    entries->push_back({call.stream.fd(), events, 0});
  }
}

}  // namespace coxswain
