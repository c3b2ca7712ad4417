#pragma once

#include <ATen/core/Tensor.h>

// out[..., d] = silu(input[..., d]) * input[..., d + D], with D the last dimension of out.
void silu_and_mul(at::Tensor& out, const at::Tensor& input);

// out = input / sqrt(mean(input^2) + epsilon) * weight, over the last dimension.
void rms_norm(at::Tensor& out, const at::Tensor& input, const at::Tensor& weight, double epsilon);
