#ifndef COXSWAIN_BASE_HOST_DEVICE_H_
#define COXSWAIN_BASE_HOST_DEVICE_H_

// Before a function that the CPU and a GPU run alike: with nvcc it is compiled
// for both, and with any other compiler the word is empty.
#ifdef __CUDACC__
#define COXSWAIN_HOST_DEVICE __host__ __device__
#else
#define COXSWAIN_HOST_DEVICE
#endif

#endif  // COXSWAIN_BASE_HOST_DEVICE_H_
