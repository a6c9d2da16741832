#ifndef COXSWAIN_SERVER_HTTP_SITE_H_
#define COXSWAIN_SERVER_HTTP_SITE_H_

#include "absl/time/time.h"
#include "base/clock.h"
#include "server/components/components.h"
#include "server/http/http_server.h"
#include "server/http/shown_view.h"

namespace coxswain::server {

// What a coordinator answers over HTTP: /api/v1 as docs/observability.md has
// it, /metrics, /healthz, /readyz, and the files of the status page. Made
// before its coordinator, so that one that stands by answers too. Changes
// nothing. Thread-safe.
class Site {
 public:
  // A coordinator that has not looked at its deadlines for so long is not
  // healthy: many times as long as the longest of its ticks.
  static constexpr absl::Duration kTickLimit = absl::Seconds(15);

  // `insecure`: shown in the answer to /api/v1/version. `clock` outlives it.
  explicit Site(bool insecure = false, const Clock* clock = Clock::Real());

  // What is shown from now on, until Hide() returns: it waits for the requests
  // that are under way, which do not wait for anything.
  void Show(const CoordinatorView& view) { shown_.Show(view); }
  void Hide() { shown_.Hide(); }

  HttpAnswer Answer(const HttpRequest& request) const;

 private:
  HttpAnswer Api(const HttpRequest& request, const CoordinatorView& view) const;
  HttpAnswer Version(const CoordinatorView& view) const;
  HttpAnswer Health(const CoordinatorView* view) const;
  HttpAnswer Ready(const CoordinatorView* view) const;

  const bool insecure_;
  const Clock* const clock_;
  // From readings of the clock to the calendar. Once, so that the same moment
  // is always shown in the same way.
  const absl::Duration calendar_;
  ShownView shown_;
};

}  // namespace coxswain::server

#endif  // COXSWAIN_SERVER_HTTP_SITE_H_
