#ifndef COXSWAIN_SCHEDULE_PIPELINE_PICTURE_H_
#define COXSWAIN_SCHEDULE_PIPELINE_PICTURE_H_

#include <string>

#include "schedule/pipeline/schedule.h"
#include "schedule/pipeline/timing.h"

namespace coxswain::pipeline {

// Returns the passes of each rank over time, a line for each rank: "F0 B0---"
// where a rank has one stage, else "2F0 2B0----". A pass begins with its name
// and has a column for each unit of its time, whole units; "." is a unit in
// which the rank waits. Lines are cut at `width` characters, and go on below.
//
//   time    0              5
//   rank 0  F0 F1 .  .  B0--- .  B1---
//   rank 1  .  F0 B0--- F1 B1--- .  .
//
// `timing` is that of the schedule.
std::string DrawPicture(const Schedule& schedule, const Timing& timing,
                        int width);

}  // namespace coxswain::pipeline

#endif  // COXSWAIN_SCHEDULE_PIPELINE_PICTURE_H_
