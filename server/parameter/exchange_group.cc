#include "server/parameter/exchange_group.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/crc32c.h"
#include "base/status_macros.h"

namespace coxswain::server {
namespace {

template <typename Touched>
void WakeAll(const Touched& touched) {
  for (const auto& outbox : touched) outbox->Wake();
}

void AddEnd(uint64_t operation, const absl::Status& why, Outbox* outbox) {
  Delivery end;
  end.operation = operation;
  end.status = why;
  outbox->Add(std::move(end));
}

}  // namespace

absl::Status ExchangeGroup::Join(int rank, std::shared_ptr<Outbox> outbox) {
  MutexLock lock(&mutex_);
  Rank joined;
  joined.outbox = std::move(outbox);
  if (!ranks_.emplace(rank, std::move(joined)).second) {
    return absl::AlreadyExistsError(
        absl::StrCat("rank ", rank,
                     " takes part in this exchange already, or did: an id of "
                     "a communicator is used once"));
  }
  ++present_;
  return absl::OkStatus();
}

bool ExchangeGroup::Leave(int rank) {
  Touched touched;
  bool empty = false;
  {
    MutexLock lock(&mutex_);
    Rank& left = ranks_[rank];
    if (!left.gone) --present_;
    left.gone = true;
    left.operations.clear();
    left.outbox = nullptr;
    const auto tensors = tensors_;  // those that fail may go
    for (const auto& [key, tensor] : tensors) {
      SettleLocked(key, tensor.get(), rank);
      if (tensor->failure.ok() && !HasGiven(*tensor, rank)) {
        FailLocked(key, tensor.get(), GoneLocked(tensor->declared), &touched);
      }
    }
    empty = present_ == 0;
    if (empty) tensors_.clear();
  }
  WakeAll(touched);
  return empty;
}

bool ExchangeGroup::AllHaveCome() const {
  MutexLock lock(&mutex_);
  return ranks_.size() == static_cast<size_t>(size_);
}

absl::Status ExchangeGroup::GoneLocked(
    const ExchangeOperation& operation) const {
  std::vector<int> gone;
  for (const auto& [rank, state] : ranks_) {
    if (state.gone && operation.TakesPart(rank) &&
        operation.Contributes(rank)) {
      gone.push_back(rank);
    }
  }
  if (gone.empty()) return absl::OkStatus();
  return absl::UnavailableError(
      absl::StrCat("its part of rank ", absl::StrJoin(gone, ", "),
                   " will not come: that rank has aborted, was destroyed, or "
                   "lost its connection to the coordinator"));
}

absl::StatusOr<ExchangeGroup::TensorPtr> ExchangeGroup::FindTensorLocked(
    int rank, const ExchangeOperation& operation) {
  TensorPtr& tensor = tensors_[Key(operation.name, operation.version)];
  if (tensor != nullptr) return tensor;
  if (tensors_.size() > limits_.max_tensors) {
    tensors_.erase(Key(operation.name, operation.version));
    return ParameterLimitError("max_tensors",
                               static_cast<int64_t>(limits_.max_tensors),
                               "let others catch up");
  }
  tensor = std::make_shared<Tensor>();
  tensor->declared = operation;
  tensor->first_rank = rank;
  tensor->aggregate = std::make_shared<Aggregate>(operation.SpecFor(size_));
  for (int other = 0; other < size_; ++other) {
    const auto state = ranks_.find(other);
    const bool gone = state != ranks_.end() && state->second.gone;
    if (operation.TakesPart(other) && !gone) tensor->pending.insert(other);
  }
  tensor->failure = GoneLocked(operation);
  return tensor;
}

bool ExchangeGroup::HasGiven(const Tensor& tensor, int rank) {
  const ExchangeOperation& declared = tensor.declared;
  if (!declared.TakesPart(rank) || !declared.Contributes(rank)) return true;
  return tensor.came.count(rank) != 0 &&
         tensor.aggregate->PartComplete(declared.PartOf(rank));
}

absl::Status ExchangeGroup::Begin(int rank, const ExchangeOperation& operation,
                                  absl::Time now) {
  Touched touched;
  {
    MutexLock lock(&mutex_);
    Rank& self = ranks_[rank];
    if (self.gone) return absl::AbortedError("the rank has left");
    if (operation.id <= self.last_operation) {
      return absl::InvalidArgumentError(
          absl::StrCat("operation ", operation.id, " begins after operation ",
                       self.last_operation, ": their numbers must rise"));
    }
    if (self.operations.size() >= limits_.max_operations) {
      return ParameterLimitError("max_operations",
                                 static_cast<int64_t>(limits_.max_operations),
                                 "wait for some to end");
    }
    self.last_operation = operation.id;
    BeginLocked(rank, operation, now, &touched);
  }
  WakeAll(touched);
  return absl::OkStatus();
}

void ExchangeGroup::BeginLocked(int rank, const ExchangeOperation& operation,
                                absl::Time now, Touched* touched) {
  const Key key(operation.name, operation.version);
  auto admitted = AdmitLocked(rank, operation, touched);
  if (!admitted.ok()) {
    RefuseLocked(rank, operation.id, admitted.status(), touched);
    return;
  }
  Tensor* const tensor = admitted->get();
  if (!tensor->failure.ok()) {
    RefuseLocked(rank, operation.id, tensor->failure, touched);
    SettleLocked(key, tensor, rank);
    return;
  }
  tensor->came.insert(rank);
  Pull& pull = tensor->pulls[rank];
  pull.operation = operation.id;
  pull.range = operation.range;
  pull.deadline = now + std::min(operation.timeout, limits_.max_timeout);
  ranks_[rank].operations[operation.id] = {key, *admitted};
  DeliverLocked(key, tensor, touched);
}

absl::StatusOr<ExchangeGroup::TensorPtr> ExchangeGroup::AdmitLocked(
    int rank, const ExchangeOperation& operation, Touched* touched) {
  COXSWAIN_RETURN_IF_ERROR(operation.Check(size_, limits_));
  if (!operation.TakesPart(rank)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "rank ", rank, " takes no part in ", operation.ToString()));
  }
  COXSWAIN_ASSIGN_OR_RETURN(TensorPtr tensor,
                            FindTensorLocked(rank, operation));
  if (tensor->failure.ok() && !operation.AgreesWith(tensor->declared)) {
    FailLocked(Key(operation.name, operation.version), tensor.get(),
               absl::InvalidArgumentError(absl::StrCat(
                   "the ranks started different collectives: rank ",
                   tensor->first_rank, " ", tensor->declared.ToString(),
                   ", rank ", rank, " ", operation.ToString())),
               touched);
  }
  if (tensor->pending.count(rank) == 0 || tensor->pulls.count(rank) != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("rank ", rank, " takes part in ", operation.name,
                     " version ", operation.version, " twice"));
  }
  return tensor;
}

