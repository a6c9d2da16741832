#include "client/shard/piece_exchange.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/status_macros.h"
#include "base/status_prefix.h"
#include "client/comm/rank_values.h"
#include "client/comm/work.h"
#include "client/shard/piece_table.h"

namespace coxswain {
namespace {

constexpr int64_t kMessageBytes = 4 << 20;
constexpr uint32_t kTag = 0;

using Tables = std::vector<std::vector<TensorPiece>>;

absl::StatusOr<std::string> Serialize(const std::vector<PieceMemory>& list) {
  std::vector<TensorPiece> pieces;
  pieces.reserve(list.size());
  for (const PieceMemory& one : list) {
    COXSWAIN_RETURN_IF_ERROR(CheckMemory(one));
    pieces.push_back(one.piece);
  }
  return SerializePieceTable(pieces);
}

// Bytes of this rank's memory that travel together.
using Runs = std::vector<std::pair<char*, int64_t>>;

int64_t BytesOf(const Runs& runs) {
  int64_t bytes = 0;
  for (const auto& [data, count] : runs) bytes += count;
  return bytes;
}

// Copies between runs, from where the last call ended on, and a message.
class RunCursor {
 public:
  explicit RunCursor(Runs runs) : runs_(std::move(runs)) {}

  template <typename Copy>
  void Next(int64_t count, const Copy& copy) {
    while (count > 0) {
      const auto& [data, bytes] = runs_[run_];
      const int64_t part = std::min(count, bytes - at_);
      copy(data + at_, static_cast<size_t>(part));
      count -= part;
      at_ += part;
      if (at_ < bytes) continue;
      ++run_;
      at_ = 0;
    }
  }

