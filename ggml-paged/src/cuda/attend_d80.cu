#include "cuda/attend_launch.cuh"

KVP_ATTEND_KERNELS(80, 80)
