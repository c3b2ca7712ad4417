#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

// out[i] = input[i] * factor, single precision.
cudaError_t launch_scale(float* out, const float* input, int64_t count, float factor,
                         cudaStream_t stream);
