#include "server/parameter/collective_group.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/crc32c.h"
#include "base/status_macros.h"
#include "schedule/schedule_errors.h"

namespace coxswain::server {
namespace {

template <typename Touched>
void WakeAll(const Touched& touched) {
  for (const auto& outbox : touched) outbox->Wake();
}

template <typename Touched>
void AddEnd(uint64_t operation, const absl::Status& why,
            const std::shared_ptr<Outbox>& outbox, Touched* touched) {
  Delivery end;
  end.operation = operation;
  end.status = why;
  outbox->Add(std::move(end));
  touched->insert(outbox);
}

}  // namespace

absl::Status CollectiveGroup::Join(int rank, std::shared_ptr<Outbox> outbox,
                                   BudgetCharge charge) {
  MutexLock lock(&mutex_);
  COXSWAIN_RETURN_IF_ERROR(ended_);
  if (ranks_.count(rank) != 0) {
    return absl::AlreadyExistsError(
        absl::StrCat("rank ", rank,
                     " takes part in this exchange already, or did: an id of "
                     "a communicator is used once"));
  }
  outbox->ChargeTo(budget_);
  Rank& joined = ranks_[rank];
  joined.outbox = std::move(outbox);
  joined.charge = std::move(charge);
  ++present_;
  return absl::OkStatus();
}

bool CollectiveGroup::Leave(int rank) {
  Touched touched;
  bool empty = false;
  {
    MutexLock lock(&mutex_);
    Rank& left = ranks_[rank];
    if (left.has_left) return present_ == 0;
    left.has_left = true;
    --present_;
    left.operations.clear();
    left.outbox = nullptr;
    for (auto it = tensors_.begin(); it != tensors_.end();) {
      const TensorPtr tensor = it->second;
      ++it;  // the tensor may go
      if (IsPending(*tensor, rank)) SettleLocked(tensor, rank);
      if (tensor->aggregate != nullptr && !HasGiven(*tensor, rank)) {
        FailLocked(tensor, GoneLocked(tensor->declared), &touched);
      } else {
        DeliverLocked(tensor, &touched);
      }
    }
    empty = present_ == 0;
    // Nothing is kept for ranks that have yet to join.
    if (empty) DropTensorsLocked();
  }
  WakeAll(touched);
  return empty;
}

bool CollectiveGroup::AllHaveCome() const {
  MutexLock lock(&mutex_);
  return ranks_.size() == static_cast<size_t>(size_);
}

absl::Status CollectiveGroup::GoneLocked(
    const CollectiveOperation& operation) const {
  std::vector<int> leavers;
  for (const auto& [rank, state] : ranks_) {
    if (state.has_left && operation.TakesPart(rank) &&
        operation.Contributes(rank)) {
      leavers.push_back(rank);
    }
  }
  if (leavers.empty()) return absl::OkStatus();
  return absl::UnavailableError(
      absl::StrCat("its part of ", schedule::RankList(leavers),
                   " will not come: that rank has aborted, was destroyed, or "
                   "lost its connection to the coordinator"));
}

int CollectiveGroup::PendingLocked(const CollectiveOperation& operation) const {
  int pending = size_;
  if (operation.peer >= 0) pending = operation.peer == operation.root ? 1 : 2;
  for (const auto& [rank, state] : ranks_) {
    if (state.has_left && operation.TakesPart(rank)) --pending;
  }
  return pending;
}

bool CollectiveGroup::IsAwaitedLocked(const Tensor& tensor, int rank) const {
  if (!tensor.declared.TakesPart(rank) ||
      tensor.came[static_cast<size_t>(rank)]) {
    return false;
  }
  const auto known = ranks_.find(rank);
  return known == ranks_.end() || !known->second.has_left;
}

bool CollectiveGroup::AwaitsRanksLocked(const Tensor& tensor) const {
  // The common case, once for each chunk.
  if (tensor.came_count == size_) return false;
  for (int rank = 0; rank < size_; ++rank) {
    if (IsAwaitedLocked(tensor, rank)) return true;
  }
  return false;
}

absl::StatusOr<CollectiveGroup::TensorPtr> CollectiveGroup::MakeTensorLocked(
    int rank, const CollectiveOperation& operation) {
  if (tensors_.size() >= limits_.max_tensors) {
    return ParameterLimitError("max_tensors",
                               static_cast<int64_t>(limits_.max_tensors),
                               "let others catch up");
  }
  // The name is kept in the key as well.
  COXSWAIN_ASSIGN_OR_RETURN(
      BudgetCharge charge,
      BudgetCharge::Take(
          declared_, static_cast<int64_t>(sizeof(Tensor)) + size_ / 8 +
                         4 * kAllocationBytes + 2 * BytesOf(operation.name) +
                         BytesOf(operation.dtype) + BytesOf(operation.what)));
  const auto tensor = std::make_shared<Tensor>();
  tensor->declared = operation;
  tensor->first_rank = rank;
  tensor->failure = GoneLocked(operation);
  if (tensor->failure.ok()) {
    COXSWAIN_ASSIGN_OR_RETURN(
        tensor->aggregate,
        Aggregate::Make(operation.SpecFor(size_), declared_));
  }
  tensor->came.resize(static_cast<size_t>(size_));
  tensor->pending = PendingLocked(operation);
  tensor->charge = std::move(charge);
  tensors_[KeyOf(operation)] = tensor;
  return tensor;
}

bool CollectiveGroup::HasGiven(const Tensor& tensor, int rank) {
  const CollectiveOperation& declared = tensor.declared;
  if (!declared.TakesPart(rank) || !declared.Contributes(rank)) return true;
  return tensor.came[static_cast<size_t>(rank)] &&
         tensor.aggregate->PartComplete(declared.PartOf(rank));
}

bool CollectiveGroup::IsPending(const Tensor& tensor, int rank) {
  if (!tensor.declared.TakesPart(rank)) return false;
  return !tensor.came[static_cast<size_t>(rank)] ||
         tensor.pulls.count(rank) != 0;
}

absl::Status CollectiveGroup::Begin(int rank,
                                    const CollectiveOperation& operation,
                                    absl::Time now) {
  Touched touched;
  {
    MutexLock lock(&mutex_);
    COXSWAIN_RETURN_IF_ERROR(ended_);
    Rank& self = ranks_[rank];
    if (self.has_left) return absl::AbortedError("the rank has left");
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

void CollectiveGroup::BeginLocked(int rank,
                                  const CollectiveOperation& operation,
                                  absl::Time now, Touched* touched) {
  Rank& self = ranks_[rank];
  const auto admitted = AdmitLocked(rank, operation, touched);
  if (!admitted.ok()) {
    return AddEnd(operation.id, admitted.status(), self.outbox, touched);
  }
  const TensorPtr& tensor = *admitted;
  if (!tensor->failure.ok()) {
    AddEnd(operation.id, tensor->failure, self.outbox, touched);
    return SettleLocked(tensor, rank);
  }
  Pull& pull = tensor->pulls[rank];
  pull.outbox = self.outbox;
  pull.operation = operation.id;
  pull.range = operation.range;
  pull.deadline = now + std::min(operation.timeout, limits_.max_timeout);
  self.operations[operation.id] = tensor;
  DeliverLocked(tensor, touched);
}

absl::StatusOr<CollectiveGroup::TensorPtr> CollectiveGroup::AdmitLocked(
    int rank, const CollectiveOperation& operation, Touched* touched) {
  COXSWAIN_RETURN_IF_ERROR(operation.Check(size_, limits_));
  if (!operation.TakesPart(rank)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "rank ", rank, " takes no part in ", operation.ToString()));
  }
  TensorPtr tensor;
  const auto known = tensors_.find(KeyOf(operation));
  if (known == tensors_.end()) {
    COXSWAIN_ASSIGN_OR_RETURN(tensor, MakeTensorLocked(rank, operation));
  } else {
    tensor = known->second;
  }
  if (tensor->came[static_cast<size_t>(rank)]) {
    return absl::InvalidArgumentError(
        absl::StrCat("rank ", rank, " takes part in ", operation.name,
                     " version ", operation.version, " twice"));
  }
  absl::Status status;
  if (!operation.AgreesWith(tensor->declared)) {
    status = absl::InvalidArgumentError(
        absl::StrCat("the ranks started different collectives: rank ",
                     tensor->first_rank, " ", tensor->declared.ToString(),
                     ", rank ", rank, " ", operation.ToString()));
  } else {
    // Of the pull, and of the operation among those of the rank.
    status = tensor->charge.Grow(static_cast<int64_t>(sizeof(Pull)) +
                                 3 * kAllocationBytes);
  }
  if (!status.ok()) FailLocked(tensor, status, touched);
  // Only participants of the tensor as it was declared are waited for.
  if (!tensor->declared.TakesPart(rank)) return tensor->failure;
  tensor->came[static_cast<size_t>(rank)] = true;
  ++tensor->came_count;
  return tensor;
}

absl::StatusOr<CollectiveGroup::TensorPtr> CollectiveGroup::FindOperationLocked(
    int rank, uint64_t operation) {
  Rank& self = ranks_[rank];
  const auto it = self.operations.find(operation);
  if (it == self.operations.end()) {
    if (operation <= self.last_operation) return TensorPtr();
    return absl::InvalidArgumentError(absl::StrCat(
        "a chunk of operation ", operation, ", which has not begun"));
  }
  TensorPtr tensor = it->second;
  if (tensor->aggregate != nullptr) return tensor;
  self.operations.erase(it);
  return TensorPtr();
}

absl::Status CollectiveGroup::Append(int rank, uint64_t operation,
                                     int64_t offset, std::string bytes,
                                     uint32_t crc32c) {
  TensorPtr tensor;
  std::shared_ptr<Aggregate> aggregate;
  int part = 0;
  {
    MutexLock lock(&mutex_);
    COXSWAIN_ASSIGN_OR_RETURN(tensor, FindOperationLocked(rank, operation));
    if (tensor == nullptr) return absl::OkStatus();
    aggregate = tensor->aggregate;
    const CollectiveOperation& declared = tensor->declared;
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
      FailLocked(tensor, status, &touched);
    } else {
      DeliverLocked(tensor, &touched);
    }
    ForgetLocked(rank, operation);
  }
  WakeAll(touched);
  return absl::OkStatus();
}

