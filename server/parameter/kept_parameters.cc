#include "server/parameter/kept_parameters.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/crc32c.h"
#include "base/status_macros.h"
#include "server/generation/generation_guard.h"

namespace coxswain::server {
namespace {

bool SameSpec(const TensorSpec& a, const TensorSpec& b) {
  return a.reduction == b.reduction && a.dtype == b.dtype &&
         a.bytes == b.bytes && a.parts == b.parts;
}

std::string Describe(absl::string_view name, int64_t version) {
  return absl::StrCat("parameter '", name, "' version ", version);
}

// Names all of a few, and of many the first ones and how many more there are.
std::string ListOf(const std::vector<int>& parts) {
  constexpr size_t kMost = 16;
  const size_t named = std::min(parts.size(), kMost);
  const std::vector<int> first(parts.begin(),
                               parts.begin() + static_cast<int>(named));
  std::string list = absl::StrJoin(first, ", ");
  if (named < parts.size()) {
    absl::StrAppend(&list, " and ", parts.size() - named, " more");
  }
  return list;
}

}  // namespace

KeptParameters::Push::Push(std::shared_ptr<KeptParameters> parameters,
                           std::string name, int64_t version, int part,
                           std::shared_ptr<Aggregate> tensor,
                           BudgetCharge charge)
    : charge_(std::move(charge)),
      parameters_(std::move(parameters)),
      name_(std::move(name)),
      version_(version),
      part_(part),
      tensor_(std::move(tensor)) {}

KeptParameters::Push::~Push() {
  if (ended_) return;
  const auto end = parameters_->EndPart(name_, version_, part_, tensor_);
  static_cast<void>(end);  // no caller waits for it
}

absl::Status KeptParameters::Push::Append(int64_t offset, std::string bytes,
                                          uint32_t crc32c) {
  if (Crc32c(bytes) != crc32c) {
    return absl::DataLossError(
        absl::StrCat("a chunk of ", Describe(name_, version_), " at ", offset,
                     " does not match its checksum"));
  }
  const auto size = static_cast<int64_t>(bytes.size());
  COXSWAIN_RETURN_IF_ERROR(
      tensor_->spec().CheckChunk(part_, received_, offset, size));
  COXSWAIN_ASSIGN_OR_RETURN(
      auto chunk,
      ChunkBuffer::Make(std::move(bytes), crc32c, parameters_->budget_));
  chunks_.push_back(std::move(chunk));
  received_ += size;
  return absl::OkStatus();
}

absl::StatusOr<bool> KeptParameters::Push::Finish() {
  if (received_ != tensor_->spec().bytes) {
    return absl::DataLossError(absl::StrCat(
        "part ", part_, " of ", Describe(name_, version_),
        " ended before all of its ", tensor_->spec().bytes, " bytes came"));
  }
  int64_t offset = 0;
  for (auto& chunk : chunks_) {
    const auto size = static_cast<int64_t>(chunk->bytes.size());
    COXSWAIN_RETURN_IF_ERROR(tensor_->Append(part_, offset, std::move(chunk)));
    offset += size;
  }
  chunks_.clear();
  ended_ = true;
  return parameters_->EndPart(name_, version_, part_, tensor_);
}

absl::StatusOr<std::unique_ptr<KeptParameters::Push>> KeptParameters::StartPush(
    const std::shared_ptr<KeptParameters>& parameters, absl::string_view name,
    int64_t version, int part, const TensorSpec& spec) {
  // Also of its part among those that are being pushed.
  COXSWAIN_ASSIGN_OR_RETURN(
      BudgetCharge charge,
      BudgetCharge::Take(parameters->declared_,
                         static_cast<int64_t>(sizeof(Push) + name.size()) +
                             4 * kAllocationBytes));
  COXSWAIN_ASSIGN_OR_RETURN(auto tensor,
                            parameters->StartPart(name, version, part, spec));
  return std::unique_ptr<Push>(new Push(parameters, std::string(name), version,
                                        part, std::move(tensor),
                                        std::move(charge)));
}

absl::Status KeptParameters::CheckPushLocked(const Parameter& parameter,
                                             absl::string_view name,
                                             int64_t version) const {
  const KeptVersion& newest = parameter.newest;
  if (newest.tensor == nullptr || newest.generation != generation_ ||
      newest.version < version) {
    return absl::OkStatus();
  }
  return absl::AlreadyExistsError(
      absl::StrCat(Describe(name, newest.version),
                   " is complete already: push versions that rise"));
}

absl::Status KeptParameters::CheckName(absl::string_view name) const {
  if (name.size() <= limits_.max_name_bytes) return absl::OkStatus();
  return ParameterLimitError("max_name_bytes",
                             static_cast<int64_t>(limits_.max_name_bytes),
                             "choose a shorter name");
}

absl::StatusOr<std::shared_ptr<Aggregate>> KeptParameters::StartPart(
    absl::string_view name, int64_t version, int part, const TensorSpec& spec) {
  COXSWAIN_RETURN_IF_ERROR(CheckName(name));
  if (name.empty() || version < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat(Describe(name, version),
                     ": a parameter has a name, and versions count from 1"));
  }
  COXSWAIN_RETURN_IF_ERROR(spec.Check(limits_));
  if (spec.bytes == 0 || part < 0 || part >= spec.parts) {
    return absl::InvalidArgumentError(
        absl::StrCat(Describe(name, version), ": there is no part ", part,
                     " of ", spec.bytes, " bytes among ", spec.parts));
  }
  MutexLock lock(&mutex_);
  COXSWAIN_RETURN_IF_ERROR(ended_);
  auto known = parameters_.find(name);
  if (known != parameters_.end()) {
    COXSWAIN_RETURN_IF_ERROR(CheckPushLocked(known->second, name, version));
  }
  if (known == parameters_.end() || known->second.forming.count(version) == 0) {
    COXSWAIN_RETURN_IF_ERROR(StartVersionLocked(name, version, spec));
    known = parameters_.find(name);
  }
  Forming& forming = known->second.forming[version];
  if (!SameSpec(forming.tensor->spec(), spec)) {
    return absl::FailedPreconditionError(
        absl::StrCat("another part of ", Describe(name, version),
                     " was declared with another reduction, type or size"));
  }
  if (forming.tensor->PartComplete(part)) {
    return absl::AlreadyExistsError(absl::StrCat(
        "part ", part, " of ", Describe(name, version), " is complete"));
  }
  if (!forming.pushing.insert(part).second) {
    return absl::FailedPreconditionError(
        absl::StrCat("part ", part, " of ", Describe(name, version),
                     " is being pushed by another caller"));
  }
  return forming.tensor;
}

