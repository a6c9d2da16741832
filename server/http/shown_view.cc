#include "server/http/shown_view.h"

namespace coxswain::server {

void ShownView::Show(const CoordinatorView& view) {
  MutexLock lock(&mutex_);
  view_ = view;
}

void ShownView::Hide() {
  MutexLock lock(&mutex_);
  view_.reset();
  // A visit waits for nothing, so this does not either, for long.
  changed_.WaitForWork(&mutex_, [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
    return seeing_ == 0;
  });
}

ShownView::Visit::Visit(const ShownView* shown) : shown_(shown) {
  MutexLock lock(&shown_->mutex_);
  view_ = shown_->view_;
  if (view_.has_value()) ++shown_->seeing_;
}

ShownView::Visit::~Visit() {
  if (!view_.has_value()) return;
  MutexLock lock(&shown_->mutex_);
  if (--shown_->seeing_ == 0) shown_->changed_.NotifyAll();
}

}  // namespace coxswain::server
