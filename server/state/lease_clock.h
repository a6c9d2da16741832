#ifndef COXSWAIN_SERVER_STATE_LEASE_CLOCK_H_
#define COXSWAIN_SERVER_STATE_LEASE_CLOCK_H_

#include "base/clock.h"

namespace coxswain::server {

// For a lease that others count as well: like Clock::Real(), but its Now() goes
// on while the machine is suspended, as theirs does. Never destroyed.
const Clock* LeaseClock();

}  // namespace coxswain::server

#endif  // COXSWAIN_SERVER_STATE_LEASE_CLOCK_H_