absl::Status KeptParameters::StartVersionLocked(absl::string_view name,
                                                int64_t version,
                                                const TensorSpec& spec) {
  const auto known = parameters_.find(name);
  const bool first = known == parameters_.end();
  if (first && parameters_.size() >= limits_.max_parameters) {
    return ParameterLimitError("max_parameters",
                               static_cast<int64_t>(limits_.max_parameters),
                               "forget some");
  }
  // All that it costs is taken before anything is made.
  BudgetCharge entry(declared_);
  if (first) {
    COXSWAIN_RETURN_IF_ERROR(
        entry.Grow(static_cast<int64_t>(sizeof(Parameter) + name.size()) +
                   2 * kAllocationBytes));
  }
  Forming forming;
  COXSWAIN_ASSIGN_OR_RETURN(forming.place, BudgetCharge::Take(versions_, 1));
  COXSWAIN_ASSIGN_OR_RETURN(
      forming.charge,
      BudgetCharge::Take(
          declared_, static_cast<int64_t>(sizeof(Forming)) + kAllocationBytes));
  COXSWAIN_ASSIGN_OR_RETURN(forming.tensor, Aggregate::Make(spec, declared_));
  Parameter& parameter = first ? parameters_[std::string(name)] : known->second;
  if (first) parameter.charge = std::move(entry);
  parameter.forming.emplace(version, std::move(forming));
  return absl::OkStatus();
}

