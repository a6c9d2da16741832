#include "server/state/group_commit.h"

#include <cstddef>
#include <deque>
#include <thread>
#include <utility>

#include "base/mutex.h"

namespace coxswain::server {
namespace {

using Callback = std::function<void()>;

// Runs callbacks in order on a thread of its own.
class Caller {
 public:
  Caller() : thread_([this] { Run(); }) {}
  // Runs what is queued first.
  ~Caller() {
    {
      MutexLock lock(&mutex_);
      closed_ = true;
    }
    work_.NotifyOne();
    thread_.join();
  }

  void Add(std::vector<Callback> callbacks) {
    if (callbacks.empty()) return;
    {
      MutexLock lock(&mutex_);
      for (Callback& callback : callbacks) {
        queue_.push_back(std::move(callback));
      }
    }
    work_.NotifyOne();
  }

 private:
  void Run() {
    while (true) {
      std::deque<Callback> callbacks;
      {
        MutexLock lock(&mutex_);
        work_.WaitForWork(&mutex_, [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
          return closed_ || !queue_.empty();
        });
        if (queue_.empty()) return;
        callbacks.swap(queue_);
      }
      for (const Callback& callback : callbacks) callback();
    }
  }

  Mutex mutex_;
  CondVar work_;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  std::deque<Callback> queue_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace

// The batches that wait to be committed, and the thread that commits them.
class GroupCommit::Queue {
 public:
  struct Entry {
    StateBatch batch;
    size_t bytes = 0;
    absl::Status valid;
    // Called on the committing thread: must not take any lock of a caller.
    StateWriter::Done committed;
    StateWriter::Done done;
  };

  explicit Queue(StateStore* store)
      : store_(store), limits_(store->limits()), thread_([this] { Run(); }) {}
  ~Queue() {
    {
      MutexLock lock(&mutex_);
      closed_ = true;
    }
    work_.NotifyOne();
    thread_.join();
  }

  void Add(Entry entry) {
    // The same for each store, because the state may be moved to another one.
    entry.valid = StateStore::CheckBatch(entry.batch, StateStore::Limits());
    if (!entry.valid.ok()) entry.batch = StateBatch();
    entry.bytes = entry.batch.ByteSize();
    {
      MutexLock lock(&mutex_);
      entries_.push_back(std::move(entry));
    }
    work_.NotifyOne();
  }

 private:
  void Run() {
    while (true) {
      std::vector<Entry> entries = Take();
      if (entries.empty()) return;
      Commit(std::move(entries));
    }
  }

  // Returns as many as one transaction may hold, but one at least; none once
  // closed.
  std::vector<Entry> Take() {
    MutexLock lock(&mutex_);
    work_.WaitForWork(&mutex_, [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
      return closed_ || !entries_.empty();
    });
    std::vector<Entry> taken;
    size_t writes = 0;
    size_t bytes = 0;
    while (!entries_.empty()) {
      const Entry& next = entries_.front();
      writes += next.batch.writes().size();
      bytes += next.bytes;
      const bool fits = writes <= limits_.writes && bytes <= limits_.bytes;
      if (!fits && !taken.empty()) break;
      taken.push_back(std::move(entries_.front()));
      entries_.pop_front();
    }
    return taken;
  }

  void Commit(std::vector<Entry> entries) {
    const std::vector<absl::Status> outcomes = ApplyAll(entries);
    std::vector<Callback> callbacks;
    for (size_t i = 0; i < entries.size(); ++i) {
      if (entries[i].committed) entries[i].committed(outcomes[i]);
      if (!entries[i].done) continue;
      callbacks.push_back([done = std::move(entries[i].done),
                           outcome = outcomes[i]] { done(outcome); });
    }
    caller_.Add(std::move(callbacks));
  }

  std::vector<absl::Status> ApplyAll(const std::vector<Entry>& entries) {
    StateBatch all;
    for (const Entry& entry : entries) all.Append(entry.batch);
    const absl::Status together = ApplyOne(all);
    std::vector<absl::Status> outcomes;
    for (const Entry& entry : entries) {
      // By itself, so that only the one at fault fails.
      const bool again = !together.ok() && entries.size() > 1;
      outcomes.push_back(again ? ApplyOne(entry.batch) : together);
      outcomes.back().Update(entry.valid);
    }
    return outcomes;
  }

  absl::Status ApplyOne(const StateBatch& batch) {
    return batch.empty() ? absl::OkStatus() : store_->Apply(batch);
  }

  StateStore* const store_;
  const StateStore::Limits limits_;
  Caller caller_;
  Mutex mutex_;
  CondVar work_;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  std::deque<Entry> entries_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;
};

GroupCommit::GroupCommit(StateStore* store)
    : store_(store), queue_(std::make_unique<Queue>(store)) {}

GroupCommit::~GroupCommit() = default;

absl::StatusOr<std::string> GroupCommit::Get(absl::string_view table,
                                             absl::string_view key) const {
  return store_->Get(table, key);
}

absl::StatusOr<std::vector<StateStore::Record>> GroupCommit::List(
    absl::string_view table) const {
  return store_->List(table);
}

absl::StatusOr<std::vector<std::string>> GroupCommit::Tables(
    absl::string_view prefix) const {
  return store_->Tables(prefix);
}

absl::StatusOr<std::vector<StateStore::Damaged>> GroupCommit::FindDamaged()
    const {
  return store_->FindDamaged();
}

absl::Status GroupCommit::Apply(const StateBatch& batch) {
  struct Outcome {
    Mutex mutex;
    CondVar changed;
    bool known ABSL_GUARDED_BY(mutex) = false;
    absl::Status status ABSL_GUARDED_BY(mutex);
  };
  const auto outcome = std::make_shared<Outcome>();
  Queue::Entry entry;
  entry.batch = batch;
  entry.committed = [outcome](const absl::Status& status) {
    {
      MutexLock lock(&outcome->mutex);
      outcome->known = true;
      outcome->status = status;
    }
    outcome->changed.NotifyOne();
  };
  queue_->Add(std::move(entry));
  MutexLock lock(&outcome->mutex);
  // The committing thread always answers.
  outcome->changed.WaitForWork(
      &outcome->mutex,
      [&]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return outcome->known; });
  return outcome->status;
}

void GroupCommit::Write(StateBatch batch, Done done) {
  Queue::Entry entry;
  entry.batch = std::move(batch);
  entry.done = std::move(done);
  queue_->Add(std::move(entry));
}

void GroupCommit::AfterWritten(std::function<void()> done) {
  Queue::Entry entry;
  entry.done = [done = std::move(done)](const absl::Status& status) {
    static_cast<void>(status);
    done();
  };
  queue_->Add(std::move(entry));
}

}  // namespace coxswain::server
