#ifndef COXSWAIN_SERVER_HTTP_SHOWN_VIEW_H_
#define COXSWAIN_SERVER_HTTP_SHOWN_VIEW_H_

#include <optional>

#include "base/mutex.h"
#include "server/coordinator_view.h"

namespace coxswain::server {

// The coordinator that a site shows, which ends once no request looks at it.
// Owned by the site. Thread-safe.
class ShownView {
 public:
  // What visits see that begin from now on.
  void Show(const CoordinatorView& view);
  // Visits that begin from now on see nothing. Returns once those have ended
  // that see what was shown; the others are not waited for, so that requests
  // without a break cannot hold it up.
  void Hide();

  // One request. What it sees stays until its end.
  class Visit {
   public:
    explicit Visit(const ShownView* shown);
    ~Visit();
    Visit(const Visit&) = delete;
    Visit& operator=(const Visit&) = delete;

    // Null: nothing is shown.
    const CoordinatorView* view() const {
      return view_.has_value() ? &*view_ : nullptr;
    }

   private:
    const ShownView* const shown_;
    std::optional<CoordinatorView> view_;
  };

 private:
  mutable Mutex mutex_;
  mutable CondVar changed_;
  std::optional<CoordinatorView> view_ ABSL_GUARDED_BY(mutex_);
  mutable int seeing_ ABSL_GUARDED_BY(mutex_) = 0;  // visits that see a view
};

}  // namespace coxswain::server

#endif  // COXSWAIN_SERVER_HTTP_SHOWN_VIEW_H_
