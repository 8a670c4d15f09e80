// CUDA C on a CPU: what `base.cuh` includes instead of PTX when CUDA_HOST_SHIM is defined. Here is the CPU's version
// of every built-in that kernels use; in runtime.cpp one fiber per CUDA thread (fibers.h), a scheduler that a seed
// permutes (schedule.h) and meetings of threads (meetings.h).
#pragma once
#include "threads.h"
#include "undefined.h"
#include "vectors.h"
#include "warp.h"
#include "intrinsics.h"
#include "base_twins.h"
#include "mma_twins.h"

#ifndef __global__  // listing kernels defines it
#define __global__
#endif
#ifndef __launch_bounds__
#define __launch_bounds__(...)
#endif
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __restrict__ __restrict
#define __align__(n) __attribute__((aligned(n)))
#define __constant__ static const
#define __shared__ static  // filled for each block, swapped when another runs: schedule.h
#define __grid_constant__

#define threadIdx (shim::running->index)
#define blockIdx (shim::running->block->index)
#define blockDim (shim::grid.block_size)
#define gridDim (shim::grid.size)
#define warpSize 32
