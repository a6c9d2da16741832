#include "server/journal/journal_sink.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/numbers.h"

namespace coxswain::server {
namespace {

template <typename Number>
bool TakeNumber(const LogField& field, Number* number) {
  Number value = 0;
  if (!absl::SimpleAtoi(field.value, &value)) return false;
  *number = value;
  return true;
}

// Whether the field has a place of its own in an event, and is a fit value.
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