 private:
  const Runs runs_;
  size_t run_ = 0;
  int64_t at_ = 0;
};

// What this rank copies, sends and receives; by the peer's rank.
struct Transfers {
  struct Copy {
    const char* from;
    char* to;
    int64_t bytes;
  };
  std::vector<Copy> copies;
  std::vector<Runs> send;
  std::vector<Runs> receive;
};

// Numbers of pieces, from those of `receiver` on.
struct NumberedPieces {
  std::vector<TensorPiece> pieces;
  std::vector<std::pair<int, size_t>> places;  // the rank, and which of its own
};

NumberedPieces Numbered(const Tables& tables, int receiver) {
  NumberedPieces numbered;
  const auto ranks = static_cast<int>(tables.size());
  for (int distance = 0; distance < ranks; ++distance) {
    const int rank = (receiver + distance) % ranks;
    const auto& have = tables[static_cast<size_t>(rank)];
    for (size_t i = 0; i < have.size(); ++i) {
      numbered.pieces.push_back(have[i]);
      numbered.places.emplace_back(rank, i);
    }
  }
  return numbered;
}

absl::StatusOr<Transfers> Plan(const Tables& having, const Tables& wanting,
                               int own, const std::vector<PieceMemory>& have,
                               const std::vector<PieceMemory>& want) {
  Transfers transfers;
  transfers.send.resize(having.size());
  transfers.receive.resize(having.size());
  for (int receiver = 0; receiver < static_cast<int>(having.size());
       ++receiver) {
    const auto& wanted = wanting[static_cast<size_t>(receiver)];
    if (wanted.empty()) continue;
    NumberedPieces numbered = Numbered(having, receiver);
    COXSWAIN_ASSIGN_OR_RETURN(const PieceIndex index,
                              PieceIndex::Create(std::move(numbered.pieces)));
    for (size_t i = 0; i < wanted.size(); ++i) {
      const auto reads = index.Find(wanted[i]);
      if (!reads.ok()) {
        return absl::Status(reads.status().code(),
                            absl::StrCat("of what rank ", receiver,
                                         " wants: ", reads.status().message()));
      }
      const auto size = static_cast<int64_t>(SizeOf(wanted[i].dtype));
      for (const PieceRead& read : *reads) {
        const auto& [sender, number] = numbered.places[read.piece];
        if (sender != own && receiver != own) continue;
        const int64_t bytes = read.count * size;
        char* const from =
            sender == own ? have[number].data + read.from * size : nullptr;
        char* const to =
            receiver == own ? want[i].data + read.to * size : nullptr;
        if (sender == receiver) {
          transfers.copies.push_back({from, to, bytes});
        } else if (sender == own) {
          transfers.send[static_cast<size_t>(receiver)].emplace_back(from,
                                                                     bytes);
        } else {
          transfers.receive[static_cast<size_t>(sender)].emplace_back(to,
                                                                      bytes);
        }
      }
    }
  }
  return transfers;
}

// Sends to one rank while it receives from another.
absl::Status SendAndReceive(const Runs& send, int to, const Runs& receive,
                            int from, const PieceExchangeOptions& options,
                            Communicator& communicator) {
  int64_t to_send = BytesOf(send);
  int64_t to_receive = BytesOf(receive);
  RunCursor sent(send);
  RunCursor received(receive);
  const int64_t out = std::min(to_send, kMessageBytes);
  const int64_t in = std::min(to_receive, kMessageBytes);
  if (out + in == 0) return absl::OkStatus();
  COXSWAIN_ASSIGN_OR_RETURN(
      const std::shared_ptr<BufferOwner> memory,
      AllocateHostBuffer(communicator, out + in, DType::kUInt8));
  while (to_send > 0 || to_receive > 0) {
    const int64_t outgoing = std::min(to_send, out);
    const int64_t incoming = std::min(to_receive, in);
    const Span output = memory->span().Slice(0, outgoing);
    const Span input = memory->span().Slice(out, incoming);
    WorkPtr receiving;
    if (incoming > 0) {
      receiving = communicator.Receive(input, from, kTag);
      // Also where the send fails first.
      receiving->OnDone([memory](const absl::Status&) {});
    }
    if (outgoing > 0) {
      auto* at = static_cast<char*>(output.data);
      sent.Next(outgoing, [&at](const char* data, size_t count) {
        std::memcpy(at, data, count);
        at += count;
      });
      COXSWAIN_RETURN_IF_ERROR(WaitHolding(communicator.Send(output, to, kTag),
                                           memory, options.timeout));
    }
    if (incoming > 0) {
      COXSWAIN_RETURN_IF_ERROR(receiving->Wait(options.timeout));
      const auto* at = static_cast<const char*>(input.data);
      received.Next(incoming, [&at](char* data, size_t count) {
        std::memcpy(data, at, count);
        at += count;
      });
    }
    to_send -= outgoing;
    to_receive -= incoming;
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Tables> PieceExchange::Gather(
    const std::vector<PieceMemory>& own, const PieceExchangeOptions& options,
    Communicator& communicator) {
  const absl::StatusOr<std::string> table = Serialize(own);
  COXSWAIN_ASSIGN_OR_RETURN(
      const std::vector<int64_t> lengths,
      GatherValues(communicator,
                   {table.ok() ? static_cast<int64_t>(table->size()) : -1},
                   options.timeout));
  const int64_t longest = *std::max_element(lengths.begin(), lengths.end());
  const auto ranks = static_cast<int64_t>(lengths.size());
  for (int64_t rank = 0; rank < ranks; ++rank) {
    if (lengths[static_cast<size_t>(rank)] >= 0) continue;
    if (!table.ok()) return table.status();
    return absl::InvalidArgumentError(absl::StrCat(
        "the pieces of rank ", rank, " are not valid: its own error has why"));
  }
  if (longest > options.max_table_bytes / ranks) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "the tables of the pieces of ", ranks, " ranks have up to ", longest,
        " bytes each, and the limit for all is ", options.max_table_bytes,
        "; raise PieceExchangeOptions::max_table_bytes on all ranks"));
  }
  COXSWAIN_ASSIGN_OR_RETURN(
      const std::shared_ptr<BufferOwner> memory,
      AllocateHostBuffer(communicator, longest * (ranks + 1), DType::kUInt8));
  const Span input = memory->span().Slice(longest * ranks, longest);
  const Span output = memory->span().Slice(0, longest * ranks);
  std::memcpy(input.data, table->data(), table->size());
  std::memset(static_cast<char*>(input.data) + table->size(), 0,
              static_cast<size_t>(longest) - table->size());
  COXSWAIN_RETURN_IF_ERROR(WaitHolding(communicator.AllGather(input, output),
                                       memory, options.timeout));
  Tables tables;
  for (int64_t rank = 0; rank < ranks; ++rank) {
    auto parsed = ParsePieceTable(absl::string_view(
        static_cast<const char*>(output.data) + rank * longest,
        static_cast<size_t>(lengths[static_cast<size_t>(rank)])));
    COXSWAIN_RETURN_IF_ERROR(
        WithPrefix(absl::StrCat("the table of the pieces of rank ", rank, ": "),
                   parsed.status()));
    tables.push_back(std::move(parsed->pieces));
  }
  return tables;
}

absl::StatusOr<PieceExchange> PieceExchange::Create(
    std::vector<PieceMemory> have, const PieceExchangeOptions& options,
    Communicator& communicator) {
  COXSWAIN_ASSIGN_OR_RETURN(Tables tables, Gather(have, options, communicator));
  std::vector<TensorPiece> all;
  for (const std::vector<TensorPiece>& table : tables) {
    all.insert(all.end(), table.begin(), table.end());
  }
  COXSWAIN_ASSIGN_OR_RETURN(PieceIndex pieces,
                            PieceIndex::Create(std::move(all)));
  return PieceExchange(std::move(have), std::move(tables), std::move(pieces),
                       options, communicator);
}

absl::Status PieceExchange::Get(const std::vector<PieceMemory>& want) {
  COXSWAIN_ASSIGN_OR_RETURN(const Tables wanting,
                            Gather(want, options_, communicator_));
  const int own = communicator_.rank();
  COXSWAIN_ASSIGN_OR_RETURN(const Transfers transfers,
                            Plan(tables_, wanting, own, have_, want));
  for (const Transfers::Copy& copy : transfers.copies) {
    std::memcpy(copy.to, copy.from, static_cast<size_t>(copy.bytes));
  }
  const int ranks = communicator_.size();
  for (int distance = 1; distance < ranks; ++distance) {
    const int to = (own + distance) % ranks;
    const int from = (own + ranks - distance) % ranks;
    COXSWAIN_RETURN_IF_ERROR(
        SendAndReceive(transfers.send[static_cast<size_t>(to)], to,
                       transfers.receive[static_cast<size_t>(from)], from,
                       options_, communicator_));
  }
  return absl::OkStatus();
}

}  // namespace coxswain
