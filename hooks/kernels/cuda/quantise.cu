#include "client/device/launch.cuh"
#include "hooks/kernels/cuda/quantise_programs.h"
#include "hooks/kernels/cuda/quantise_rare_programs.h"

namespace coxswain {

COXSWAIN_DEVICE_PROGRAM(QuantiseProgram<GradientSource<OwnElement<float>>>);
COXSWAIN_DEVICE_PROGRAM(QuantiseProgram<GradientSource<OwnElement<double>>>);
COXSWAIN_DEVICE_PROGRAM(QuantiseProgram<GradientSource<Float16Element>>);
COXSWAIN_DEVICE_PROGRAM(QuantiseProgram<GradientSource<BFloat16Element>>);
COXSWAIN_DEVICE_PROGRAM(QuantiseProgram<MeanSource<float>>);
COXSWAIN_DEVICE_PROGRAM(QuantiseProgram<MeanSource<double>>);
COXSWAIN_DEVICE_PROGRAM(DequantiseProgram<OwnElement<float>>);
COXSWAIN_DEVICE_PROGRAM(DequantiseProgram<OwnElement<double>>);
COXSWAIN_DEVICE_PROGRAM(DequantiseProgram<Float16Element>);
COXSWAIN_DEVICE_PROGRAM(DequantiseProgram<BFloat16Element>);
COXSWAIN_DEVICE_PROGRAM(FindBadScaleProgram);
COXSWAIN_DEVICE_PROGRAM(FoldProgram<float>);
COXSWAIN_DEVICE_PROGRAM(FoldProgram<double>);
COXSWAIN_DEVICE_PROGRAM(FlagNonFiniteProgram);
COXSWAIN_DEVICE_PROGRAM(FirstFlagProgram);

}  // namespace coxswain
