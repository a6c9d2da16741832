#ifndef COXSWAIN_SERVER_HTTP_SHOWN_VIEW_H_
#define COXSWAIN_SERVER_HTTP_SHOWN_VIEW_H_

#include "base/mutex.h"
#include "server/components/components.h"

namespace coxswain::server {

// The coordinator that a site shows, which ends once no request looks at it.
// Owned by the site. Thread-safe.
class ShownView {
 public:
  // What visits see that begin from now on. It lives until Hide() has returned.
  void Show(const CoordinatorView& view) {
    MutexLock lock(&mutex_);
    view_ = &view;
  }
  // Visits that begin from now on see nothing. Returns once those have ended
  // that see what was shown; the others are not waited for, so that requests
  // without a break cannot hold it up.
  void Hide() {
    MutexLock lock(&mutex_);
    view_ = nullptr;
    // A visit waits for nothing, so this does not either, for long.
    changed_.WaitForWork(&mutex_, [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
      return seeing_ == 0;
    });
  }

  // One request. What it sees stays until its end.
  class Visit {
   public:
    explicit Visit(const ShownView* shown) : shown_(shown) {
      MutexLock lock(&shown_->mutex_);
      view_ = shown_->view_;
      if (view_ != nullptr) ++shown_->seeing_;
    }
    ~Visit() {
      if (view_ == nullptr) return;
      MutexLock lock(&shown_->mutex_);
      if (--shown_->seeing_ == 0) shown_->changed_.NotifyAll();
    }
    Visit(const Visit&) = delete;
    Visit& operator=(const Visit&) = delete;

    // Null: nothing is shown.
    const CoordinatorView* view() const { return view_; }

   private:
    const ShownView* const shown_;
    const CoordinatorView* view_ = nullptr;
  };

 private:
  mutable Mutex mutex_;
  mutable CondVar changed_;
  const CoordinatorView* view_ ABSL_GUARDED_BY(mutex_) = nullptr;
  mutable int seeing_ ABSL_GUARDED_BY(mutex_) = 0;  // visits that see a view
};

}  // namespace coxswain::server

#endif  // COXSWAIN_SERVER_HTTP_SHOWN_VIEW_H_
