#include <cstdint>

#include "client/device/launch.cuh"
#include "hooks/kernels/cuda/elementwise_programs.h"

#define COXSWAIN_ELEMENTWISE(...) \
  COXSWAIN_DEVICE_PROGRAM(coxswain::ElementwiseProgram<__VA_ARGS__>)

COXSWAIN_ELEMENTWISE(coxswain::NarrowBody<float, coxswain::Float16Element>);
COXSWAIN_ELEMENTWISE(coxswain::NarrowBody<float, coxswain::BFloat16Element>);
COXSWAIN_ELEMENTWISE(coxswain::NarrowBody<double, coxswain::Float16Element>);
COXSWAIN_ELEMENTWISE(coxswain::NarrowBody<double, coxswain::BFloat16Element>);

COXSWAIN_ELEMENTWISE(coxswain::WidenBody<float, coxswain::Float16Element>);
COXSWAIN_ELEMENTWISE(coxswain::WidenBody<float, coxswain::BFloat16Element>);
COXSWAIN_ELEMENTWISE(coxswain::WidenBody<double, coxswain::Float16Element>);
COXSWAIN_ELEMENTWISE(coxswain::WidenBody<double, coxswain::BFloat16Element>);

COXSWAIN_ELEMENTWISE(coxswain::DivideBody<coxswain::OwnElement<float>>);
COXSWAIN_ELEMENTWISE(coxswain::DivideBody<coxswain::OwnElement<double>>);
COXSWAIN_ELEMENTWISE(coxswain::DivideBody<coxswain::Float16Element>);
COXSWAIN_ELEMENTWISE(coxswain::DivideBody<coxswain::BFloat16Element>);

COXSWAIN_ELEMENTWISE(coxswain::AddBody<float>);
COXSWAIN_ELEMENTWISE(coxswain::AddBody<double>);

COXSWAIN_ELEMENTWISE(coxswain::CopyBody<uint16_t>);
COXSWAIN_ELEMENTWISE(coxswain::CopyBody<uint32_t>);
COXSWAIN_ELEMENTWISE(coxswain::CopyBody<uint64_t>);

COXSWAIN_ELEMENTWISE(coxswain::FillBody<uint16_t>);
COXSWAIN_ELEMENTWISE(coxswain::FillBody<uint32_t>);
COXSWAIN_ELEMENTWISE(coxswain::FillBody<uint64_t>);

COXSWAIN_DEVICE_PROGRAM(
    coxswain::CountNonFiniteProgram<coxswain::OwnElement<float>>);
COXSWAIN_DEVICE_PROGRAM(
    coxswain::CountNonFiniteProgram<coxswain::OwnElement<double>>);
COXSWAIN_DEVICE_PROGRAM(
    coxswain::CountNonFiniteProgram<coxswain::Float16Element>);
COXSWAIN_DEVICE_PROGRAM(
    coxswain::CountNonFiniteProgram<coxswain::BFloat16Element>);
COXSWAIN_DEVICE_PROGRAM(coxswain::SumPartialsProgram);