absl::StatusOr<ExchangeGroup::Operation*> ExchangeGroup::FindOperationLocked(
    int rank, uint64_t operation) {
  Rank& self = ranks_[rank];
  const auto it = self.operations.find(operation);
  if (it != self.operations.end()) return &it->second;
  if (operation <= self.last_operation) return nullptr;
  return absl::InvalidArgumentError(absl::StrCat(
      "a chunk of operation ", operation, ", which has not begun"));
}

absl::Status ExchangeGroup::Append(int rank, uint64_t operation, int64_t offset,
                                   std::string bytes, uint32_t crc32c) {
  Operation found;
  std::shared_ptr<Aggregate> aggregate;
  int part = 0;
  {
    MutexLock lock(&mutex_);
    COXSWAIN_ASSIGN_OR_RETURN(const Operation* const entry,
                              FindOperationLocked(rank, operation));
    if (entry == nullptr || entry->tensor->aggregate == nullptr) {
      return absl::OkStatus();
    }
    found = *entry;
    aggregate = entry->tensor->aggregate;
    const ExchangeOperation& declared = entry->tensor->declared;
    if (!declared.Contributes(rank)) {
      return absl::InvalidArgumentError(
          absl::StrCat("rank ", rank, " has no part in ", declared.ToString()));
    }
    part = declared.PartOf(rank);
  }
  // Without the lock: this is where the arithmetic is done.
  absl::Status status;
  if (Crc32c(bytes) != crc32c) {
    status = absl::DataLossError(absl::StrCat("a chunk of rank ", rank, " at ",
                                              offset,
                                              " does not match its checksum"));
  } else {
    auto chunk = ChunkBuffer::Make(std::move(bytes), crc32c, budget_);
    status = chunk.ok() ? aggregate->Append(part, offset, *std::move(chunk))
                        : chunk.status();
  }
  Touched touched;
  {
    MutexLock lock(&mutex_);
    if (!status.ok()) {
      FailLocked(found.key, found.tensor.get(), status, &touched);
    } else {
      DeliverLocked(found.key, found.tensor.get(), &touched);
    }
    ForgetLocked(rank, operation);
  }
  WakeAll(touched);
  return absl::OkStatus();
}

