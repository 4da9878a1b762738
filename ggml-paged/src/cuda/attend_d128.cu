#include "cuda/attend_launch.cuh"

KVP_ATTEND_KERNELS(128, 128)