bool CollectiveGroup::Advance(const Aggregate& aggregate, Pull* pull) {
  const PullRange& range = pull->range;
  if (range.empty()) {
    if (!aggregate.complete()) return false;
    Delivery empty;
    empty.operation = pull->operation;
    pull->outbox->Add(std::move(empty));
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
    pull->outbox->Add(std::move(piece));
    if (pull->done < range.bytes) continue;
    pull->done = 0;
    ++pull->run;
  }
  return true;
}

void CollectiveGroup::DeliverLocked(const TensorPtr& tensor, Touched* touched) {
  if (tensor->aggregate == nullptr) return;
  // Ranks that declare it otherwise are found once they come: ranks that were
  // answered before, such as the root of a broadcast, would not learn of it.
  if (AwaitsRanksLocked(*tensor)) return;
  std::vector<std::pair<int, uint64_t>> answered;
  for (auto& [rank, pull] : tensor->pulls) {
    const int64_t before = pull.run * pull.range.bytes + pull.done;
    const bool all = Advance(*tensor->aggregate, &pull);
    if (all || pull.run * pull.range.bytes + pull.done != before) {
      touched->insert(pull.outbox);
    }
    if (all) answered.emplace_back(rank, pull.operation);
  }
  for (const auto& [rank, operation] : answered) {
    SettleLocked(tensor, rank);
    ForgetLocked(rank, operation);
  }
}

