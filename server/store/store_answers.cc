#include "server/store/store_answers.h"

#include <algorithm>
#include <utility>

namespace coxswain::server {

const StoreAnswer* StoreAnswers::Find(const StoreRequestKey& request) const {
  const auto it = answers_.find(request);
  return it == answers_.end() ? nullptr : &it->second.answer;
}

void StoreAnswers::Remember(RememberedAnswer remembered) {
  next_sequence_ = std::max(next_sequence_, remembered.sequence + 1);
  const StoreRequestKey request = remembered.request;
  const uint64_t sequence = remembered.sequence;
  const size_t bytes = remembered.answer.compare_set.value.size();
  if (!answers_.emplace(request, std::move(remembered)).second) {
    // One id for two keys at once: the first answer counts.
    forgotten_.push_back(sequence);
    return;
  }
  bytes_ += bytes;
  order_.push_back(request);
  while (answers_.size() > max_count_ || bytes_ > max_bytes_) ForgetOldest();
}

void StoreAnswers::ForgetOldest() {
  const auto oldest = answers_.find(order_.front());
  order_.pop_front();
  forgotten_.push_back(oldest->second.sequence);
  bytes_ -= oldest->second.answer.compare_set.value.size();
  answers_.erase(oldest);
}

std::vector<uint64_t> StoreAnswers::TakeForgotten(size_t count) {
  std::vector<uint64_t> taken;
  while (!forgotten_.empty() && taken.size() < count) {
    taken.push_back(forgotten_.front());
    forgotten_.pop_front();
  }
  return taken;
}

void StoreAnswers::GiveBack(const std::vector<uint64_t>& forgotten) {
  forgotten_.insert(forgotten_.end(), forgotten.begin(), forgotten.end());
}

}  // namespace coxswain::server
