#include "client/device/arithmetic_programs.h"
#include "client/device/launch.cuh"

#define COXSWAIN_FOR_EACH_ELEMENT(program)                          \
  COXSWAIN_DEVICE_PROGRAM(                                          \
      coxswain::arithmetic::program<coxswain::OwnElement<float>>);  \
  COXSWAIN_DEVICE_PROGRAM(                                          \
      coxswain::arithmetic::program<coxswain::OwnElement<double>>); \
  COXSWAIN_DEVICE_PROGRAM(                                          \
      coxswain::arithmetic::program<coxswain::Float16Element>);     \
  COXSWAIN_DEVICE_PROGRAM(                                          \
      coxswain::arithmetic::program<coxswain::BFloat16Element>)

COXSWAIN_FOR_EACH_ELEMENT(ScaleElements);
COXSWAIN_FOR_EACH_ELEMENT(AddElements);
COXSWAIN_FOR_EACH_ELEMENT(MeasureChunks);
COXSWAIN_DEVICE_PROGRAM(coxswain::arithmetic::SumChunks);
