#include "client/device/launch.cuh"
#include "hooks/kernels/cuda/orthogonalise_gram.h"
#include "hooks/kernels/cuda/orthogonalise_solve.h"

COXSWAIN_DEVICE_PROGRAM(coxswain::FewGramProgram<1>);
COXSWAIN_DEVICE_PROGRAM(coxswain::FewGramProgram<2>);
COXSWAIN_DEVICE_PROGRAM(coxswain::FewGramProgram<4>);
COXSWAIN_DEVICE_PROGRAM(coxswain::ManyGramProgram<8>);
COXSWAIN_DEVICE_PROGRAM(coxswain::ManyGramProgram<coxswain::kMostGramColumns>);

COXSWAIN_DEVICE_PROGRAM(coxswain::SolveProgram<float, 1>);
COXSWAIN_DEVICE_PROGRAM(coxswain::SolveProgram<float, 2>);
COXSWAIN_DEVICE_PROGRAM(coxswain::SolveProgram<float, 4>);
COXSWAIN_DEVICE_PROGRAM(coxswain::SolveProgram<float, 8>);
COXSWAIN_DEVICE_PROGRAM(
    coxswain::SolveProgram<float, coxswain::kMostGramColumns>);
COXSWAIN_DEVICE_PROGRAM(coxswain::SolveProgram<double, 1>);
