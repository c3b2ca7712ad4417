#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

// Rotates pairs (x[i], x[i + half]) of every row of `data` (rows x 2*half, half precision) in
// place by the angle position[row] * base^(-i / half).
cudaError_t launch_rotate_half(void* data, const int64_t* positions, int64_t rows, int half,
                               float base, cudaStream_t stream);
