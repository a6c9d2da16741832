#ifndef COXSWAIN_SERVER_GENERATION_SCHEDULE_TYPES_H_
#define COXSWAIN_SERVER_GENERATION_SCHEDULE_TYPES_H_

#include "schedule/bounds.h"
#include "schedule/plan.h"
#include "schedule/plan_terms.h"
#include "schedule/schedule_errors.h"
#include "schedule/step_agreement.h"
#include "schedule/ticket.h"

namespace coxswain::server {

// The words of the room schedule/ are the server's own as well. The library
// has other structs of the same names, which is why these are in a namespace.

using schedule::CheckPlan;
using schedule::CheckPosition;
using schedule::kMaxStep;
using schedule::Plan;
using schedule::RankList;
using schedule::ReadTerms;
using schedule::Rounded;
using schedule::ScheduleMismatch;
using schedule::ScheduleMismatchError;
using schedule::StepAgreement;
using schedule::StepDecision;
using schedule::Ticket;
using schedule::Vote;

}  // namespace coxswain::server

#endif  // COXSWAIN_SERVER_GENERATION_SCHEDULE_TYPES_H_
