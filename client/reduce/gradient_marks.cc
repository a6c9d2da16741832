#include "client/reduce/gradient_marks.h"

#include <utility>

namespace coxswain {

void GradientMarks::Begin(const std::vector<Bucket>& buckets, size_t parameters,
                          bool complete, absl::Time now) {
  Mark first;
  first.used = false;
  first.absent = complete;
  MutexLock lock(&mutex_);
  open_ = true;
  claimed_.assign(parameters, complete);
  marks_.assign(parameters, first);
  pending_.clear();
  for (const Bucket& bucket : buckets) {
    pending_.push_back(complete ? 0
                                : static_cast<int>(bucket.gradients.size()));
  }
  ready_.assign(buckets.size(), now);
  order_.clear();
  changed_.NotifyAll();
}

void GradientMarks::Close() {
  MutexLock lock(&mutex_);
  open_ = false;
}

void GradientMarks::Stop(const absl::Status& error) {
  MutexLock lock(&mutex_);
  if (stopped_.ok()) stopped_ = error;
  changed_.NotifyAll();
}

GradientMarks::Claimed GradientMarks::Claim(int parameter, const Mark& mark) {
  const size_t index = static_cast<size_t>(parameter);
  MutexLock lock(&mutex_);
  if (!open_) return Claimed::kClosed;
  if (claimed_[index]) return Claimed::kTwice;
  claimed_[index] = true;
  marks_[index] = mark;
  return Claimed::kYes;
}

void GradientMarks::CountDown(int parameter, int bucket, absl::Time now) {
  const size_t index = static_cast<size_t>(bucket);
  MutexLock lock(&mutex_);
  if (marks_[static_cast<size_t>(parameter)].used) order_.push_back(parameter);
  if (--pending_[index] > 0) return;
  ready_[index] = now;
  changed_.NotifyAll();
}

std::vector<int> GradientMarks::Unclaimed() const {
  std::vector<int> unclaimed;
  MutexLock lock(&mutex_);
  for (size_t i = 0; i < claimed_.size(); ++i) {
    if (!claimed_[i]) unclaimed.push_back(static_cast<int>(i));
  }
  return unclaimed;
}

absl::Status GradientMarks::AwaitBucket(int bucket) {
  const size_t index = static_cast<size_t>(bucket);
  MutexLock lock(&mutex_);
  changed_.WaitForWork(&mutex_, [&]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
    return pending_[index] == 0 || !stopped_.ok();
  });
  return stopped_;
}

void* GradientMarks::TakeOutside(int parameter) {
  MutexLock lock(&mutex_);
  return std::exchange(marks_[static_cast<size_t>(parameter)].outside, nullptr);
}

void* GradientMarks::TakeInPlace(int parameter) {
  MutexLock lock(&mutex_);
  Mark& mark = marks_[static_cast<size_t>(parameter)];
  return mark.in_place ? std::exchange(mark.outside, nullptr) : nullptr;
}

bool GradientMarks::used(int parameter) const {
  MutexLock lock(&mutex_);
  return marks_[static_cast<size_t>(parameter)].used;
}

bool GradientMarks::absent(int parameter) const {
  MutexLock lock(&mutex_);
  return marks_[static_cast<size_t>(parameter)].absent;
}

std::vector<int32_t> GradientMarks::users() const {
  std::vector<int32_t> users;
  MutexLock lock(&mutex_);
  for (const Mark& mark : marks_) users.push_back(mark.used ? 1 : 0);
  return users;
}

std::vector<int> GradientMarks::ready_order() const {
  MutexLock lock(&mutex_);
  return order_;
}

std::vector<absl::Time> GradientMarks::ready_times() const {
  MutexLock lock(&mutex_);
  return ready_;
}

}  // namespace coxswain