bool ExchangeGroup::Advance(const Aggregate& aggregate, Pull* pull,
                            Outbox* outbox) {
  const PullRange& range = pull->range;
  if (range.empty()) {
    if (!aggregate.complete()) return false;
    Delivery empty;
    empty.operation = pull->operation;
    outbox->Add(std::move(empty));
    return true;
  }
  while (pull->run < range.count) {
    const int64_t offset = range.offset + pull->run * range.stride + pull->done;
    const Aggregate::Place place = aggregate.PlaceOf(offset);
    ChunkPtr chunk = aggregate.Chunk(place.chunk);
    if (chunk == nullptr) return false;
    Delivery piece;
    piece.operation = pull->operation;
    piece.offset = offset;
    piece.begin = static_cast<size_t>(offset - place.begin);
    piece.size = std::min(chunk->bytes.size() - piece.begin,
                          static_cast<size_t>(range.bytes - pull->done));
    piece.chunk = std::move(chunk);
    pull->done += static_cast<int64_t>(piece.size);
    outbox->Add(std::move(piece));
    if (pull->done < range.bytes) continue;
    pull->done = 0;
    ++pull->run;
  }
  return true;
}

void ExchangeGroup::DeliverLocked(const Key& key, Tensor* tensor,
                                  Touched* touched) {
  if (tensor->aggregate == nullptr) return;
  // Parts of no bytes have no chunks that would say that they are there.
  if (tensor->declared.bytes == 0 && tensor->declared.root < 0 &&
      tensor->came.size() < static_cast<size_t>(size_)) {
    return;
  }
  std::vector<int> answered;
  for (auto& [rank, pull] : tensor->pulls) {
    const std::shared_ptr<Outbox>& outbox = ranks_[rank].outbox;
    const int64_t before = pull.run * pull.range.bytes + pull.done;
    const bool all = Advance(*tensor->aggregate, &pull, outbox.get());
    if (all || pull.run * pull.range.bytes + pull.done != before) {
      touched->insert(outbox);
    }
    if (all) answered.push_back(rank);
  }
  for (const int rank : answered) {
    const uint64_t operation = tensor->pulls[rank].operation;
    SettleLocked(key, tensor, rank);
    ForgetLocked(rank, operation);
  }
}

void ExchangeGroup::SettleLocked(const Key& key, Tensor* tensor, int rank) {
  tensor->pulls.erase(rank);
  tensor->pending.erase(rank);
  if (!tensor->pending.empty()) return;
  const auto it = tensors_.find(key);
  if (it != tensors_.end() && it->second.get() == tensor) tensors_.erase(it);
}

void ExchangeGroup::ForgetLocked(int rank, uint64_t operation) {
  Rank& self = ranks_[rank];
  const auto it = self.operations.find(operation);
  if (it == self.operations.end()) return;
  const Tensor& tensor = *it->second.tensor;
  const ExchangeOperation& declared = tensor.declared;
  const bool given = tensor.aggregate == nullptr ||
                     !declared.Contributes(rank) ||
                     tensor.aggregate->PartComplete(declared.PartOf(rank));
  if (given && tensor.pending.count(rank) == 0) self.operations.erase(it);
}

void ExchangeGroup::RefuseLocked(int rank, uint64_t operation,
                                 const absl::Status& why, Touched* touched) {
  Rank& self = ranks_[rank];
  self.operations.erase(operation);
  if (self.outbox == nullptr) return;
  AddEnd(operation, why, self.outbox.get());
  touched->insert(self.outbox);
}

void ExchangeGroup::FailLocked(const Key& key, Tensor* tensor,
                               const absl::Status& why, Touched* touched) {
  if (!tensor->failure.ok()) return;
  tensor->failure = why;
  tensor->aggregate = nullptr;
  const auto pulls = tensor->pulls;
  for (const auto& [rank, pull] : pulls) {
    RefuseLocked(rank, pull.operation, why, touched);
    SettleLocked(key, tensor, rank);
  }
}

std::string ExchangeGroup::Missing(const Tensor& tensor) const {
  std::vector<int> missing;
  for (int rank = 0; rank < size_; ++rank) {
    if (!HasGiven(tensor, rank)) missing.push_back(rank);
  }
  return absl::StrJoin(missing, ", ");
}

void ExchangeGroup::Expire(absl::Time now) {
  Touched touched;
  {
    MutexLock lock(&mutex_);
    const auto tensors = tensors_;
    for (const auto& [key, tensor] : tensors) {
      const auto pulls = tensor->pulls;
      for (const auto& [rank, pull] : pulls) {
        if (pull.deadline > now) continue;
        RefuseLocked(rank, pull.operation,
                     absl::DeadlineExceededError(absl::StrCat(
                         "no answer in time from ranks ", Missing(*tensor))),
                     &touched);
        SettleLocked(key, tensor.get(), rank);
      }
    }
  }
  WakeAll(touched);
}

void ExchangeGroup::End(const absl::Status& why) {
  Touched touched;
  {
    MutexLock lock(&mutex_);
    for (const auto& [rank, state] : ranks_) {
      if (state.outbox == nullptr) continue;
      state.outbox->End(why);
      touched.insert(state.outbox);
    }
    tensors_.clear();
  }
  WakeAll(touched);
}

size_t ExchangeGroup::tensor_count() const {
  MutexLock lock(&mutex_);
  return tensors_.size();
}

}  // namespace coxswain::server
