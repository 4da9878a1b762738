#include "cuda/attend_launch.cuh"

KVP_ATTEND_KERNELS(256, 256)
