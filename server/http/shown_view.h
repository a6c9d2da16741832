#ifndef COXSWAIN_SERVER_HTTP_SHOWN_VIEW_H_
#define COXSWAIN_SERVER_HTTP_SHOWN_VIEW_H_

#include "base/mutex.h"
#include "server/components/components.h"

namespace coxswain::server {

// The coordinator that a site shows, which ends once no request looks at it.
// Owned by the site. Thread-safe.
class ShownView {
 public:
  // Shows `view` to the readers made from now on. It must live until Hide() has
  // returned.
  void Show(const CoordinatorView& view) {
    MutexLock lock(&mutex_);
    view_ = &view;
  }
  // Readers made from now on see nothing. Returns once all readers of the view
  // have ended; it waits for no others, so that requests without a break cannot
  // delay it.
  void Hide() {
    MutexLock lock(&mutex_);
    view_ = nullptr;
    // A reader waits for nothing, so this takes no longer than one request.
    changed_.WaitForWork(&mutex_, [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
      return seeing_ == 0;
    });
  }

  // One request: the view that it sees stays valid until its end.
  class Reader {
   public:
    explicit Reader(const ShownView* shown) : shown_(shown) {
      MutexLock lock(&shown_->mutex_);
      view_ = shown_->view_;
      if (view_ != nullptr) ++shown_->seeing_;
    }
    ~Reader() {
      if (view_ == nullptr) return;
      MutexLock lock(&shown_->mutex_);
      if (--shown_->seeing_ == 0) shown_->changed_.NotifyAll();
    }
    Reader(const Reader&) = delete;
    Reader& operator=(const Reader&) = delete;

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
  mutable int seeing_ ABSL_GUARDED_BY(mutex_) = 0;  // readers of a view
};

}  // namespace coxswain::server

#endif  // COXSWAIN_SERVER_HTTP_SHOWN_VIEW_H_