void CollectiveGroup::SettleLocked(const TensorPtr& tensor, int rank) {
  tensor->pulls.erase(rank);
  if (--tensor->pending > 0) return;
  tensor->aggregate = nullptr;
  tensors_.erase(KeyOf(tensor->declared));
}

void CollectiveGroup::ForgetLocked(int rank, uint64_t operation) {
  Rank& self = ranks_[rank];
  const auto it = self.operations.find(operation);
  if (it == self.operations.end()) return;
  const Tensor& tensor = *it->second;
  const bool given = tensor.aggregate == nullptr || HasGiven(tensor, rank);
  if (given && !IsPending(tensor, rank)) self.operations.erase(it);
}

void CollectiveGroup::RefuseLocked(int rank, const Pull& pull,
                                   const absl::Status& why, Touched* touched) {
  ranks_[rank].operations.erase(pull.operation);
  AddEnd(pull.operation, why, pull.outbox, touched);
}

void CollectiveGroup::FailLocked(const TensorPtr& tensor,
                                 const absl::Status& why, Touched* touched) {
  if (!tensor->failure.ok()) return;
  tensor->failure = why;
  tensor->aggregate = nullptr;
  while (!tensor->pulls.empty()) {
    const auto& [rank, pull] = *tensor->pulls.begin();
    RefuseLocked(rank, pull, why, touched);
    SettleLocked(tensor, rank);
  }
}

std::vector<int> CollectiveGroup::MissingLocked(const Tensor& tensor) const {
  std::vector<int> missing;
  for (int rank = 0; rank < size_; ++rank) {
    if (IsAwaitedLocked(tensor, rank) || !HasGiven(tensor, rank)) {
      missing.push_back(rank);
    }
  }
  return missing;
}

void CollectiveGroup::Expire(absl::Time now) {
  Touched touched;
  {
    MutexLock lock(&mutex_);
    for (auto it = tensors_.begin(); it != tensors_.end();) {
      const TensorPtr tensor = it->second;
      ++it;  // the tensor may go
      std::vector<int> late;
      for (const auto& [rank, pull] : tensor->pulls) {
        if (pull.deadline <= now) late.push_back(rank);
      }
      if (late.empty()) continue;
      const absl::Status why = absl::DeadlineExceededError(
          absl::StrCat("no answer in time from ",
                       schedule::RankList(MissingLocked(*tensor))));
      for (const int rank : late) {
        RefuseLocked(rank, tensor->pulls[rank], why, &touched);
        SettleLocked(tensor, rank);
      }
    }
  }
  WakeAll(touched);
}

void CollectiveGroup::End(const absl::Status& why) {
  Touched touched;
  {
    MutexLock lock(&mutex_);
    if (!ended_.ok()) return;
    ended_ = why;
    for (auto& [rank, state] : ranks_) {
      state.operations.clear();
      if (state.outbox == nullptr) continue;
      state.outbox->End(why);
      touched.insert(state.outbox);
    }
    DropTensorsLocked();
  }
  WakeAll(touched);
}

void CollectiveGroup::DropTensorsLocked() {
  // A chunk that is being summed up refers to its tensor until it is done.
  for (const auto& [key, tensor] : tensors_) {
    tensor->aggregate = nullptr;
    tensor->pulls.clear();
  }
  tensors_.clear();
}

size_t CollectiveGroup::tensor_count() const {
  MutexLock lock(&mutex_);
  return tensors_.size();
}

}  // namespace coxswain::server
