#include "client/elastic/catch_up/source.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <new>
#include <thread>
#include <utility>

#include "base/crc32c.h"
#include "base/host_name.h"
#include "base/start_thread.h"

namespace coxswain::catch_up {
namespace {

// Copies that the thread that trains makes are made to their end.
bool Never() { return false; }

}  // namespace

Source::Options Source::OptionsOf(const Session& session, int64_t lineage) {
  Options options;
  options.rank = session.rank();
  options.world_size = session.world_size();
  options.generation = session.generation();
  options.lineage = lineage;
  options.host = HostName();
  return options;
}

std::vector<int64_t> Source::OwnPieces(const PiecesOf& of) const {
  std::vector<int64_t> own;
  for (int64_t piece = options_.rank; piece < of.pieces(); piece += sources()) {
    own.push_back(piece);
  }
  return own;
}

std::vector<Frame> Source::Copy(Kind kind, const PiecesOf& from,
                                const std::vector<int64_t>& pieces,
                                const std::function<bool()>& ended) const {
  // Without zeros, which would be written over.
  const std::shared_ptr<char[]> memory(
      new char[static_cast<size_t>(from.SizeOf(pieces))]);
  char* to = memory.get();
  std::vector<Frame> frames;
  for (const int64_t piece : pieces) {
    if (ended()) break;
    Frame frame;
    frame.header.kind = kind;
    frame.header.number = piece;
    frame.payload = {memory, to, from.SizeOf(piece)};
    from.Visit(piece, [&](const char* data, int64_t run) {
      const auto size = static_cast<size_t>(run);
      std::memcpy(to, data, size);
      // Of averages that of the tensors themselves: what happens to the copy is
      // found out. The state is read beside training, and a program that
      // changes it meanwhile has damaged nothing.
      const char* const checked = kind == Kind::kState ? to : data;
      frame.header.checksum =
          Crc32c(absl::string_view(checked, size), frame.header.checksum);
      to += run;
    });
    frames.push_back(std::move(frame));
  }
  return frames;
}

Source::~Source() {
  stopping_ = true;
  AwaitCopy();
}

void Source::AwaitCopy() {
  if (copier_.joinable()) copier_.join();
}

void Source::CopyAverages(const std::vector<Span>& averages) {
  AwaitCopy();
  averages_.clear();
  if (!sends()) return;
  const PiecesOf pieces(averages);
  averages_ = Copy(Kind::kAverages, pieces, OwnPieces(pieces), Never);
}

bool Source::active() const {
  return copier_.joinable() ||
         std::any_of(senders_.begin(), senders_.end(),
                     [](const auto& entry) { return !entry.second->failed(); });
}

void Source::EndStep(const Step& step) {
  AwaitCopy();
  if (!sends()) return;
  const std::vector<Frame> averages = std::exchange(averages_, {});
  // To those that had the state before.
  std::vector<Frame> frames = {StepFrame(step)};
  if (step.applied) {
    frames.insert(frames.end(), averages.begin(), averages.end());
  }
  for (auto& [incarnation, sender] : senders_) {
    if (sender->failed()) continue;
    // All members would wait for it at the regroup. It reports to rank 0 alone.
    // What was damaged may come with this step.
    if (step.last && options_.rank == 0 && !sender->in_step()) {
      sender->Drop("it is not in step when the members regroup");
      continue;
    }
    SendStep(step, frames, sender.get());
  }
  Begin(step);
}

Frame Source::StepFrame(const Step& step) const {
  Frame frame;
  frame.header.kind = Kind::kStep;
  frame.header.flags = (step.applied ? kApplied : 0) | (step.last ? kLast : 0);
  if (options_.rank != 0 || step.rest.empty()) return frame;
  const std::shared_ptr<char[]> memory(new char[step.rest.size()]);
  std::memcpy(memory.get(), step.rest.data(), step.rest.size());
  frame.payload = {memory, memory.get(),
                   static_cast<int64_t>(step.rest.size())};
  frame.header.checksum = Crc32c(step.rest);
  return frame;
}

void Source::SendStep(const Step& step, std::vector<Frame> frames,
                      Sender* sender) const {
  std::vector<int64_t> asked = sender->TakeAsked();
  if (!asked.empty()) {
    const PiecesOf state(step.state());
    asked.erase(
        std::remove_if(asked.begin(), asked.end(),
                       [&](int64_t piece) { return piece >= state.pieces(); }),
        asked.end());
    // Before they are copied.
    const auto most = static_cast<int64_t>(asked.size()) * kPieceBytes;
    if (!sender->Fits(most)) return;
    for (Frame& frame : Copy(Kind::kState, state, asked, Never)) {
      frames.push_back(std::move(frame));
    }
  }
  frames.front().header.number = static_cast<int64_t>(asked.size());
  for (Frame& frame : frames) frame.header.progress = step.progress;
  sender->Send(std::move(frames), step.progress);
}

void Source::Begin(const Step& step) {
  if (step.newcomers.empty()) return;
  // Those are settled, at the coordinator too.
  for (auto sender = senders_.begin(); sender != senders_.end();) {
    sender =
        sender->second->failed() ? senders_.erase(sender) : std::next(sender);
  }
  left_out_.clear();
  const PiecesOf state(step.state());
  const std::vector<int64_t> own = OwnPieces(state);
  std::vector<Sender*> begun;
  for (const schedule::Newcomer& newcomer : step.newcomers) {
    if (senders_.count(newcomer.incarnation) > 0) continue;
    if (senders_.size() >= schedule::kMaxNewcomers) {
      left_out_.push_back(newcomer.incarnation);
      continue;
    }
    Sender::Options options;
    options.address = newcomer.address;
    options.hello = {newcomer.secret, options_.generation, options_.lineage,
                     options_.rank, sources()};
    options.host = options_.host;
    options.max_queued_bytes =
        2 * state.SizeOf(own) + options_.max_queued_bytes;
    auto sender = std::make_unique<Sender>(std::move(options));
    begun.push_back(sender.get());
    senders_.emplace(newcomer.incarnation, std::move(sender));
  }
  if (begun.empty()) return;
  Frame first = StepFrame(step);
  first.header.flags = kBegins;
  first.header.number = static_cast<int64_t>(own.size());
  first.header.progress = step.progress;
  const auto copy = [this, state, own, first, begun] {
    CopyState(state, own, first, begun);
  };
  if (!options_.copies_beside_training) return copy();
  absl::StatusOr<std::thread> copier = StartThread(copy);
  if (!copier.ok()) return copy();
  copier_ = *std::move(copier);
}

void Source::CopyState(const PiecesOf& state, const std::vector<int64_t>& own,
                       const Frame& first,
                       const std::vector<Sender*>& senders) const {
  const auto ended = [&] {
    return stopping_ ||
           std::all_of(senders.begin(), senders.end(),
                       [](const Sender* sender) { return sender->failed(); });
  };
  // It may be on a thread of its own, which no exception may leave.
  try {
    const int64_t progress = first.header.progress;
    std::vector<Frame> frames = {first};
    for (Frame& frame : Copy(Kind::kState, state, own, ended)) {
      frames.push_back(std::move(frame));
    }
    // Some may be missing.
    if (ended()) return;
    for (Frame& frame : frames) frame.header.progress = progress;
    for (Sender* const sender : senders) sender->Send(frames, progress);
  } catch (const std::bad_alloc&) {
    for (Sender* const sender : senders) {
      sender->Drop("there is no memory for a copy of the state");
    }
  }
}

std::vector<NewcomerReport> Source::Reports() const {
  std::vector<NewcomerReport> reports;
  for (const auto& [incarnation, sender] : senders_) {
    reports.push_back({incarnation, sender->settled(), sender->damage()});
  }
  for (const uint64_t incarnation : left_out_) {
    reports.insert(reports.begin(), {incarnation, /*settled=*/true, ""});
  }
  return reports;
}

}  // namespace coxswain::catch_up
