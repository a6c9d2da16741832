#ifndef COXSWAIN_CLIENT_ELASTIC_CATCH_UP_SOURCE_H_
#define COXSWAIN_CLIENT_ELASTIC_CATCH_UP_SOURCE_H_

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "client/device/tensor.h"
#include "client/elastic/catch_up/frame.h"
#include "client/elastic/catch_up/sender.h"
#include "client/session/session.h"
#include "schedule/ticket.h"

namespace coxswain::catch_up {

// A member's part of sending its state to newcomers while it trains: with each
// step it copies its share, and threads of their own send it. Of W ranks each
// has each W-th piece.
//
// The state that newcomers begin with may be copied beside training: it does
// not change from the end of a step until the optimizer takes the next one,
// which waits for the copy. A program that changes it in between has newcomers
// that find other bits in the end, and copy.
//
// Must outlive the members' next recovery: what was sent last is still on its
// way until then.
//
// Threading: the thread that trains.
class Source {
 public:
  struct Options {
    int rank = 0;
    int world_size = 0;
    int64_t generation = 0;
    int64_t lineage = 0;
    std::string host;
    // Beside twice this rank's share of the state: of what may be queued for a
    // newcomer.
    int64_t max_queued_bytes = int64_t{64} << 20;
    // Newcomers' first state is copied by a thread: EndStep returns at once,
    // and the spans' memory stays until the next CopyAverages or EndStep, or
    // the end of this object. Otherwise EndStep copies it.
    bool copies_beside_training = false;
  };
  // Returns those of a member: of this session, with this lineage.
  static Options OptionsOf(const Session& session, int64_t lineage);
  explicit Source(Options options) : options_(std::move(options)) {}
  // Ends a copy that is being made.
  ~Source();

  // Returns whether the state may still be read, by a thread.
  bool copying() const { return copier_.joinable(); }
  // Returns whether any newcomer is to get the averages of the next step, or
  // the state is still being copied.
  bool active() const;

  // Before the optimizer changes the state: waits for a copy of it, and copies
  // the share of averages that the optimizer is about to read.
  void CopyAverages(const std::vector<Span>& averages);

  struct Step {
    int64_t progress = 0;
    bool applied = false;  // with the averages that were copied last
    bool last = false;
    // Of rank 0: the small rest, that the state brings to a newcomer's.
    std::string rest;
    // Which begin with this step.
    std::vector<schedule::Newcomer> newcomers;
    // Returns the state's spans; called if they are needed.
    std::function<std::vector<Span>()> state;
  };
  void EndStep(const Step& step);

  // Returns what is to be reported of each newcomer.
  std::vector<NewcomerReport> Reports() const;

 private:
  int sources() const { return std::min(options_.world_size, kMaxSources); }
  bool sends() const { return options_.rank < sources(); }
  // The first of a step's frames.
  Frame StepFrame(const Step& step) const;
  void SendStep(const Step& step, std::vector<Frame> frames,
                Sender* sender) const;
  // Sends newcomers all of this rank's share.
  void Begin(const Step& step);
  // Copies the share, and has these senders send it, after a frame that has the
  // progress.
  void CopyState(const PiecesOf& state, const std::vector<int64_t>& own,
                 const Frame& first, const std::vector<Sender*>& senders) const;
  void AwaitCopy();
  // Returns fewer frames once `ended` is true, which it stays then.
  std::vector<Frame> Copy(Kind kind, const PiecesOf& from,
                          const std::vector<int64_t>& pieces,
                          const std::function<bool()>& ended) const;
  std::vector<int64_t> OwnPieces(const PiecesOf& of) const;

  const Options options_;
  std::map<uint64_t, std::unique_ptr<Sender>> senders_;  // by incarnation
  // Of the last ones that were named: those that are past the limit.
  std::vector<uint64_t> left_out_;
  std::vector<Frame> averages_;
  std::atomic<bool> stopping_ = false;
  std::thread copier_;  // of the state; of the newcomers that began last
};

}  // namespace coxswain::catch_up

#endif  // COXSWAIN_CLIENT_ELASTIC_CATCH_UP_SOURCE_H_