absl::StatusOr<bool> KeptParameters::EndPart(
    const std::string& name, int64_t version, int part,
    const std::shared_ptr<Aggregate>& tensor) {
  Calls calls;
  absl::StatusOr<bool> complete = false;
  {
    MutexLock lock(&mutex_);
    const auto it = parameters_.find(name);
    if (it == parameters_.end()) {
      return DroppedLocked(name, version, tensor.get());
    }
    auto& forming = it->second.forming;
    const auto own = forming.find(version);
    if (own == forming.end() || own->second.tensor != tensor) {
      return DroppedLocked(name, version, tensor.get());
    }
    own->second.pushing.erase(part);
    if (tensor->complete()) {
      CompleteLocked(name, version, tensor, &calls);
      complete = true;
    } else if (own->second.pushing.empty() && !tensor->AnyPartComplete()) {
      DiscardLocked(name, version, &calls);
    }
  }
  RunAll(calls);
  return complete;
}

absl::StatusOr<bool> KeptParameters::DroppedLocked(
    const std::string& name, int64_t version, const Aggregate* tensor) const {
  COXSWAIN_RETURN_IF_ERROR(ended_);
  const auto it = parameters_.find(name);
  if (it != parameters_.end()) {
    // Another part's thread may have been the one to complete it.
    if (it->second.newest.tensor.get() == tensor) return true;
    COXSWAIN_RETURN_IF_ERROR(CheckPushLocked(it->second, name, version));
  }
  return absl::AbortedError(
      absl::StrCat(Describe(name, version),
                   " was dropped while it was pushed: push it again"));
}

void KeptParameters::DiscardLocked(const std::string& name, int64_t version,
                                   Calls* calls) {
  parameters_[name].forming.erase(version);
  EraseIfEmptyLocked(name);
  AnswerLocked(
      [&](const Waiting& waiting) {
        return waiting.name == name && waiting.version == version;
      },
      absl::AbortedError(absl::StrCat("the push of ", Describe(name, version),
                                      " was interrupted: push it again")),
      calls);
}

void KeptParameters::CompleteLocked(const std::string& name, int64_t version,
                                    const std::shared_ptr<Aggregate>& tensor,
                                    Calls* calls) {
  Parameter& parameter = parameters_[name];
  parameter.forming.erase(parameter.forming.begin(),
                          parameter.forming.upper_bound(version));
  parameter.newest.version = version;
  parameter.newest.generation = generation_;
  parameter.newest.tensor = tensor;
  AnswerLocked(
      [&](const Waiting& waiting) {
        return waiting.name == name && waiting.version <= version;
      },
      parameter.newest, calls);
}

template <typename Match>
void KeptParameters::AnswerLocked(const Match& match,
                                  const absl::StatusOr<KeptVersion>& answer,
                                  Calls* calls) {
  for (auto it = waiting_.begin(); it != waiting_.end();) {
    if (!match(it->second)) {
      ++it;
      continue;
    }
    calls->push_back(
        [done = std::move(it->second.done), answer] { done(answer); });
    it = waiting_.erase(it);
  }
}

void KeptParameters::EraseIfEmptyLocked(const std::string& name) {
  const auto it = parameters_.find(name);
  if (it == parameters_.end()) return;
  if (it->second.newest.tensor == nullptr && it->second.forming.empty()) {
    parameters_.erase(it);
  }
}

