#include "client/device/launch_for_test.h"

#include "client/device/launch.cuh"

COXSWAIN_DEVICE_PROGRAM(coxswain::SumOfBlock);
