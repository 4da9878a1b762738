// All kernels.
#pragma once

#include "cuda/attend_decode.cuh"
#include "cuda/attend_prefill_mma.cuh"
#include "cuda/merge.cuh"
#include "cuda/rows.cuh"