void KeptParameters::Pull(uint64_t call, absl::string_view name,
                          int64_t version, absl::Time deadline, bool wait,
                          PullDone done) {
  if (absl::Status named = CheckName(name); !named.ok()) {
    done(named);
    return;
  }
  absl::StatusOr<KeptVersion> answer = absl::NotFoundError(
      absl::StrCat(Describe(name, version), " is not here"));
  {
    MutexLock lock(&mutex_);
    BudgetCharge charge(declared_);
    const auto it = parameters_.find(name);
    if (!ended_.ok()) {
      answer = ended_;
    } else if (it != parameters_.end() && it->second.newest.tensor != nullptr &&
               it->second.newest.version >= version) {
      answer = it->second.newest;
    } else if (wait && waiting_.size() >= limits_.max_waiting_pulls) {
      answer = ParameterLimitError(
          "max_waiting_pulls", static_cast<int64_t>(limits_.max_waiting_pulls),
          "pull later");
    } else if (wait) {
      const absl::Status charged =
          charge.Grow(static_cast<int64_t>(sizeof(Waiting) + name.size()) +
                      4 * kAllocationBytes);
      if (charged.ok()) {
        waiting_[call] = {std::string(name), version, deadline, std::move(done),
                          std::move(charge)};
        return;
      }
      answer = charged;
    }
  }
  done(std::move(answer));
}

void KeptParameters::Cancel(uint64_t call) {
  MutexLock lock(&mutex_);
  waiting_.erase(call);
}

void KeptParameters::Expire(absl::Time now) {
  Calls calls;
  {
    MutexLock lock(&mutex_);
    for (auto it = waiting_.begin(); it != waiting_.end();) {
      if (it->second.deadline > now) {
        ++it;
        continue;
      }
      std::string missing;
      const auto parameter = parameters_.find(it->second.name);
      if (parameter != parameters_.end()) {
        const auto& forming = parameter->second.forming;
        const auto own = forming.lower_bound(it->second.version);
        if (own != forming.end()) {
          missing = absl::StrCat("; missing parts: ",
                                 ListOf(own->second.tensor->MissingParts()));
        }
      }
      calls.push_back([done = std::move(it->second.done),
                       why = absl::DeadlineExceededError(absl::StrCat(
                           Describe(it->second.name, it->second.version),
                           " did not come in time", missing))] { done(why); });
      it = waiting_.erase(it);
    }
  }
  RunAll(calls);
}

std::vector<KeptDescription> KeptParameters::List() const {
  std::vector<KeptDescription> list;
  MutexLock lock(&mutex_);
  for (const auto& [name, parameter] : parameters_) {
    const KeptVersion& newest = parameter.newest;
    if (newest.tensor == nullptr) continue;
    list.push_back({name, newest.version, newest.tensor->spec().dtype,
                    newest.tensor->spec().total_bytes(), newest.generation});
  }
  return list;
}

bool KeptParameters::Forget(absl::string_view name) {
  MutexLock lock(&mutex_);
  const auto it = parameters_.find(name);
  if (it == parameters_.end()) return false;
  parameters_.erase(it);
  return true;
}

KeptParameters::Calls KeptParameters::Begin(Generation generation) {
  Calls calls;
  MutexLock lock(&mutex_);
  generation_ = generation;
  ended_ = absl::OkStatus();
  AnswerLocked([](const Waiting&) { return true; },
               absl::AbortedError("another generation has begun: join again"),
               &calls);
  DropFormingLocked();
  return calls;
}

void KeptParameters::DropFormingLocked() {
  for (auto it = parameters_.begin(); it != parameters_.end();) {
    it->second.forming.clear();
    const bool kept = it->second.newest.tensor != nullptr;
    it = kept ? std::next(it) : parameters_.erase(it);
  }
}

void KeptParameters::End(Generation generation, const absl::Status& why) {
  Calls calls;
  {
    MutexLock lock(&mutex_);
    if (generation_ != generation) return;  // the next one has begun
    ended_ = why;
    AnswerLocked([](const Waiting&) { return true; }, why, &calls);
    DropFormingLocked();
  }
  RunAll(calls);
}

bool KeptParameters::empty() const {
  MutexLock lock(&mutex_);
  return parameters_.empty();
}

}  // namespace coxswain::server
