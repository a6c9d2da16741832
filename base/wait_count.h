#ifndef COXSWAIN_BASE_WAIT_COUNT_H_
#define COXSWAIN_BASE_WAIT_COUNT_H_

#include <atomic>
#include <cstdint>

namespace coxswain {

// Counts the threads of a worker that stand still until other workers have done
// their part: those of the program, which goes on with nothing meanwhile.
// Thread-safe, and never waits.
class WaitCount {
 public:
  // Marks the calling thread for as long as it lives: the program goes on
  // beside this thread, whose waits do not count.
  class Background {
   public:
    Background() : before_(SetInBackground(true)) {}
    ~Background() { SetInBackground(before_); }
    Background(const Background&) = delete;
    Background& operator=(const Background&) = delete;

   private:
    const bool before_;
  };

  // A wait of the calling thread, for as long as it lives. `count` may be null:
  // it is not asked for.
  class Scope {
   public:
    explicit Scope(WaitCount* count)
        : count_(InBackground() ? nullptr : count) {
      if (count_ != nullptr) count_->waiting_.fetch_add(1);
    }
    ~Scope() {
      if (count_ == nullptr) return;
      if (!goes_on_) count_->ended_.fetch_add(1);
      count_->waiting_.fetch_sub(1);
    }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

    // What was waited for has not come: another wait takes this one up.
    void GoesOn() { goes_on_ = true; }

   private:
    WaitCount* const count_;
    bool goes_on_ = false;
  };

  // Returns whether a thread waits.
  bool any() const { return waiting_.load() > 0; }
  // Returns how many waits have ended.
  int64_t ended() const { return ended_.load(); }

 private:
  // Of the calling thread.
  static bool InBackground();
  // Returns what it was.
  static bool SetInBackground(bool is);

  std::atomic<int> waiting_{0};
  std::atomic<int64_t> ended_{0};
};

}  // namespace coxswain

#endif  // COXSWAIN_BASE_WAIT_COUNT_H_
