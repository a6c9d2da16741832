#include "client/device/launch.cuh"
#include "hooks/kernels/cuda/low_rank_project.h"
#include "hooks/kernels/cuda/low_rank_sums.h"
#include "hooks/kernels/cuda/low_rank_take.h"

// A type of T, a type of gradients, and a number of columns at a time.
#define COXSWAIN_LOW_RANK_WIDTH(T, Element, ...)                              \
  COXSWAIN_DEVICE_PROGRAM(coxswain::TakeProgram<T, Element, __VA_ARGS__>);    \
  COXSWAIN_DEVICE_PROGRAM(coxswain::ProjectProgram<T, Element, __VA_ARGS__>); \
  COXSWAIN_DEVICE_PROGRAM(coxswain::FinishProgram<T, Element, __VA_ARGS__>)

#define COXSWAIN_LOW_RANK(T, Element)            \
  COXSWAIN_LOW_RANK_WIDTH(T, Element, 1, false); \
  COXSWAIN_LOW_RANK_WIDTH(T, Element, 2, false); \
  COXSWAIN_LOW_RANK_WIDTH(T, Element, 4, false); \
  COXSWAIN_LOW_RANK_WIDTH(T, Element, 8, false); \
  COXSWAIN_LOW_RANK_WIDTH(T, Element, 8, true);  \
  COXSWAIN_DEVICE_PROGRAM(coxswain::SumsProgram<T, Element, false>)

COXSWAIN_LOW_RANK(float, coxswain::OwnElement<float>);
COXSWAIN_LOW_RANK(float, coxswain::Float16Element);
COXSWAIN_LOW_RANK(float, coxswain::BFloat16Element);
COXSWAIN_LOW_RANK(double, coxswain::OwnElement<double>);

COXSWAIN_DEVICE_PROGRAM(
    coxswain::SumsProgram<float, coxswain::OwnElement<float>, true>);
COXSWAIN_DEVICE_PROGRAM(
    coxswain::SumsProgram<double, coxswain::OwnElement<double>, true>);

COXSWAIN_DEVICE_PROGRAM(coxswain::CheckProgram<float>);
COXSWAIN_DEVICE_PROGRAM(coxswain::CheckProgram<double>);
