#include "server/journal/journal.h"

#include <algorithm>
#include <iterator>
#include <string>
#include <utility>

#include "absl/strings/numbers.h"
#include "base/peer_text.h"

namespace coxswain::server {
namespace {

// The memory of a map's node and a few strings beside their letters.
constexpr size_t kOverhead = 256;
constexpr size_t kFieldOverhead = 64;

size_t BytesOf(const JournalEvent& event) {
  size_t bytes = kOverhead + event.event.size() + event.job.size();
  for (const auto& [key, value] : event.fields) {
    bytes += kFieldOverhead + key.size() + value.size();
  }
  return bytes;
}

// Makes `text` valid, cuts it to what is left, and takes that away.
void Fit(std::string* text, size_t* left) {
  *text = ValidUtf8(*text);
  constexpr size_t kMark = 3;  // "...", which Shorten() always leaves
  if (text->size() > *left) {
    *text = *left < kMark ? std::string() : Shorten(*text, *left);
  }
  *left -= text->size();
}

void Cut(const JournalLimits& limits, JournalEvent* event) {
  size_t left = limits.max_event_bytes;
  Fit(&event->event, &left);
  if (event->fields.size() > limits.max_fields) {
    event->fields.resize(limits.max_fields);
  }
  for (auto& [key, value] : event->fields) {
    Fit(&key, &left);
    Fit(&value, &left);
  }
}

template <typename Number>
bool TakeNumber(const LogField& field, Number* number) {
  Number value = 0;
  if (!absl::SimpleAtoi(field.value, &value)) return false;
  *number = value;
  return true;
}

// Returns whether the field is a member of JournalEvent and its value is valid.
bool TakeField(const LogField& field, JournalEvent* event) {
  if (field.key == "job") {
    event->job = field.value;
    return true;
  }
  if (field.key == "generation") return TakeNumber(field, &event->generation);
  if (field.key == "rank") return TakeNumber(field, &event->rank);
  if (field.key == "step") return TakeNumber(field, &event->step);
  return false;
}

}  // namespace

void Journal::Note(JournalEvent event) {
  if (event.job.empty()) return;
  event.job = Shorten(ValidUtf8(event.job), limits_.max_event_bytes);
  Cut(limits_, &event);
  MutexLock lock(&mutex_);
  event.sequence = ++newest_;
  bytes_ += BytesOf(event);
  const std::string job = event.job;
  Sequences* const own = JobLocked(job);
  own->push_back(event.sequence);
  events_.emplace_hint(events_.end(), event.sequence, std::move(event));
  if (own->size() > limits_.max_events_per_job) DropOldestLocked(job);
  while (bytes_ > limits_.max_bytes && events_.size() > 1) {
    DropOldestLocked(std::string(events_.begin()->second.job));
  }
}

Journal::Sequences* Journal::JobLocked(const std::string& name) {
  if (jobs_.count(name) == 0 && jobs_.size() >= limits_.max_jobs) {
    DropQuietestJobLocked();
  }
  return &jobs_[name];
}

void Journal::DropOldestLocked(const std::string& job) {
  const auto found = jobs_.find(job);
  const auto oldest = events_.find(found->second.front());
  forgotten_ = std::max(forgotten_, oldest->first);
  bytes_ -= BytesOf(oldest->second);
  events_.erase(oldest);
  found->second.pop_front();
  if (found->second.empty()) jobs_.erase(found);
}

void Journal::DropQuietestJobLocked() {
  const auto quietest = std::min_element(
      jobs_.begin(), jobs_.end(), [](const auto& a, const auto& b) {
        return a.second.back() < b.second.back();
      });
  const std::string name = quietest->first;
  for (size_t left = quietest->second.size(); left > 0; --left) {
    DropOldestLocked(name);
  }
}

std::vector<JournalEvent> Journal::Read(const std::string& job, int64_t after,
                                        int limit) const {
  std::vector<JournalEvent> result;
  const size_t most = static_cast<size_t>(std::max(limit, 0));
  MutexLock lock(&mutex_);
  if (job.empty()) {
    for (auto event = events_.upper_bound(after);
         event != events_.end() && result.size() < most; ++event) {
      result.push_back(event->second);
    }
    return result;
  }
  const auto found = jobs_.find(job);
  if (found == jobs_.end()) return result;
  const Sequences& own = found->second;
  for (auto next = std::upper_bound(own.begin(), own.end(), after);
       next != own.end() && result.size() < most; ++next) {
    result.push_back(events_.at(*next));
  }
  return result;
}

int64_t Journal::newest() const {
  MutexLock lock(&mutex_);
  return newest_;
}

int64_t Journal::forgotten() const {
  MutexLock lock(&mutex_);
  return forgotten_;
}

uint64_t Journal::Listen(std::function<void()> on_news) {
  MutexLock lock(&listeners_mutex_);
  listeners_[++last_listener_] = std::move(on_news);
  return last_listener_;
}

void Journal::Forget(uint64_t listener) {
  MutexLock lock(&listeners_mutex_);
  listeners_.erase(listener);
}

void Journal::Tick() {
  MutexLock lock(&listeners_mutex_);
  const int64_t now = newest();
  if (now == told_) return;
  told_ = now;
  for (const auto& listener : listeners_) listener.second();
}

void Journal::Close() {
  MutexLock listeners_lock(&listeners_mutex_);
  {
    MutexLock lock(&mutex_);
    closed_ = true;
  }
  for (const auto& listener : listeners_) listener.second();
}

bool Journal::closed() const {
  MutexLock lock(&mutex_);
  return closed_;
}

JournalSink::JournalSink(Journal* journal, const Clock* clock)
    : journal_(journal), clock_(clock) {
  AddLogSink(this);
}

JournalSink::~JournalSink() { RemoveLogSink(this); }

void JournalSink::OnLine(const LogLine& line) {
  const bool of_job =
      std::any_of(line.fields.begin(), line.fields.end(),
                  [](const LogField& field) { return field.key == "job"; });
  if (!of_job) return;
  JournalEvent event;
  event.time = clock_->WallTime();
  event.level = std::string(line.level);
  event.event = std::string(line.event);
  for (const LogField& field : line.fields) {
    if (TakeField(field, &event)) continue;
    event.fields.emplace_back(field.key, field.value);
  }
  journal_->Note(std::move(event));
}

}  // namespace coxswain::server
